"""FLIP-27 event-time sources for Spark Structured Streaming.

`read_stream(spark)` is where to begin: a reader like Spark's, whose frames have the exact watermark. `from_source`
gives such a frame over a `Source` and a `WatermarkStrategy`. `explain(query)` says why its watermark stands there.
All that a program needs is here; who writes a connector finds the rest in `streaming_source.api`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "MAX_WATERMARK",
    "MIN_WATERMARK",
    "NO_TIMESTAMP",
    "AlignmentListener",
    "CallableTimestampAssigner",
    "DataGeneratorSource",
    "DeltaSource",
    "EventTimes",
    "FieldTimestampAssigner",
    "FileSource",
    "IcebergSource",
    "KafkaSource",
    "Repair",
    "TimestampAssigner",
    "WatermarkGenerator",
    "WatermarkOutput",
    "WatermarkStrategy",
    "__version__",
    "advise",
    "audit",
    "complete_until",
    "cut_from",
    "explain",
    "from_source",
    "late_records",
    "read_stream",
    "register",
    "repair",
    "required_delay",
    "with_exact_watermark",
]

if TYPE_CHECKING:
    from alignment.strategy import WatermarkStrategy
    from alignment.timestamps import (
        NO_TIMESTAMP,
        CallableTimestampAssigner,
        EventTimes,
        FieldTimestampAssigner,
        TimestampAssigner,
    )
    from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK, WatermarkGenerator, WatermarkOutput
    from streaming_source.auditing import audit
    from streaming_source.connectors import DataGeneratorSource, DeltaSource, FileSource, IcebergSource, KafkaSource
    from streaming_source.monitoring.explained import explain
    from streaming_source.spark.exact_watermark import with_exact_watermark
    from streaming_source.spark.frames import from_source, late_records, read_stream
    from streaming_source.spark.registration import register
    from streaming_source.spark.repair import Repair, repair
    from streaming_source.spark.watermark_rows import required_delay
    from streaming_source.tools.advise import advise
    from streaming_source.tools.completeness import complete_until
    from streaming_source.tools.history_cut import cut_from
    from streaming_source.tools.listener import AlignmentListener

_HOMES = {
    "alignment.strategy": ["WatermarkStrategy"],
    "alignment.timestamps": [
        *("NO_TIMESTAMP", "CallableTimestampAssigner", "EventTimes", "FieldTimestampAssigner", "TimestampAssigner"),
    ],
    "alignment.watermarks": ["MAX_WATERMARK", "MIN_WATERMARK", "WatermarkGenerator", "WatermarkOutput"],
    "streaming_source.auditing": ["audit"],
    "streaming_source.tools.completeness": ["complete_until"],
    "streaming_source.connectors": ["DataGeneratorSource", "DeltaSource", "FileSource", "IcebergSource", "KafkaSource"],
    "streaming_source.tools.history_cut": ["cut_from"],
    "streaming_source.monitoring.explained": ["explain"],
    "streaming_source.tools.advise": ["advise"],
    "streaming_source.spark.exact_watermark": ["with_exact_watermark"],
    "streaming_source.spark.frames": ["from_source", "late_records", "read_stream"],
    "streaming_source.tools.listener": ["AlignmentListener"],
    "streaming_source.spark.registration": ["register"],
    "streaming_source.spark.repair": ["Repair", "repair"],
    "streaming_source.spark.watermark_rows": ["required_delay"],
}


if not TYPE_CHECKING:  # A type checker knows the names above, and refuses others.

    def __getattr__(name: str) -> Any:
        # Lazily: the source model is of use without Spark, and importing PySpark takes a second.
        for home, names in _HOMES.items():
            if name in names:
                try:
                    return getattr(import_module(home), name)
                except ModuleNotFoundError as error:
                    if (error.name or "").partition(".")[0] == "pyspark":
                        raise type(error)(_without_pyspark(name), name=error.name) from None
                    if (error.name or "").partition(".")[0] != "alignment":
                        raise
                    raise ModuleNotFoundError(_another_alignment(error.name), name=error.name) from None
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _another_alignment(name: str | None) -> str:
    return (
        f"no {name}: the 'alignment' in {getattr(sys.modules.get('alignment'), '__file__', None)} is not that of "
        "spark-watermark-alignment.\nRename your own module of that name, or uninstall the project 'alignment', and "
        "install spark-watermark-alignment again"
    )


def _without_pyspark(name: str) -> str:
    try:
        from pyspark import __version__ as version
    except ModuleNotFoundError:
        return (
            f"streaming_source.{name} needs PySpark 4.0 or later, which {sys.executable} does not have.\n"
            "On a cluster or platform run the Python that its Spark comes with; elsewhere install "
            "spark-watermark-alignment[pyspark]"
        )
    return (
        f"PySpark {version} has no Python data sources, which came with 4.0.\n"
        "Use a platform with Spark 4.0 or later (docs/cluster.md names them), and install pyspark>=4.0"
    )


def __dir__() -> list[str]:
    # Packages of the house that a program has loaded are no names for users, but for those of who writes a connector.
    packages = {name for name in ("api", "connectors", "reader", "testing") if name in globals()}
    return sorted({*__all__, *packages, *(name for name in globals() if name.startswith("__"))})

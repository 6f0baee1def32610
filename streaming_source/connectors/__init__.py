"""Sources that come with the library. Each is imported when it is used, so that none needs another's libraries."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["DataGeneratorSource", "DeltaSource", "FileSource", "IcebergSource", "KafkaSource"]

if TYPE_CHECKING:
    from streaming_source.connectors.datagen import DataGeneratorSource
    from streaming_source.connectors.delta import DeltaSource
    from streaming_source.connectors.files import FileSource
    from streaming_source.connectors.iceberg import IcebergSource
    from streaming_source.connectors.kafka import KafkaSource

_MODULES = {
    "DataGeneratorSource": "datagen",
    "DeltaSource": "delta",
    "FileSource": "files",
    "IcebergSource": "iceberg",
    "KafkaSource": "kafka",
}

_EXTRAS = {"confluent_kafka": ("confluent-kafka", "kafka"), "deltalake": ("deltalake", "delta")}
"""Module of a client library -> its distribution, and the extra that brings it."""


if not TYPE_CHECKING:  # A type checker knows the names above, and refuses others.

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        except ModuleNotFoundError as error:
            if error.name not in _EXTRAS:
                raise
            library, extra = _EXTRAS[error.name]
            raise ModuleNotFoundError(
                f"{name} needs {library}: install spark-watermark-alignment[{extra}]", name=error.name
            ) from None


def __dir__() -> list[str]:
    submodules = {name for name in globals() if f"{__name__}.{name}" in sys.modules}
    return sorted({*__all__, *submodules, *(name for name in globals() if name.startswith("__"))})

"""From a frame back to what it was loaded from: format and options, as its plan has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streaming_source.exceptions import OptionError
from streaming_source.spark.datasource import FORMATS
from streaming_source.spark.watermark_rows import DELAY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Loaded", "loaded_from"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """What `readStream` was given.

    Attributes
    ----------
    format_name
        One of `FORMATS`.
    options
        As they were given, `path` among them.
    source_name
        Given by `readStream.name`, or None.
    """

    format_name: str
    options: Mapping[str, str]
    source_name: str | None = None


def loaded_from(df: DataFrame) -> Loaded:
    """What a streaming frame was loaded from; on the way it must have met no operation at all.

    An operation in between may drop watermark rows, or the column that carries their times. Which ones do not is
    Spark's to know, and changes: so none may be there.

    Raises
    ------
    OptionError
        If it is not a streaming frame of one of `FORMATS`, as loaded.
    """
    if not df.isStreaming:
        raise OptionError(
            "with_exact_watermark needs a streaming frame, of readStream: batch reads have no watermark; leave it out"
        )
    return _from_classic_plan(df) if hasattr(df, "_jdf") else _from_connect_plan(df)


def _from_classic_plan(df: Any) -> Loaded:
    node = df._jdf.queryExecution().analyzed()
    met = []
    while (children := node.children()).size() == 1:
        is_ours = node.nodeName() == "EventTimeWatermark" and node.delay().toString() == f"{DELAY.days} days"
        met.append("the exact watermark" if is_ours else node.nodeName())
        node = children.head()
    if children.size() > 1:
        met.append(node.nodeName())
    _refuse(met)
    format_name = node.sourceName() if node.nodeName() == "StreamingRelationV2" else node.nodeName()
    _check_format(format_name)
    name = node.sourceIdentifyingName().nameOpt()
    options = dict(node.extraOptions().asCaseSensitiveMap())
    return Loaded(format_name.lower(), options, name.get() if name.isDefined() else None)


def _from_connect_plan(df: Any) -> Loaded:
    node = df._plan
    met = []
    while getattr(node, "_child", None) is not None:
        is_ours = getattr(node, "_delay_threshold", None) == f"{DELAY.days} days"
        met.append("the exact watermark" if is_ours else type(node).__name__)
        node = node._child
    is_source = type(node).__name__ == "DataSource"
    if not is_source:
        met.append(type(node).__name__)
    _refuse(met)
    _check_format(node._format)
    path = {"path": node._paths[0]} if node._paths else {}
    return Loaded(node._format.lower(), {**(node._options or {}), **path}, node._source_name)


def _refuse(met: list[str]) -> None:
    if "the exact watermark" in met:
        raise OptionError(
            "with_exact_watermark: this frame carries the exact watermark already (from read_stream, from_source or "
            "with_exact_watermark); leave the call out"
        )
    if met:
        raise OptionError(
            f"with_exact_watermark needs a frame as load() gave it; this one has {', '.join(reversed(met))} on it. "
            "Call it right after load(), or load with read_stream(spark), and filter, select and join afterwards"
        )


def _check_format(name: str | None) -> None:
    if name is None or name.lower() not in FORMATS:
        raise OptionError(
            f"with_exact_watermark needs a frame of {', '.join(sorted(FORMATS))}; this one is of {name}: call its "
            "withWatermark instead"
        )

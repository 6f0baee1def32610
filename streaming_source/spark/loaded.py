"""From a frame back to what it was loaded from: format and options, as its plan has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

from streaming_source.exceptions import OptionError
from streaming_source.spark.datasource import FORMATS
from streaming_source.spark.watermark_rows import DELAY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["SOURCE_FORMAT", "Loaded", "loaded_from", "sources_of"]

SOURCE_FORMAT: Final = "aligned_source_"
"""How the names of the formats begin that `from_source` makes."""

_EXACT: Final = "the exact watermark"
_EXACT_FRAME: Final = ["Project", "CollectMetrics", "Filter", _EXACT]
"""What `exact_frame` puts on a frame, from above."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What `readStream` was given.

    Attributes
    ----------
    format_name
        One of `FORMATS`, or one that `from_source` made.
    options
        As they were given, `path` among them.
    source_name
        Given by `readStream.name`, or None.
    is_exact
        The frame has the exact watermark on it.
    """

    format_name: str
    options: Mapping[str, str]
    source_name: str | None = None
    is_exact: bool = False


def loaded_from(df: DataFrame, caller: str = "with_exact_watermark", *, may_be_exact: bool = False) -> Loaded:
    """What a streaming frame was loaded from; on the way it must have met no operation at all.

    An operation in between may drop watermark rows, or the column that carries their times. Which ones do not is
    Spark's to know, and changes: so none may be there.

    Parameters
    ----------
    df
        The frame.
    caller
        Whom an error names.
    may_be_exact
        The exact watermark may be on it, and nothing else.

    Raises
    ------
    OptionError
        If it is not a streaming frame of one of our formats, as loaded.
    """
    if not df.isStreaming:
        raise OptionError(
            f"{caller} needs a streaming frame, of readStream: batch reads have no watermark; leave it out"
        )
    loaded, met = _from_classic_plan(df) if hasattr(df, "_jdf") else _from_connect_plan(df)
    is_exact = may_be_exact and met == _EXACT_FRAME
    if not is_exact:
        _refuse(met, caller, may_be_exact=may_be_exact)
    name = loaded.format_name
    if name not in FORMATS and not (is_exact and name.startswith(SOURCE_FORMAT)):
        raise OptionError(
            f"{caller} needs a frame of {', '.join(sorted(FORMATS))}; this one is of {loaded.format_name}, whose "
            "watermark is withWatermark: call that instead"
        )
    return replace(loaded, is_exact=is_exact)


def sources_of(df: DataFrame | StreamingQuery) -> list[Loaded]:
    """What a streaming frame, or a query, was loaded from, of whatever formats, with whatever operations on it.

    Under Spark Connect a join or a union has one source without a name, which is of no format.

    Raises
    ------
    OptionError
        If it is a batch frame, or a query under Spark Connect, whose plan only the server has.
    """
    plan: Any
    # Of the class: under Spark Connect a frame has every attribute, as a column.
    if hasattr(type(df), "_jsq") or "_jsq" in vars(df):
        plan = cast("Any", df)._jsq.streamingQuery().analyzedPlan()
    elif not getattr(df, "isStreaming", False):
        raise OptionError(
            "advise needs a streaming frame or a query; under Spark Connect only the server has a query's plan: give "
            "it the frame"
        )
    elif hasattr(df, "_jdf"):
        plan = df._jdf.queryExecution().analyzed()
    else:
        return [_from_connect_plan(df)[0]]
    leaves = plan.collectLeaves()
    return [_classic_source(leaves.apply(i)) for i in range(leaves.size())]


def _from_classic_plan(df: Any) -> tuple[Loaded, list[str]]:
    node = df._jdf.queryExecution().analyzed()
    met = []
    while (children := node.children()).size() == 1:
        is_ours = node.nodeName() == "EventTimeWatermark" and node.delay().toString() == f"{DELAY.days} days"
        met.append(_EXACT if is_ours else node.nodeName())
        node = children.head()
    if children.size() > 1:
        return Loaded("", {}), [*met, node.nodeName()]
    return _classic_source(node), met


def _classic_source(node: Any) -> Loaded:
    if node.nodeName() != "StreamingRelationV2":
        return Loaded(node.nodeName(), {})
    name = node.sourceIdentifyingName().nameOpt()
    options = dict(node.extraOptions().asCaseSensitiveMap())
    return Loaded(node.sourceName().lower(), options, name.get() if name.isDefined() else None)


def _from_connect_plan(df: Any) -> tuple[Loaded, list[str]]:
    node = df._plan
    met = []
    while getattr(node, "_child", None) is not None:
        is_ours = getattr(node, "_delay_threshold", None) == f"{DELAY.days} days"
        met.append(_EXACT if is_ours else type(node).__name__)
        node = node._child
    if type(node).__name__ != "DataSource":
        return Loaded("", {}), [*met, type(node).__name__]
    return _connect_source(node), met


def _connect_source(node: Any) -> Loaded:
    path = {"path": node._paths[0]} if node._paths else {}
    return Loaded((node._format or "").lower(), {**(node._options or {}), **path}, node._source_name)


def _refuse(met: list[str], caller: str, *, may_be_exact: bool) -> None:
    if _EXACT in met and not may_be_exact:
        raise OptionError(
            f"{caller}: this frame carries the exact watermark already (from read_stream, from_source or "
            "with_exact_watermark); leave the call out"
        )
    if met:
        raise OptionError(
            f"{caller} needs a frame as load() gave it; this one has {', '.join(reversed(met))} on it. "
            "Call it right after load(), or load with read_stream(spark), and filter, select and join afterwards"
        )

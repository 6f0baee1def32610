"""Advice on a query as a whole, which no source of it explains: a second watermark, a source that holds the others.

**A second watermark**: `withWatermark` on a frame that carries the exact watermark. Spark refuses that, and its error
names a setting that allows it. With the setting windows are lost without an error: Spark then uses the smaller of the
two watermarks, and the second one never reaches the end of the data. So another advice is given here, both where Spark
refuses the query, and where its own watermark is behind the exact one: in the progress of a query, and in its
checkpoint, which has both watermarks of each micro-batch.

**The largest watermark**: with `multipleWatermarkPolicy=max` Spark goes by the source that is furthest, and drops
records of the others. Such a query is refused; what an earlier version has run has that setting in its checkpoint.

**A silent source**: one of several that was read to its end and gets no more. Spark goes by the smallest watermark, so
all wait. No split of such a source explains it. Each is idle, and an idle split holds nothing within its source; but
the source has announced its last watermark, and nothing makes it announce a later one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from alignment.arrow_times import micros_of
from alignment.explain import Cause
from alignment.sentence import moment
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK
from streaming_source.checkpoint import POLICY
from streaming_source.monitoring.causes.answer import cause_of
from streaming_source.monitoring.causes.rule import Advice
from streaming_source.monitoring.report import WatermarkReport, parsed, sets_watermark

ALLOW_MULTIPLE: Final = "spark.sql.streaming.statefulOperator.allowMultiple"
"""The setting that Spark's error names."""

_REFUSED: Final = "Redefining watermark is disallowed"
_FIX: Final = (
    "Remove each withWatermark on a frame of read_stream, from_source or with_exact_watermark: it has its watermark, "
    f"and maxOutOfOrderness is the delay. Leave {ALLOW_MULTIPLE} at true"
)
_LATEST_US: Final = 64_060_588_800_000_000
"""The year 4000. At the end of a bounded source Spark's watermark is later, and any other is earlier."""
_SILENT: Final = (Cause.ALL_IDLE, Cause.NO_SPLITS, Cause.SILENT)


def on_second_watermark(progress: Mapping[str, Any] | None, error: str | None) -> Advice | None:
    """Return advice on a query with a second watermark, by its last progress or its error; None without one."""
    if error is not None and _REFUSED in error:
        return Advice("query", f"{_FIX}, whatever Spark's error advises: with false the last windows never close.")
    if progress is None:
        return None
    announced = [_announced(source) for source in progress["sources"]]
    text = progress.get("eventTime", {}).get("watermark")
    return None if text is None else on_behind(micros_of(text), announced)


def on_behind(spark_us: int, announced: Sequence[int | None]) -> Advice | None:
    """Return advice if Spark's watermark of a micro-batch is behind those that all sources had announced; else None.

    `announced` has None for a source that does not set Spark's watermark, or has not announced one: then nothing is
    known.
    """
    known = [us for us in announced if us is not None]
    if not known or len(known) < len(announced):
        return None
    # Spark counts milliseconds.
    announced_us = min(*known, _LATEST_US) // 1000 * 1000
    if spark_us >= announced_us:
        return None
    return Advice(
        "query",
        f"Spark's own watermark is at {moment(spark_us)}, behind {moment(announced_us)}, which all sources of the "
        f"query have announced: windows that end in between are not closed. The query has another watermark. {_FIX}.",
    )


def on_largest_watermark(policy: str, announced: Sequence[int | None]) -> Advice | None:
    """Return advice if Spark goes by the largest watermark of several sources, of which one is of this library."""
    if policy != "max" or len(announced) < 2 or not any(us is not None for us in announced):
        return None
    return Advice(
        "query",
        f"{POLICY} is max in the checkpoint, which keeps it: Spark goes by the source that is furthest, and drops "
        "records of the others. Set it to min, and start the query with a new checkpointLocation.",
    )


def _announced(source: Mapping[str, Any]) -> int | None:
    """Return what a source of a progress had announced before the micro-batch, if it sets Spark's watermark."""
    start, latest = parsed(source.get("startOffset")), parsed(source.get("latestOffset"))
    if not (sets_watermark(latest) and isinstance(start, Mapping)):
        return None
    return start.get("watermark")


def on_silent_source(reports: Sequence[WatermarkReport | None]) -> Advice | None:
    """Return advice if the slowest source of a query has nothing left to read and others are further; else None.

    `reports` are the last ones of its sources, None for a source that is not of this library.
    """
    known = [one for one in reports if one is not None and one.explanation.watermark > MIN_WATERMARK]
    if len(known) < 2:
        return None
    slowest, *_, furthest = sorted(known, key=lambda one: one.explanation.watermark)
    why, latest_us = slowest.explanation, furthest.explanation.watermark
    if cause_of(why) not in _SILENT or why.is_draining or any(split.behind for split in why.splits):
        return None
    if why.watermark == latest_us:
        return None
    ahead = "has ended" if latest_us == MAX_WATERMARK else f"is at {moment(latest_us)}"
    return Advice(
        "bounded",
        f"Spark goes by the smallest watermark of all sources. That is {slowest.called}, at {moment(why.watermark)}: "
        f"all that it has was read, and no window closes after that, though {furthest.called} {ahead}. If it gets no "
        "more records give it bounded = true: it then ends, and the query goes by the others. If it may get more, give "
        "all sources of the query the same alignmentGroup, maxDrift, and alignmentScope = query: once it is idle it "
        "follows the others.",
    )

"""A source of several that was read to its end and gets no more: Spark goes by the smallest watermark, so all wait.

No split of such a source explains it. Each is idle, and an idle split holds nothing within its source; but the source
has announced its last watermark, and nothing makes it announce a later one.
"""

from __future__ import annotations

from collections.abc import Sequence

from alignment.explain import Cause
from alignment.sentence import moment
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK
from streaming_source.monitoring.advice import Advice
from streaming_source.monitoring.report import WatermarkReport

__all__ = ["on_silent_source"]

_SILENT = (Cause.ALL_IDLE, Cause.NO_SPLITS, Cause.SILENT)


def on_silent_source(reports: Sequence[WatermarkReport | None]) -> Advice | None:
    """Return advice if the slowest source of a query has nothing left to read and others are further; else None.

    `reports` are the last ones of its sources, None for a source that is not of this library.
    """
    known = [one for one in reports if one is not None and one.explanation.watermark > MIN_WATERMARK]
    if len(known) < 2:
        return None
    slowest, *_, furthest = sorted(known, key=lambda one: one.explanation.watermark)
    why, latest_us = slowest.explanation, furthest.explanation.watermark
    if why.cause not in _SILENT or why.is_draining or any(split.behind for split in why.splits):
        return None
    if why.watermark == latest_us:
        return None
    ahead = "has ended" if latest_us == MAX_WATERMARK else f"is at {moment(latest_us)}"
    return Advice(
        "bounded",
        f"Spark goes by the smallest watermark of all sources. That is {_named(slowest)}, at {moment(why.watermark)}: "
        f"all that it has was read, and no window closes behind that, though {_named(furthest)} {ahead}. If it gets no "
        "more records give it bounded = true: it then ends, and the query goes by the others. An idleTimeout does not "
        "do that: it lets go of a split, not of a source.",
    )


def _named(report: WatermarkReport) -> str:
    return " ".join(filter(None, (report.source, report.explanation.reads)))

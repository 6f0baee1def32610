"""One micro-batch: what its sources say of themselves, and Spark's statistics without rows that carry a watermark.

A frame with the exact watermark has one more row in each micro-batch that its source has a part in, at `watermark +
4000 years`. Spark counts it: in `numInputRows`, and in `max` and `avg` of `eventTime`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from streaming_source.monitoring.report import WatermarkReport, micros_of, parsed

__all__ = ["MicroBatch", "Statistics"]


@dataclass(frozen=True, slots=True)
class Statistics:
    """One micro-batch. What is not known is None; times are microseconds since the epoch, UTC.

    `rows` are records that each source of the query delivered; of a frame that a query uses twice, Spark counts both.
    Event times in it (`earliest_us`, `latest_us`, `mean_us`) are of the first frame in the plan that has a watermark,
    and the latest of all frames with the exact watermark. With that, earliest and mean are known where all records have
    an event time, the mean, to a few milliseconds, where the query reads one source. `invalid` records have no event
    time, of all frames with the exact watermark. `duration_us` is from the trigger to the commit. `state_rows` and
    `state_bytes` are of all stateful operators after it; `dropped` rows those dropped because they were at or below
    Spark's watermark.
    """

    rows: tuple[int, ...]
    earliest_us: int | None
    latest_us: int | None
    mean_us: int | None
    invalid: int | None
    duration_us: int
    state_rows: int | None
    state_bytes: int | None
    dropped: int | None

    @classmethod
    def of_progress(cls, progress: Mapping[str, Any]) -> Self:
        """From the progress of a query, as `query.lastProgress` gives it, or a listener, or parsed from its JSON."""
        sources, operators = progress["sources"], progress["stateOperators"]
        carries = [_carries_watermark(source) for source in sources]
        rows = tuple(source["numInputRows"] - one for source, one in zip(sources, carries, strict=True))
        times = {name: micros_of(text) for name, text in progress["eventTime"].items()}
        earliest_us, latest_us, mean_us = (times.get(name) for name in ("min", "max", "avg"))
        observed = [_by_name(metrics) for metrics in (progress.get("observedMetrics") or {}).values()]
        ours = [metrics for metrics in observed if {"rows", "invalid", "latest"} <= metrics.keys()]
        if any(carries):
            count = sum(metrics["rows"] for metrics in ours)
            if not count or any(metrics["invalid"] for metrics in ours):
                # Spark takes a record without an event time for one of 1970.
                earliest_us = mean_us = None
            if mean_us is not None and latest_us is not None and len(sources) == 1 and count == rows[0]:
                mean_us = (mean_us * (count + 1) - latest_us) // count
            else:
                mean_us = None
            latest_us = max((m["latest"] for m in ours if m["latest"] is not None), default=None)
        return cls(
            rows,
            earliest_us,
            latest_us,
            mean_us,
            sum(metrics["invalid"] for metrics in ours) if ours else None,
            progress["batchDuration"] * 1000,
            sum(operator["numRowsTotal"] for operator in operators) if operators else None,
            sum(operator["memoryUsedBytes"] for operator in operators) if operators else None,
            sum(operator["numRowsDroppedByWatermark"] for operator in operators) if operators else None,
        )


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One micro-batch of a query, by its number and the processing time at which it was planned.

    `watermark_us` is Spark's own watermark in it: that of the micro-batch before, of all sources, to the millisecond.
    It `is_committed` if it was read and written to its end. `sources` has of each source of the query what its offset
    says, None of one that is not of this library; `statistics` what Spark counted, which a checkpoint does not say.
    """

    number: int
    planned_at_us: int
    watermark_us: int
    is_committed: bool
    sources: tuple[WatermarkReport | None, ...]
    statistics: Statistics | None = None

    @classmethod
    def of_progress(cls, progress: Mapping[str, Any]) -> Self:
        """The same from the progress of a query, as its listeners get it: a micro-batch that is done."""
        return cls(
            progress["batchId"],
            micros_of(progress["timestamp"]),
            micros_of(progress["eventTime"].get("watermark", "1970-01-01T00:00:00Z")),
            True,
            tuple(WatermarkReport.of_progress(progress)),
            Statistics.of_progress(progress),
        )


def _carries_watermark(source: Mapping[str, Any]) -> bool:
    """Whether a source has a watermark row in this micro-batch."""
    start, end, latest = (parsed(source[name]) for name in ("startOffset", "endOffset", "latestOffset"))
    if not isinstance(latest, Mapping) or not latest.get("watermarkRows") or start == end:
        return False
    return end["watermark"] is not None and end["watermark"] >= 0


def _by_name(metrics: Any) -> dict[str, Any]:
    """Observed metrics are a `Row` in PySpark, and an object in JSON."""
    return dict(metrics) if isinstance(metrics, Mapping) else dict(metrics.asDict())

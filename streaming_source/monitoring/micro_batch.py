"""One micro-batch, from a query's progress or from its checkpoint: the reports of its sources, and Spark's statistics.

A frame with the exact watermark has one more row in each micro-batch with records of its source, at `watermark + 4000
years`. Spark counts it in `numInputRows`, and in `max` and `avg` of `eventTime`; the statistics here do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

from alignment.arrow_times import micros_of
from alignment.explain import LastBatch
from streaming_source.checkpoint.offset_log import RESTORE, LoggedBatch, OffsetLog
from streaming_source.checkpoint.source_offsets import is_ours
from streaming_source.exceptions import DataLossError, OffsetError
from streaming_source.monitoring.report import (
    Offset,
    WatermarkReport,
    check_version,
    parsed,
    report_of_offset,
    sets_watermark,
)


@dataclass(frozen=True, slots=True)
class Statistics:
    """Spark's counts of one micro-batch; None for what is not known. Times are microseconds since the epoch, UTC.

    `rows` are the records that each source of the query delivered; a frame that a query uses twice counts twice.
    `earliest_us`, `latest_us` and `mean_us` are of the event times of the first frame in the plan that has a watermark;
    with the exact watermark `latest_us` is of all frames that carry it. Then the earliest and the mean are known only
    if all records have an event time, and the mean, to a few milliseconds, if the query reads one source. `invalid`
    counts the records without an event time in all frames with the exact watermark. `duration_us` is from the trigger
    to the commit. `state_rows` and `state_bytes` are those of all stateful operators afterwards; `dropped` counts rows
    that were dropped because they were at or below Spark's watermark.
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
        """Make them from a progress: `query.lastProgress`, that of a listener, or parsed JSON."""
        sources, operators = progress["sources"], progress["stateOperators"]
        carries = [_carries_watermark(source) for source in sources]
        rows = tuple(source["numInputRows"] - one for source, one in zip(sources, carries, strict=True))
        times = {name: micros_of(text) for name, text in progress["eventTime"].items()}
        earliest_us, latest_us, mean_us = (times.get(name) for name in ("min", "max", "avg"))
        observed = (progress.get("observedMetrics") or {}).values()
        # A `Row` in PySpark, and an object in JSON.
        metrics = [dict(one if isinstance(one, Mapping) else one.asDict()) for one in observed]
        ours = [one for one in metrics if {"rows", "invalid", "latest"} <= one.keys()]
        if any(carries):
            count = sum(one["rows"] for one in ours)
            if not count or any(one["invalid"] for one in ours):
                # For Spark a record without an event time is of 1970.
                earliest_us = mean_us = None
            if mean_us is not None and latest_us is not None and len(sources) == 1 and count == rows[0]:
                mean_us = (mean_us * (count + 1) - latest_us) // count
            else:
                mean_us = None
            latest_us = max((m["latest"] for m in ours if m["latest"] is not None), default=None)
        state_rows, state_bytes, dropped = (
            sum(operator[counted] for operator in operators) if operators else None
            for counted in ("numRowsTotal", "memoryUsedBytes", "numRowsDroppedByWatermark")
        )
        return cls(
            rows=rows,
            earliest_us=earliest_us,
            latest_us=latest_us,
            mean_us=mean_us,
            invalid=sum(one["invalid"] for one in ours) if ours else None,
            duration_us=progress["batchDuration"] * 1000,
            state_rows=state_rows,
            state_bytes=state_bytes,
            dropped=dropped,
        )


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One micro-batch of a query, by its number and the processing time at which it was planned.

    `watermark_us` is Spark's own watermark in it: the smallest that the sources announced before it, in milliseconds.
    It `is_committed` if it was read and written to its end, at `committed_at_us` if that is known. `sources` has the
    report of each source of the query, None for a source that is not of this library. `statistics` are what Spark
    counted, None from a checkpoint. From a checkpoint `announced` has the watermark of each source at the end of this
    micro-batch, None for a source without the exact watermark; Spark's next watermark is the smallest of them.
    `late_of` has in words how far its sources of `late_records` are, and `policy` by which of several watermarks Spark
    goes, `min` or `max`.
    """

    number: int
    planned_at_us: int
    watermark_us: int
    is_committed: bool
    sources: tuple[WatermarkReport | None, ...]
    statistics: Statistics | None = None
    committed_at_us: int | None = None
    announced: tuple[int | None, ...] = ()
    late_of: tuple[str, ...] = ()
    policy: str = "min"

    @classmethod
    def of_progress(cls, progress: Mapping[str, Any]) -> Self:
        """Make it from the progress of a query, which is reported when a micro-batch is done."""
        return cls(
            progress["batchId"],
            micros_of(progress["timestamp"]),
            micros_of(progress["eventTime"].get("watermark", "1970-01-01T00:00:00Z")),
            True,
            tuple(WatermarkReport.of_progress(progress)),
            Statistics.of_progress(progress),
        )

    @classmethod
    def of_checkpoint(cls, path: str) -> list[MicroBatch]:
        """Return all micro-batches that the offset log of a query still has, oldest first. O(size).

        The query may run or not. `path` is its `checkpointLocation`, as for `OffsetLog`; raises a `CheckpointError` if
        it is none.
        """
        return CheckpointBatches(path).read()


def late_sources(progress: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what each source of late records has read, in words, by the progress of a query."""
    offsets = (parsed(source.get("endOffset")) for source in progress["sources"])
    return tuple(filter(None, map(_late_of, offsets)))


def _late_of(offset: Any) -> str | None:
    """Return what a source of late records has read, in words; None of another source."""
    if not isinstance(offset, Mapping) or not {"query", "batch", "log", "n", "routed"} <= offset.keys():
        return None
    if offset["query"] is None:
        return "It reads the late records of another query, which has written no micro-batch yet."
    more = "; more wait" if offset.get("more") else ""
    return (
        f"It reads the late records of query {offset['query']}: it has read {offset['routed'] or 0:,}, all up to "
        f"micro-batch {offset['batch']} of that query{more}. It has no watermark of its own: why they are late is "
        "explained by the checkpoint of that query."
    )


def _batch_after(before: LastBatch | None, number: int, planned_us: int, done_us: int | None) -> LastBatch:
    """Return the next micro-batch of an offset log. In a copied log the times of commits may be too late."""
    share = None
    if before is not None and before.done_us is not None and before.planned_us < before.done_us <= planned_us:
        share = (before.done_us - before.planned_us) / (planned_us - before.planned_us)
    return LastBatch(planned_us, None, done_us if done_us is None else max(done_us, planned_us), share, number)


def _carries_watermark(source: Mapping[str, Any]) -> bool:
    """Return whether a source has a watermark row in this micro-batch."""
    start, end, latest = (parsed(source[name]) for name in ("startOffset", "endOffset", "latestOffset"))
    if not sets_watermark(latest) or start == end:
        return False
    return end["watermark"] is not None and end["watermark"] >= 0


_Files: TypeAlias = tuple[str | None, int | None, int | None, int | None]


@dataclass(frozen=True, slots=True)
class _Kept:
    """A micro-batch that was read, by the files it was read from, and what the next one needs of those before it."""

    files: _Files
    """The content of `metadata`, the time and the size of its offsets, and the time of its commit."""
    batch: MicroBatch
    since: Mapping[int, tuple[int | None, int]]
    """Of each source its watermark, and since when it stands there."""
    last: LastBatch


class CheckpointBatches:
    """The micro-batches of a checkpoint, read again and again: of those that are as they were, no file is read twice.

    `path` is as for `OffsetLog`.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._log = OffsetLog(path)
        self._kept: dict[int, _Kept] = {}

    @property
    def is_there(self) -> bool:
        """True if there is an offset log. One listing."""
        return self._log.numbered("offsets") is not None

    def read(self) -> list[MicroBatch]:
        """All that the offset log still has, oldest first; a micro-batch that is as before is the same object.

        O(size) at first, later O(files + size of what is new). A `CheckpointError` if it is no checkpoint.
        """
        log, before = self._log, self._kept
        self._kept = {}
        # Another query may write the checkpoint anew, within the resolution of the times of files.
        query = log.text("metadata")
        committed, kept, last = log.commit_times_us(), {}, None
        for number, file in log.offset_files().items():
            done_us = committed.get(number)
            files = (query, file.mtime_ns, file.size, done_us)
            found = before.get(number)
            if found is None or found.files != files:
                # All later ones follow from this one.
                before = {}
                try:
                    found = self._read(number, files, done_us, last)
                except DataLossError:
                    # A query that runs removes its oldest ones.
                    continue
            kept[number] = last = found
        self._kept = kept
        return [found.batch for found in kept.values()]

    def _read(self, number: int, files: _Files, done_us: int | None, before: _Kept | None) -> _Kept:
        logged = self._log.read(number)
        at_us, offsets = logged.planned_at_us, logged.parsed()
        since = {} if before is None else dict(before.since)
        last = _batch_after(None if before is None else before.last, number, at_us, done_us)
        reports: list[WatermarkReport | None] = []
        for source, offset in enumerate(offsets):
            if not is_ours(offset):
                reports.append(None)
                continue
            if source not in since or since[source][0] != offset.get("watermark"):
                since[source] = offset.get("watermark"), at_us
            reports.append(_report(logged, offset, at_us, since[source][1], last))
        batch = MicroBatch(
            number=number,
            planned_at_us=at_us,
            watermark_us=logged.watermark_us,
            is_committed=done_us is not None,
            sources=tuple(reports),
            committed_at_us=done_us,
            announced=tuple([one.get("watermark") if sets_watermark(one) else None for one in offsets]),
            late_of=tuple(filter(None, map(_late_of, offsets))),
            policy=logged.policy,
        )
        return _Kept(files, batch, since, last)


def _report(logged: LoggedBatch, offset: Offset, *known: Any) -> WatermarkReport:
    """Return the report in an offset; an `OffsetError` with its file if it is damaged, or of a newer version."""
    try:
        check_version(offset)
        return report_of_offset(offset, *known)
    except OffsetError as error:
        raise OffsetError(f"{logged.name}: {error}") from None
    except ValueError:
        raise OffsetError(
            f"{logged.name} is damaged: its offset of {offset['source']} has fields that no such offset has; {RESTORE}"
        ) from None

"""One micro-batch, from a query's progress or from its checkpoint: the reports of its sources, and Spark's statistics.

A frame with the exact watermark has one more row in each micro-batch that its source has a part in, at `watermark +
4000 years`. Spark counts it: in `numInputRows`, and in `max` and `avg` of `eventTime`. The statistics are without it.
Of a checkpoint the offset log is read, without Spark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeAlias

from pyarrow import ArrowInvalid, fs

from alignment.explain import LastBatch
from streaming_source.exceptions import CheckpointError, DataLossError, OffsetError
from streaming_source.monitoring.report import WatermarkReport, micros_of, parsed, report_of_offset

__all__ = ["CheckpointBatches", "MicroBatch", "OffsetLog", "Statistics"]


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
        state_rows, state_bytes, dropped = (
            sum(operator[counted] for operator in operators) if operators else None
            for counted in ("numRowsTotal", "memoryUsedBytes", "numRowsDroppedByWatermark")
        )
        invalid = sum(metrics["invalid"] for metrics in ours) if ours else None
        duration_us = progress["batchDuration"] * 1000
        return cls(
            rows=rows,
            earliest_us=earliest_us,
            latest_us=latest_us,
            mean_us=mean_us,
            invalid=invalid,
            duration_us=duration_us,
            state_rows=state_rows,
            state_bytes=state_bytes,
            dropped=dropped,
        )


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One micro-batch of a query, by its number and the processing time at which it was planned.

    `watermark_us` is Spark's own watermark in it: that of the micro-batch before, of all sources, to the millisecond.
    It `is_committed` if it was read and written to its end, at `committed_at_us` where that is known. `sources` has of
    each source of the query the report in its offset, None of one that is not of this library; `statistics` what Spark
    counted, which is not in a checkpoint. `announced` has, of a checkpoint, the watermark of each source with the exact
    one at the end of this micro-batch, None of others: Spark's in the next is the smallest of them.
    """

    number: int
    planned_at_us: int
    watermark_us: int
    is_committed: bool
    sources: tuple[WatermarkReport | None, ...]
    statistics: Statistics | None = None
    committed_at_us: int | None = None
    announced: tuple[int | None, ...] = ()

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

    @classmethod
    def of_checkpoint(cls, path: str) -> list[MicroBatch]:
        """All of a query, which may run or not, that its offset log still has, oldest first. O(size).

        `path` is its `checkpointLocation`, as for `OffsetLog`; a `CheckpointError` if it is none.
        """
        return CheckpointBatches(path).read()


def _announced(offset: Any) -> int | None:
    """The watermark in the offset of a source that sets Spark's; None of another, or before there is one."""
    is_exact = isinstance(offset, Mapping) and bool(offset.get("fixed", {}).get("watermarkRows"))
    return offset.get("watermark") if is_exact else None


def _batch_after(before: LastBatch | None, number: int, planned_us: int, done_us: int | None) -> LastBatch:
    """The next micro-batch of an offset log. In one that was copied files may be younger than the next micro-batch."""
    share = None
    if before is not None and before.done_us is not None and before.planned_us < before.done_us <= planned_us:
        share = (before.done_us - before.planned_us) / (planned_us - before.planned_us)
    return LastBatch(planned_us, None, done_us if done_us is None else max(done_us, planned_us), share, number)


def _carries_watermark(source: Mapping[str, Any]) -> bool:
    """Whether a source has a watermark row in this micro-batch."""
    start, end, latest = (parsed(source[name]) for name in ("startOffset", "endOffset", "latestOffset"))
    if not isinstance(latest, Mapping) or not latest.get("watermarkRows") or start == end:
        return False
    return end["watermark"] is not None and end["watermark"] >= 0


def _by_name(metrics: Any) -> dict[str, Any]:
    """Observed metrics are a `Row` in PySpark, and an object in JSON."""
    return dict(metrics) if isinstance(metrics, Mapping) else dict(metrics.asDict())


class LoggedBatch(NamedTuple):
    """One micro-batch of an offset log: where the sources of the query stand at its end; None for one not begun."""

    planned_at_us: int
    watermark_us: int
    offsets: list[Any]


class OffsetLog:
    """The offsets of a query's micro-batches, of which Spark keeps the latest hundred, and which are committed.

    `checkpoint` is a local path, or a URI of a file system that Arrow knows (`s3a://`, `hdfs://`). It may not be there.
    `opened` is its file system and its path in that, where the caller has opened it.
    """

    def __init__(self, checkpoint: str, opened: tuple[fs.FileSystem, str] | None = None) -> None:
        self.checkpoint = checkpoint
        self.files: fs.FileSystem = fs.LocalFileSystem()
        self.root = checkpoint.rstrip("/")
        if opened is not None:
            self.files, self.root = opened
        elif "://" in checkpoint or checkpoint.startswith("file:"):
            try:
                # s3a is Hadoop's name of the same.
                self.files, self.root = fs.FileSystem.from_uri(checkpoint.replace("s3a:", "s3:", 1))
            except (ArrowInvalid, NotImplementedError) as error:
                raise CheckpointError(
                    f"{checkpoint}: Arrow knows no such file system; copy it to a local folder: {error}"
                ) from None

    def query_id(self) -> str | None:
        """The id of the query: another one that uses the checkpoint later has another; None before it has started."""
        text = self.text("metadata")
        return None if text is None else str(json.loads(text)["id"])

    def committed(self) -> set[int]:
        """Numbers of the micro-batches that are known to be done. One listing."""
        return set(self._files("commits"))

    def commit_times_us(self) -> dict[int, int]:
        """When each of these was committed, as its file was written last. One listing."""
        return {number: (info.mtime_ns or 0) // 1000 for number, info in self._files("commits").items()}

    def batches(self) -> list[int]:
        """Numbers of the micro-batches of which the offsets are there, in order. One listing."""
        return sorted(self.offset_files())

    def offset_files(self) -> dict[int, fs.FileInfo]:
        """The files of these, by number. One listing."""
        return self._files("offsets")

    def read(self, batch: int) -> LoggedBatch:
        """One micro-batch; `DataLossError` if Spark has removed it."""
        name, text = f"{self.checkpoint}/offsets/{batch}", self.text(f"offsets/{batch}")
        if text is None:
            raise DataLossError(f"{self.checkpoint} has no offsets of micro-batch {batch}: Spark keeps the latest 100")
        version, metadata, *offsets = text.splitlines() if "\n" in text else (text, "")
        if version not in ("v1", "v2"):
            raise OffsetError(f"{name} is of version {version!r}: only v1 and v2 are read")
        if version == "v2":
            # Each with the name of its source before it.
            offsets = [offset.partition(":")[2] for offset in offsets]
        try:
            # Sources that are not ours write any text.
            found = [json.loads(offset) if offset.startswith("{") else None for offset in offsets]
            known = json.loads(metadata)
            return LoggedBatch(known["batchTimestampMs"] * 1000, known["batchWatermarkMs"] * 1000, found)
        except (ValueError, KeyError, TypeError) as error:
            raise OffsetError(f"{name} is damaged: {error!r}") from error

    def _files(self, folder: str) -> dict[int, fs.FileInfo]:
        selector = fs.FileSelector(f"{self.root}/{folder}", allow_not_found=True)
        return {int(info.base_name): info for info in self.files.get_file_info(selector) if info.base_name.isdigit()}

    def text(self, name: str) -> str | None:
        """What is in one of its files, if there is one of that name."""
        try:
            with self.files.open_input_stream(f"{self.root}/{name}") as stream:
                return str(stream.read().decode())
        except FileNotFoundError:
            return None


_Files: TypeAlias = tuple[str | None, int | None, int | None, int | None]


@dataclass(frozen=True, slots=True)
class _Kept:
    """A micro-batch that was read, by the files it was read from, and what the next one needs of those before it."""

    files: _Files
    """What `metadata` has, the time and the size of its offsets, and the time of its commit."""
    batch: MicroBatch
    since: Mapping[int, tuple[int | None, int]]
    """Of each source its watermark, and since when it stands there."""
    last: LastBatch


class CheckpointBatches:
    """The micro-batches of a checkpoint, read again and again: of those that are as they were, no file is read twice.

    `checkpoint` is as for `OffsetLog`.
    """

    def __init__(self, checkpoint: str) -> None:
        self._log = OffsetLog(checkpoint)
        self._kept: dict[int, _Kept] = {}

    def read(self) -> list[MicroBatch]:
        """All that the offset log still has, oldest first; a micro-batch that is as before is the same object.

        O(size) at first, later O(files + size of what is new). A `CheckpointError` if it is no checkpoint.
        """
        log, before = self._log, self._kept
        self._kept = {}
        if log.files.get_file_info(f"{log.root}/offsets").type is not fs.FileType.Directory:
            raise CheckpointError(
                f"{log.checkpoint} is no checkpoint of a streaming query: it has no directory `offsets`; give the "
                "checkpointLocation of the query"
            )
        # Another query may write the checkpoint anew, within the resolution of the times of files.
        query = log.text("metadata")
        committed, kept, last = log.commit_times_us(), {}, None
        for number, file in sorted(log.offset_files().items()):
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
        at_us, watermark_us, offsets = self._log.read(number)
        since = {} if before is None else dict(before.since)
        last = _batch_after(None if before is None else before.last, number, at_us, done_us)
        reports: list[WatermarkReport | None] = []
        for place, offset in enumerate(offsets):
            if not (isinstance(offset, dict) and {"v", "source", "id", "n", "splits"} <= offset.keys()):
                reports.append(None)
                continue
            if place not in since or since[place][0] != offset["watermark"]:
                since[place] = offset["watermark"], at_us
            reports.append(report_of_offset(offset, at_us, since[place][1], last))
        batch = MicroBatch(
            number=number,
            planned_at_us=at_us,
            watermark_us=watermark_us,
            is_committed=done_us is not None,
            sources=tuple(reports),
            statistics=None,
            committed_at_us=done_us,
            announced=tuple(map(_announced, offsets)),
        )
        return _Kept(files, batch, since, last)

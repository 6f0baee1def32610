"""The last micro-batches of one query as Arrow tables: from the events of a listener, or from a checkpoint."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, NamedTuple, Self

import pyarrow as pa

from alignment.combine import SplitStatus
from alignment.explain import Explanation, SplitExplanation
from alignment.watermarks import LONG_AGO_US, MAX_WATERMARK, MIN_WATERMARK
from streaming_source.monitoring.micro_batch import MicroBatch
from streaming_source.monitoring.report import WatermarkReport

__all__ = ["History"]

_TIME: Final = pa.timestamp("us", "UTC")
_SPAN: Final = pa.duration("us")
_BATCHES: Final = pa.schema(
    {
        "batch": pa.int64(),
        "planned_at": _TIME,
        "is_committed": pa.bool_(),
        "spark_watermark": _TIME,
        "duration": _SPAN,
        "earliest": _TIME,
        "latest": _TIME,
        "mean": _TIME,
        "invalid": pa.int64(),
        "state_rows": pa.int64(),
        "state_bytes": pa.int64(),
        "dropped": pa.int64(),
    }
)


@dataclass(slots=True)
class _SplitTimes:
    """The time that one split has had each status, since the first micro-batch that has it."""

    status: SplitStatus
    since_us: int
    spent_us: list[int] = field(default_factory=lambda: [0] * len(SplitStatus))


@dataclass(slots=True)
class _SourceTimes:
    """The times of one source: of its splits, and since when which splits hold its watermark, as of `at_us`."""

    at_us: int
    splits: dict[str, _SplitTimes] = field(default_factory=dict)
    held_by: tuple[str, ...] = ()
    held_since_us: int = LONG_AGO_US


class _OfSource(NamedTuple):
    """A source after a micro-batch: by how much each split that counts is ahead of the slowest, if that is known."""

    batch: MicroBatch
    number: int
    report: WatermarkReport
    known: Explanation
    times: _SourceTimes
    drifts_us: Mapping[str, int]

    @property
    def rows(self) -> int | None:
        return None if self.batch.statistics is None else self.batch.statistics.rows[self.number]

    @property
    def retention_left_us(self) -> int | None:
        left_s = dict(self.known.metrics).get("retentionSecondsLeft")
        return None if left_s is None else left_s * 1_000_000


_OF_SOURCE: Final[Mapping[str, tuple[pa.DataType, Callable[[_OfSource], Any]]]] = {
    "batch": (pa.int64(), lambda of: of.batch.number),
    "source": (pa.int32(), lambda of: of.number),
    "name": (pa.string(), lambda of: of.report.source),
    "at": (_TIME, lambda of: of.known.at_us),
    "watermark": (_TIME, lambda of: _time(of.known.watermark)),
    "cause": (pa.string(), lambda of: of.report.cause.value),
    "why": (pa.string(), lambda of: of.report.sentence),
    "held_by": (pa.list_(pa.string()), lambda of: list(of.times.held_by)),
    "held_since": (_TIME, lambda of: of.times.held_since_us if of.times.held_by else None),
    "stands_since": (_TIME, lambda of: of.known.stands_since_us),
    "limit": (_TIME, lambda of: _time(of.known.bound_us)),
    "drift": (_SPAN, lambda of: max(of.drifts_us.values(), default=None)),
    "max_drift": (_SPAN, lambda of: of.known.bounds.max_drift_us),
    "behind": (pa.int64(), lambda of: sum(split.behind for split in of.known.splits)),
    "late": (pa.int64(), lambda of: of.known.late),
    "rows": (pa.int64(), lambda of: of.rows),
    "retention_left": (_SPAN, lambda of: of.retention_left_us),
}
_OF_SPLIT: Final[Mapping[str, tuple[pa.DataType, Callable[[_OfSource, SplitExplanation, _SplitTimes], Any]]]] = {
    "batch": (pa.int64(), lambda of, split, times: of.batch.number),
    "source": (pa.int32(), lambda of, split, times: of.number),
    "split": (pa.string(), lambda of, split, times: split.split_id),
    "status": (pa.string(), lambda of, split, times: split.status.name.lower()),
    "status_since": (_TIME, lambda of, split, times: times.since_us),
    "time_active": (_SPAN, lambda of, split, times: times.spent_us[SplitStatus.ACTIVE]),
    "time_paused": (_SPAN, lambda of, split, times: times.spent_us[SplitStatus.PAUSED]),
    "time_idle": (_SPAN, lambda of, split, times: times.spent_us[SplitStatus.IDLE]),
    "holds": (pa.bool_(), lambda of, split, times: split.split_id in of.times.held_by),
    "watermark": (_TIME, lambda of, split, times: _time(split.watermark)),
    "drift": (_SPAN, lambda of, split, times: of.drifts_us.get(split.split_id)),
    "position": (pa.int64(), lambda of, split, times: split.position),
    "behind": (pa.int64(), lambda of, split, times: split.behind),
    "late": (pa.int64(), lambda of, split, times: split.late),
    "waits_for": (pa.string(), lambda of, split, times: split.waits_for.value),
    "silent_since": (_TIME, lambda of, split, times: split.silent_since_us),
}
_SCHEMAS: Final = (
    _BATCHES,
    *(pa.schema({name: kind for name, (kind, _) in columns.items()}) for columns in (_OF_SOURCE, _OF_SPLIT)),
)


class History:
    """The last micro-batches of one query, oldest first.

    Times in its tables are UTC. Null is what is not known, such as a watermark before the first one, or that of a
    source that has ended. `source` is the index of a source in the query. A row of a split or a source has its state
    after the micro-batch, as the planner reported it; from a checkpoint, as it was planned.

    Parameters
    ----------
    capacity
        Maximum rows of `splits`, which has one for each split and micro-batch. The last micro-batch is always kept.

    Examples
    --------
    >>> history = History.of_checkpoint("/checkpoints/orders")  # doctest: +SKIP
    >>> history.splits().filter(pc.field("holds")).group_by("split").aggregate([([], "count_all")])  # doctest: +SKIP
    """

    def __init__(self, capacity: int = 100_000) -> None:
        self._capacity = capacity
        # A thread of Spark adds micro-batches, and others read.
        self._lock = threading.Lock()
        self._kept: deque[tuple[pa.RecordBatch, ...]] = deque()
        self._rows = 0
        self._times: dict[int, _SourceTimes] = {}
        self.latest: MicroBatch | None = None
        """The last micro-batch; None before any."""

    @classmethod
    def of_checkpoint(cls, path: str) -> Self:
        """Make it from all micro-batches that the offset log of a checkpoint still has."""
        history = cls()
        for batch in MicroBatch.of_checkpoint(path):
            history.add(batch)
        return history

    @classmethod
    def of_progress(cls, progress: Iterable[Mapping[str, Any]]) -> Self:
        """Make it from progress of a query, such as `recentProgress`."""
        history = cls()
        for reported in progress:
            history.add_progress(reported)
        return history

    def add(self, batch: MicroBatch) -> None:
        """Add the next micro-batch, or replace the last one if it has the same number. O(splits)."""
        sources: list[dict[str, Any]] = []
        splits: list[dict[str, Any]] = []
        for number, report in enumerate(batch.sources):
            if report is not None:
                known = report.explanation
                of = _OfSource(batch, number, report, known, self._pass_time(number, known), _drifts(known))
                sources.append({name: value(of) for name, (_, value) in _OF_SOURCE.items()})
                for split in known.splits:
                    times = of.times.splits[split.split_id]
                    splits.append({name: value(of, split, times) for name, (_, value) in _OF_SPLIT.items()})
        tables = _tables([_batch_row(batch)], sources, splits)
        with self._lock:
            if self._kept and self.latest is not None and self.latest.number == batch.number:
                self._rows -= self._kept.pop()[2].num_rows
            self._kept.append(tables)
            self._rows += len(splits)
            while self._rows > self._capacity and len(self._kept) > 1:
                self._rows -= self._kept.popleft()[2].num_rows
            self.latest = batch

    def add_progress(self, progress: Mapping[str, Any]) -> None:
        """Add a progress of a query: a micro-batch, or, while the query waits, the new state of its splits."""
        batch = MicroBatch.of_progress(progress)
        if not any(batch.sources):
            return
        if "addBatch" in progress["durationMs"]:
            self.add(batch)
        elif self.latest is not None:
            # In this progress Spark counts the next micro-batch, which may not come.
            self.add(replace(self.latest, sources=batch.sources))

    def pause(self) -> None:
        """Stop counting times until the next run of the query."""
        for times in self._times.values():
            times.at_us = LONG_AGO_US

    def batches(self) -> pa.Table:
        """Return a row for each micro-batch: what Spark reports of it, without watermark rows; see `Statistics`."""
        return self._table(0)

    def sources(self) -> pa.Table:
        """Return a row for each source and micro-batch: its watermark, why, and which splits hold it since when."""
        return self._table(1)

    def splits(self) -> pa.Table:
        """Return a row for each split and micro-batch: its watermark, position, backlog, and time in each status."""
        return self._table(2)

    def last(self) -> tuple[pa.RecordBatch, ...]:
        """Return the rows of the last micro-batch in `batches`, `sources` and `splits`.

        No rows before the first one.
        """
        with self._lock:
            return self._kept[-1] if self._kept else _tables([], [], [])

    def _table(self, which: int) -> pa.Table:
        with self._lock:
            return pa.Table.from_batches([tables[which] for tables in self._kept], _SCHEMAS[which])

    def _pass_time(self, number: int, explanation: Explanation) -> _SourceTimes:
        """Add the time since the previous micro-batch to the status that the splits had after it."""
        now_us = explanation.at_us
        times = self._times.setdefault(number, _SourceTimes(now_us))
        passed_us = max(now_us - times.at_us, 0) if times.at_us > LONG_AGO_US else 0
        before, times.at_us, times.splits = times.splits, now_us, {}
        for split in explanation.splits:
            known = before.get(split.split_id) or _SplitTimes(split.status, now_us)
            known.spent_us[known.status] += passed_us if split.split_id in before else 0
            if known.status is not split.status:
                known.status, known.since_us = split.status, now_us
            times.splits[split.split_id] = known
        if (held_by := explanation.held_by) != times.held_by:
            times.held_by, times.held_since_us = held_by, now_us
        return times


def _tables(*rows: list[dict[str, Any]]) -> tuple[pa.RecordBatch, ...]:
    return tuple(pa.RecordBatch.from_pylist(of_one, schema) for of_one, schema in zip(rows, _SCHEMAS, strict=True))


def _drifts(explanation: Explanation) -> dict[str, int]:
    """Return how far each split that counts is ahead of the slowest one, if all of them have a watermark."""
    watermarks = {split.split_id: split.watermark for split in explanation.splits if split.counts}
    slowest = min(watermarks.values(), default=MIN_WATERMARK)
    return {} if slowest == MIN_WATERMARK else {split_id: us - slowest for split_id, us in watermarks.items()}


def _batch_row(batch: MicroBatch) -> dict[str, Any]:
    counted = {} if batch.statistics is None else asdict(batch.statistics)
    return {
        "batch": batch.number,
        "planned_at": batch.planned_at_us,
        "is_committed": batch.is_committed,
        "spark_watermark": batch.watermark_us,
        **{name.removesuffix("_us"): value for name, value in counted.items()},
    }


def _time(us: int) -> int | None:
    return None if us in (MIN_WATERMARK, MAX_WATERMARK) else us

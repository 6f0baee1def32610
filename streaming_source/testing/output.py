"""What readers emitted in a micro-batch, record by record, and what must be so of it, whatever the source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from alignment.strategy import WatermarkStrategy
from alignment.timestamps import NO_TIMESTAMP, TimestampAssigner
from alignment.watermarks import Int64Array
from streaming_source.api import ReaderOutput, SourceOutput
from streaming_source.coordinator import SourceState

__all__ = ["CollectingOutput", "EmittedRecord", "ReadBatch", "check_batch"]


class EmittedRecord(NamedTuple):
    """A record that came out of a reader; its event time is `NO_TIMESTAMP` for none."""

    split_id: str
    position: int
    time_us: int


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """One micro-batch, by the number of the state that it leads to, and the watermark that it announces.

    `records` are by reader, in the order in which it emitted them. The planner cut every split at its first record
    later than `bound_us`, and planned `planned_rows`; both are None where another planner had.
    """

    sequence: int
    records: tuple[tuple[EmittedRecord, ...], ...]
    bound_us: int | None
    watermark: int
    planned_rows: int | None = None

    @property
    def all_records(self) -> list[EmittedRecord]:
        """Of all readers, one after another."""
        return [record for records in self.records for record in records]


class CollectingOutput(ReaderOutput):
    """Collects records with the event times that the application assigns, in the order in which they are emitted.

    Every batch must have the columns of `schema`, if there is one.
    """

    def __init__(self, assigner: TimestampAssigner, schema: pa.Schema | None = None) -> None:
        self._assigner = assigner
        self.schema = schema
        self.records: list[EmittedRecord] = []
        self.open_splits: set[str] = set()

    def create_output_for_split(self, split_id: str) -> SourceOutput:
        self.open_splits.add(split_id)
        return _SplitOutput(self, split_id, self._assigner)

    def release_output_for_split(self, split_id: str) -> None:
        self.open_splits.remove(split_id)

    def collect(
        self, batch: pa.RecordBatch, source_timestamps: Int64Array | None = None, *, positions: int | Int64Array
    ) -> None:
        """Records belong to splits: each goes to the output of its own."""
        raise AssertionError("records were emitted into the output of the reader, not of their split")


class _SplitOutput(SourceOutput):
    def __init__(self, whole: CollectingOutput, split_id: str, assigner: TimestampAssigner) -> None:
        self._whole = whole
        self._split_id = split_id
        self._assigner = assigner

    def collect(
        self, batch: pa.RecordBatch, source_timestamps: Int64Array | None = None, *, positions: int | Int64Array
    ) -> None:
        if self._split_id not in self._whole.open_splits:
            raise AssertionError(f"records of split {self._split_id!r} were emitted after its output was released")
        if self._whole.schema is not None and not batch.schema.equals(self._whole.schema):
            raise AssertionError(
                f"split {self._split_id!r}: the reader was asked for the columns {self._whole.schema}, and emitted "
                f"{batch.schema}"
            )
        where = np.arange(positions, positions + batch.num_rows) if isinstance(positions, int) else positions
        times = self._assigner.extract(batch, source_timestamps).values
        if not len(where) == len(times) == batch.num_rows:
            raise AssertionError(f"{batch.num_rows} records were emitted with {len(where)} positions")
        self._whole.records += [
            EmittedRecord(self._split_id, position, time)
            for position, time in zip(where.tolist(), times.tolist(), strict=True)
        ]


def check_batch(
    batch: ReadBatch,
    before: SourceState[Any, Any],
    after: SourceState[Any, Any],
    strategy: WatermarkStrategy,
    excused: Mapping[str, int] | None = None,
    *,
    foreknown: bool = True,
) -> None:
    """Check what was read against the two states between which it was planned.

    - Of each split exactly the records between its two positions were read, each once, each reader's in their order.
    - The watermark did not go back, and no split did.
    - Nothing later than the planner's bound was read.
    - A split's watermark is what its records give; not where event times are learnt from reports, which come later.
    - No record is late that is later than its own split's watermark.

    `excused` has, by split that joined, or came back from being idle, after a watermark had been announced, that
    watermark: no promise was made for its records at or below it. Where event times are not `foreknown`, ahead of
    reading, neither the planner's bound nor its number of records is exact.
    """
    records: dict[str, list[tuple[int, int]]] = {}
    for record in batch.all_records:
        records.setdefault(record.split_id, []).append((record.position, record.time_us))
    planned, read = batch.planned_rows if foreknown else None, len(batch.all_records)
    _check(after.table.combined >= before.table.combined, "the watermark went back")
    _check(planned is None or planned == read, f"{planned} records were planned, {read} were read")
    for number, of_reader in enumerate(batch.records):
        _check_order(number, of_reader)
    begun = before.by_id()
    bounds = _Bounds(before, strategy, excused or {})
    for slot, split in enumerate(after.splits):
        of_split = sorted(records.pop(split.split_id, []))
        start = (begun.get(split.split_id) or split.origin()).position
        _check(split.position >= start, f"split {split.split_id!r} went back from {start} to {split.position}")
        positions = [position for position, _ in of_split]
        _check(len(set(positions)) == len(positions), f"split {split.split_id!r}: records came twice: {positions}")
        outside = [position for position in positions if not start <= position < split.position]
        _check(not outside, f"split {split.split_id!r}: read {outside}, planned were {start} to {split.position}")
        is_read = not positions or positions[-1] == split.position - 1
        is_read &= bool(positions) == (split.position > start)
        _check(is_read or not foreknown, f"split {split.split_id!r} was not all read")
        times = np.array([time for _, time in of_split if time != NO_TIMESTAMP], np.int64)
        if foreknown and batch.bound_us is not None and times.size:
            _check(int(times.max()) <= batch.bound_us, f"split {split.split_id!r} was read past {batch.bound_us}")
        bounds.check(split.split_id, times, int(after.table.watermarks[slot]), is_exact=foreknown)
    _check(not records, f"records of splits came that are not in work: {sorted(records)}")


def _check_order(reader: int, records: Sequence[EmittedRecord]) -> None:
    last: dict[str, int] = {}
    for record in records:
        before = last.get(record.split_id, -1)
        _check(
            record.position > before,
            f"split {record.split_id!r}: reader {reader} emitted {record.position} after {before}",
        )
        last[record.split_id] = record.position


class _Bounds:
    """The watermarks of a source with bounded out-of-orderness, computed record by record."""

    def __init__(self, before: SourceState[Any, Any], strategy: WatermarkStrategy, excused: Mapping[str, int]) -> None:
        table = before.table
        self._bound_us = strategy.out_of_orderness_us
        self._announced = table.combined
        self._watermarks = dict(zip(table.split_ids, table.watermarks.tolist(), strict=True))
        self._excused = excused

    def check(self, split_id: str, times: Int64Array, watermark: int, *, is_exact: bool) -> None:
        if self._bound_us is None:
            return
        own = self._watermarks.get(split_id, NO_TIMESTAMP)
        for time in times.tolist():
            is_on_time = time > max(own, self._excused.get(split_id, NO_TIMESTAMP))
            _check(
                not is_on_time or time > self._announced,
                f"split {split_id!r}: the record at {time} is on time, and late to the watermark {self._announced}",
            )
            own = max(own, time - self._bound_us - 1, NO_TIMESTAMP)
        holds = own == watermark or not is_exact
        _check(holds, f"split {split_id!r} has the watermark {watermark}, its records give {own}")


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)

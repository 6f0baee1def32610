"""What must be so in every micro-batch, whatever the source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from alignment.strategy import WatermarkStrategy
from alignment.timestamps import NO_TIMESTAMP
from streaming_source.coordinator import SourceState
from streaming_source.testing.output import EmittedRecord, ReadBatch

__all__ = ["check_batch"]


def check_batch(
    batch: ReadBatch,
    before: SourceState[Any, Any],
    after: SourceState[Any, Any],
    strategy: WatermarkStrategy,
    excused: Mapping[str, int] | None = None,
    *,
    foreknown: bool = True,
) -> None:
    """Check what was read against the two states.

    - Of each split exactly the records between its two positions were read, each once, each reader's in their order.
    - The watermark did not go back, and no split did.
    - Nothing later than the planner's bound was read.
    - A split's watermark is what its records give; not where event times are learnt from reports, which come later.
    - No record is late that is later than its own split's watermark.

    Parameters
    ----------
    batch
        What was read.
    before, after
        The states between which it was planned.
    strategy
        Of the query.
    excused
        By split that joined, or came back from being idle, after a watermark had been announced: that watermark. No
        promise was made for its records at or below it.
    foreknown
        The planner knows event times ahead of reading. If not, neither its bound nor its number of records is exact.

    Raises
    ------
    AssertionError
        If one of these does not hold; it says which, and for which split.
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

    def check(self, split_id: str, times: npt.NDArray[np.int64], watermark: int, *, is_exact: bool) -> None:
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

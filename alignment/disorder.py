"""The disorder of records, and the distance between splits: what a delay would have covered.

A record's *disorder* is how far it is behind the latest record before it in its split: the smallest bound on
out-of-orderness under which it is on time. Its *lag* is how far it is behind the latest record of all splits that was
read before the last micro-batch: the smallest delay under which Spark does not drop it, which has one watermark for all
and drops by that of the micro-batch before. That depends on how splits are read. Here all are read at one pace: each of
`PACES` micro-batches has the same share of the positions of each split, as Spark's own Kafka source reads a backlog
with `maxOffsetsPerTrigger`.

Records that come together, as those of a file or of a commit do, are there at once: in which order they stand is no
matter of lateness. How late records *come* is how far they are behind the latest of those that came before. What is
read by event time, and is stored in another order, is kept as state until the watermark, which stays below what is
unread, has passed it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK, Int64Array

PACES: Final = 100
"""Micro-batches in which all is read at one pace."""

_BITS: Final = 7


class DisorderHistogram:
    """Counts durations in buckets that are at most 1/128 wide: up to 255 microseconds exactly.

    Two are merged by adding them up. Its size is that of the largest duration's logarithm.
    """

    def __init__(self) -> None:
        self._counts: Int64Array = np.zeros(1, np.int64)
        self.largest_us = 0

    def add(self, durations_us: Int64Array) -> None:
        """Count durations, none negative. O(n)."""
        if durations_us.size:
            # The power of two is off by one near the next one, where both give the same bucket.
            exponent = np.maximum(np.frexp(durations_us.astype(np.float64))[1].astype(np.int64) - _BITS - 1, 0)
            self._merge(np.bincount((exponent << _BITS) + (durations_us >> exponent)))
            self.largest_us = max(self.largest_us, int(durations_us.max()))

    def merge(self, other: DisorderHistogram) -> None:
        """Count all that another one has counted."""
        self._merge(other._counts)
        self.largest_us = max(self.largest_us, other.largest_us)

    @property
    def total(self) -> int:
        """Return how many were counted."""
        return int(self._counts.sum())

    def covering_us(self, share: Fraction) -> int:
        """A duration that at least this share of those counted does not exceed, and at most 1/128 above the smallest.

        For all of them it is the largest; 0 if none were counted.
        """
        wanted = -(-self.total * share.numerator // share.denominator)
        bucket = int(np.searchsorted(np.cumsum(self._counts), max(wanted, 1)))
        exponent = max((bucket >> _BITS) - 1, 0)
        return min((bucket - (exponent << _BITS) + 1 << exponent) - 1, self.largest_us)

    def _merge(self, counts: npt.NDArray[np.integer]) -> None:
        size = max(self._counts.size, counts.size)
        self._counts = np.pad(self._counts, (0, size - self._counts.size))
        self._counts[: counts.size] += counts


@dataclass(slots=True)
class SplitDisorder:
    """The event times of one split, as far as they are known from its records in their order.

    Positions are those of `[start, stop)`; `invalid` of its rows have no valid event time. `earliest_us` and
    `latest_us` are None before any event time; `disorder` is that of all records that have one. `reached` is
    `int64[PACES]`: the latest event time that was read in each micro-batch or before; `NO_TIMESTAMP` before any.
    """

    start: int
    stop: int
    rows: int = 0
    invalid: int = 0
    earliest_us: int | None = None
    latest_us: int | None = None
    disorder: DisorderHistogram = field(default_factory=DisorderHistogram)
    reached: Int64Array = field(default_factory=lambda: np.full(PACES, NO_TIMESTAMP))

    def add(self, positions: Int64Array, times: Int64Array, invalid: int) -> None:
        """The next records: `n` with an event time, and how many without. O(n)."""
        self.rows += times.size + invalid
        self.invalid += invalid
        if times.size:
            latest, disorder = _behind(times, self.latest_us)
            self.disorder.add(disorder)
            earliest_us = int(times.min())
            self.earliest_us = earliest_us if self.earliest_us is None else min(self.earliest_us, earliest_us)
            self.latest_us = int(latest[-1])
            pace = self.pace(positions)
            last = np.flatnonzero(np.diff(pace, append=PACES))
            self.reached[pace[last]] = latest[last]
            np.maximum.accumulate(self.reached, out=self.reached)

    def pace(self, positions: Int64Array) -> Int64Array:
        """`int64[n]`: in which micro-batch each position is read."""
        return (positions - self.start) * PACES // (self.stop - self.start)


def paces_of(splits: Mapping[str, SplitDisorder]) -> tuple[Int64Array, int]:
    """Return the result of reading all splits at one pace.

    That is `int64[PACES]`, the latest event time of all splits that was read before the one before each micro-batch;
    and how far the latest event times of two splits are apart, at most, in microseconds.
    """
    reached = np.array([split.reached for split in splits.values()]).reshape(-1, PACES)
    latest = reached.max(axis=0, initial=NO_TIMESTAMP)
    slowest = np.where(reached > NO_TIMESTAMP, reached, latest).min(axis=0, initial=np.iinfo(np.int64).max)
    return np.append([NO_TIMESTAMP] * 2, latest[:-2]), int((latest - slowest).max()) if splits else 0


class DelayCount:
    """A count of the records that some delays cover, made when they are read again.

    `int64[k]` each: `late` are records whose disorder exceeds each delay, late in their own split with that as a bound;
    `behind` are those whose lag does, below Spark's watermark with that delay. `lag` is of all records that have one:
    not those of the first two micro-batches.
    """

    def __init__(self, splits: Mapping[str, SplitDisorder], delays_us: Int64Array) -> None:
        self._splits = splits
        self._delays_us = delays_us
        self._before, _ = paces_of(splits)
        self._latest: dict[str, int] = {}
        self.late: Int64Array = np.zeros(delays_us.size, np.int64)
        self.behind: Int64Array = np.zeros(delays_us.size, np.int64)
        self.lag = DisorderHistogram()

    def add(self, split_id: str, positions: Int64Array, times: Int64Array) -> None:
        """The next records of a split that have an event time, `n` of them. O(n k)."""
        if not times.size:
            return
        latest, disorder = _behind(times, self._latest.get(split_id))
        self._latest[split_id] = int(latest[-1])
        before = self._before[self._splits[split_id].pace(positions)]
        lag = np.maximum(before[before > NO_TIMESTAMP] - times[before > NO_TIMESTAMP], 0)
        self.lag.add(lag)
        for i, delay_us in enumerate(self._delays_us.tolist()):
            self.late[i] += np.count_nonzero(disorder > delay_us)
            self.behind[i] += np.count_nonzero(lag > delay_us)


class Arrivals:
    """The distances of records behind the latest of those that came before them, where they come many at once.

    Parameters
    ----------
    units
        By split, what came at once: the first position of each unit, rising; its log; and its order in that log. Units
        of one log and order came together.
    """

    def __init__(self, units: Mapping[str, Sequence[tuple[int, str, int]]]) -> None:
        self._units = {split_id: [(log, order) for _, log, order in known] for split_id, known in units.items()}
        self._starts = {split_id: np.array([start for start, *_ in known]) for split_id, known in units.items()}
        self._latest: dict[tuple[str, int], int] = {}
        self._before: dict[tuple[str, int], int] = {}
        self.disorder = DisorderHistogram()

    def __len__(self) -> int:
        """Return how often records came to a log that had some."""
        units = {unit for known in self._units.values() for unit in known}
        return len(units) - len({log for log, _ in units})

    def see(self, split_id: str, positions: Int64Array, times: Int64Array) -> None:
        """Take in records that have an event time, in any order. O(n)."""
        for unit, part in self._parts(split_id, positions):
            self._latest[unit] = max(self._latest.get(unit, NO_TIMESTAMP), int(times[part].max()))

    def settle(self) -> None:
        """All records were seen. O(u log u) for u units."""
        log_before, latest = "", NO_TIMESTAMP
        for log, order in sorted(self._latest):
            latest = latest if log == log_before else NO_TIMESTAMP
            self._before[log, order] = latest
            log_before, latest = log, max(latest, self._latest[log, order])

    def add(self, split_id: str, positions: Int64Array, times: Int64Array) -> None:
        """Count the same records, after `settle`, again in any order. O(n)."""
        for unit, part in self._parts(split_id, positions):
            before_us = self._before[unit]
            if before_us > NO_TIMESTAMP:
                self.disorder.add(np.maximum(before_us - times[part], 0))

    def _parts(self, split_id: str, positions: Int64Array) -> Iterator[tuple[tuple[str, int], npt.NDArray[np.intp]]]:
        if positions.size:
            number = np.searchsorted(self._starts[split_id], positions, side="right") - 1
            for one in np.unique(number).tolist():
                yield self._units[split_id][one], np.flatnonzero(number == one)


class KeptState:
    """The records that a query keeps as state that reads all by event time, since they stand in another order.

    It is looked at as all splits have been read up to each of `BOUNDS` event times between the first and the last:
    the watermark is below what is unread then, and what was read above it is kept.
    """

    BOUNDS: ClassVar[int] = 100

    def __init__(self, first_us: int, last_us: int) -> None:
        self._bounds = np.linspace(first_us, last_us, self.BOUNDS + 1)[1:].astype(np.int64)
        self._bounds[-1] = last_us
        # By the number of the first bound up to which a record is read: the earliest, and how many by event time.
        self._earliest = np.full(self.BOUNDS, MAX_WATERMARK)
        self._counts = np.zeros((self.BOUNDS, self.BOUNDS), np.int64)
        self._latest: dict[str, int] = {}

    def add(self, split_id: str, times: Int64Array) -> None:
        """The next records of a split that have an event time. O(n)."""
        if times.size:
            latest, _ = _behind(times, self._latest.get(split_id))
            self._latest[split_id] = int(latest[-1])
            read_at, at = (np.searchsorted(self._bounds, column) for column in (latest, times))
            np.minimum.at(self._earliest, read_at, times)
            np.add.at(self._counts, (read_at, at), 1)

    def most(self) -> tuple[int, int]:
        """The most event time, in microseconds, and the most records that are kept: upper bounds, 0 for next to none.

        A read limit may stop anywhere before the next bound: of what is read up to that, all but the earliest.
        """
        unread_us = np.minimum.accumulate(self._earliest[::-1])[::-1]
        spans_us = np.where(unread_us <= self._bounds, self._bounds - unread_us, 0)
        in_order_us = 2 * int(self._bounds[-1] - self._bounds[0]) // (self.BOUNDS - 1)
        kept = np.zeros(self.BOUNDS, np.int64)
        for number in np.flatnonzero(spans_us > in_order_us).tolist():
            first = int(np.searchsorted(self._bounds, unread_us[number]))
            kept[number] = self._counts[: number + 1, first:].sum()
        return (int(spans_us.max()), int(kept.max())) if kept.any() else (0, 0)


def _behind(times: Int64Array, latest_us: int | None) -> tuple[Int64Array, Int64Array]:
    """The latest up to each record, `int64[n]`, and how far each is behind that."""
    latest = np.maximum.accumulate(times)
    if latest_us is not None:
        np.maximum(latest, latest_us, out=latest)
    return latest, latest - times

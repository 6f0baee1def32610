"""What the brokers know of timestamps: where partitions are to be cut, without reading what lies before.

A broker finds the first record of a partition that is at or after a time, and the one with the latest timestamp. Both
are asked for all partitions in one call. What it answers is not always a record that will be read: the marks of
transactions have timestamps of their own, what was aborted still lies in the log, and the search begins at the start of
the log and not where reading goes on. So each answer is confirmed by reading that one record; where it is none, records
are read from there to the first that is one.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from alignment.timestamps import NO_TIMESTAMP
from streaming_source.api import SplitEnumeratorContext
from streaming_source.connectors.kafka.admin import FoundRecord, KafkaAdmin
from streaming_source.connectors.kafka.broker_index.partition_updates import News, NewsFinder, UntoldPart
from streaming_source.connectors.kafka.broker_index.scanning import Scanner
from streaming_source.connectors.kafka.split import KafkaSplit
from streaming_source.connectors.kafka.subscription import Partition

__all__ = ["Looked", "TimeIndex"]

Int64Array: TypeAlias = npt.NDArray[np.int64]


@dataclass(slots=True)
class _Told:
    """What the planner was told of a split.

    `position` is that of the last state; records before `told` are in the index, and between that and `looked` there is
    none; `end` is where what can be read ended at the last look. `scanned` has the first offset and the event times of
    each block that was read.
    """

    split: KafkaSplit
    position: int
    told: int
    looked: int
    end: int
    is_complete: bool = False
    scanned: list[tuple[int, Int64Array]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Looked:
    """What one look brought: news, and where what can be read ends, by split id.

    `blocked_splits` have records behind that, of transactions that are open, or the brokers say nothing of their ends.
    """

    news: tuple[News, ...]
    ends: Mapping[str, int]
    blocked_splits: frozenset[str]


class TimeIndex:
    """Tells the planner what is unread in the partitions, and where to cut it.

    `look` runs on a worker and changes nothing; what it brings is told by `take` on the coordinator's thread. Both have
    brokers of their own to ask. Methods that ask or read raise `SourceError` if the brokers do not say, and with
    `fail_on_data_loss` a `DataLossError` if records that nobody has read are not there any more.
    """

    FEW: ClassVar[int] = 500
    """News that are read at once: offsets of a partition."""

    AHEAD: ClassVar[int] = 4_000_000
    """Records read and not handed out, over all partitions: 8 bytes each."""

    AT_ONCE: ClassVar[int] = 200_000
    """Records of one partition that a look reads at most."""

    def __init__(
        self,
        context: SplitEnumeratorContext[KafkaSplit],
        for_looks: KafkaAdmin,
        for_plans: KafkaAdmin,
        scanner: Scanner,
        *,
        fail_on_data_loss: bool,
    ) -> None:
        self._context = context
        self._for_looks, self._of_plans = (
            NewsFinder(admin, scanner, lambda: context.event_time_limit_us, fail_on_data_loss=fail_on_data_loss)
            for admin in (for_looks, for_plans)
        )
        self._ends = for_looks.ends
        self._for_plans = for_plans
        self._scanner = scanner
        self._blocked_splits: frozenset[str] = frozenset()
        self._lock = threading.Lock()
        # Guarded by the lock, which is held for moments: changed on the coordinator's thread, seen by looks.
        self._splits: dict[str, _Told] = {}
        self._gone: set[str] = set()

    # ---- splits --------------------------------------------------------------------------------------------------

    def add(self, splits: Iterable[KafkaSplit]) -> None:
        """Look in these, too, from their positions on."""
        with self._lock:
            for split in splits:
                at = split.position
                self._splits[split.split_id] = _Told(split, at, at, at, at)

    def leave(self, split_ids: Iterable[str]) -> None:
        """Their partitions are gone: look no more for news of them."""
        with self._lock:
            self._gone.update(split_ids)

    def remove(self, split_id: str) -> None:
        """Forget a split that was read to its end."""
        with self._lock:
            self._splits.pop(split_id, None)
            self._gone.discard(split_id)

    def commit_plan(self, split_id: str, position: int) -> KafkaSplit:
        """The split at a position; what is before it is in a state."""
        told = self._splits[split_id]
        if position > told.position:
            with self._lock:
                told.position = position
                told.scanned = [entry for entry in told.scanned if entry[0] + entry[1].size > position]
        return told.split.at(position)

    # ---- looks: on a worker --------------------------------------------------------------------------------------

    def look(self, found: Iterable[KafkaSplit] = (), gone: Collection[str] = ()) -> Looked:
        """What is new in the known splits, and in some that were just found. A call or two without news, O(n)."""
        found = tuple(found)
        with self._lock:
            known = [told for split_id, told in self._splits.items() if split_id not in self._gone]
            share = self._share(len(known) + len(found))
            parts = [
                UntoldPart(told.split, told.told, told.looked, max(share - sum(t.size for _, t in told.scanned), 0))
                for told in known
                if told.split.split_id not in gone and not told.is_complete
            ]
        parts += [UntoldPart(split, split.position, split.position, share) for split in found]
        logs = self._ends(sorted({part.split.of for part in parts}))
        ends, blocked_splits = {}, set()
        for part in parts:
            log = logs.get(part.split.of)
            if log is None:
                # Nothing is known of it; whether it is gone says discovery.
                blocked_splits.add(part.split.split_id)
                continue
            stop = part.split.stop
            ends[part.split.split_id] = log.readable if stop is None else min(log.readable, stop)
            if log.written > log.readable and (stop is None or stop > log.readable):
                blocked_splits.add(part.split.split_id)
            # Not by what is readable: with another isolation level more was readable, and will be again.
            if log.written < part.looked:
                self._for_looks.lose(
                    part, f"the partition ends at {log.written}: its last ones were deleted, or its topic was"
                )
        return Looked(
            tuple(self._for_looks.find(parts, ends, few=self.FEW, at_once=self.AT_ONCE)),
            ends,
            frozenset(blocked_splits),
        )

    # ---- on the coordinator's thread -----------------------------------------------------------------------------

    @property
    def blocked_splits(self) -> frozenset[str]:
        """Splits that are not read to their ends although nothing of them is unread in the index."""
        return self._blocked_splits

    def take(self, looked: Looked) -> None:
        """Tell what a look brought. O(news), and O(n) where an end has moved."""
        with self._lock:
            for split_id, end in looked.ends.items():
                if split_id in self._splits:
                    told = self._splits[split_id]
                    told.end = max(told.end, end)
        self._tell(looked.news)
        for split_id in looked.ends:
            self._complete(split_id)
        behind = {split_id for split_id in looked.ends if self._is_behind(split_id)}
        self._blocked_splits = looked.blocked_splits | behind

    def extend_snapshot(self) -> None:
        """Tell more of the splits of which all that was told is handed out, up to the ends of the last look."""
        wanted = [t for i, t in self._splits.items() if t.position >= t.told and self._is_behind(i)]
        share = self._share(len(self._splits))
        parts = [UntoldPart(told.split, told.told, told.looked, share) for told in wanted]
        while parts:
            ends = {part.split.split_id: self._splits[part.split.split_id].end for part in parts}
            self._tell(self._of_plans.find(parts, ends, few=self.FEW, at_once=self.AT_ONCE))
            # What has brought no record is looked at further.
            empty = [t for t in wanted if t.position >= t.told and self._is_behind(t.split.split_id)]
            parts = [UntoldPart(told.split, told.told, told.looked, share) for told in empty]

    def event_times(self, split_id: str, start: int, stop: int) -> Int64Array:
        """Event times of a block that was read; those of offsets without a record are the next record's. O(blocks)."""
        for first, times in self._splits[split_id].scanned:
            if first <= start and stop <= first + times.size:
                return times[start - first : stop - first]
        raise KeyError(f"offsets {start} to {stop} of split {split_id!r} are in no block that was read")

    def first_later(
        self, split_ids: Sequence[str], starts: Int64Array, stops: Int64Array, bound_us: int
    ) -> tuple[Int64Array, Int64Array]:
        """See `SupportsEventTimeIndex`. One call of the brokers, and one record read of each split that has one.

        What lies behind a mark of a transaction, or behind an earlier record that is later than the bound, is read
        until a record is found: O(records before it).
        """
        positions, times = stops.copy(), np.full(stops.size, NO_TIMESTAMP, np.int64)
        asked_ms = bound_us // 1000 + 1
        splits = [self._splits[split_id].split for split_id in split_ids]
        answers: Mapping[Partition, FoundRecord | None] = {}
        if asked_ms >= 0 and bound_us != NO_TIMESTAMP:
            answers = self._for_plans.records({split.of: asked_ms for split in splits})
        wanted = []
        for split, start, stop in zip(splits, starts.tolist(), stops.tolist(), strict=True):
            begin = start
            if split.of in answers:
                answer = answers[split.of]
                begin = stop if answer is None else max(answer.offset, start)
            if begin < stop:
                wanted.append(split.at(begin).until(stop))
        found = self._scanner.first_later(wanted, bound_us)
        for i, split_id in enumerate(split_ids):
            if split_id in found:
                positions[i], times[i] = found[split_id]
        return positions, times

    def _share(self, partitions: int) -> int:
        """How many records of each of so many partitions may be read ahead."""
        return max(self.AHEAD // max(partitions, 1), 1)

    def _is_behind(self, split_id: str) -> bool:
        told = self._splits.get(split_id)
        return told is not None and told.looked < told.end and split_id not in self._gone

    def _tell(self, news: Iterable[News]) -> None:
        for split_id, begin, looked, rows, max_us, times in news:
            told = self._splits.get(split_id)
            # What another look has told since is not told again.
            if told is None or told.told != begin or told.looked >= looked:
                continue
            with self._lock:
                told.told, told.looked, told.end = begin + rows, looked, max(told.end, looked)
                if times is not None and rows:
                    told.scanned.append((begin, times))
            if times is None:
                self._context.add_opaque_block(split_id, rows, max_us)
            elif rows:
                self._context.add_blocks(split_id, rows, times.min(), times.max())
            self._complete(split_id)

    def _complete(self, split_id: str) -> None:
        told = self._splits.get(split_id)
        if told is None or told.split.stop is None or told.is_complete or told.looked < told.split.stop:
            return
        told.is_complete = True
        self._context.complete_split(split_id)

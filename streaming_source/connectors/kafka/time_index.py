"""What the brokers know of timestamps: where partitions are to be cut, without reading what lies before.

A broker finds the first record of a partition that is at or after a time, and the one with the latest timestamp; one
call finds those of all partitions. What it answers is not always a record that will be read: the marks of transactions
have timestamps of their own, what was aborted still lies in the log, and the search begins at the start of the log and
not where reading goes on. So each answer is confirmed by reading that one record; where it is none, records are read
from there to the first that is one.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np

from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import Int64Array
from streaming_source.api import SplitEnumeratorContext
from streaming_source.connectors.kafka.admin import FoundRecord, KafkaAdmin
from streaming_source.connectors.kafka.partition_updates import PartitionUpdate, Scanner, UnindexedPart, UpdateFinder
from streaming_source.connectors.kafka.split import KafkaSplit
from streaming_source.connectors.kafka.subscription import Partition

__all__ = ["Looked", "TimeIndex"]


@dataclass(slots=True)
class _Indexed:
    """A split and how far it is known.

    `position` is that of the last state; records before `indexed_to` are in the index, and between that and `seen_to`
    there is none; `end` is where what can be read ended at the last look. `scanned` has the first offset and the event
    times of each block that was read.
    """

    split: KafkaSplit
    position: int
    indexed_to: int
    seen_to: int
    end: int
    is_complete: bool = False
    scanned: list[tuple[int, Int64Array]] = field(default_factory=list)

    def unindexed(self, room: int) -> UnindexedPart:
        """What follows; `room` is for all that was read and not planned."""
        return UnindexedPart(self.split, self.indexed_to, self.seen_to, room)


class Looked(NamedTuple):
    """What one look brought: updates, and where what can be read ends, by split id.

    `blocked_splits` have records behind that, of transactions that are open, or the brokers say nothing of their ends.
    """

    updates: Sequence[PartitionUpdate]
    ends: Mapping[str, int]
    blocked_splits: frozenset[str]


class TimeIndex:
    """Adds what is unread in the partitions to the planner's index, and finds where to cut it.

    `look` runs on a worker and changes nothing; what it brings is added by `take` on the coordinator's thread. Each has
    a connection of its own. Methods that ask or read raise `SourceError` if the brokers do not say, and with
    `fail_on_data_loss` a `DataLossError` if records that nobody has read are not there any more.
    """

    FEW: ClassVar[int] = 500
    """Updates that are read at once: offsets of a partition."""

    AHEAD: ClassVar[int] = 4_000_000
    """Records read and not planned, over all partitions: 8 bytes each."""

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
        self._updates = UpdateFinder(scanner, lambda: context.event_time_limit_us, fail_on_data_loss=fail_on_data_loss)
        self._for_looks, self._for_plans = for_looks, for_plans
        self._scanner = scanner
        # Splits that are not read to their ends although nothing of them is unread in the index.
        self.blocked_splits: frozenset[str] = frozenset()
        self._lock = threading.Lock()
        # Guarded by the lock, which is held for moments: changed on the coordinator's thread, seen by looks.
        self._splits: dict[str, _Indexed] = {}
        self._gone: set[str] = set()

    # ---- splits --------------------------------------------------------------------------------------------------

    def add(self, splits: Iterable[KafkaSplit]) -> None:
        """Look in these, too, from their positions on."""
        with self._lock:
            for split in splits:
                at = split.position
                self._splits[split.split_id] = _Indexed(split, at, at, at, at)

    def leave(self, split_ids: Iterable[str]) -> None:
        """Their partitions are gone: nothing more will come."""
        with self._lock:
            self._gone.update(split_ids)

    def remove(self, split_id: str) -> None:
        """Forget a split that was read to its end."""
        with self._lock:
            self._splits.pop(split_id, None)
            self._gone.discard(split_id)

    def commit_plan(self, split_id: str, position: int) -> KafkaSplit:
        """The split at a position; what is before it is in a state."""
        known = self._splits[split_id]
        if position > known.position:
            with self._lock:
                known.position = position
                known.scanned = [entry for entry in known.scanned if entry[0] + entry[1].size > position]
        return known.split.at(position)

    # ---- looks: on a worker --------------------------------------------------------------------------------------

    def look(self, found: Sequence[KafkaSplit] = (), gone: Collection[str] = ()) -> Looked:
        """What is new in the known splits, and in some that were just found. A call or two without updates, O(n)."""
        with self._lock:
            there = [known for split_id, known in self._splits.items() if split_id not in self._gone]
            share = self._share(len(there) + len(found))
            parts = [
                known.unindexed(max(share - sum(times.size for _, times in known.scanned), 0))
                for known in there
                if known.split.split_id not in gone and not known.is_complete
            ]
        parts += [UnindexedPart(split, split.position, split.position, share) for split in found]
        logs = self._for_looks.ends(sorted({part.split.of for part in parts}))
        ends, blocked_splits = {}, set()
        for part in parts:
            log, split = logs.get(part.split.of), part.split
            if log is None:
                # Nothing is known of it; whether it is gone says discovery.
                blocked_splits.add(split.split_id)
                continue
            ends[split.split_id] = split.before_stop(log.readable)
            if split.before_stop(log.written) > ends[split.split_id]:
                blocked_splits.add(split.split_id)
            # Not by what is readable: with another isolation level more was readable, and will be again.
            if log.written < part.seen_to:
                self._updates.lose(
                    part, f"the partition ends at {log.written}: its last ones were deleted, or its topic was"
                )
        updates = self._updates.find(self._for_looks, parts, ends, few=self.FEW, at_once=self.AT_ONCE)
        return Looked(updates, ends, frozenset(blocked_splits))

    # ---- on the coordinator's thread -----------------------------------------------------------------------------

    def take(self, looked: Looked) -> None:
        """Add what a look brought. O(updates), and O(n) where an end has moved."""
        with self._lock:
            for split_id, end in looked.ends.items():
                if split_id in self._splits:
                    known = self._splits[split_id]
                    known.end = max(known.end, end)
        self._add(looked.updates)
        for split_id in looked.ends:
            self._complete(split_id)
        behind = {split_id for split_id in looked.ends if self._is_behind(split_id)}
        self.blocked_splits = looked.blocked_splits | behind

    def extend_snapshot(self) -> None:
        """Add more of the splits of which all that was added is in a state, up to the ends of the last look."""
        wanted, share = list(self._splits.values()), self._share(len(self._splits))
        # Again: where an update has brought no record there may be some behind it.
        while wanted := [t for t in wanted if t.position >= t.indexed_to and self._is_behind(t.split.split_id)]:
            parts = [known.unindexed(share) for known in wanted]
            ends = {known.split.split_id: known.end for known in wanted}
            self._add(self._updates.find(self._for_plans, parts, ends, few=self.FEW, at_once=self.AT_ONCE))

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
        later_ms = bound_us // 1000 + 1
        splits = [self._splits[split_id].split for split_id in split_ids]
        answers: Mapping[Partition, FoundRecord | None] = {}
        if later_ms >= 0 and bound_us != NO_TIMESTAMP:
            answers = self._for_plans.records({split.of: later_ms for split in splits})
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
        known = self._splits.get(split_id)
        return known is not None and known.seen_to < known.end and split_id not in self._gone

    def _add(self, updates: Iterable[PartitionUpdate]) -> None:
        for split_id, begin, seen_to, rows, max_us, times in updates:
            known = self._splits.get(split_id)
            # What another look has added since is not added again.
            if known is None or known.indexed_to != begin or known.seen_to >= seen_to:
                continue
            with self._lock:
                known.indexed_to, known.seen_to, known.end = begin + rows, seen_to, max(known.end, seen_to)
                if times is not None and rows:
                    known.scanned.append((begin, times))
            if times is None:
                self._context.add_opaque_block(split_id, rows, max_us)
            elif rows:
                self._context.add_blocks(split_id, rows, times.min(), times.max())
            self._complete(split_id)

    def _complete(self, split_id: str) -> None:
        known = self._splits.get(split_id)
        if known is None or known.split.stop is None or known.is_complete or known.seen_to < known.split.stop:
            return
        known.is_complete = True
        self._context.complete_split(split_id)

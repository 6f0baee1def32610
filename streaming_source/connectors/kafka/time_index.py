"""Cuts of partitions at an event time, by the brokers' index of timestamps, without reading what comes before.

A broker finds the first record of a partition that is at or after a time, and the one with the latest timestamp; one
call finds those of all partitions. The result is not always a record that will be read: marks of transactions have
timestamps of their own, aborted records are still in the log, and the search begins at the start of the log and not at
the position of the split. So each result is confirmed by reading that one record. If it is no record, those after it
are read up to the first one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import numpy as np

from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import Int64Array
from streaming_source.api import SplitEnumeratorContext
from streaming_source.connectors.kafka.admin import FoundRecord, KafkaAdmin, replaced_topics
from streaming_source.connectors.kafka.faults import report_loss
from streaming_source.connectors.kafka.log_ends import NextOffset
from streaming_source.connectors.kafka.scanner import Scanner
from streaming_source.connectors.kafka.split import KafkaSplit
from streaming_source.connectors.kafka.subscription import EARLIEST, MAX_TIMESTAMP, Partition


class _Indexed(NamedTuple):
    """A split, and how far it is indexed.

    `position` is that of the last state. Records before `indexed_to` are in the index, and there is none between that
    and `seen_to`. `end` is where readable records ended at the last update. `scanned` has the first offset and the
    event times of each block that was read.
    """

    split: KafkaSplit
    position: int
    indexed_to: int
    seen_to: int
    end: int
    is_complete: bool = False
    scanned: tuple[tuple[int, Int64Array], ...] = ()

    @classmethod
    def from_its_position(cls, split: KafkaSplit) -> _Indexed:
        position = split.position
        return cls(split, position, position, position, position)

    @property
    def is_planned(self) -> bool:
        """True if all of its indexed records are in a state."""
        return self.position >= self.indexed_to


class _Update(NamedTuple):
    """The next block of a split: an opaque block with `max_us`, or the event `times` of a block that was read.

    There is no other record before `seen_to`.
    """

    known: _Indexed
    seen_to: int
    rows: int
    max_us: int
    times: Int64Array | None


class Observed(NamedTuple):
    """The result of one look-up: new blocks, and the ends of readable records by split id.

    `blocked_splits` has, by split id, how many records of open transactions are after its end. The ends of
    `unknown_splits` were not returned by the brokers, or are of `replaced_topics`, which were deleted, or created anew.
    `shorter` has, by split id, the offset that is not there any more and the end of logs that became shorter.
    """

    updates: Sequence[_Update]
    ends: Mapping[str, int]
    blocked_splits: Mapping[str, int]
    unknown_splits: frozenset[str] = frozenset()
    replaced_topics: frozenset[str] = frozenset()
    shorter: Mapping[str, tuple[int, int]] = MappingProxyType({})


class TimeIndex:
    """Adds the unread records of partitions to the planner's index, and finds where to cut them.

    `look` runs on a worker and changes nothing; `take` adds its result on the coordinator's thread. Plans and look-ups
    have a connection each. Methods that query brokers raise a `SourceError` if these do not answer, and with
    `fail_on_data_loss` a `DataLossError` if unread records no longer exist.

    The new records of a partition are added in one of three ways:

    - *few* records are read: as much would be fetched to confirm the latest one;
    - *many* records become an opaque block, if the latest one is confirmed and among them;
    - other *many* records are read part by part. They come after a record that is later than all of them, or after the
      mark of a transaction, so that the brokers' index returns only that record or mark.
    """

    FEW: ClassVar[int] = 500
    """Up to so many new offsets of a partition are read instead of queried."""

    AHEAD: ClassVar[int] = 4_000_000
    """Records read and not planned, over all partitions: 8 bytes each."""

    AT_ONCE: ClassVar[int] = 200_000
    """Records of one partition that one look-up reads at most."""

    DENSE: ClassVar[int] = 4
    """Records that are further apart than this many offsets, on average, become an opaque block."""

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
        self._for_looks, self._for_plans = for_looks, for_plans
        self._scanner = scanner
        self._fail_on_data_loss = fail_on_data_loss
        # By split id, how many records open transactions held back at the last query.
        self.blocked_splits: Mapping[str, int] = {}
        # Splits with records that are not added yet, and splits whose ends are not known.
        self.unindexed_splits: Collection[str] = ()
        # Changed on the coordinator's thread; `look` takes a copy on its own.
        self._splits: dict[str, _Indexed] = {}
        self._deleted: set[str] = set()
        # Whose loss was reported.
        self._lost: set[str] = set()

    # ---- splits --------------------------------------------------------------------------------------------------

    def add(self, splits: Iterable[KafkaSplit]) -> None:
        """Index these splits too, from their positions on."""
        self._splits.update((split.split_id, _Indexed.from_its_position(split)) for split in splits)

    def leave(self, split_ids: Iterable[str]) -> None:
        """Stop querying splits whose partitions were deleted. Ids that are not known are ignored."""
        self._deleted.update(self._splits.keys() & set(split_ids))

    def remove(self, split_id: str) -> None:
        """Forget a split that was read to its end."""
        self._splits.pop(split_id, None)
        self._deleted.discard(split_id)
        self._lost.discard(split_id)

    def next_offsets(self) -> Mapping[str, NextOffset]:
        """Return, by split id, the next record that no plan reads yet. From any thread.

        Splits without such a record are left out: retention may empty their logs, up to the marks of transactions.
        """
        known = list(self._splits.values())
        return {one.split.split_id: NextOffset(one.split.of, one.position) for one in known if not one.is_planned}

    def commit_plan(self, split_id: str, position: int) -> KafkaSplit:
        """Record that a plan reads a split up to a position, and return the split there."""
        known = self._splits[split_id]
        if position > known.position:
            scanned = tuple(block for block in known.scanned if block[0] + block[1].size > position)
            self._splits[split_id] = known._replace(position=position, scanned=scanned)
        return known.split.at(position)

    def close(self) -> None:
        """End reads, and close the consumers."""
        self._scanner.close()

    # ---- looks: on a worker --------------------------------------------------------------------------------------

    def look(self, found: Sequence[KafkaSplit] = (), lost: Collection[str] = ()) -> Observed:
        """Look up new records of the known splits, and of some that were just found.

        One or two calls if there are none. O(n).
        """
        there = [known for known in list(self._splits.values()) if known.split.split_id not in self._deleted]
        parts = [known for known in there if known.split.split_id not in lost and not known.is_complete]
        parts += map(_Indexed.from_its_position, found)
        logs = self._for_looks.ends(sorted({known.split.of for known in parts}))
        ends: dict[str, int] = {}
        blocked_splits: dict[str, int] = {}
        unknown: set[str] = set()
        shorter: list[tuple[_Indexed, int]] = []
        for known in parts:
            log, split = logs.get(known.split.of), known.split
            if log is None:
                # Its end is not known. Discovery finds out whether it still exists.
                unknown.add(split.split_id)
                continue
            ends[split.split_id] = split.before_stop(log.readable)
            if (locked := split.before_stop(log.written) - ends[split.split_id]) > 0:
                blocked_splits[split.split_id] = locked
            # Compared with what is written, as less may be readable for a while under another isolation level.
            if log.written < known.seen_to:
                shorter.append((known, log.written))
        updates = self._updates(self._for_looks, parts, ends, self._share(len(there) + len(found)))
        # Checked afterwards: ends of topics that are still the same are theirs.
        changed = [update.known for update in updates] + [known for known, _ in shorter]
        replaced = replaced_topics(self._for_looks, {one.split.topic: one.split.topic_id for one in changed})
        if replaced:
            updates = [update for update in updates if update.known.split.topic not in replaced]
            hidden = {known.split.split_id for known in parts if known.split.topic in replaced}
            ends = {split_id: end for split_id, end in ends.items() if split_id not in hidden}
            blocked_splits = {split_id: count for split_id, count in blocked_splits.items() if split_id not in hidden}
            unknown |= hidden
        lost = {
            known.split.split_id: (known.seen_to, written)
            for known, written in shorter
            if known.split.topic not in replaced
        }
        return Observed(updates, ends, blocked_splits, frozenset(unknown), replaced, lost)

    def _share(self, partitions: int) -> int:
        """Return how many records of each partition may be read ahead."""
        return max(self.AHEAD // max(partitions, 1), 1)

    def _updates(
        self, admin: KafkaAdmin, parts: Sequence[_Indexed], ends: Mapping[str, int], share: int
    ) -> list[_Update]:
        """Make updates of the splits with new records before their `ends`, by split id.

        At most three calls for all partitions, in addition to the records that are read.
        """
        behind = [known for known in parts if known.seen_to < ends.get(known.split.split_id, 0)]
        many = [known for known in behind if ends[known.split.split_id] - known.seen_to > self.FEW]
        latest = self._latest(admin, many) if many else {}
        updates, to_read = [], {}
        for known in behind:
            split_id = known.split.split_id
            if split_id in latest:
                offset, max_us = latest[split_id]
                # The latest record may be newer than the ends.
                end = max(ends[split_id], offset + 1)
                updates.append(_Update(known, end, end - known.indexed_to, max_us, None))
            elif (rows := share - sum(times.size for _, times in known.scanned)) > 0:
                to_read[split_id] = known, ends[split_id], min(rows, self.AT_ONCE)
        limits = {split_id: most for split_id, (_, _, most) in to_read.items()}
        read = self._scanner.times(
            [known.split.at(known.seen_to).until(end) for known, end, _ in to_read.values()], limits
        )
        for split_id, (known, end, most) in to_read.items():
            offsets, times = read[split_id]
            # If fewer records than wanted were read, there are no others before the end.
            seen_to = end if offsets.size < most else int(offsets[-1]) + 1
            updates += self._of_records(known, seen_to, offsets, times)
        return updates

    def _of_records(self, known: _Indexed, seen_to: int, offsets: Int64Array, times: Int64Array) -> Iterator[_Update]:
        """Make updates of the records of a split before `seen_to`, `int64[n]` each. O(n) also where offsets have gaps.

        Records that are close together are one block with an event time for each offset; an offset without a record has
        that of the next record. Others are one opaque block, or a block each if one of them has no valid event time.
        """
        gaps = np.diff(offsets, prepend=known.indexed_to - 1)
        if gaps.sum() <= self.DENSE * (offsets.size + self.FEW):
            dense = np.repeat(times, gaps)
            yield _Update(known, seen_to, dense.size, NO_TIMESTAMP, dense)
            return
        limit_us, latest_us = self._context.event_time_limit_us, int(times.max())
        if times.min() > NO_TIMESTAMP and (limit_us is None or latest_us < limit_us):
            yield _Update(known, seen_to, int(gaps.sum()), latest_us, None)
            return
        for offset, gap, time_us in zip(offsets.tolist(), gaps.tolist(), times, strict=True):
            last = seen_to if offset == offsets[-1] else offset + 1
            # A broadcast array, which takes no memory for the gap.
            yield _Update(known, last, gap, NO_TIMESTAMP, np.broadcast_to(time_us, gap))
            known = known._replace(indexed_to=offset + 1, seen_to=last)

    def _latest(self, admin: KafkaAdmin, parts: Sequence[_Indexed]) -> dict[str, tuple[int, int]]:
        """Return offset and event time of the latest record of each split, if it is a record, and a new one."""
        by_partition = {known.split.of: known for known in parts}
        earliest = admin.offsets(dict.fromkeys(by_partition, EARLIEST))
        for where, known in by_partition.items():
            begin = earliest.get(where)
            if begin is not None and begin > known.seen_to:
                self._lose(known, f"the partition begins at {begin}: its first ones were deleted")
        answers = admin.records(dict.fromkeys(by_partition, MAX_TIMESTAMP))
        found = self._confirmed(by_partition, answers)
        missing = {
            where: answer.time_ms
            for where, answer in answers.items()
            if answer is not None and answer.time_ms >= 0 and by_partition[where].split.split_id not in found
        }
        # Some brokers return the last record of the batch with the latest one.
        again = admin.records(missing)
        found.update(self._confirmed(by_partition, {w: a for w, a in again.items() if a != answers[w]}))
        return found

    def _confirmed(
        self, parts: Mapping[Partition, _Indexed], answers: Mapping[Partition, FoundRecord | None]
    ) -> dict[str, tuple[int, int]]:
        limit_us = self._context.event_time_limit_us
        wanted = {}
        for where, answer in answers.items():
            split = parts[where].split
            if answer is None or answer.offset < parts[where].seen_to or split.before_stop(answer.offset) == split.stop:
                continue
            if limit_us is None or answer.time_ms * 1000 < limit_us:
                single = split.at(answer.offset).until(answer.offset + 1)
                wanted[split.split_id] = single, answer.time_ms * 1000
        read = self._scanner.first_later([split for split, _ in wanted.values()], NO_TIMESTAMP)
        return {i: read[i] for i, (split, time_us) in wanted.items() if read.get(i) == (split.position, time_us)}

    def _lose(self, known: _Indexed, why: str) -> None:
        """Report that the next record of a partition no longer exists: as an error, or once in the log."""
        split_id = known.split.split_id
        if self._fail_on_data_loss or split_id not in self._lost:
            self._lost.add(split_id)
            what = f"split {split_id!r}: offset {known.seen_to} is not there, {why}"
            report_loss(what, "to go on with what is there", fails=self._fail_on_data_loss)

    # ---- on the coordinator's thread -----------------------------------------------------------------------------

    def take(self, observed: Observed) -> None:
        """Add the result of a look-up. O(updates), and O(n) if an end has moved."""
        self._add(observed.updates)
        for split_id, end in observed.ends.items():
            known = self._splits.get(split_id)
            if known is not None and end > known.end:
                self._splits[split_id] = known._replace(end=end)
        for split_id in observed.ends:
            self._complete(split_id)
        self.blocked_splits = observed.blocked_splits
        # A plan may have added records since the look-up began: then the next look-up adds the rest.
        self.unindexed_splits = {i for i in observed.ends if self._is_behind(i)} | observed.unknown_splits

    def extend_snapshot(self) -> None:
        """Index more records of splits whose indexed records are all in a state, up to the ends of the last look-up."""
        share = self._share(len(self._splits))
        wanted = list(self._splits)
        # Repeated, since there may be records after an update without any.
        while parts := [self._splits[i] for i in wanted if self._is_behind(i) and self._splits[i].is_planned]:
            wanted = [known.split.split_id for known in parts]
            self._add(self._updates(self._for_plans, parts, {i: self._splits[i].end for i in wanted}, share))

    def event_times(self, split_id: str, start: int, stop: int) -> Int64Array:
        """Return event times of a block that was read; an offset without a record has that of the next one.

        O(blocks).
        """
        for first, times in self._splits[split_id].scanned:
            if first <= start and stop <= first + times.size:
                return times[start - first : stop - first]
        raise KeyError(f"offsets {start} to {stop} of split {split_id!r} are in no block that was read")

    def first_later(
        self, split_ids: Sequence[str], starts: Int64Array, stops: Int64Array, bound_us: int
    ) -> tuple[Int64Array, Int64Array]:
        """Find the first records later than a bound; see `SupportsEventTimeIndex`.

        One call for all splits, and one record read of each split that has one. Where the result is a mark of a
        transaction, or is before `starts`, records are read from there on: O(records before the one that is found).
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
                # The block has a later record: one that is not found by its time is looked for by reading.
                begin = start if answer is None else max(answer.offset, start)
            if begin < stop:
                wanted.append(split.at(begin).until(stop))
        found = self._scanner.first_later(wanted, bound_us)
        for i, split_id in enumerate(split_ids):
            if split_id in found:
                positions[i], times[i] = found[split_id]
        return positions, times

    def _is_behind(self, split_id: str) -> bool:
        known = self._splits.get(split_id)
        return known is not None and known.seen_to < known.end and split_id not in self._deleted

    def _add(self, updates: Iterable[_Update]) -> None:
        for before, seen_to, rows, max_us, times in updates:
            split_id = before.split.split_id
            known = self._splits.get(split_id)
            # Not if the same records were added since the look-up began.
            if known is None or known.indexed_to != before.indexed_to or known.seen_to >= seen_to:
                continue
            scanned = known.scanned if times is None or not rows else (*known.scanned, (known.indexed_to, times))
            self._splits[split_id] = known._replace(
                indexed_to=known.indexed_to + rows, seen_to=seen_to, end=max(known.end, seen_to), scanned=scanned
            )
            if times is None:
                self._context.add_opaque_block(split_id, rows, max_us)
            elif rows:
                self._context.add_blocks(split_id, rows, times.min(), times.max())
            self._complete(split_id)

    def _complete(self, split_id: str) -> None:
        known = self._splits.get(split_id)
        if known is None or known.split.stop is None or known.is_complete or known.seen_to < known.split.stop:
            return
        self._splits[split_id] = known._replace(is_complete=True)
        self._context.complete_split(split_id)

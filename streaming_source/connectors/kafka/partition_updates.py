"""What is new in partitions: from the brokers where that can be believed, and read where it cannot."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import Int64Array
from streaming_source.api import KeptClients, SplitsAddition, SplitsRemoval
from streaming_source.connectors.kafka.admin import FoundRecord, KafkaAdmin
from streaming_source.connectors.kafka.client import ClientConfig, report_loss
from streaming_source.connectors.kafka.records import MessageColumns
from streaming_source.connectors.kafka.split import KafkaSplit
from streaming_source.connectors.kafka.split_reader import KafkaSplitReader
from streaming_source.connectors.kafka.subscription import EARLIEST, MAX_TIMESTAMP, Partition
from streaming_source.connectors.kafka.values import BinaryValues
from streaming_source.exceptions import SourceError

__all__ = ["PartitionUpdate", "Scanner", "SeenTimes", "UnindexedPart", "UpdateFinder"]


SeenTimes: TypeAlias = tuple[Int64Array, Int64Array]
"""Offsets, rising, and event times of records of one partition."""

_SHORT_FETCHES: Final = {"fetch.message.max.bytes": "65536", "queued.min.messages": "1"}
"""For single records of many partitions: else a megabyte and more of each is fetched."""

_AT_ONCE: Final = 5000
_SINGLE_AT_ONCE: Final = 1000


class Scanner:
    """Reads offsets and timestamps of many partitions at once with one consumer. From any thread, several at a time.

    See `KafkaSplitReader` for what is raised.
    """

    def __init__(self, config: ClientConfig, *, fail_on_data_loss: bool, patience_s: float) -> None:
        self._config = config
        given = {**_SHORT_FETCHES, **dict(config.settings)}
        self._for_single = replace(config, settings=tuple(sorted(given.items())))
        self._fail_on_data_loss = fail_on_data_loss
        self._patience_s = patience_s
        self._clients = KeptClients()
        self._columns = MessageColumns(pa.schema([pa.field("offset", pa.int64())]), BinaryValues())
        self._lock = threading.Lock()
        self._reading: set[KafkaSplitReader] = set()
        self._is_closed = False

    def times(self, splits: Sequence[KafkaSplit]) -> dict[str, SeenTimes]:
        """All records of each split from its position to its stop. O(records)."""
        none = np.empty(0, np.int64)
        parts = {split.split_id: [(none, none)] for split in splits}

        def take(split_id: str, offsets: Int64Array, times: Int64Array) -> bool:
            parts[split_id].append((offsets, times))
            return False

        self._read(self._config, _AT_ONCE, splits, take)
        return {
            split_id: (np.concatenate([offsets for offsets, _ in seen]), np.concatenate([times for _, times in seen]))
            for split_id, seen in parts.items()
        }

    def first_later(self, splits: Sequence[KafkaSplit], bound_us: int) -> dict[str, tuple[int, int]]:
        """Offset and event time of the first record of each split that is later than a bound, where there is one.

        The records at the positions of the splits are tried first. O(records before it).
        """
        found: dict[str, tuple[int, int]] = {}

        def take(split_id: str, offsets: Int64Array, times: Int64Array) -> bool:
            later = np.flatnonzero(times > bound_us)
            if later.size:
                found[split_id] = int(offsets[later[0]]), int(times[later[0]])
            return bool(later.size)

        self._read(self._for_single, _SINGLE_AT_ONCE, [split.until(split.position + 1) for split in splits], take)
        others = [split.at(split.position + 1) for split in splits if split.split_id not in found]
        self._read(self._config, _AT_ONCE, others, take)
        return found

    def close(self) -> None:
        """End what is read, and let go of the consumers."""
        with self._lock:
            self._is_closed = True
            reading = list(self._reading)
        for reader in reading:
            reader.wake_up()
        self._clients.close()

    def _read(
        self,
        config: ClientConfig,
        at_once: int,
        splits: Sequence[KafkaSplit],
        take: Callable[[str, Int64Array, Int64Array], bool],
    ) -> None:
        """Hand on what comes of each split, until it has come to its stop or `take` says that it is enough."""
        left = {split.split_id: split for split in splits if split.stop is None or split.position < split.stop}
        if not left:
            return
        reader = KafkaSplitReader(
            config,
            self._clients,
            None,
            self._columns,
            fail_on_data_loss=self._fail_on_data_loss,
            poll_timeout_s=self._patience_s,
            at_once=at_once,
        )
        with self._lock:
            self._reading.add(reader)
        try:
            reader.handle_splits_changes(SplitsAddition(tuple(left.values())))
            while left:
                if self._is_closed:
                    raise SourceError("the planner was closed while it looked where records are")
                fetched = reader.fetch()
                enough = set()
                while (split_id := fetched.next_split()) is not None:
                    while (block := fetched.next_record_from_split()) is not None:
                        if split_id in left and split_id not in enough:
                            assert block.source_timestamps is not None
                            offsets = block.batch["offset"].to_numpy()
                            if take(split_id, offsets, block.source_timestamps):
                                enough.add(split_id)
                for split_id in fetched.finished_splits:
                    left.pop(split_id, None)
                gone = tuple(left.pop(split_id) for split_id in sorted(enough & left.keys()))
                if gone and left:
                    reader.handle_splits_changes(SplitsRemoval(gone))
        finally:
            with self._lock:
                self._reading.discard(reader)
            reader.close()
            if self._is_closed:
                self._clients.close()


class UnindexedPart(NamedTuple):
    """A split as it was when a look began.

    The index has its records up to `indexed_to`, up to `seen_to` there is no further one; `room` is how many records of
    it may be read ahead.
    """

    split: KafkaSplit
    indexed_to: int
    seen_to: int
    room: int


class PartitionUpdate(NamedTuple):
    """What follows `indexed_to`: an opaque block with that maximum, or the event times of a block that was read.

    There is no other record before `seen_to`.
    """

    split_id: str
    indexed_to: int
    seen_to: int
    rows: int
    max_us: int
    times: Int64Array | None


class UpdateFinder:
    """Finds what is new in partitions. See `TimeIndex` for what is raised.

    - *few* records are read at once: as much would be fetched to confirm their latest;
    - *many* whose latest is confirmed, and among them, are an opaque block;
    - *many* others are read, so many at a time: those behind a record later than all of them, or behind the mark of a
      transaction, where the index of the brokers knows nothing but that record or mark.

    Event times from what `time_limit_us` gives on are invalid; None for no limit.
    """

    def __init__(self, scanner: Scanner, time_limit_us: Callable[[], int | None], *, fail_on_data_loss: bool) -> None:
        self._scanner = scanner
        self._time_limit_us = time_limit_us
        self._fail_on_data_loss = fail_on_data_loss
        self._lost: set[str] = set()

    def find(
        self, admin: KafkaAdmin, parts: Sequence[UnindexedPart], ends: Mapping[str, int], *, few: int, at_once: int
    ) -> list[PartitionUpdate]:
        """Updates of the partitions that have some, up to the `ends` of what can be read, by split id.

        At most three calls of the brokers, however many partitions, beside what is read: at most `at_once` records of
        a partition.
        """
        behind = [part for part in parts if part.seen_to < ends.get(part.split.split_id, 0)]
        many = [part for part in behind if ends[part.split.split_id] - part.seen_to > few]
        latest = self._latest(admin, many) if many else {}
        updates, to_read = [], {}
        for part in behind:
            split_id = part.split.split_id
            if split_id in latest:
                offset, max_us = latest[split_id]
                # It may have come since the ends were looked up.
                end = max(ends[split_id], offset + 1)
                updates.append(PartitionUpdate(split_id, part.indexed_to, end, end - part.indexed_to, max_us, None))
            elif part.room:
                to_read[split_id] = part, min(ends[split_id], part.seen_to + min(part.room, at_once))
        read = self._scanner.times([part.split.at(part.seen_to).until(end) for part, end in to_read.values()])
        for split_id, (part, end) in to_read.items():
            offsets, seen = read[split_id]
            # One event time for each offset up to the last record: that of the next record where there is none.
            times = np.repeat(seen, np.diff(offsets, prepend=part.indexed_to - 1))
            updates.append(PartitionUpdate(split_id, part.indexed_to, end, times.size, NO_TIMESTAMP, times))
        return updates

    def lose(self, part: UnindexedPart, why: str) -> None:
        """The record at which a partition goes on is not there: fail, or say so once."""
        split_id = part.split.split_id
        if self._fail_on_data_loss or split_id not in self._lost:
            self._lost.add(split_id)
            what = f"split {split_id!r}: offset {part.seen_to} is not there, {why}"
            report_loss(what, "to go on with what is there", fails=self._fail_on_data_loss)

    def _latest(self, admin: KafkaAdmin, parts: Sequence[UnindexedPart]) -> dict[str, tuple[int, int]]:
        """Offset and event time of the latest record of each, where there is one among the new, and it is a record."""
        by_partition = {part.split.of: part for part in parts}
        earliest = admin.offsets(dict.fromkeys(by_partition, EARLIEST))
        for where, part in by_partition.items():
            begin = earliest.get(where)
            if begin is not None and begin > part.seen_to:
                self.lose(part, f"the partition begins at {begin}: its first ones were deleted")
        answers = admin.records(dict.fromkeys(by_partition, MAX_TIMESTAMP))
        found = self._confirmed(by_partition, answers)
        missing = {
            where: answer.time_ms
            for where, answer in answers.items()
            if answer is not None and answer.time_ms >= 0 and by_partition[where].split.split_id not in found
        }
        # Some brokers answer with the last record of a batch in which the latest one is.
        again = admin.records(missing)
        found.update(self._confirmed(by_partition, {w: a for w, a in again.items() if a != answers[w]}))
        return found

    def _confirmed(
        self, parts: Mapping[Partition, UnindexedPart], answers: Mapping[Partition, FoundRecord | None]
    ) -> dict[str, tuple[int, int]]:
        limit_us = self._time_limit_us()
        wanted = {}
        for where, answer in answers.items():
            part = parts[where]
            stop = part.split.stop
            if answer is None or answer.offset < part.seen_to or (stop is not None and answer.offset >= stop):
                continue
            if limit_us is None or answer.time_ms * 1000 < limit_us:
                single = part.split.at(answer.offset).until(answer.offset + 1)
                wanted[part.split.split_id] = single, answer.time_ms * 1000
        read = self._scanner.first_later([split for split, _ in wanted.values()], NO_TIMESTAMP)
        return {i: read[i] for i, (split, time_us) in wanted.items() if read.get(i) == (split.position, time_us)}

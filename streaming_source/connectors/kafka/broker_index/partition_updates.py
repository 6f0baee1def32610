"""What is new in partitions: told by the brokers where that can be believed, and read where it cannot.

Of the news of a partition there are three kinds:

- *few* records are read at once: as much would be fetched to confirm their latest;
- *many* whose latest is confirmed, and among them, are told as a block that is asked;
- *many* others are read, so many at a time: those behind a record later than all of them, or behind the mark of a
  transaction, where the index knows nothing but that record or mark.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from alignment.timestamps import NO_TIMESTAMP
from streaming_source.connectors.kafka.admin import FoundRecord, KafkaAdmin
from streaming_source.connectors.kafka.broker_index.scanning import Scanner, SeenTimes
from streaming_source.connectors.kafka.split import KafkaSplit
from streaming_source.connectors.kafka.starting import EARLIEST, MAX_TIMESTAMP
from streaming_source.connectors.kafka.subscription import Partition
from streaming_source.exceptions import DataLossError

__all__ = ["News", "NewsFinder", "UntoldPart"]

_log = logging.getLogger(__name__)

Int64Array: TypeAlias = npt.NDArray[np.int64]


class UntoldPart(NamedTuple):
    """A split as it was when a look began.

    The planner was told of it up to `told`, up to `looked` there is no further record; `room` is how many records of it
    may be read ahead.
    """

    split: KafkaSplit
    told: int
    looked: int
    room: int


class News(NamedTuple):
    """What follows `told` in a split: a block that is asked with that maximum, or the event times of one that was read.

    There is no other record before `looked`.
    """

    split_id: str
    told: int
    looked: int
    rows: int
    max_us: int
    times: Int64Array | None


class NewsFinder:
    """Finds news: asks, and lets the scanner read what brokers cannot say. See `TimeIndex` for what is raised.

    Event times from `time_limit_us` on are invalid; None for no limit.
    """

    def __init__(
        self, admin: KafkaAdmin, scanner: Scanner, time_limit_us: int | None, *, fail_on_data_loss: bool
    ) -> None:
        self._admin = admin
        self._scanner = scanner
        self._time_limit_us = time_limit_us
        self._fail_on_data_loss = fail_on_data_loss
        self._lost: set[str] = set()

    def find(self, parts: Sequence[UntoldPart], ends: Mapping[str, int], *, few: int, at_once: int) -> list[News]:
        """News of the partitions that have some, up to the ends of what can be read.

        At most three calls of the brokers, however many partitions, beside what is read.

        Parameters
        ----------
        ends
            By split id, of those that are there.
        few
            Offsets that are read at once rather than asked about.
        at_once
            Records of one partition that are read at most.
        """
        behind = [part for part in parts if part.looked < ends.get(part.split.split_id, 0)]
        many = [part for part in behind if ends[part.split.split_id] - part.looked > few]
        latest = self._latest(many) if many else {}
        news, to_read = [], {}
        for part in behind:
            split_id = part.split.split_id
            if split_id in latest:
                offset, max_us = latest[split_id]
                # It may have come since the ends were asked for.
                end = max(ends[split_id], offset + 1)
                news.append(News(split_id, part.told, end, end - part.told, max_us, None))
            elif part.room:
                end = min(ends[split_id], part.looked + min(part.room, at_once))
                to_read[split_id] = part, end
        read = self._scanner.times([part.split.at(part.looked).until(end) for part, end in to_read.values()])
        for split_id, (part, end) in to_read.items():
            times = _without_gaps(part.told, read[split_id])
            news.append(News(split_id, part.told, end, times.size, NO_TIMESTAMP, times))
        return news

    def lose(self, part: UntoldPart, why: str) -> None:
        """The record at which a partition goes on is not there: fail, or say so once."""
        what = f"split {part.split.split_id!r}: offset {part.looked} is not there, {why}"
        if self._fail_on_data_loss:
            fix = "Start with a new checkpointLocation, or set failOnDataLoss = false to go on with what is there"
            raise DataLossError(f"{what}. {fix}")
        if part.split.split_id not in self._lost:
            self._lost.add(part.split.split_id)
            _log.warning("%s; reading goes on, since failOnDataLoss = false", what)

    def _latest(self, parts: Sequence[UntoldPart]) -> dict[str, tuple[int, int]]:
        """Offset and event time of the latest record of each, where there is one among the news, and it is a record."""
        by_partition = {part.split.of: part for part in parts}
        earliest = self._admin.offsets(dict.fromkeys(by_partition, EARLIEST))
        for where, part in by_partition.items():
            begin = earliest.get(where)
            if begin is not None and begin > part.looked:
                self.lose(part, f"the partition begins at {begin}: its first ones were deleted")
        answers = self._admin.records(dict.fromkeys(by_partition, MAX_TIMESTAMP))
        found = self._confirmed(by_partition, answers)
        missing = {
            where: answer.time_ms
            for where, answer in answers.items()
            if answer is not None and answer.time_ms >= 0 and by_partition[where].split.split_id not in found
        }
        # Some brokers answer with the last record of a batch in which the latest one is.
        again = self._admin.records(missing) if missing else {}
        found.update(self._confirmed(by_partition, {w: a for w, a in again.items() if a != answers[w]}))
        return found

    def _confirmed(
        self, parts: Mapping[Partition, UntoldPart], answers: Mapping[Partition, FoundRecord | None]
    ) -> dict[str, tuple[int, int]]:
        limit_us = self._time_limit_us
        wanted = {}
        for where, answer in answers.items():
            part = parts[where]
            stop = part.split.stop
            if answer is None or answer.offset < part.looked or (stop is not None and answer.offset >= stop):
                continue
            if limit_us is None or answer.time_ms * 1000 < limit_us:
                single = part.split.at(answer.offset).until(answer.offset + 1)
                wanted[part.split.split_id] = single, answer.time_ms * 1000
        read = self._scanner.first_later([split for split, _ in wanted.values()], NO_TIMESTAMP)
        return {i: read[i] for i, (split, time_us) in wanted.items() if read.get(i) == (split.position, time_us)}


def _without_gaps(begin: int, seen: SeenTimes) -> Int64Array:
    """One event time for each offset from `begin` to the last record: that of the next record where there is none."""
    offsets, times = seen
    return np.repeat(times, np.diff(offsets, prepend=begin - 1))

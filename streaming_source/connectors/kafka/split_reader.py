"""Fetching ranges of partitions."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaError, Message, TopicPartition

from streaming_source.api import (
    CaughtUp,
    KeptClients,
    RecordBlock,
    RecordsBySplits,
    SplitReader,
    SplitsAddition,
    SplitsChange,
)
from streaming_source.connectors.kafka.client import GONE, PartitionConsumer, report_loss
from streaming_source.connectors.kafka.client_config import ClientConfig
from streaming_source.connectors.kafka.log_ends import LogEnds
from streaming_source.connectors.kafka.records import MessageColumns, Run, runs_of
from streaming_source.connectors.kafka.split import KafkaSplit
from streaming_source.connectors.kafka.subscription import EARLIEST, LATEST, Partition
from streaming_source.connectors.kafka.topic_ids import TopicCheck
from streaming_source.exceptions import SourceError

__all__ = ["KafkaSplitReader"]

_BATCH: Final = 5000
_PORTION: Final = 500
"""Messages that are alive at once: with more of them than `gc.get_threshold()` says (700), looking for cycles among
them takes as long as fetching them."""

_WAIT_S: Final = 0.02
"""The tail of what is there comes when this is over: short, and still long enough for a full batch."""

_AHEAD: Final = 20_000
"""So many offsets of later splits are fetched at most while an earlier one is being emitted."""

_LOOK_AFTER_S: Final = 1.0
"""When nothing has come for so long: are the partitions still there? Of one that is gone the client reports nothing."""

_LOST: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})
_PASSING: Final = frozenset(
    {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE}
)


@dataclass(slots=True)
class _Reading:
    """A split that is read: its next offset, up to where there are records, and what else is known of its end."""

    split: KafkaSplit
    position: int
    known_end: int | None
    is_at_end: bool = False
    caught_up: CaughtUp = CaughtUp.NO
    is_assigned: bool = False
    is_paused: bool = False

    @property
    def is_finished(self) -> bool:
        stop = self.split.stop
        return stop is not None and self.position >= stop

    @property
    def where(self) -> TopicPartition:
        return TopicPartition(self.split.topic, self.split.partition, self.position)


class KafkaSplitReader(SplitReader[KafkaSplit]):
    """Reads its partitions with one consumer, each from its position until an offset at or after its stop is seen.

    Offsets are never counted: compaction, aborted transactions and the marks of transactions leave gaps. A split
    without a stop, as in the planner, has caught up when the brokers say that its log ends where it is; of brokers
    that do not answer nothing is known. Such a split costs no connection until there is something to read.

    Its consumer is taken from `clients`, and kept there for the next reader. `ends` is None on an executor, where every
    split has a stop. Without `fail_on_data_loss`, reading goes on behind records that are not there any more.

    `in_turn` gives one split after the other, in the order in which they were added: a task that is tried again has its
    rows in the same order, whichever partition answers first. With `topics` it emits nothing of one that was created
    again since its splits were planned: a range is emitted only if its topic has the same id once all of it has come.
    """

    def __init__(
        self,
        config: ClientConfig,
        clients: KeptClients,
        ends: LogEnds | None,
        columns: MessageColumns,
        *,
        fail_on_data_loss: bool,
        poll_timeout_s: float,
        in_turn: bool = False,
        at_once: int = _BATCH,
        topics: TopicCheck | None = None,
    ) -> None:
        self._config = config
        self._consumer = PartitionConsumer(config, clients)
        self._ends = ends
        self._columns = columns
        self._fail_on_data_loss = fail_on_data_loss
        self._poll_timeout_s = poll_timeout_s
        self._in_turn = in_turn
        self._at_once = at_once
        self._topics = topics
        # Whether records came since the ids of topics were compared; ids of splits of which some were emitted.
        self._is_unchecked = False
        self._emitted: set[str] = set()
        # By split. A topic that was created again has two for one partition: only one of them is assigned at a time.
        self._reading: dict[str, _Reading] = {}
        self._assigned: dict[Partition, _Reading] = {}
        # Fetched before its turn.
        self._held: dict[str, list[RecordBlock]] = {}
        self._woken = threading.Event()

    # ---- SplitReader ---------------------------------------------------------------------------------------------

    def handle_splits_changes(self, change: SplitsChange[KafkaSplit]) -> None:
        if isinstance(change, SplitsAddition):
            begun = [_Reading(split, split.position, split.stop) for split in change.splits]
            self._reading.update((reading.split.split_id, reading) for reading in begun)
            self._assign_next()
        else:
            self._end(*(split.split_id for split in change.splits if split.split_id in self._reading))

    def fetch(self) -> RecordsBySplits[RecordBlock]:
        """What came; a `DataLossError` or `SourceError` if it will not, or the brokers are silent for too long."""
        began = time.monotonic()
        until, look_at = began + self._poll_timeout_s, began + _LOOK_AFTER_S
        if self._consumer.drop_if_outdated():
            self._assign_again()
        gone = self._look_at_ends()
        if gone:
            return RecordsBySplits(finished_splits=gone)
        while True:
            came = self._take_records()
            self._check_topics(came)
            blocks, finished = self._take_in_turn(came)
            if blocks or finished:
                return RecordsBySplits(blocks, finished)
            waits = [reading for reading in self._assigned.values() if not (reading.is_paused or reading.is_at_end)]
            if self._woken.is_set() or not waits:
                self._woken.clear()
                return RecordsBySplits()
            now = time.monotonic()
            if now >= look_at:
                look_at = now + _LOOK_AFTER_S
                self._look_for_partitions(waits)
            elif now > until:
                raise SourceError(
                    f"partition {waits[0].split.of}: nothing came from {self._config.brokers} at offset "
                    f"{waits[0].position} for {self._poll_timeout_s:g} s; are the brokers up? "
                    "Option kafkaConsumer.pollTimeoutMs waits longer"
                )

    def wake_up(self) -> None:
        self._woken.set()

    def pause_or_resume_splits(self, to_pause: Sequence[KafkaSplit], to_resume: Sequence[KafkaSplit]) -> None:
        for splits, pauses in ((to_pause, True), (to_resume, False)):
            for split in splits:
                reading = self._reading.get(split.split_id)
                if reading is None or reading.is_paused == pauses:
                    continue
                reading.is_paused = pauses
                if reading.is_assigned:
                    (self._consumer.client.pause if pauses else self._consumer.client.resume)([reading.where])

    def caught_up(self, split_id: str) -> CaughtUp:
        reading = self._reading.get(split_id)
        return CaughtUp.NO if reading is None else reading.caught_up

    def close(self) -> None:
        self._reading.clear()
        self._assigned.clear()
        self._held.clear()
        self._consumer.close()
        if self._topics is not None:
            self._topics.close()

    # ---- what is read --------------------------------------------------------------------------------------------

    def _end(self, *split_ids: str) -> None:
        self._unassign(*(self._reading.pop(split_id) for split_id in split_ids))
        for split_id in split_ids:
            self._held.pop(split_id, None)

    def _assign_next(self) -> None:
        """Let splits with a stop be read: all, or in turn the first one and as many behind it as may be held."""
        chosen: dict[Partition, _Reading] = {}
        ahead: int | None = None
        for reading in self._reading.values():
            if (stop := reading.split.stop) is None:
                continue
            ahead = 0 if ahead is None else ahead + stop - reading.split.position
            if self._in_turn and (ahead > _AHEAD or reading.split.of in chosen):
                break
            if not reading.is_finished:
                chosen[reading.split.of] = reading
        self._assign(*chosen.values())

    def _assign(self, *readings: _Reading) -> None:
        new = [reading for reading in readings if not reading.is_assigned]
        for reading in new:
            reading.is_assigned = True
            self._assigned[reading.split.of] = reading
        # In one call: of a thousand partitions each would wait for the client.
        if new:
            self._consumer.client.incremental_assign([reading.where for reading in new])
        if paused := [reading.where for reading in new if reading.is_paused]:
            self._consumer.client.pause(paused)

    def _assign_again(self) -> None:
        """The consumer is a new one."""
        assigned = list(self._assigned.values())
        self._assigned.clear()
        for reading in assigned:
            reading.is_assigned = False
        self._assign(*assigned)

    def _unassign(self, *readings: _Reading) -> None:
        old = [reading for reading in readings if reading.is_assigned]
        for reading in old:
            reading.is_assigned = False
            del self._assigned[reading.split.of]
        if old:
            self._consumer.client.incremental_unassign([reading.where for reading in old])

    def _look_at_ends(self) -> set[str]:
        """Of each split without a stop: whether it has caught up; if not, let it be read. Returns those that are gone.

        One of which nothing is known, since it was not found yet or the brokers do not answer, is not read.
        """
        gone: set[str] = set()
        if self._ends is None:
            return gone
        for reading in list(self._reading.values()):
            split = reading.split
            if split.stop is not None or reading.is_paused:
                continue
            if self._ends.is_gone(split.split_id):
                self._end(split.split_id)
                gone.add(split.split_id)
                continue
            end = self._ends.end(split.split_id)
            reading.known_end = None if end is None else end.readable
            reading.caught_up = CaughtUp.NO
            reading.is_at_end = end is None or reading.position == end.readable
            if end is None:
                continue
            if reading.is_at_end:
                reading.caught_up = CaughtUp.BLOCKED if end.written > end.readable else CaughtUp.YES
                self._unassign(reading)
            else:
                self._assign(reading)
        return gone

    def _look_for_partitions(self, readings: Sequence[_Reading]) -> None:
        for topic in {reading.split.topic for reading in readings}:
            numbers = self._consumer.partitions(topic)
            for reading in readings:
                part = reading.split.of
                if numbers is not None and part.topic == topic and part.number not in numbers:
                    self._lose_all(reading)

    # ---- what came -----------------------------------------------------------------------------------------------

    def _take_records(self) -> dict[str, list[RecordBlock]]:
        left, runs = self._left(), dict[str, list[Run]]()
        until = time.monotonic() + _WAIT_S
        while left:
            asked = min(left, _PORTION)
            messages = self._consumer.client.consume(asked, max(until - time.monotonic(), 0))
            self._take(messages, runs)
            left -= asked
            if len(messages) < asked:
                break
        return {i: [self._columns.block(self._reading[i].split.of, taken)] for i, taken in runs.items()}

    def _left(self) -> int:
        """How many messages to ask for. No more than there are, as far as that is known: else it waits for more."""
        if all(reading.is_finished or reading.is_at_end or reading.is_paused for reading in self._assigned.values()):
            return 0
        left = 0
        for reading in self._assigned.values():
            if reading.is_paused:
                continue
            if reading.known_end is None:
                return self._at_once
            left += max((reading.known_end or 0) - reading.position, 0)
            if left >= self._at_once:
                break
        return min(left or self._at_once, self._at_once)

    def _take(self, messages: list[Message], runs: dict[str, list[Run]]) -> None:
        records = messages
        if any(map(Message.error, messages)):
            records = [message for message in messages if message.error() is None]
        for part, run in runs_of(records, self._columns.fields) if records else ():
            reading = self._assigned.get(part)
            if reading is None or reading.is_finished or reading.is_paused:
                continue
            reading.position, reading.is_at_end = int(run.offsets[-1]) + 1, False
            stop = reading.split.stop
            wanted = run if stop is None else run.before(stop)
            if wanted is not None:
                runs.setdefault(reading.split.split_id, []).append(wanted)
        if records is not messages:
            # Behind the records: an end is reached after them, never before.
            for message in messages:
                if message.error() is not None:
                    self._take_event(message)

    def _take_event(self, message: Message) -> None:
        error, topic = message.error(), message.topic()
        assert error is not None
        reading = None if topic is None else self._assigned.get(Partition(topic, message.partition()))
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            if reading is not None and message.offset() >= reading.position:
                reading.position = message.offset()
                reading.is_at_end = reading.split.stop is None
                # A range was planned, so it was there. Where a source is to end may lie in the future.
                if self._ends is None and not reading.is_finished:
                    self._check_end(reading)
        elif code in _LOST:
            if reading is not None:
                self._lose(reading)
        elif code in GONE:
            if reading is not None:
                self._lose_all(reading)
        elif not (code in _PASSING or error.retriable()):
            raise self._config.error(f"reading partition {message.topic()}-{message.partition()}", error)

    def _take_in_turn(self, blocks: dict[str, list[RecordBlock]]) -> tuple[dict[str, list[RecordBlock]], set[str]]:
        """Of these and of what is held, what may be emitted now, and which splits end with it."""
        taken, finished = dict[str, list[RecordBlock]](), set[str]()
        for split_id, found in blocks.items():
            self._held.setdefault(split_id, []).extend(found)
        for split_id, reading in self._reading.items():
            if reading.is_paused:
                continue
            if split_id in self._held:
                taken[split_id] = self._held.pop(split_id)
                self._emitted.add(split_id)
            if reading.is_finished:
                finished.add(split_id)
            elif self._in_turn:
                break
        # Of those that wait for their turn nothing is fetched beyond their stop.
        self._unassign(*(reading for reading in self._assigned.values() if reading.is_finished))
        if finished:
            self._end(*finished)
            self._assign_next()
        return taken, finished

    def _check_topics(self, came: dict[str, list[RecordBlock]]) -> None:
        """Give up splits of topics that were created again: before the first records, and the last ones of a split."""
        self._is_unchecked |= bool(came)
        is_first = not self._emitted
        if self._topics is None or not self._is_unchecked:
            return
        if not (is_first or any(reading.is_finished for reading in self._assigned.values())):
            return
        self._is_unchecked = False
        replaced = self._topics.replaced((one.split.topic, one.split.topic_id) for one in self._reading.values())
        for split_id, reading in self._reading.items():
            if reading.split.topic not in replaced:
                continue
            if split_id in self._emitted:
                raise SourceError(
                    f"split {split_id!r}: topic {reading.split.topic!r} was deleted, or deleted and created again, "
                    "while this task read it; a task that is tried again reads nothing of it. Where Spark does not try "
                    "it again, as in local mode, start the query again"
                )
            came.pop(split_id, None)
            self._held.pop(split_id, None)
            self._lose_all(reading, "its topic was deleted, or deleted and created again, since the range was planned")

    # ---- what is lost --------------------------------------------------------------------------------------------

    def _check_end(self, reading: _Reading) -> None:
        """The log ends before the stop of a range. What was planned was there: it comes, or was lost."""
        # Not by the offset at which the client found the end: a new leader may not know yet how far its log is valid.
        latest = self._consumer.offset_at(reading.split.of, LATEST)
        if latest is None or latest < (reading.split.stop or 0):
            self._lose(reading)

    def _lose(self, reading: _Reading) -> None:
        """The brokers do not have the next offset: go on behind what is gone, or fail."""
        part, position = reading.split.of, reading.position
        earliest, latest = (self._consumer.offset_at(part, at) for at in (EARLIEST, LATEST))
        if earliest is None or latest is None:
            self._lose_all(reading)
            return
        why = "its first records were deleted" if position < earliest else "its last ones were, or its topic was"
        self._report_loss(
            reading,
            f"offset {position} is not there, the partition has {earliest} to {latest}: {why}",
            "to go on with what is there",
        )
        self._unassign(reading)
        if position < earliest:
            reading.position = earliest
            self._assign(reading)
        elif reading.split.stop is not None:
            reading.position = reading.split.stop
        else:
            # The log has become shorter: it is read on when it has grown beyond this again.
            reading.is_at_end = True

    def _lose_all(self, reading: _Reading, why: str = "") -> None:
        """The partition is gone, or another one."""
        why = why or f"the brokers know no partition {reading.split.of} any more"
        self._report_loss(reading, why, "to go on without it")
        self._unassign(reading)
        reading.position = max(reading.position, reading.split.stop or 0)
        reading.is_at_end = True

    def _report_loss(self, reading: _Reading, what: str, to_go_on: str) -> None:
        report_loss(f"split {reading.split.split_id!r}: {what}", to_go_on, fails=self._fail_on_data_loss)

"""Fetching ranges of partitions."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from streaming_source.api import (
    CaughtUp,
    KeptClients,
    RecordBlock,
    RecordsBySplits,
    SplitReader,
    SplitsAddition,
    SplitsChange,
)
from streaming_source.connectors.kafka.admin import TopicCheck
from streaming_source.connectors.kafka.client_config import ClientConfig
from streaming_source.connectors.kafka.consumer import PartitionConsumer
from streaming_source.connectors.kafka.faults import GONE, OF_GROUPS, report_loss
from streaming_source.connectors.kafka.log_ends import LogEnds
from streaming_source.connectors.kafka.records import MessageColumns, Run, runs_of
from streaming_source.connectors.kafka.split import KafkaSplit
from streaming_source.connectors.kafka.subscription import EARLIEST, LATEST, Partition
from streaming_source.exceptions import SourceError

_BATCH: Final = 5000
_PORTION: Final = 500
"""Messages that are alive at once: with more than `gc.get_threshold()` (700), garbage collection takes as long as
fetching them."""

_WAIT_S: Final = 0.02
"""Seconds that a fetch waits for a full batch before it returns the records that have come."""

_AHEAD: Final = 20_000
"""Most offsets left of earlier splits, and most records fetched of them, when a later one is assigned; and most records
that are fetched of that one ahead."""

_LOOK_AFTER_S: Final = 1.0
"""After so long without records, check that the partitions exist: the client does not report one that was deleted."""

_LOST: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})
_PASSING: Final = frozenset(
    {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE}
)


@dataclass(slots=True)
class _Reading:
    """The progress of a split: its next offset, the known end of its records, and whether it is there.

    It `is_beyond` the end of a log that is shorter than what was read: that was reported.
    """

    split: KafkaSplit
    position: int
    known_end: int | None
    is_at_end: bool = False
    is_beyond: bool = False
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
    without a stop, as in the planner, has caught up when the brokers report that its log ends at its position; if they
    do not answer, it has not. Such a split needs no connection until there are records.

    The consumer is taken from `clients`, and kept there for the next reader. `ends` is None on an executor, where every
    split has a stop. Without `fail_on_data_loss`, reading goes on after records that no longer exist.

    `in_order` returns one split after the other, in the order in which they were added, so that a repeated task has its
    rows in the same order, whichever partition answers first. With `topics`, a range is returned only if its topic has
    the planned id after all of its records have come: nothing is returned of a topic that was created again.
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
        in_order: bool = False,
        at_once: int = _BATCH,
        topics: TopicCheck | None = None,
    ) -> None:
        self._config = config
        self._consumer = PartitionConsumer(config, clients)
        self._ends = ends
        self._columns = columns
        self._fail_on_data_loss = fail_on_data_loss
        self._poll_timeout_s = poll_timeout_s
        self._in_order = in_order
        self._at_once = at_once
        self._topics = topics
        # Whether records came since the ids of topics were compared; and the ids of splits with emitted records.
        self._is_unchecked = False
        self._emitted: set[str] = set()
        # By split. A topic that was created again has two for one partition: only one of them is assigned at a time.
        self._reading: dict[str, _Reading] = {}
        self._assigned: dict[Partition, _Reading] = {}
        # Blocks of splits that are not emitted yet: those before them are read first.
        self._held: dict[str, list[RecordBlock]] = {}
        self._woken = threading.Event()

    # ---- SplitReader ---------------------------------------------------------------------------------------------

    def handle_splits_changes(self, change: SplitsChange[KafkaSplit]) -> None:
        if isinstance(change, SplitsAddition):
            added = [_Reading(split, split.position, split.stop) for split in change.splits]
            self._reading.update((reading.split.split_id, reading) for reading in added)
            self._assign_next()
        else:
            self._end(*(split.split_id for split in change.splits if split.split_id in self._reading))

    def fetch(self) -> RecordsBySplits[RecordBlock]:
        """Return the records that came.

        Raises a `DataLossError` if they no longer exist, a `SourceError` if the brokers are silent for too long.
        """
        began = time.monotonic()
        until, look_at = began + self._poll_timeout_s, began + _LOOK_AFTER_S
        if self._consumer.drop_if_outdated():
            self._assign_again()
        lost = self._check_ends()
        if lost:
            return RecordsBySplits(finished_splits=lost)
        while True:
            came = self._take_records()
            self._check_topics(came)
            blocks, finished = self._take_in_order(came)
            if blocks or finished:
                return RecordsBySplits(blocks, finished)
            waits = [reading for reading in self._assigned.values() if not (reading.is_paused or reading.is_at_end)]
            if self._woken.is_set() or not waits:
                self._woken.clear()
                return RecordsBySplits()
            now = time.monotonic()
            if now >= look_at:
                look_at = now + _LOOK_AFTER_S
                self._check_partitions(waits)
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
        paused = [reading.where for reading in self._assigned.values() if reading.is_paused]
        self._reading.clear()
        self._assigned.clear()
        self._held.clear()
        self._consumer.close(paused)
        if self._topics is not None:
            self._topics.close()

    # ---- what is read --------------------------------------------------------------------------------------------

    def _end(self, *split_ids: str) -> None:
        self._unassign(*(self._reading.pop(split_id) for split_id in split_ids))
        for split_id in split_ids:
            self._held.pop(split_id, None)

    def _assign_next(self) -> None:
        """Assign splits that have a stop: all, or `in_order` the first one and those that are read soon.

        The first records of a split take a request to arrive, so it is assigned before the one before it has ended.
        """
        chosen: dict[Partition, _Reading] = {}
        left = 0
        for split_id, reading in self._reading.items():
            if (stop := reading.split.stop) is None:
                continue
            if self._in_order and (left > _AHEAD or reading.split.of in chosen):
                break
            ahead = self._rows_ahead(split_id)
            if not reading.is_finished and ahead < _AHEAD:
                chosen[reading.split.of] = reading
            left += max(stop - reading.position, 0) + ahead
        self._assign(*chosen.values())

    def _rows_ahead(self, split_id: str) -> int:
        return sum(block.batch.num_rows for block in self._held.get(split_id, ()))

    def _assign(self, *readings: _Reading) -> None:
        new = [reading for reading in readings if not reading.is_assigned]
        for reading in new:
            reading.is_assigned = True
            self._assigned[reading.split.of] = reading
        # In one call: with a call for each of a thousand partitions each would wait for the client.
        if new:
            self._consumer.client.incremental_assign([reading.where for reading in new])
        if paused := [reading.where for reading in new if reading.is_paused]:
            self._consumer.client.pause(paused)

    def _assign_again(self) -> None:
        """Assign all splits to a new consumer."""
        assigned = list(self._assigned.values())
        self._assigned.clear()
        for reading in assigned:
            reading.is_assigned = False
        self._assign(*assigned)

    def _unassign(self, *readings: _Reading) -> None:
        old = [reading for reading in readings if reading.is_assigned]
        if paused := [reading.where for reading in old if reading.is_paused]:
            # The client would keep it paused for whoever is assigned the partition next.
            self._consumer.client.resume(paused)
        for reading in old:
            reading.is_assigned = False
            del self._assigned[reading.split.of]
        if old:
            self._consumer.client.incremental_unassign([reading.where for reading in old])

    def _check_ends(self) -> set[str]:
        """Assign the splits that have not caught up, and return the splits that no longer exist.

        A split whose end is not known, since it is not found yet or the brokers do not answer, is not read. A stop may
        be an offset that is not written yet.
        """
        lost: set[str] = set()
        if self._ends is None:
            return lost
        for reading in list(self._reading.values()):
            split = reading.split
            if reading.is_finished or reading.is_paused:
                continue
            if self._ends.is_lost(split.split_id):
                self._end(split.split_id)
                lost.add(split.split_id)
                continue
            end = self._ends.end(split.split_id)
            reading.known_end = None if end is None else split.before_stop(end.readable)
            reading.caught_up = CaughtUp.NO
            reading.is_at_end = end is None or reading.position == end.readable
            if end is None:
                continue
            reading.is_beyond &= reading.position > end.written
            reading.is_at_end |= reading.is_beyond
            if reading.is_at_end:
                reading.caught_up = CaughtUp.BLOCKED if end.written > end.readable else CaughtUp.YES
                self._unassign(reading)
            else:
                self._assign(reading)
        return lost

    def _check_partitions(self, readings: Sequence[_Reading]) -> None:
        for topic in {reading.split.topic for reading in readings}:
            numbers = self._consumer.partitions(topic)
            for reading in readings:
                part = reading.split.of
                if numbers is not None and part.topic == topic and part.number not in numbers:
                    self._lose_all(reading)

    # ---- what came -----------------------------------------------------------------------------------------------

    def _take_records(self) -> dict[str, list[RecordBlock]]:
        left, runs = self._wanted(), dict[str, list[Run]]()
        until = time.monotonic() + _WAIT_S
        while left:
            wanted = min(left, _PORTION)
            # Messages are let go of before the next ones are made, in the memory of which these were.
            count = self._take(self._consumer.client.consume(wanted, max(until - time.monotonic(), 0)), runs)
            left -= wanted
            if count < wanted:
                break
        return {i: [self._columns.block(self._reading[i].split.of, taken)] for i, taken in runs.items()}

    def _wanted(self) -> int:
        """Return how many messages to fetch: no more than there are, if known, since the client waits for all."""
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

    def _take(self, messages: list[Message], runs: dict[str, list[Run]]) -> int:
        """Add the runs of messages to those of their splits; returns how many messages there are, events too."""
        records = messages
        if any(map(Message.error, messages)):
            records = [message for message in messages if message.error() is None]
        only = next(iter(self._assigned)) if len(self._assigned) == 1 else None
        for part, run in runs_of(records, self._columns.fields, only) if records else ():
            reading = self._assigned.get(part)
            if reading is None or reading.is_finished or reading.is_paused:
                continue
            reading.position, reading.is_at_end = int(run.offsets[-1]) + 1, False
            stop = reading.split.stop
            wanted = run if stop is None else run.before(stop)
            if wanted is not None:
                runs.setdefault(reading.split.split_id, []).append(wanted)
        if records is not messages:
            # After the records: an end is reached after them.
            for message in messages:
                if message.error() is not None:
                    self._take_event(message)
        return len(messages)

    def _take_event(self, message: Message) -> None:
        error, topic = message.error(), message.topic()
        assert error is not None
        reading = None if topic is None else self._assigned.get(Partition(topic, message.partition()))
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            if reading is not None and message.offset() >= reading.position:
                reading.position = message.offset()
                reading.is_at_end = reading.split.stop is None or self._ends is not None
                # A planned range existed. In the planner (`ends`), a stop may be an offset that is not written yet.
                if self._ends is None and not reading.is_finished:
                    self._check_end(reading)
        elif code in _LOST:
            if reading is not None and not ("truncation" not in error.str() and self._try_again(reading)):
                self._lose(reading)
        elif code in GONE:
            if reading is not None:
                self._lose_all(reading)
        elif not (code in _PASSING or code in OF_GROUPS or error.retriable()):
            # An error of the client, and not of one partition, has no topic.
            topics = {part.topic for part in self._assigned} if topic is None else {topic}
            what = ", ".join(sorted(topics)) if topic is None else f"partition {topic}-{message.partition()}"
            raise self._config.error(f"reading {what}", KafkaException(error), topics=topics, right="Read")

    def _take_in_order(self, blocks: dict[str, list[RecordBlock]]) -> tuple[dict[str, list[RecordBlock]], set[str]]:
        """Return the blocks that may be emitted now, new or fetched ahead, and the splits that are finished."""
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
            elif self._in_order:
                break
        # Also splits that wait for others are not fetched beyond their stops.
        self._unassign(*(reading for reading in self._assigned.values() if reading.is_finished))
        self._unassign(*(self._reading[split_id] for split_id in self._held if self._rows_ahead(split_id) >= _AHEAD))
        if finished:
            self._end(*finished)
        if finished or (blocks and self._in_order):
            self._assign_next()
        return taken, finished

    def _check_topics(self, came: dict[str, list[RecordBlock]]) -> None:
        """Check the ids of topics before the first records, and before the last ones of a split, are emitted."""
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
        """Handle a log that ends before the stop of a range: planned records existed, and will come or are lost."""
        # Queried anew: the end that the client found may be that of a new leader that does not know its log yet.
        latest = self._consumer.offset_at(reading.split.of, LATEST)
        if latest is None or latest < (reading.split.stop or 0):
            self._lose(reading)

    def _try_again(self, reading: _Reading) -> bool:
        """Assign a partition anew if the brokers have its next offset; return whether they have.

        A leader that was elected just now may have refused it before it knew its log.
        """
        earliest, latest = (self._consumer.offset_at(reading.split.of, at) for at in (EARLIEST, LATEST))
        if earliest is None or latest is None or not earliest <= reading.position < latest:
            return False
        self._unassign(reading)
        self._assign(reading)
        return True

    def _lose(self, reading: _Reading) -> None:
        """Handle a next offset that the brokers do not have: report it, and go on after the deleted records."""
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
        elif reading.split.stop is not None and self._ends is None:
            reading.position = reading.split.stop
        else:
            # The log has become shorter: reading goes on when it has grown beyond this position again.
            reading.is_at_end = reading.is_beyond = True

    def _lose_all(self, reading: _Reading, why: str = "") -> None:
        """Handle a partition that was deleted, or deleted and created again."""
        why = why or f"the brokers know no partition {reading.split.of} any more"
        self._report_loss(reading, why, "to go on without it")
        self._unassign(reading)
        reading.position = max(reading.position, reading.split.stop or 0)
        reading.is_at_end = True

    def _report_loss(self, reading: _Reading, what: str, to_go_on: str) -> None:
        report_loss(f"split {reading.split.split_id!r}: {what}", to_go_on, fails=self._fail_on_data_loss)

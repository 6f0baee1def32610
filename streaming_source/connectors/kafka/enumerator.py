"""Assigns the partitions of a subscription to readers, with the event times in the brokers' index if there are any."""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from alignment.arrow_times import format_timestamp
from alignment.event_time_range import ALL_TIMES
from alignment.timestamps import RecordTimestampAssigner
from alignment.watermarks import Int64Array
from streaming_source.api import (
    SplitEnumerator,
    SplitEnumeratorContext,
    SplitRange,
    SplitsAssignment,
    SupportsEventTimeIndex,
)
from streaming_source.connectors.kafka.admin import KafkaAdmin, replaced_topics
from streaming_source.connectors.kafka.config import KafkaConfig
from streaming_source.connectors.kafka.faults import Away, BrokerRetries, report_loss
from streaming_source.connectors.kafka.log_ends import LogEnd, LogEnds, RetentionWatch
from streaming_source.connectors.kafka.partition_discovery import FoundPartitions, PartitionDiscovery
from streaming_source.connectors.kafka.scanner import Scanner
from streaming_source.connectors.kafka.split import KafkaCheckpoint, KafkaSplit
from streaming_source.connectors.kafka.time_index import Observed, TimeIndex
from streaming_source.exceptions import DataLossError

_FIRST_CONTACT_S: Final = 10.0
_LOOK_S: Final = 0.2
_LOOK_AT_ENDS_S: Final = 1.0
_LOG_ENDS_S: Final = 2.0


def create_enumerator(
    config: KafkaConfig, context: SplitEnumeratorContext[KafkaSplit], checkpoint: KafkaCheckpoint | None
) -> KafkaSplitEnumerator:
    """Make the enumerator.

    It uses the brokers' index if event times are the records' timestamps, and options allow it.
    """
    patience_s = config.seconds("broker_timeout")
    has_their_times = isinstance(context.timestamp_assigner, RecordTimestampAssigner)
    # A query with a checkpoint has reached the brokers before: it waits longer for them.
    retries = config.retry_policy(_FIRST_CONTACT_S if checkpoint is None else math.inf)
    away = Away(config.client.brokers, patience_s)
    wanted = context.event_time_range if has_their_times else ALL_TIMES
    wants_earlier = context.event_time_range.from_us is not None
    admin = KafkaAdmin(config.client, retries, away)
    discovery = PartitionDiscovery(admin, config, checkpoint, wanted, wants_earlier=wants_earlier)
    for_ends = KafkaAdmin(config.client, BrokerRetries(min(_LOG_ENDS_S, patience_s)), away)
    find_replaced = partial(replaced_topics, for_ends)
    ends = LogEnds(for_ends.ends, patience_s, find_replaced=find_replaced, fails=config.fail_on_data_loss)
    has_index = context.supports_opaque_blocks and has_their_times
    if config.indexing == "scan" or not has_index:
        return KafkaSplitEnumerator(context, discovery, retries, ends, away)
    scanner = Scanner(config.client, fail_on_data_loss=config.fail_on_data_loss, patience_s=patience_s)
    # Two connections, so that a plan does not wait for a look-up in the background.
    looks, plans = (KafkaAdmin(config.client, retries, away) for _ in range(2))
    index = TimeIndex(context, looks, plans, scanner, fail_on_data_loss=config.fail_on_data_loss)
    retention = RetentionWatch(looks.starts, fails=config.fail_on_data_loss)
    return IndexedKafkaSplitEnumerator(context, discovery, retries, ends, away, index=index, retention=retention)


@dataclass(eq=False, repr=False)
class KafkaSplitEnumerator(SplitEnumerator[KafkaSplit, KafkaCheckpoint]):
    """Assigns each partition to a reader as soon as it is found.

    `log_ends` is used by the readers of this planner, and updated with what discovery finds. `retries` end when this is
    closed. What is `away` all clients of this enumerator know.
    """

    context: SplitEnumeratorContext[KafkaSplit]
    discovery: PartitionDiscovery
    retries: BrokerRetries
    log_ends: LogEnds
    away: Away
    _taken_back: list[KafkaSplit] = field(default_factory=list, init=False)
    _is_complete: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._checkpoint = self.discovery.checkpoint
        # By name of a topic that no longer exists: the first state since.
        self._deleted_in: dict[str, int] = {}

    def restore_splits(self, splits: Sequence[KafkaSplit]) -> None:
        self.log_ends.restore(splits)

    def start(self) -> None:
        if self.discovery.period_s is None:
            # Also after a restart of a bounded source, which adds no partition: topics may have been deleted since.
            self.context.call_async(self.discovery.discover, self._on_found)
        else:
            period_s = min(_LOOK_AT_ENDS_S, self.discovery.period_s)
            self.context.call_async(self._look_up, self._on_ends, period_seconds=period_s, at_each_trigger=True)

    def handle_split_request(self, subtask_id: int, requester_hostname: str | None = None) -> None:
        # Partitions are assigned when they are found; only splits that were given back wait for a request.
        if self._taken_back:
            taken_back, self._taken_back = self._taken_back, []
            self._assign(taken_back)
        if self._is_complete:
            self.context.signal_no_more_splits(subtask_id)

    def add_splits_back(self, splits: Sequence[KafkaSplit], subtask_id: int) -> None:
        self._taken_back.extend(splits)

    def read_at(
        self, splits: Sequence[KafkaSplit], known: Mapping[str, KafkaSplit], checkpoint: KafkaCheckpoint
    ) -> Sequence[int]:
        """By offsets: a `DataLossError` for a topic that was created again, or a log that became shorter."""
        by_partition = {split.of: split for split in known.values()}
        starts = self.discovery.starts([split.of for split in splits])
        stops = []
        for split in splits:
            before = by_partition.get(split.of)
            topic_id = checkpoint.topic_ids.get(split.topic, "")
            is_another = bool(topic_id and split.topic_id) and topic_id != split.topic_id
            if before is not None and (before.incarnation or is_another or split.position < before.position):
                raise DataLossError(
                    f"partition {split.of}: its topic was deleted and created again, or its log became shorter, since "
                    "the query began: what was in it before is gone, and so its windows cannot be repaired; use a new "
                    "checkpointLocation for both queries"
                )
            start = starts.get(split.of)
            # A record that is earlier than the wanted ones shows that these are all there.
            if before is not None and start is not None and before.begin < start == split.begin:
                self._report_removed(split, before.begin)
            stops.append(0 if before is None else before.position)
        return stops

    def _report_removed(self, split: KafkaSplit, begin: int) -> None:
        from_us = self.context.event_time_range.from_us
        times = "" if from_us is None else f" from {format_timestamp(from_us)} on"
        report_loss(
            f"partition {split.of}: the query has read from offset {begin} on, and the log begins at offset "
            f"{split.begin} now; retention may have removed records{times} too, so "
            "windows may lack some of theirs: let within of the repair be less than the retention",
            "to repair with what is left",
            fails=self.discovery.fail_on_data_loss,
        )

    def snapshot_state(self, checkpoint_id: int) -> KafkaCheckpoint:
        """Snapshot the topics, without those that have not existed for two states.

        The state before a micro-batch and the state after it must not have two different splits of one id. The first
        state since a topic was deleted has its splits as finished, and the next one has none.
        """
        deleted = {topic.name for topic in self._checkpoint.topics if not topic.partitions}
        self._deleted_in = {name: self._deleted_in.get(name, checkpoint_id) for name in deleted}
        left = {name for name, first in self._deleted_in.items() if checkpoint_id >= first + 2}
        if left:
            self.discovery.forget(left)
            kept = tuple(topic for topic in self._checkpoint.topics if topic.name not in left)
            self._checkpoint = replace(self._checkpoint, topics=kept)
        self.log_ends.forget(checkpoint_id)
        return self._checkpoint

    def end_positions(self, splits: Sequence[KafkaSplit]) -> list[int | None]:
        """Return None for a partition that is not found yet or does not answer; raises a `SourceError` in the end.

        Raises a `DataLossError` for a log that has become shorter than it was, unless `failOnDataLoss` is false.
        """
        self.away.check()
        ends = [(split, self.log_ends.end(split.split_id)) for split in splits]
        for split, end in ends:
            if end is not None:
                self.log_ends.check(split, end)
        return [None if end is None else split.before_stop(end.readable) for split, end in ends]

    def blocked_splits(self) -> Mapping[str, int]:
        return self.log_ends.locked()

    def unreachable_splits(self) -> Mapping[str, str]:
        """Return the splits whose leaders are away; all of them while no broker answers."""
        return self.away.of(self._checkpoint.partitions)

    def lost_splits(self) -> Collection[str]:
        """Return the splits of topics that were deleted, or deleted and created again.

        Raises a `DataLossError`, unless `failOnDataLoss` is false: then the new topics are read from their first
        records on. O(topics), one call.
        """
        lost = self.discovery.lost_splits()
        # No reader is registered before the start.
        if lost and self.context.registered_readers():
            self._look_now()
        return lost

    def ranges_to_read(self, ranges: Sequence[SplitRange[KafkaSplit]]) -> Sequence[SplitRange[KafkaSplit]]:
        """Add the ids of topics to ranges, for the tasks.

        Ranges of topics that were deleted, or deleted and created again, are left out.
        """
        for split in (part.split for part in ranges):
            self.log_ends.move_on(split.split_id, split.position if split.stop is None else split.stop)
        splits = self._checkpoint.in_their_topics([part.split for part in ranges])
        return [SplitRange(split, part.rows) for split, part in zip(splits, ranges, strict=True) if split is not None]

    def close(self) -> None:
        self.retries.end()

    def _look_up(self) -> tuple[FoundPartitions | None, dict[str, LogEnd]]:
        found = self.discovery.look()
        ends, shorter = self.log_ends.look_up_now((found.checkpoint if found else self._checkpoint).partitions)
        return self.discovery.begin_again(found, shorter), ends

    def _look_now(self) -> None:
        self._on_found(self.discovery.discover(), None)

    def _on_found(self, found: FoundPartitions | None, error: BaseException | None) -> None:
        if error is not None:
            raise error
        assert found is not None
        for split_id in found.lost:
            self.context.abandon_split(split_id)
        self.away.keep(found.checkpoint.partitions.values())
        # What was not read yet of a log that became shorter, and is still there, is read too.
        replaced = {new_id: self.log_ends.position(old_id) for new_id, old_id in found.shortened.items()}
        splits = [
            split if at is None or at >= split.position else replace(split, position=at, begin=at)
            for split, at in ((split, replaced.get(split.split_id)) for split in found.splits)
        ]
        self.log_ends.update(found.checkpoint.partitions, found.lost, found.checkpoint.topic_ids)
        self._assign(splits)
        self._checkpoint = found.checkpoint
        if self.discovery.period_s is None:
            self._is_complete = True
            for subtask_id in self.context.registered_readers():
                self.context.signal_no_more_splits(subtask_id)

    def _on_ends(
        self, result: tuple[FoundPartitions | None, Mapping[str, LogEnd]] | None, error: BaseException | None
    ) -> None:
        if error is not None:
            raise error
        assert result is not None
        found, ends = result
        if found is not None:
            self._on_found(found, None)
        self.away.check()
        self.context.expect_records({split_id: end.readable for split_id, end in ends.items()})

    def _assign(self, splits: Sequence[KafkaSplit]) -> None:
        readers = sorted(self.context.registered_readers())
        by_reader: dict[int, list[KafkaSplit]] = {}
        for split in splits:
            self.log_ends.move_on(split.split_id, split.position)
            reader = readers[zlib.crc32(split.split_id.encode()) % len(readers)]
            by_reader.setdefault(reader, []).append(split)
        self.context.assign_splits(SplitsAssignment(by_reader))


@dataclass(eq=False, repr=False)
class IndexedKafkaSplitEnumerator(SupportsEventTimeIndex[KafkaSplit], KafkaSplitEnumerator):
    """Discovers partitions and updates the index in one call, so that a split becomes idle only after an update."""

    index: TimeIndex
    retention: RetentionWatch

    def start(self) -> None:
        period_s = _LOOK_S if self.discovery.period_s is None else min(_LOOK_S, self.discovery.period_s)
        self.context.call_async(self._look, self._on_observed, period_seconds=period_s, at_each_trigger=True)

    def close(self) -> None:
        super().close()
        self.index.close()

    # ---- SupportsEventTimeIndex ----------------------------------------------------------------------------------

    def restore_splits(self, splits: Sequence[KafkaSplit]) -> None:
        KafkaSplitEnumerator.restore_splits(self, splits)
        there = zip(splits, self._checkpoint.in_their_topics(splits), strict=True)
        self.index.add(split if in_its_topic is None else in_its_topic for split, in_its_topic in there)

    def event_times(self, split_id: str, start: int, stop: int) -> Int64Array:
        return self.index.event_times(split_id, start, stop)

    def first_later(
        self, split_ids: Sequence[str], starts: Int64Array, stops: Int64Array, bound_us: int
    ) -> tuple[Int64Array, Int64Array]:
        return self.index.first_later(split_ids, starts, stops, bound_us)

    def metrics(self) -> Mapping[str, int]:
        left_s = self.retention.left_s
        return {} if left_s is None else {"retentionSecondsLeft": int(left_s)}

    def blocked_splits(self) -> Mapping[str, int]:
        return self.index.blocked_splits

    def unindexed_splits(self) -> Collection[str]:
        return self.index.unindexed_splits

    def extend_snapshot(self) -> None:
        self.index.extend_snapshot()

    def split_at(self, split_id: str, position: int) -> KafkaSplit:
        self.log_ends.move_on(split_id, position)
        return self.index.commit_plan(split_id, position)

    def ranges(self, start: KafkaSplit, end: KafkaSplit, rows_per_range: int) -> Sequence[SplitRange[KafkaSplit]]:
        """Cut by offsets. Readers report records that no longer exist."""
        return SplitRange.evenly(start, end.position, rows_per_range)

    def finish_split(self, split_id: str) -> None:
        # The checkpoint remembers its partition.
        self.index.remove(split_id)

    # ---- looks ---------------------------------------------------------------------------------------------------

    def _look_now(self) -> None:
        self._on_observed(self._look(self.discovery.discover()), None)

    def _look(self, found: FoundPartitions | None = None) -> tuple[FoundPartitions | None, Observed]:
        found = found or self.discovery.look()
        observed = self.index.look(found.splits if found else (), found.lost if found else ())
        if not observed.replaced_topics:
            self.retention.look(self.index.next_offsets)
        before = found
        for split_id, (offset, end) in observed.shorter.items():
            self.log_ends.report_shorter(split_id, offset, end)
        found = self.discovery.begin_again(found, {split_id: end for split_id, (_, end) in observed.shorter.items()})
        if observed.replaced_topics and found is None:
            found = self.discovery.discover()
        if found is not None and found is not before:
            observed = self.index.look(found.splits, found.lost)
        return found, observed

    def _on_observed(self, result: tuple[FoundPartitions | None, Observed] | None, error: BaseException | None) -> None:
        if error is not None:
            raise error
        assert result is not None
        found, observed = result
        if found is not None:
            self.index.leave(found.lost)
            self._on_found(found, None)
        self.index.take(observed)
        self.away.check()

    def _assign(self, splits: Sequence[KafkaSplit]) -> None:
        super()._assign(splits)
        self.index.add(splits)

"""The partitions of a subscription, found in the background, with what the brokers know of their timestamps."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from alignment.event_time_range import ALL_TIMES, EventTimeRange
from alignment.timestamps import RecordTimestampAssigner
from alignment.watermarks import Int64Array
from streaming_source.api import (
    SplitEnumerator,
    SplitEnumeratorContext,
    SplitRange,
    SplitsAssignment,
    SupportsEventTimeIndex,
)
from streaming_source.connectors.kafka.client import KafkaAdmin, RetryPolicy, report_loss
from streaming_source.connectors.kafka.config import KafkaConfig
from streaming_source.connectors.kafka.log_ends import Leaders, LogEnd, LogEnds
from streaming_source.connectors.kafka.outage import Outage
from streaming_source.connectors.kafka.scanner import Scanner
from streaming_source.connectors.kafka.split import KafkaCheckpoint, KafkaSplit, KnownTopic
from streaming_source.connectors.kafka.subscription import LATEST, Boundary, Partition
from streaming_source.connectors.kafka.time_index import Looked, TimeIndex
from streaming_source.connectors.kafka.topic_ids import replaced_topics
from streaming_source.exceptions import OptionError

__all__ = ["Found", "IndexedKafkaSplitEnumerator", "KafkaSplitEnumerator", "PartitionDiscovery", "create_enumerator"]

_INCARNATION_CHARACTERS: Final = 8
_EARLIEST: Final = Boundary("startingOffsets", "earliest")

_FIRST_CONTACT_S: Final = 10.0
_LOOK_S: Final = 0.2
_LOG_ENDS_S: Final = 2.0


def create_enumerator(
    config: KafkaConfig, context: SplitEnumeratorContext[KafkaSplit], checkpoint: KafkaCheckpoint | None
) -> KafkaSplitEnumerator:
    """With the index of the brokers, if event times are the records' own timestamps and the options allow it."""
    patience_s = config.seconds("broker_timeout")
    has_their_times = isinstance(context.timestamp_assigner, RecordTimestampAssigner)
    # Of a query that goes on from a checkpoint the brokers were there.
    patience = config.retry_policy(_FIRST_CONTACT_S if checkpoint is None else math.inf)
    leaders, outage = Leaders(patience_s), Outage(config.client.brokers, patience_s)
    wanted = context.event_time_range if has_their_times else ALL_TIMES
    wants_earlier = context.event_time_range.from_us is not None
    admin = KafkaAdmin(config.client, patience, outage=outage)
    discovery = PartitionDiscovery(admin, config, checkpoint, wanted, wants_earlier=wants_earlier)
    for_ends = KafkaAdmin(config.client, RetryPolicy(min(_LOG_ENDS_S, patience_s)), leaders, outage)
    ends = LogEnds(for_ends.ends, patience_s, find_replaced=partial(replaced_topics, for_ends))
    has_index = context.supports_opaque_blocks and has_their_times
    if config.indexing == "scan" or not has_index:
        return KafkaSplitEnumerator(context, discovery, patience, ends, leaders, outage)
    scanner = Scanner(config.client, fail_on_data_loss=config.fail_on_data_loss, patience_s=patience_s)
    # Two connections: plans do not wait for looks.
    looks = KafkaAdmin(config.client, patience, leaders, outage)
    plans = KafkaAdmin(config.client, patience, outage=outage)
    index = TimeIndex(context, looks, plans, scanner, fail_on_data_loss=config.fail_on_data_loss)
    return IndexedKafkaSplitEnumerator(context, discovery, patience, ends, leaders, outage, index=index)


@dataclass(frozen=True, slots=True)
class Found:
    """What one look found: new splits, ids of splits whose topic is `gone`, and what to remember of both."""

    splits: tuple[KafkaSplit, ...]
    gone: tuple[str, ...]
    checkpoint: KafkaCheckpoint


class PartitionDiscovery:
    """Finds partitions that were not there at the look before.

    The first look of a fresh start (without a checkpoint) finds all, each from where the options say; later ones come
    with unread records, and are read from the first on. Where there is an end none is found after a
    restart. A topic that was created again is another one: with `fail_on_data_loss` that is an error, as is a topic
    that is gone; else its partitions are new splits.

    Each begins with its first record that is not before the event times that are `wanted`, if these are those of the
    brokers. Behind it records may be in any order of their times: where the last one lies is not known. Where a stream
    `wants_earlier` records than those to come, it starts at the earliest, unless the options give another start.
    """

    def __init__(
        self,
        brokers: KafkaAdmin,
        config: KafkaConfig,
        checkpoint: KafkaCheckpoint | None,
        wanted: EventTimeRange = ALL_TIMES,
        *,
        wants_earlier: bool = False,
    ) -> None:
        # How often to look; None to look once.
        self.period_s = None if config.end is not None else config.seconds("discovery_interval")
        self.checkpoint = checkpoint or KafkaCheckpoint(end=config.end_description)
        self._brokers = brokers
        self._config = config
        self._wanted = wanted
        self._wants_earlier = wants_earlier
        self._known = None if checkpoint is None else {topic.name: topic for topic in checkpoint.topics}
        self._forgotten: frozenset[str] = frozenset()
        self._is_complete = config.end is not None and checkpoint is not None

    def look(self) -> Found:
        """Look once. O(partitions).

        An `OptionError` if a topic that is subscribed to by its name was never there, or the options do not fit its
        partitions.
        """
        topics, gone = self._list()
        forgotten, self._forgotten = self._forgotten, frozenset()
        now = {name: one for name, one in (self._known or {}).items() if one.partitions or name not in forgotten}
        # Kept for a while: one of its name that comes now is another one, and gets other splits.
        now.update((topic.name, replace(topic, partitions=())) for topic in gone)
        new: list[tuple[Partition, KnownTopic]] = []
        for topic in () if self._is_complete else topics.values():
            chosen = self._config.subscription.select(topic.name, topic.partitions)
            before = now.get(topic.name, replace(topic, partitions=()))
            if _is_lost(before, topic):
                before = replace(topic, partitions=(), incarnation=topic.topic_id[:_INCARNATION_CHARACTERS])
            numbers = {*before.partitions, *(part.number for part in chosen)}
            topic_id = topic.topic_id or before.topic_id
            known = now[topic.name] = replace(before, topic_id=topic_id, partitions=tuple(sorted(numbers)))
            new += [(part, known) for part in chosen if part.number not in before.partitions]
        splits = self._splits(new, is_fresh=self._known is None)
        # What has gone meanwhile is no news: the next look finds out.
        for part in {part for part, _ in new} - {split.of for split in splits}:
            left = tuple(number for number in now[part.topic].partitions if number != part.number)
            now[part.topic] = replace(now[part.topic], partitions=left)
        self._known = now
        lost = tuple(split.split_id for topic in gone for split in topic.splits())
        remembered = KafkaCheckpoint(tuple(now[name] for name in sorted(now)), self._config.end_description)
        return Found(splits, lost, remembered)

    def forget(self, names: Collection[str]) -> None:
        """Topics that are gone, and of which no state has a split any more, may come again with the same splits."""
        self._forgotten |= frozenset(names)

    def lost_splits(self) -> frozenset[str]:
        """Ids of the splits of which the topic is not there any more. One call; what is found is not remembered."""
        if not self._known:
            return frozenset()
        return frozenset(split.split_id for topic in self._list()[1] for split in topic.splits())

    def _list(self) -> tuple[dict[str, KnownTopic], list[KnownTopic]]:
        """The topics that there are by name, and those known ones that are not there any more, which is reported."""
        chosen = self._config.subscription
        topics = {topic.name: topic for topic in self._brokers.topics(chosen)}
        missing = [name for name in chosen.topics if name not in topics]
        if self._known is None and missing:
            raise OptionError(
                f"option {chosen.kind}: the brokers know no topic {missing[0]!r}; create it first, or use "
                "subscribePattern, which finds topics that come later"
            )
        known = (self._known or {}).values()
        gone = [topic for topic in known if topic.partitions and _is_lost(topic, topics.get(topic.name))]
        if gone:
            report_loss(
                f"topic {gone[0].name!r} was deleted, or deleted and created again, while it was read: records that "
                "nobody has read may be lost, and positions in it mean nothing any more",
                "to go on with what is there now",
                fails=self._config.fail_on_data_loss,
            )
        return topics, gone

    def _splits(self, new: Sequence[tuple[Partition, KnownTopic]], *, is_fresh: bool) -> tuple[KafkaSplit, ...]:
        if not new:
            return ()
        partitions = [part for part, _ in new]
        start, end = self._config.start if is_fresh else _EARLIEST, self._config.end
        if self._wants_earlier and not start.is_given:
            start = _EARLIEST
        begins = start.resolve(partitions, self._brokers.offsets)
        ends = end.resolve(partitions, self._brokers.offsets) if end else {}
        for part, offset in ends.items():
            if end is not None and begins.get(part, 0) > offset:
                by = "the log" if end.kind == "latest" else f"option {end.option}"
                raise OptionError(
                    f"option {self._config.start.option}: partition {part} would start at offset {begins[part]}, and "
                    f"{by} ends it at {offset}; start it there or before"
                )
        for part, offset in self._before_wanted(begins).items():
            begins[part] = max(begins[part], min(offset, ends.get(part, offset)))
        return tuple(
            KafkaSplit(
                part.topic,
                part.number,
                position=begins[part],
                begin=begins[part],
                stop=ends.get(part),
                incarnation=topic.incarnation,
                topic_id=topic.topic_id,
            )
            for part, topic in new
            if part in begins and (end is None or part in ends)
        )

    def _before_wanted(self, parts: Collection[Partition]) -> dict[Partition, int]:
        """By partition an offset before which no record has an event time that is wanted. Two calls at most."""
        if self._wanted.from_us is None or not parts:
            return {}
        from_ms = max(-(-self._wanted.from_us // 1000), 0)
        # First where they end: what comes meanwhile is not taken for earlier.
        ends = self._brokers.offsets(dict.fromkeys(parts, LATEST))
        found = self._brokers.records(dict.fromkeys(parts, from_ms), readable=False)
        firsts = {part: ends.get(part) if record is None else record.offset for part, record in found.items()}
        return {part: offset for part, offset in firsts.items() if offset is not None}


def _is_lost(known: KnownTopic, found: KnownTopic | None) -> bool:
    return found is None or bool(known.topic_id and found.topic_id and known.topic_id != found.topic_id)


@dataclass(eq=False, repr=False)
class KafkaSplitEnumerator(SplitEnumerator[KafkaSplit, KafkaCheckpoint]):
    """Gives each partition to a reader as soon as it is found.

    `log_ends` learns what was found, and serves the readers of this planner; `patience` with the brokers is ended when
    this is closed. `leaders` are those of whoever asks for the ends of logs here, and `outage` is that of all clients.
    """

    context: SplitEnumeratorContext[KafkaSplit]
    discovery: PartitionDiscovery
    patience: RetryPolicy
    log_ends: LogEnds
    leaders: Leaders
    outage: Outage
    _taken_back: list[KafkaSplit] = field(default_factory=list, init=False)
    _is_complete: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._checkpoint = self.discovery.checkpoint
        # By the names of topics that are gone: the first state that a snapshot was taken for since; and so of splits.
        self._gone_in: dict[str, int] = {}
        self._splits_gone_in: dict[str, int | None] = {}

    def start(self) -> None:
        # After a restart, too, where no partition is added: what was read may have been deleted, or created again.
        self.context.call_async(self.discovery.look, self._on_found, period_seconds=self.discovery.period_s)
        if self.discovery.period_s is not None:
            self.context.call_async(self.log_ends.ask_again, self._on_ends, at_each_trigger=True)

    def handle_split_request(self, subtask_id: int, requester_hostname: str | None = None) -> None:
        # What was found is assigned already, but for what was taken back.
        if self._taken_back:
            taken_back, self._taken_back = self._taken_back, []
            self._assign(taken_back)
        if self._is_complete:
            self.context.signal_no_more_splits(subtask_id)

    def add_splits_back(self, splits: Sequence[KafkaSplit], subtask_id: int) -> None:
        self._taken_back.extend(splits)

    def snapshot_state(self, checkpoint_id: int) -> KafkaCheckpoint:
        """Without topics that are gone since two states: the first one had their splits, finished, the next one none.

        The state that a micro-batch starts from, and the one that it leads to, must not have two splits of one id.
        """
        gone = {topic.name for topic in self._checkpoint.topics if not topic.partitions}
        self._gone_in = {name: self._gone_in.get(name, checkpoint_id) for name in gone}
        left = {name for name, first in self._gone_in.items() if checkpoint_id >= first + 2}
        if left:
            self.discovery.forget(left)
            kept = tuple(topic for topic in self._checkpoint.topics if topic.name not in left)
            self._checkpoint = replace(self._checkpoint, topics=kept)
        self._forget_splits(checkpoint_id)
        return self._checkpoint

    def end_positions(self, splits: Sequence[KafkaSplit]) -> list[int | None]:
        """None before discovery has seen a partition, and while it does not answer: `SourceError` in the end."""
        self.leaders.check()
        ends = [(split, self.log_ends.end(split.split_id)) for split in splits]
        return [None if end is None else split.before_stop(end.readable) for split, end in ends]

    def blocked_splits(self) -> Mapping[str, int]:
        return self.log_ends.locked()

    def unreachable_splits(self) -> Mapping[str, str]:
        """Those of partitions whose leaders are away; all of them while no broker answers."""
        if (why := self.outage.description()) is not None:
            return dict.fromkeys(self._checkpoint.partitions, why)
        away = self.leaders.away
        return {i: away[part] for i, part in self._checkpoint.partitions.items() if part in away} if away else {}

    def lost_splits(self) -> Collection[str]:
        """Those of topics that are gone or were created again: a `DataLossError`, unless `failOnDataLoss` is false.

        Then what is there now is read from its first record on. O(topics), one call.
        """
        lost = self.discovery.lost_splits()
        # No reader is registered before the start.
        if lost and self.context.registered_readers():
            self._look_now()
        return lost

    def ranges_to_read(self, ranges: Sequence[SplitRange[KafkaSplit]]) -> Sequence[SplitRange[KafkaSplit]]:
        """With the ids of their topics, for the tasks; none of a topic that is gone or was created again."""
        splits = self._checkpoint.in_their_topics([part.split for part in ranges])
        return [SplitRange(split, part.rows) for split, part in zip(splits, ranges, strict=True) if split is not None]

    def close(self) -> None:
        self.patience.end()

    def _forget_splits(self, checkpoint_id: int) -> None:
        """Forget splits that are gone since two states, as their topics are: their readers have finished them."""
        since = {i: checkpoint_id if first is None else first for i, first in self._splits_gone_in.items()}
        left = {split_id for split_id, first in since.items() if checkpoint_id >= first + 2}
        self.log_ends.forget(left)
        self._splits_gone_in = {split_id: first for split_id, first in since.items() if split_id not in left}

    def _look_now(self) -> None:
        self._on_found(self.discovery.look(), None)

    def _on_found(self, found: Found | None, error: BaseException | None) -> None:
        if error is not None:
            raise error
        assert found is not None
        for split_id in found.gone:
            self.context.abandon_split(split_id)
            self._splits_gone_in[split_id] = None
        self.leaders.keep(found.checkpoint.partitions.values())
        self.log_ends.update(found.checkpoint.partitions, found.gone, found.checkpoint.topic_ids)
        self._assign(found.splits)
        self._checkpoint = found.checkpoint
        if self.discovery.period_s is None:
            self._is_complete = True
            for subtask_id in self.context.registered_readers():
                self.context.signal_no_more_splits(subtask_id)

    def _on_ends(self, ends: Mapping[str, LogEnd] | None, error: BaseException | None) -> None:
        if error is not None:
            raise error
        assert ends is not None
        self.leaders.check()
        self.context.expect_records({split_id: end.readable for split_id, end in ends.items()})

    def _assign(self, splits: Sequence[KafkaSplit]) -> None:
        readers = sorted(self.context.registered_readers())
        by_reader: dict[int, list[KafkaSplit]] = {}
        for split in splits:
            reader = readers[zlib.crc32(split.split_id.encode()) % len(readers)]
            by_reader.setdefault(reader, []).append(split)
        self.context.assign_splits(SplitsAssignment(by_reader))


@dataclass(eq=False, repr=False)
class IndexedKafkaSplitEnumerator(SupportsEventTimeIndex[KafkaSplit], KafkaSplitEnumerator):
    """Looks for partitions and for news in them in one call, so that what is idle was looked at."""

    index: TimeIndex
    # When the next look is one for partitions as well, by `time.monotonic`. Used by looks alone.
    _discovers_at: float = field(default=-math.inf, init=False)

    def start(self) -> None:
        period_s = _LOOK_S if self.discovery.period_s is None else min(_LOOK_S, self.discovery.period_s)
        self.context.call_async(self._look, self._on_looked, period_seconds=period_s, at_each_trigger=True)

    def close(self) -> None:
        super().close()
        self.index.close()

    # ---- SupportsEventTimeIndex ----------------------------------------------------------------------------------

    def restore_splits(self, splits: Sequence[KafkaSplit]) -> None:
        there = zip(splits, self._checkpoint.in_their_topics(splits), strict=True)
        self.index.add(split if in_its_topic is None else in_its_topic for split, in_its_topic in there)

    def event_times(self, split_id: str, start: int, stop: int) -> Int64Array:
        return self.index.event_times(split_id, start, stop)

    def first_later(
        self, split_ids: Sequence[str], starts: Int64Array, stops: Int64Array, bound_us: int
    ) -> tuple[Int64Array, Int64Array]:
        return self.index.first_later(split_ids, starts, stops, bound_us)

    def blocked_splits(self) -> Mapping[str, int]:
        return self.index.blocked_splits

    def unindexed_splits(self) -> Collection[str]:
        return self.index.unindexed_splits

    def extend_snapshot(self) -> None:
        self.index.extend_snapshot()

    def split_at(self, split_id: str, position: int) -> KafkaSplit:
        return self.index.commit_plan(split_id, position)

    def ranges(self, start: KafkaSplit, end: KafkaSplit, rows_per_range: int) -> Sequence[SplitRange[KafkaSplit]]:
        """Cut by offsets: what is not there any more is noticed by the readers."""
        return SplitRange.evenly(start, end.position, rows_per_range)

    def finish_split(self, split_id: str) -> None:
        # The checkpoint remembers its partition.
        self.index.remove(split_id)

    # ---- looks ---------------------------------------------------------------------------------------------------

    def _look_now(self) -> None:
        self._discovers_at = -math.inf
        self._on_looked(self._look(), None)

    def _look(self) -> tuple[Found | None, Looked]:
        found = self._discover() if time.monotonic() >= self._discovers_at else None
        looked = self.index.look(found.splits if found else (), found.gone if found else ())
        if looked.replaced_topics and found is None:
            found = self._discover()
            looked = self.index.look(found.splits, found.gone)
        return found, looked

    def _discover(self) -> Found:
        found = self.discovery.look()
        self._discovers_at = time.monotonic() + (self.discovery.period_s or math.inf)
        return found

    def _on_looked(self, result: tuple[Found | None, Looked] | None, error: BaseException | None) -> None:
        if error is not None:
            raise error
        assert result is not None
        found, looked = result
        if found is not None:
            self.index.leave(found.gone)
            self._on_found(found, None)
        self.index.take(looked)
        self.leaders.check()

    def _assign(self, splits: Sequence[KafkaSplit]) -> None:
        super()._assign(splits)
        self.index.add(splits)

"""Which partitions of a subscription are new, and which topics were deleted, by what the brokers list."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from alignment.event_time_range import ALL_TIMES, EventTimeRange
from alignment.shown import log_of
from streaming_source.connectors.kafka.admin import KafkaAdmin
from streaming_source.connectors.kafka.config import KafkaConfig
from streaming_source.connectors.kafka.faults import report_loss
from streaming_source.connectors.kafka.split import KafkaCheckpoint, KafkaSplit, KnownTopic
from streaming_source.connectors.kafka.subscription import EARLIEST, LATEST, MAX_TIMESTAMP, Boundary, Partition
from streaming_source.exceptions import OptionError

_log = log_of(__name__)

_INCARNATION_CHARACTERS: Final = 8
_EARLIEST: Final = Boundary("startingOffsets", "earliest")


@dataclass(frozen=True, slots=True)
class FoundPartitions:
    """The result of one discovery: new splits, ids of splits whose logs are `lost`, and the new checkpoint.

    Of logs that became shorter, `shortened` has the ids of the lost splits by the ids of the new ones. These
    begin at the end that the log has now.
    """

    splits: tuple[KafkaSplit, ...]
    lost: tuple[str, ...]
    checkpoint: KafkaCheckpoint
    shortened: Mapping[str, str] = field(default_factory=dict)

    def then(self, later: FoundPartitions) -> FoundPartitions:
        """Return what this discovery and a later one have found together."""
        splits = tuple(split for split in self.splits if split.split_id not in later.lost)
        return FoundPartitions(
            (*splits, *later.splits), (*self.lost, *later.lost), later.checkpoint, {**self.shortened, **later.shortened}
        )


class PartitionDiscovery:
    """Finds partitions that did not exist at the last discovery.

    The first discovery without a checkpoint finds all partitions, which begin where the options set it. Partitions that
    are found later begin at their first record. A source with an end finds none after a restart. A topic that was
    created again is a new topic: with `fail_on_data_loss` that is an error, as is a topic that was deleted; else its
    partitions are new splits.

    If event times are the records' timestamps, a split begins with the first record at or after the beginning of
    `wanted`. Its end is not cut, since later records may be in any order of their times. With `wants_earlier` records
    than those to come, the source starts at the earliest, unless the options give another start.
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
        # How often to discover; None for once.
        self.period_s = None if config.end is not None else config.seconds("discovery_interval")
        self.checkpoint = checkpoint or KafkaCheckpoint(end=config.end_description)
        self._brokers = brokers
        self._config = config
        self._wanted = wanted
        self._wants_earlier = wants_earlier
        self._known = None if checkpoint is None else {topic.name: topic for topic in checkpoint.topics}
        self._forgotten: frozenset[str] = frozenset()
        # By id of a split whose log became shorter: the end that it has now.
        self._shortened: dict[str, int] = {}
        self._is_complete = config.end is not None and checkpoint is not None
        # When the next look discovers as well, by `time.monotonic`. Used by looks alone.
        self._due_at = -math.inf

    @property
    def fail_on_data_loss(self) -> bool:
        """Option `failOnDataLoss`."""
        return self._config.fail_on_data_loss

    def look(self) -> FoundPartitions | None:
        """Discover if the interval is over since the last look that did; None if not."""
        return self.discover() if time.monotonic() >= self._due_at else None

    def discover(self) -> FoundPartitions:
        """Discover once. O(partitions).

        Raises an `OptionError` if a topic that is subscribed to by its name has never existed, or the options do not
        fit its partitions.
        """
        topics, deleted = self._list()
        forgotten, self._forgotten = self._forgotten, frozenset()
        now = {name: one for name, one in (self._known or {}).items() if one.partitions or name not in forgotten}
        # Kept for a while without partitions: a topic of the same name that appears now gets other split ids.
        now.update((topic.name, replace(topic, partitions=())) for topic in deleted)
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
        # Partitions that went away meanwhile are not remembered: the next discovery handles them.
        for part in {part for part, _ in new} - {split.of for split in splits}:
            left = tuple(number for number in now[part.topic].partitions if number != part.number)
            now[part.topic] = replace(now[part.topic], partitions=left)
        lost = tuple(split.split_id for topic in deleted for split in topic.splits())
        begun_again = self._begin_again(now, {part for part, _ in new})
        self._known = now
        self._due_at = time.monotonic() + (self.period_s or math.inf)
        remembered = KafkaCheckpoint(tuple(now[name] for name in sorted(now)), self._config.end_description)
        return FoundPartitions(
            (*splits, *begun_again),
            (*lost, *begun_again.values()),
            remembered,
            {split.split_id: old_id for split, old_id in begun_again.items()},
        )

    def starts(self, parts: Sequence[Partition]) -> Mapping[Partition, int | None]:
        """Return where the logs of partitions begin now. One call."""
        return self._brokers.offsets(dict.fromkeys(parts, EARLIEST))

    def begin_again(self, found: FoundPartitions | None, ends: Mapping[str, int]) -> FoundPartitions | None:
        """Add to what was found other splits of logs that became shorter, by split id, up to these ends."""
        # A bounded source finds partitions once.
        if not ends or self.period_s is None:
            return found
        self._shortened.update(ends)
        later = self.discover()
        return later if found is None else found.then(later)

    def forget(self, names: Collection[str]) -> None:
        """Forget deleted topics once no state has a split of them: new ones may then get the same split ids."""
        self._forgotten |= frozenset(names)

    def lost_splits(self) -> frozenset[str]:
        """Return the ids of splits whose topics were deleted. One call, which changes nothing here."""
        if not self._known:
            return frozenset()
        return frozenset(split.split_id for topic in self._list()[1] for split in topic.splits())

    def _begin_again(self, known: dict[str, KnownTopic], new: Collection[Partition]) -> dict[KafkaSplit, str]:
        """Return a split of each log that became shorter, with the id of the one before; updates `known`.

        Those that are `new` are of a topic that was created again.
        """
        splits: dict[KafkaSplit, str] = {}
        shortened, self._shortened = self._shortened, {}
        there = {split.split_id: split for topic in known.values() for split in topic.splits()} if shortened else {}
        for split_id, end in shortened.items():
            # A split that is not there was replaced by an earlier discovery.
            if (before := there.get(split_id)) is None or before.of in new:
                continue
            topic = known[before.topic] = known[before.topic].shorten(before.partition)
            incarnation, topic_id = topic.incarnation_of(before.partition), topic.topic_id
            split = replace(before, position=end, begin=end, incarnation=incarnation, topic_id=topic_id)
            splits[split] = split_id
        return splits

    def _list(self) -> tuple[dict[str, KnownTopic], list[KnownTopic]]:
        """Return the topics that exist, by name, and the known topics that were deleted, which are reported."""
        chosen = self._config.subscription
        known = {name: topic for name, topic in (self._known or {}).items() if topic.partitions}
        topics = {topic.name: topic for topic in self._brokers.topics(chosen, known)}
        missing = [name for name in chosen.topics if name not in topics]
        if self._known is None and missing:
            raise OptionError(
                f"option {chosen.kind}: the brokers know no topic {missing[0]!r}; create it first, or use "
                "subscribePattern, which finds topics that come later"
            )
        if self._known is None and not topics:
            _log.warning(
                "option subscribePattern = %r: the brokers list no topic with a match. One that is created later is "
                "read; one that is there is not listed unless the user of this query has the right Describe on it",
                chosen.pattern,
            )
        deleted = [topic for name, topic in known.items() if _is_lost(topic, topics.get(name))]
        if deleted:
            report_loss(
                f"topic {deleted[0].name!r} was deleted, or deleted and created again, while it was read: unread "
                "records may be lost, and positions in it are no longer valid",
                "to go on with what is there now",
                fails=self._config.fail_on_data_loss,
            )
        return topics, deleted

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
        """Return, by partition, an offset before which no record has a wanted event time. Three calls at most.

        Where the brokers find no record by its time, the log may have one all the same: they take the time of the file
        for a segment that compaction has emptied. They are believed if the latest record is known, and earlier.
        """
        if self._wanted.from_us is None or not parts:
            return {}
        from_ms = max(-(-self._wanted.from_us // 1000), 0)
        # Their ends first, so that records that are written meanwhile are not skipped.
        ends = self._brokers.offsets(dict.fromkeys(parts, LATEST))
        found = self._brokers.records(dict.fromkeys(parts, from_ms), readable=False)
        not_found = [part for part, record in found.items() if record is None]
        latest = self._brokers.records(dict.fromkeys(not_found, MAX_TIMESTAMP), readable=False)
        all_earlier = {part for part, record in latest.items() if record is not None and 0 <= record.time_ms < from_ms}
        firsts = {part: None if record is None else record.offset for part, record in found.items()}
        firsts |= {part: ends.get(part) for part in all_earlier}
        return {part: offset for part, offset in firsts.items() if offset is not None}


def _is_lost(known: KnownTopic, found: KnownTopic | None) -> bool:
    return found is None or bool(known.topic_id and found.topic_id and known.topic_id != found.topic_id)

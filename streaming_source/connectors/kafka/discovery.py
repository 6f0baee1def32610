"""Which partitions there are, look by look."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from streaming_source.connectors.kafka.admin import FoundTopic, KafkaAdmin
from streaming_source.connectors.kafka.config import KafkaConfig
from streaming_source.connectors.kafka.split import KafkaCheckpoint, KafkaSplit, KnownTopic
from streaming_source.connectors.kafka.starting import Boundary
from streaming_source.connectors.kafka.subscription import Partition
from streaming_source.exceptions import DataLossError, OptionError

__all__ = ["Found", "PartitionDiscovery"]

_log = logging.getLogger(__name__)

_INCARNATION_CHARACTERS: Final = 8


@dataclass(frozen=True, slots=True)
class Found:
    """What one look found: new splits, ids of splits whose topic is `gone`, and what to remember of both."""

    splits: tuple[KafkaSplit, ...]
    gone: tuple[str, ...]
    checkpoint: KafkaCheckpoint


class PartitionDiscovery:
    """Finds partitions that were not there at the look before.

    The first look of a fresh start (without a checkpoint) finds all, each from where the options say; later ones come
    with records that nobody has read, and are read from the first on. Where there is an end none is found after a
    restart. A topic that was created again is another one: with `fail_on_data_loss` that is an error, as is a topic
    that is gone; else its partitions are new splits.
    """

    def __init__(self, brokers: KafkaAdmin, config: KafkaConfig, checkpoint: KafkaCheckpoint | None) -> None:
        # How often to look; None to look once.
        self.period_s = None if config.end is not None else config.seconds("discovery_interval")
        self.checkpoint = checkpoint or KafkaCheckpoint(end=config.end_description)
        self._brokers = brokers
        self._subscription = config.subscription
        self._start = config.start
        self._end = config.end
        self._fail_on_data_loss = config.fail_on_data_loss
        self._end_description = config.end_description
        self._known = None if checkpoint is None else {topic.name: topic for topic in checkpoint.topics}
        self._is_complete = config.end is not None and checkpoint is not None

    def look(self) -> Found:
        """Look once. O(partitions).

        Raises
        ------
        DataLossError
            If a topic is gone, or was created again, and that is an error.
        OptionError
            If a topic that is subscribed to by its name was never there, or the options do not fit its partitions.
        """
        topics = {topic.name: topic for topic in self._brokers.topics(self._subscription)}
        known = self._known or {}
        if self._known is None:
            self._check_there(topics.keys())
        gone = self._lost(known, topics)
        self._check_still_there(gone)
        now = dict(known)
        # Not forgotten: one of its name that comes later is another one.
        now.update((topic.name, replace(topic, partitions=())) for topic in gone)
        new: list[tuple[Partition, str]] = []
        for topic in () if self._is_complete else topics.values():
            chosen = self._subscription.select(topic.name, topic.partitions)
            before = now.get(topic.name, KnownTopic(topic.name, topic.topic_id, ()))
            if _is_lost(before, topic):
                before = KnownTopic(topic.name, topic.topic_id, (), topic.topic_id[:_INCARNATION_CHARACTERS])
            new += [(part, before.incarnation) for part in chosen if part.number not in before.partitions]
            numbers = {*before.partitions, *(part.number for part in chosen)}
            topic_id = topic.topic_id or before.topic_id
            now[topic.name] = replace(before, topic_id=topic_id, partitions=tuple(sorted(numbers)))
        splits = self._splits(new, is_fresh=self._known is None)
        # What has gone meanwhile is no news: the next look finds out.
        for part in {part for part, _ in new} - {split.of for split in splits}:
            left = tuple(number for number in now[part.topic].partitions if number != part.number)
            now[part.topic] = replace(now[part.topic], partitions=left)
        self._known = now
        lost = tuple(split.split_id for topic in gone for split in topic.splits())
        return Found(splits, lost, KafkaCheckpoint(tuple(now[name] for name in sorted(now)), self._end_description))

    def lost_splits(self) -> frozenset[str]:
        """Ids of the splits of which the topic is not there any more. One call; what is found is not remembered."""
        if not self._known:
            return frozenset()
        lost = self._lost(self._known, {topic.name: topic for topic in self._brokers.topics(self._subscription)})
        self._check_still_there(lost)
        return frozenset(split.split_id for topic in lost for split in topic.splits())

    @staticmethod
    def _lost(known: Mapping[str, KnownTopic], found: Mapping[str, FoundTopic]) -> list[KnownTopic]:
        return [topic for topic in known.values() if topic.partitions and _is_lost(topic, found.get(topic.name))]

    def _splits(self, new: Sequence[tuple[Partition, str]], *, is_fresh: bool) -> tuple[KafkaSplit, ...]:
        if not new:
            return ()
        partitions = [part for part, _ in new]
        start = self._start if is_fresh else Boundary("startingOffsets", "earliest")
        begins = start.resolve(partitions, self._brokers.offsets)
        ends = self._end.resolve(partitions, self._brokers.offsets) if self._end else {}
        for part, end in ends.items():
            self._check_before(part, begins.get(part, 0), end)
        return tuple(
            KafkaSplit(part.topic, part.number, begins[part], begins[part], ends.get(part), again)
            for part, again in new
            if part in begins and (self._end is None or part in ends)
        )

    def _check_before(self, part: Partition, begin: int, end: int) -> None:
        if begin <= end:
            return
        assert self._end is not None
        by = "the log" if self._end.kind == "latest" else f"option {self._end.option}"
        raise OptionError(
            f"option {self._start.option}: partition {part} would start at offset {begin}, and {by} ends it at {end}; "
            "start it there or before"
        )

    def _check_there(self, names: Collection[str]) -> None:
        if self._subscription.kind == "subscribePattern":
            return
        missing = [name for name in self._subscription.topics if name not in names]
        if missing:
            raise OptionError(
                f"option {self._subscription.kind}: the brokers know no topic {missing[0]!r}; create it first, or use "
                "subscribePattern, which finds topics that come later"
            )

    def _check_still_there(self, gone: Sequence[KnownTopic]) -> None:
        if not gone:
            return
        name = gone[0].name
        what = (
            f"topic {name!r} was deleted, or deleted and created again, while it was read: records that nobody has "
            "read may be lost, and positions in it mean nothing any more"
        )
        if self._fail_on_data_loss:
            raise DataLossError(
                f"{what}; start with a new checkpointLocation, or set failOnDataLoss = false to go on with what is "
                "there now"
            )
        _log.warning("%s; reading goes on, since failOnDataLoss = false", what)


def _is_lost(known: KnownTopic, found: FoundTopic | None) -> bool:
    if found is None:
        return True
    return bool(known.topic_id and found.topic_id and known.topic_id != found.topic_id)

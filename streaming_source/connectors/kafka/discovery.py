"""Which partitions there are, look by look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from streaming_source.connectors.kafka.admin import KafkaAdmin
from streaming_source.connectors.kafka.client import report_loss
from streaming_source.connectors.kafka.config import KafkaConfig
from streaming_source.connectors.kafka.split import KafkaCheckpoint, KafkaSplit, KnownTopic
from streaming_source.connectors.kafka.subscription import Boundary, Partition
from streaming_source.exceptions import OptionError

__all__ = ["Found", "PartitionDiscovery"]

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
        self._config = config
        self._known = None if checkpoint is None else {topic.name: topic for topic in checkpoint.topics}
        self._is_complete = config.end is not None and checkpoint is not None

    def look(self) -> Found:
        """Look once. O(partitions).

        An `OptionError` if a topic that is subscribed to by its name was never there, or the options do not fit its
        partitions.
        """
        topics, gone = self._list()
        now = dict(self._known or {})
        # Not forgotten: one of its name that comes later is another one.
        now.update((topic.name, replace(topic, partitions=())) for topic in gone)
        new: list[tuple[Partition, str]] = []
        for topic in () if self._is_complete else topics.values():
            chosen = self._config.subscription.select(topic.name, topic.partitions)
            before = now.get(topic.name, replace(topic, partitions=()))
            if _is_lost(before, topic):
                before = replace(topic, partitions=(), incarnation=topic.topic_id[:_INCARNATION_CHARACTERS])
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
        remembered = KafkaCheckpoint(tuple(now[name] for name in sorted(now)), self._config.end_description)
        return Found(splits, lost, remembered)

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

    def _splits(self, new: Sequence[tuple[Partition, str]], *, is_fresh: bool) -> tuple[KafkaSplit, ...]:
        if not new:
            return ()
        partitions = [part for part, _ in new]
        start, end = self._config.start if is_fresh else Boundary("startingOffsets", "earliest"), self._config.end
        begins = start.resolve(partitions, self._brokers.offsets)
        ends = end.resolve(partitions, self._brokers.offsets) if end else {}
        for part, offset in ends.items():
            if end is not None and begins.get(part, 0) > offset:
                by = "the log" if end.kind == "latest" else f"option {end.option}"
                raise OptionError(
                    f"option {self._config.start.option}: partition {part} would start at offset {begins[part]}, and "
                    f"{by} ends it at {offset}; start it there or before"
                )
        return tuple(
            KafkaSplit(part.topic, part.number, begins[part], begins[part], ends.get(part), again)
            for part, again in new
            if part in begins and (end is None or part in ends)
        )


def _is_lost(known: KnownTopic, found: KnownTopic | None) -> bool:
    return found is None or bool(known.topic_id and found.topic_id and known.topic_id != found.topic_id)

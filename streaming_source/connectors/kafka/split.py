"""Splits of Kafka, the checkpoint of the enumerator, and how both are written in offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Final

from alignment.codec import Codec, Form, Wire
from streaming_source.api import SourceSplit
from streaming_source.api.serializer import CodecSerializer
from streaming_source.connectors.kafka.subscription import Partition


@dataclass(frozen=True, slots=True)
class KafkaSplit(SourceSplit):
    """One partition of a topic: reading began at `begin`, goes on at `position`, and ends at `stop`, if at all.

    `incarnation` distinguishes a topic that was created again while it was read from the one before, and a log that
    became shorter from what it was; it is empty for the first one. `topic_id` is the id of the topic that these offsets
    are of, empty if it is not known. It is used by tasks, and written in the checkpoint, not with each split.
    """

    is_divisible: ClassVar[bool] = True

    topic: str
    partition: Annotated[int, Wire(least=0)]
    position: Annotated[int, Wire(least=0, always=True)] = 0
    begin: Annotated[int, Wire(least=0, always=True)] = 0
    stop: Annotated[int | None, Wire(least=0)] = None
    incarnation: str = ""
    topic_id: str = field(default="", compare=False)

    @property
    def split_id(self) -> str:
        """`orders-3`; `orders-3@Zq3kX0aB` for a topic that was created again, `orders-3@1` for a shorter log."""
        suffix = f"@{self.incarnation}" if self.incarnation else ""
        return f"{self.topic}-{self.partition}{suffix}"

    @property
    def of(self) -> Partition:
        return Partition(self.topic, self.partition)

    @property
    def place(self) -> str:
        return f"offset {self.position}"

    def before_stop(self, offset: int) -> int:
        """Return an offset, or the split's stop if that comes first."""
        return offset if self.stop is None else min(offset, self.stop)

    def origin(self) -> KafkaSplit:
        return self.at(self.begin)


class KafkaSplitSerializer(CodecSerializer[KafkaSplit]):
    """`[topic, partition, position, begin]`, followed by stop and incarnation if there are any."""

    codec = Codec(KafkaSplit, ("topic", "partition", "position", "begin", "stop", "incarnation"))


_NUMBERS: Final = Form(
    lambda found: len(found) if found == tuple(range(len(found))) else found,
    lambda written: tuple(map(int, range(written) if isinstance(written, int) else written)),
)
"""Numbers of partitions: their count if they are numbered without a gap from 0 on, else a list."""


@dataclass(frozen=True, slots=True)
class KnownTopic:
    """A topic with the partitions that were found, sorted; see `KafkaSplit` for `incarnation`.

    `topic_id` changes each time a topic of this name is created; it is empty if the broker has no ids. `shortened` has
    the partitions whose logs became shorter while they were read, and how often.
    """

    name: str
    topic_id: str
    partitions: Annotated[tuple[int, ...], Wire(form=_NUMBERS)]
    incarnation: str = ""
    shortened: tuple[tuple[int, int], ...] = ()

    def incarnation_of(self, number: int) -> str:
        """Return the incarnation of the split of a partition."""
        times = dict(self.shortened).get(number, "")
        return f"{self.incarnation}.{times}" if times and self.incarnation else self.incarnation or str(times)

    def shorten(self, number: int) -> KnownTopic:
        """Return the topic after the log of a partition became shorter: its split has another id from now on."""
        before = dict(self.shortened)
        return replace(self, shortened=tuple(sorted((before | {number: before.get(number, 0) + 1}).items())))

    def splits(self) -> list[KafkaSplit]:
        """Return splits of these partitions, for their ids; their positions have no meaning."""
        return [KafkaSplit(self.name, number, incarnation=self.incarnation_of(number)) for number in self.partitions]


_TOPIC: Final = Codec(KnownTopic, ("name", "topic_id", "partitions", "incarnation", "shortened"))
_TOPICS: Final = Form(
    lambda topics: {name: entry for name, *entry in map(_TOPIC.write, topics)},
    lambda found: tuple([_TOPIC.read([name, *entry]) for name, entry in sorted(found.items())]),
)
"""Topics by their names."""


@dataclass(frozen=True, slots=True)
class KafkaCheckpoint:
    """The part of an offset beside the splits in work: the end of the source, if any, and topics by name.

    Partitions that are not in it are new, and read from their first record on.
    """

    topics: Annotated[tuple[KnownTopic, ...], Wire(form=_TOPICS, needed=True)] = ()
    end: str = ""

    @property
    def topic_ids(self) -> dict[str, str]:
        """The ids of the topics that exist, by name."""
        return {topic.name: topic.topic_id for topic in self.topics if topic.partitions}

    def in_their_topics(self, splits: Sequence[KafkaSplit]) -> list[KafkaSplit | None]:
        """Add the ids of topics to splits; None for a log that was deleted, became shorter or was created again.

        O(n + topics).
        """
        there = {topic.name: topic for topic in self.topics if topic.partitions}
        found = [(split, there.get(split.topic)) for split in splits]
        return [
            replace(split, topic_id=topic.topic_id)
            if topic is not None and split.incarnation == topic.incarnation_of(split.partition)
            else None
            for split, topic in found
        ]

    @property
    def partitions(self) -> dict[str, Partition]:
        """The partitions that exist, by split id."""
        return {split.split_id: split.of for topic in self.topics for split in topic.splits()}


class KafkaCheckpointSerializer(CodecSerializer[KafkaCheckpoint]):
    """`{"end": "latest", "topics": {name: [id, partitions, incarnation, shortened]}}`; without `end` there is none.

    `shortened` are pairs, left out where there are none, as is an empty incarnation before them.
    """

    codec = Codec(KafkaCheckpoint)
    what = "enumerator"

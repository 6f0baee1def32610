"""A consumer of the client that reads the partitions it is told to, and outlives who uses it."""

from __future__ import annotations

from typing import Final

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from streaming_source.api import KeptClients
from streaming_source.connectors.kafka.client import GONE, ClientConfig, client_error
from streaming_source.connectors.kafka.subscription import Partition

__all__ = ["PartitionConsumer"]

_ASK_S: Final = 10.0
_LOOK_S: Final = 2.0


class PartitionConsumer:
    """Made, or taken from those that are kept, when it is first needed: until then it costs no connection."""

    def __init__(self, config: ClientConfig, clients: KeptClients) -> None:
        self._config = config
        self._clients = clients
        self._client: Consumer | None = None

    def assign(self, *where: TopicPartition) -> None:
        """Read partitions from their offsets on. Does not block."""
        if where:
            self._taken().incremental_assign(list(where))

    def unassign(self, *where: TopicPartition) -> None:
        """Read them no more; nothing of them comes from now on."""
        if where:
            self._taken().incremental_unassign(list(where))

    def pause(self, *where: TopicPartition) -> None:
        """Fetch nothing of them, until they are resumed."""
        if where:
            self._taken().pause(list(where))

    def resume(self, *where: TopicPartition) -> None:
        """Fetch them again."""
        if where:
            self._taken().resume(list(where))

    def consume(self, count: int, wait_s: float) -> list[Message]:
        """Messages and events, `count` of them or what came in the time."""
        messages: list[Message] = self._taken().consume(count, wait_s)
        return messages

    def offset_at(self, part: Partition, at: int) -> int | None:
        """The offset of a partition at `starting.EARLIEST` or `starting.LATEST`; None if there is no such partition."""
        # Not get_watermark_offsets: it can take an error for an empty partition.
        where = [TopicPartition(*part, at)]
        try:
            try:
                answers = self._taken().offsets_for_times(where, timeout=_ASK_S)
            except KafkaException as error:
                if error.args[0].code() not in GONE:
                    raise
                # The client says so by what it knew last, too.
                if part.number not in (self.partitions(part.topic) or ()):
                    return None
                answers = self._taken().offsets_for_times(where, timeout=_ASK_S)
        except KafkaException as error:
            failed = client_error(self._config, f"asking for the offsets of partition {part}", error)
            raise failed from None
        return int(answers[0].offset)

    def partitions(self, topic: str) -> frozenset[int] | None:
        """The partitions that a topic has now, none if there is no such topic; None if the brokers do not say."""
        try:
            found = self._taken().list_topics(topic, timeout=_LOOK_S).topics[topic]
        except KafkaException:
            return None
        if found.error is not None and found.error.code() not in GONE:
            return None
        return frozenset(found.partitions)

    def close(self) -> None:
        """Give it back; it reads nothing any more."""
        client, self._client = self._client, None
        if client is None:
            return
        try:
            client.unassign()
        except KafkaException:
            client.close()
        else:
            self._clients.keep(self._key, client, client.close)

    @property
    def _key(self) -> tuple[str, ClientConfig]:
        return "kafka-consumer", self._config

    def _taken(self) -> Consumer:
        if self._client is None:
            try:
                self._client = self._clients.take(self._key, lambda: Consumer(self._config.for_consumer()))
            except KafkaException as error:
                failed = client_error(self._config, "making a consumer", error)
                raise failed from None
        return self._client

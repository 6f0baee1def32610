"""A consumer that outlives its reader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from streaming_source.api import KeptClients
from streaming_source.connectors.kafka.client_config import ClientConfig
from streaming_source.connectors.kafka.faults import GONE, HOPELESS, code_of
from streaming_source.connectors.kafka.subscription import Partition

_REQUEST_S: Final = 10.0
_TRIAL_S: Final = 2.0
"""For a call that may get no answer."""


class PartitionConsumer:
    """A consumer of partitions that is kept for the next reader of this process.

    It is created, or taken from the kept clients, when it is first used: until then there is no connection.
    """

    def __init__(self, config: ClientConfig, clients: KeptClients) -> None:
        self._config = config
        # The settings of the consumer: credentials may have been renewed since it was made.
        self._current = config
        self._clients = clients
        self._taken: Consumer | None = None

    @property
    def client(self) -> Consumer:
        if self._taken is None:
            self._current = self._config.current()
            try:
                self._taken = self._clients.take(self._key, lambda: Consumer(self._current.for_consumer()))
            except KafkaException as error:
                raise self._current.error("creating a consumer", error) from None
        return self._taken

    def offset_at(self, part: Partition, at: int) -> int | None:
        """Return the offset of a partition at `EARLIEST` or `LATEST`; None if there is no such partition."""
        # Not `get_watermark_offsets`: it returns an empty partition for some errors.
        where = [TopicPartition(*part, at)]
        try:
            try:
                answers = self.client.offsets_for_times(where, timeout=_REQUEST_S)
            except KafkaException as error:
                if code_of(error) not in GONE:
                    raise
                # The client also reports this from metadata that are out of date.
                if part.number not in (self.partitions(part.topic) or ()):
                    return None
                answers = self.client.offsets_for_times(where, timeout=_REQUEST_S)
        except KafkaException as error:
            failed = self._current.error(f"looking up the offsets of partition {part}", error, topics=[part.topic])
            raise failed from None
        return int(answers[0].offset)

    def partitions(self, topic: str) -> frozenset[int] | None:
        """Return the partitions of a topic, none if there is no such topic; None if the brokers do not answer.

        Raises a `SourceError` if the topic is refused: the client waits for its records without a word.
        """
        try:
            found = self.client.list_topics(topic, timeout=_TRIAL_S).topics[topic]
        except KafkaException:
            return None
        if found.error is not None and found.error.code() in HOPELESS:
            raise self._current.error(f"looking up topic {topic!r}", KafkaException(found.error), topics=[topic])
        if found.error is not None and found.error.code() not in GONE:
            return None
        return frozenset(found.partitions)

    def drop_if_outdated(self) -> bool:
        """Close the consumer if its credentials have been renewed, and return whether they were.

        The next consumer has no assignment.
        """
        if self._config.credentials is None or self._taken is None or self._config.current() == self._current:
            return False
        client, self._taken = self._taken, None
        client.close()
        return True

    def close(self, paused: Sequence[TopicPartition] = ()) -> None:
        """Unassign the consumer and keep it for the next reader. Of its partitions these are `paused`."""
        client, self._taken = self._taken, None
        if client is None:
            return
        try:
            # A partition that is unassigned while it is paused would still be paused when it is assigned again.
            if paused:
                client.resume(list(paused))
            client.unassign()
        except KafkaException:
            client.close()
        else:
            self._clients.keep(self._key, client, client.close)

    @property
    def _key(self) -> tuple[str, ClientConfig]:
        return "kafka-consumer", self._current

"""Whether topics are still the same: one that was deleted and created again has another id."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from streaming_source.api import KeptClients
from streaming_source.connectors.kafka.admin import KafkaAdmin
from streaming_source.connectors.kafka.client_config import ClientConfig
from streaming_source.connectors.kafka.faults import BrokerRetries
from streaming_source.connectors.kafka.subscription import Subscription

__all__ = ["TopicCheck", "replaced_topics"]


def replaced_topics(brokers: KafkaAdmin, ids: Mapping[str, str]) -> frozenset[str]:
    """Return the names of topics that are gone, or have another id than the given one; an empty id is not compared.

    One call, O(partitions of these topics). What was fetched before the call from any other topic belongs to it.
    """
    names = tuple(sorted(name for name, topic_id in ids.items() if topic_id))
    if not names:
        return frozenset()
    found = {topic.name: topic.topic_id for topic in brokers.topics(Subscription("subscribe", names))}
    return frozenset(name for name in names if name not in found or (found[name] and found[name] != ids[name]))


class TopicCheck:
    """Compares the ids of topics for a reader, over a connection that is kept for the next one.

    Raises a `SourceError` if the brokers do not answer for `patience_s`.
    """

    def __init__(self, config: ClientConfig, clients: KeptClients, patience_s: float) -> None:
        self._key = "kafka-topic-ids", config, patience_s
        self._clients = clients
        self._brokers: KafkaAdmin | None = None

    def replaced(self, topics: Iterable[tuple[str, str]]) -> frozenset[str]:
        """Return the names that `replaced_topics` finds among `(name, id)`."""
        ids = dict(topics)
        if self._brokers is None and any(ids.values()):
            _, config, patience_s = self._key
            self._brokers = self._clients.take(self._key, lambda: KafkaAdmin(config, BrokerRetries(patience_s)))
        return frozenset() if self._brokers is None else replaced_topics(self._brokers, ids)

    def close(self) -> None:
        """Keep the connection for the next reader."""
        brokers, self._brokers = self._brokers, None
        if brokers is not None:
            self._clients.keep(self._key, brokers, brokers.close)

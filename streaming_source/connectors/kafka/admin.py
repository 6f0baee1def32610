"""Topics, offsets and ends of logs, of all partitions at once; and whether topics are still the same."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

from confluent_kafka import OFFSET_INVALID, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType

from streaming_source.api import KeptClients
from streaming_source.connectors.kafka.client_config import ClientConfig
from streaming_source.connectors.kafka.faults import (
    GONE,
    HOPELESS,
    REFUSALS,
    SILENCE,
    Away,
    BrokerRetries,
    TopicsRefusedError,
    code_of,
    is_answer,
)
from streaming_source.connectors.kafka.log_ends import LogEnd
from streaming_source.connectors.kafka.split import KnownTopic
from streaming_source.connectors.kafka.subscription import EARLIEST, LATEST, MAX_TIMESTAMP, Partition, Subscription

T = TypeVar("T")

_SPECS: Final = {
    EARLIEST: OffsetSpec.earliest(),
    LATEST: OffsetSpec.latest(),
    MAX_TIMESTAMP: OffsetSpec.max_timestamp(),
}

_REQUEST_S: Final = 10.0
_TRIAL_S: Final = 2.0
"""For what may be in vain."""
_FIRST_CONTACT: Final = (
    "No broker has answered since the query started: do kafka.bootstrap.servers name one, and does "
    "kafka.security.protocol (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL) fit its listener?"
)
_NO_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"


class FoundRecord(NamedTuple):
    """Answers of the index by time: a record, an aborted record, or the mark of a transaction."""

    offset: int
    time_ms: int


class KafkaAdmin:
    """Looks up topics and offsets. It connects with the first call.

    All methods raise a `SourceError` if the brokers do not answer for as long as `retries` last. `ends` reports single
    partitions whose leaders are `away` there, as it does when no broker answers, and returns the others.
    """

    def __init__(self, config: ClientConfig, retries: BrokerRetries, away: Away | None = None) -> None:
        self._config = config
        self._retries = retries
        self._away = away or Away(config.brokers, retries.seconds)
        # The settings of the client: credentials may have been renewed since it was made.
        self._current = config
        self._client: AdminClient | None = None
        self._last_trouble = ""
        self._refusal: KafkaError | None = None
        self._reads_committed = config.isolation_level == "read_committed"

    def close(self) -> None:
        """Close the connections."""
        self._client = None

    def topics(self, subscription: Subscription, known: Collection[str] = ()) -> list[KnownTopic]:
        """Return the topics of a subscription that exist, sorted by name. One call; for a pattern two.

        With a pattern, `known` topics are looked up by their names too: brokers do not list a topic that the user may
        not describe any more, but such a topic still exists.
        """
        return self._call("looking up topics", lambda: self._topics(subscription, known))

    def offsets(self, wanted: Mapping[Partition, int]) -> dict[Partition, int | None]:
        """Look up offsets; see `subscription.Lookup`. One call for all. Partitions that do not exist are left out."""
        return {part: None if record is None else record.offset for part, record in self.records(wanted).items()}

    def records(
        self, wanted: Mapping[Partition, int], *, readable: bool = True, all_answer: bool = True
    ) -> dict[Partition, FoundRecord | None]:
        """Look up offsets with timestamps; `MAX_TIMESTAMP` is the record with the latest timestamp.

        If `readable`, only records that the consumer can read under its isolation level are found, else all that are
        written. Unless `all_answer`, partitions whose leaders are away are left out, as long as they are waited for.
        """
        if not wanted:
            return {}
        is_committed = readable and self._reads_committed
        level = IsolationLevel.READ_COMMITTED if is_committed else IsolationLevel.READ_UNCOMMITTED
        return self._call("looking up offsets", lambda: self._records(wanted, level, all_answer=all_answer))

    def compacted(self, topics: Collection[str]) -> frozenset[str]:
        """Return the topics that compaction may take records from: those whose settings cannot be read, too."""
        asked, found = [ConfigResource(ResourceType.TOPIC, name) for name in topics], set(topics)
        for topic, future in self._connected().describe_configs(asked, request_timeout=self._request_s).items():
            with suppress(KafkaException):
                if "compact" not in future.result()["cleanup.policy"].value:
                    found.discard(topic.name)
        return frozenset(found)

    def starts(self, parts: Collection[Partition]) -> dict[Partition, int | None]:
        """Look up where logs start; partitions whose leaders are away are left out."""
        found = self.records(dict.fromkeys(parts, EARLIEST), readable=False, all_answer=False)
        return {part: None if record is None else record.offset for part, record in found.items()}

    def ends(self, parts: Sequence[Partition]) -> dict[Partition, LogEnd]:
        """Look up where logs end. Two calls if transactions may be open: for what is written, then what is readable.

        Partitions whose leaders are away are left out. They are tried every few seconds in calls of their own, so that
        the others do not wait for a timeout.
        """
        away = set(self._away.leaders)
        ends = self._ends([part for part in parts if part not in away])
        return ends | self._ends([part for part in parts if part in away]) if self._away.are_due() else ends

    def _ends(self, parts: Sequence[Partition]) -> dict[Partition, LogEnd]:
        written = self.records(dict.fromkeys(parts, LATEST), readable=False, all_answer=False)
        readable = written
        if self._reads_committed:
            readable = self.records(dict.fromkeys(written, LATEST), all_answer=False)
        ends = {
            part: LogEnd(until.offset, max(until.offset, (written[part] or until).offset))
            for part, until in readable.items()
            if until is not None
        }
        self._away.answer(ends)
        return ends

    def _call(self, what: str, call: Callable[[], T]) -> T:
        self._away.begin()
        try:
            return self._retries.run(lambda: self._tried(call))
        except TopicsRefusedError as error:
            failed = self._current.error(what, error, topics=error.topics)
        except KafkaException as error:
            fix = "" if self._retries.has_succeeded or is_answer(error) else _FIRST_CONTACT
            failed = self._current.error(what, error, more=self._last_trouble, fix=fix)
        raise failed

    def _tried(self, call: Callable[[], T]) -> T:
        try:
            answer = call()
            self._away.end()
            return answer
        except KafkaException as error:
            if code_of(error) in SILENCE:
                self._away.fail(self._current.scrub(str(error.args[0].str())))
            else:
                self._away.end()
            if self._client is not None:
                # Errors of connections are delivered to `_note` here.
                self._client.poll(0)
            if code_of(error) == KafkaError._TIMED_OUT:
                self._refresh_brokers()
            if self._refusal is not None and not self._retries.has_succeeded:
                raise KafkaException(self._refusal) from None
            raise

    def _connected(self) -> AdminClient:
        current = self._config.current()
        if self._client is None or current != self._current:
            self._current = current
            self._client = AdminClient({**current.for_admin(), "error_cb": self._note})
        return self._client

    @property
    def _request_s(self) -> float:
        # Half the time, so that a call can be tried twice; but once brokers have answered, long enough for a slow one.
        seconds = self._retries.seconds
        least = min(_TRIAL_S, seconds) if self._retries.has_succeeded else 0.0
        return min(_REQUEST_S, max(seconds / 2, least))

    def _refresh_brokers(self) -> None:
        """Let the client list the brokers again: otherwise it waits for the one that was the controller."""
        if self._client is not None and self._retries.has_succeeded:
            with suppress(KafkaException):
                self._client.list_topics(timeout=min(_TRIAL_S, self._request_s))

    def _note(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            return  # the errors of the single brokers were reported before
        if error.code() in REFUSALS:
            self._refusal = error
            return
        self._last_trouble = self._current.scrub(f"; the client reports: {error.str()}")

    def _topics(self, subscription: Subscription, known: Collection[str]) -> list[KnownTopic]:
        client = self._connected()
        names = list(subscription.topics)
        if subscription.kind == "subscribePattern":
            names = sorted({*known, *filter(subscription.matches, client.list_topics(timeout=self._request_s).topics)})
        if not names:
            return []
        found, refused = list[KnownTopic](), list[str]()
        futures = client.describe_topics(TopicCollection(names), request_timeout=self._request_s)
        for name in sorted(futures):
            try:
                topic = futures[name].result()
            except KafkaException as error:
                cause = error.args[0]
                if cause.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    refused.append(name)
                elif cause.code() not in GONE:
                    raise KafkaException(KafkaError(cause.code(), f"topic {name!r}: {cause.str()}")) from None
                continue
            if topic.is_internal and subscription.kind == "subscribePattern":
                # As in Spark, a pattern does not select internal topics.
                continue
            topic_id = "" if str(topic.topic_id) == _NO_ID else str(topic.topic_id)
            found.append(KnownTopic(name, topic_id, tuple(sorted(part.id for part in topic.partitions))))
        if refused:
            raise TopicsRefusedError(refused)
        return found

    def _records(
        self, wanted: Mapping[Partition, int], level: IsolationLevel, *, all_answer: bool
    ) -> dict[Partition, FoundRecord | None]:
        found, failed = self._listed(wanted, level)
        if refused := {p.topic for p, e in failed.items() if e.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED}:
            raise TopicsRefusedError(refused)
        if failed:
            # The client queries the leaders that it knows. It does not look for new ones by itself: neither for those
            # of partitions that were added since, nor after a broker was killed and came back.
            there = self._refresh(sorted({part.topic for part in failed}))
            # All partitions again: a call in which no partition has a leader fails as if no broker answered.
            found, failed = self._listed(wanted, level)
            missing: dict[Partition, str] = {}
            for part, error in failed.items():
                leaders = there.get(part.topic)
                # A partition that exists, but is not known to its broker yet, is tried again.
                is_lost = error.code() in GONE if leaders is None else part.number not in leaders
                if not is_lost:
                    leader = (leaders or {}).get(part.number, "its leader is not known")
                    missing[part] = f"{error.str()}; {leader}"
                    all_answer |= error.code() in HOPELESS
            # If no partition was answered, the brokers are away, not single leaders.
            is_some = bool(found) or missing.keys() <= set(self._away.leaders)
            if missing and (all_answer or not is_some or not self._away.miss(missing)):
                part = min(missing)
                raise KafkaException(KafkaError(failed[part].code(), f"partition {part}: {missing[part]}"))
        return found

    def _listed(
        self, wanted: Mapping[Partition, int], level: IsolationLevel
    ) -> tuple[dict[Partition, FoundRecord | None], dict[Partition, KafkaError]]:
        specs = {
            TopicPartition(part.topic, part.number): _SPECS.get(number) or OffsetSpec.for_timestamp(number)
            for part, number in wanted.items()
        }
        seconds = min(_TRIAL_S, self._request_s) if wanted.keys() <= set(self._away.leaders) else self._request_s
        futures = self._connected().list_offsets(specs, isolation_level=level, request_timeout=seconds)
        found: dict[Partition, FoundRecord | None] = {}
        failed: dict[Partition, KafkaError] = {}
        for where, future in futures.items():
            part = Partition(where.topic, where.partition)
            try:
                answer = future.result()
            except KafkaException as error:
                failed[part] = error.args[0]
            else:
                found[part] = FoundRecord(answer.offset, answer.timestamp) if answer.offset >= 0 else None
                if answer.offset == OFFSET_INVALID:
                    # The client reports a leader that did not answer in this way, if others did.
                    del found[part]
                    failed[part] = KafkaError(KafkaError._TIMED_OUT, "no answer")
        return found, failed

    def _refresh(self, names: list[str]) -> dict[str, dict[int, str]]:
        """Return the partitions of topics with their leaders, which the client learns from this call.

        Errors are ignored: the next query fails with them. A topic that does not exist has no partitions.
        """
        futures = self._connected().describe_topics(TopicCollection(names), request_timeout=self._request_s)
        there: dict[str, dict[int, str]] = {}
        for name, future in futures.items():
            try:
                there[name] = {part.id: _led(part) for part in future.result().partitions}
            except KafkaException as error:
                if code_of(error) in GONE:
                    there[name] = {}
                elif code_of(error) == KafkaError._TIMED_OUT:
                    self._refresh_brokers()
        return there


def _led(part: Any) -> str:
    """Describe the leader of a partition, as the client knows it."""
    if part.leader is not None:
        return f"its leader is broker {part.leader.id} at {part.leader.host}:{part.leader.port}"
    return f"its replicas are on brokers {', '.join(str(node.id) for node in part.replicas)}"


# ---- ids of topics ---------------------------------------------------------------------------------------------------


def replaced_topics(brokers: KafkaAdmin, ids: Mapping[str, str]) -> frozenset[str]:
    """Return the names of topics that do not exist, or have another id than the given one; an empty id is not compared.

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

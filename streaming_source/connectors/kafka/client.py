"""Clients of the brokers: one that outlives a reader, and one for topics and the offsets of all partitions at once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from streaming_source import api
from streaming_source.connectors.kafka.client_config import ClientConfig
from streaming_source.connectors.kafka.log_ends import Leaders, LogEnd
from streaming_source.connectors.kafka.outage import Outage
from streaming_source.connectors.kafka.split import KnownTopic
from streaming_source.connectors.kafka.subscription import EARLIEST, LATEST, MAX_TIMESTAMP, Partition, Subscription
from streaming_source.exceptions import DataLossError

__all__ = ["GONE", "FoundRecord", "KafkaAdmin", "PartitionConsumer", "RetryPolicy", "report_loss"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

GONE: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
"""Codes of errors that say that there is no such topic or partition."""

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

_SILENCE: Final = frozenset(
    {KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE}
)
"""Codes of errors by which nothing is known of any broker."""

_REFUSALS: Final = (KafkaError._AUTHENTICATION, KafkaError._SSL)
"""What becomes of a connection to a broker that never let us in, however often it is tried."""

_HOPELESS: Final = frozenset(
    {
        KafkaError._INVALID_ARG,
        KafkaError._NOT_IMPLEMENTED,
        KafkaError._UNSUPPORTED_FEATURE,
        KafkaError.UNSUPPORTED_VERSION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        *_REFUSALS,
    }
)
"""Errors that no patience mends."""


def report_loss(what: str, to_go_on: str, *, fails: bool) -> None:
    """Records that were to be read are not there any more: an error, or a warning that reading goes on."""
    if fails:
        raise DataLossError(f"{what}. Start with a new checkpointLocation, or set failOnDataLoss = false {to_go_on}")
    _log.warning("%s; reading goes on, since failOnDataLoss = false", what)


class PartitionConsumer:
    """A consumer of partitions that outlives who uses it.

    It is made, or taken from those that are kept, when it is first needed: until then it costs no connection.
    """

    def __init__(self, config: ClientConfig, clients: api.KeptClients) -> None:
        self._config = config
        # What the consumer was made with: credentials may have been renewed since.
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
                failed = self._current.error("making a consumer", error)
                raise failed from None
        return self._taken

    def offset_at(self, part: Partition, at: int) -> int | None:
        """The offset of a partition at `EARLIEST` or `LATEST`; None if there is no such partition."""
        # Not get_watermark_offsets: it can take an error for an empty partition.
        where = [TopicPartition(*part, at)]
        try:
            try:
                answers = self.client.offsets_for_times(where, timeout=_REQUEST_S)
            except KafkaException as error:
                if error.args[0].code() not in GONE:
                    raise
                # The client says so by what it knew last, too.
                if part.number not in (self.partitions(part.topic) or ()):
                    return None
                answers = self.client.offsets_for_times(where, timeout=_REQUEST_S)
        except KafkaException as error:
            failed = self._current.error(f"asking for the offsets of partition {part}", error)
            raise failed from None
        return int(answers[0].offset)

    def partitions(self, topic: str) -> frozenset[int] | None:
        """The partitions that a topic has now, none if there is no such topic; None if the brokers do not answer."""
        try:
            found = self.client.list_topics(topic, timeout=_TRIAL_S).topics[topic]
        except KafkaException:
            return None
        if found.error is not None and found.error.code() not in GONE:
            return None
        return frozenset(found.partitions)

    def drop_if_outdated(self) -> bool:
        """Close the consumer if its credentials have been renewed since it was made: it is assigned nothing then."""
        if self._config.credentials is None or self._taken is None or self._config.current() == self._current:
            return False
        client, self._taken = self._taken, None
        client.close()
        return True

    def close(self) -> None:
        """Give it back; it reads nothing any more."""
        client, self._taken = self._taken, None
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
        return "kafka-consumer", self._current


class RetryPolicy(api.RetryPolicy):
    """Of calls of the client: what it names itself, but for errors of the configuration."""

    def passes(self, error: Exception) -> bool:
        return isinstance(error, KafkaException) and _code(error) not in _HOPELESS


class FoundRecord(NamedTuple):
    """What an index by time answers: it may be the mark of a transaction, which is no record, or an aborted one."""

    offset: int
    time_ms: int


class KafkaAdmin:
    """Asks for topics and offsets, and connects when it is first asked.

    All methods raise `SourceError` if the brokers do not answer in all the time of patience. Of single partitions whose
    leaders are away `ends` tells the `leaders`, and goes on. Since when none answers is measured by the `outage`.
    """

    def __init__(
        self, config: ClientConfig, patience: RetryPolicy, leaders: Leaders | None = None, outage: Outage | None = None
    ) -> None:
        self._config = config
        self._patience = patience
        self._leaders = leaders or Leaders()
        self._outage = outage or Outage(config.brokers, patience.seconds)
        # What the client was made with: credentials may have been renewed since.
        self._current = config
        self._client: AdminClient | None = None
        self._last_trouble = ""
        self._refusal: KafkaError | None = None
        self._reads_committed = config.isolation_level == "read_committed"

    def close(self) -> None:
        """Let go of the connections."""
        self._client = None

    def topics(self, subscription: Subscription) -> list[KnownTopic]:
        """The topics of a subscription that there are, by name. One call; for a pattern two."""
        return self._ask("asking for topics", lambda: self._topics(subscription))

    def offsets(self, wanted: Mapping[Partition, int]) -> dict[Partition, int | None]:
        """See `subscription.Lookup`: one call for all. Of partitions that are gone there is no answer."""
        return {part: None if record is None else record.offset for part, record in self.records(wanted).items()}

    def records(
        self, wanted: Mapping[Partition, int], *, readable: bool = True, all_answer: bool = True
    ) -> dict[Partition, FoundRecord | None]:
        """The same with timestamps; also the one at `MAX_TIMESTAMP`, which is the latest.

        Nothing at or behind the end of what is `readable` by the consumer is found, else of what is written. Unless
        `all_answer`, there is none either of those whose leaders are away, and can be waited for.
        """
        if not wanted:
            return {}
        is_committed = readable and self._reads_committed
        level = IsolationLevel.READ_COMMITTED if is_committed else IsolationLevel.READ_UNCOMMITTED
        return self._ask("asking for offsets", lambda: self._records(wanted, level, all_answer=all_answer))

    def ends(self, parts: Sequence[Partition]) -> dict[Partition, LogEnd]:
        """Where logs end; two calls where transactions may be open: all ends first, then what can be read.

        There is none of partitions whose leaders are away. These are tried now and then, by calls of their own: the
        others do not wait until a call is over time.
        """
        away = set(self._leaders.away)
        ends = self._ends([part for part in parts if part not in away])
        return ends | self._ends([part for part in parts if part in away]) if self._leaders.are_due() else ends

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
        self._leaders.answer(ends)
        return ends

    def _ask(self, what: str, call: Callable[[], T]) -> T:
        self._outage.begin()
        try:
            return self._patience.run(lambda: self._tried(call))
        except KafkaException as error:
            fix = "" if self._patience.has_succeeded else _FIRST_CONTACT
            failed = self._current.error(what, error, more=self._last_trouble, fix=fix)
        raise failed

    def _tried(self, call: Callable[[], T]) -> T:
        try:
            answer = call()
            self._outage.end()
            return answer
        except KafkaException as error:
            if _code(error) in _SILENCE:
                self._outage.fail(self._current.scrub(str(error.args[0].str())))
            else:
                self._outage.end()
            if self._client is not None:
                # What it has to say of its connections waits for this.
                self._client.poll(0)
            if _code(error) == KafkaError._TIMED_OUT:
                self._hear_of_brokers()
            if self._refusal is not None and not self._patience.has_succeeded:
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
        # Half, so that a call can be tried twice; but of brokers that were there not too short for a slow one.
        seconds = self._patience.seconds
        least = min(_TRIAL_S, seconds) if self._patience.has_succeeded else 0.0
        return min(_REQUEST_S, max(seconds / 2, least))

    def _hear_of_brokers(self) -> None:
        """Let the client ask any broker which there are: without that it waits for the one that was the controller."""
        if self._client is not None and self._patience.has_succeeded:
            with suppress(KafkaException):
                self._client.list_topics(timeout=min(_TRIAL_S, self._request_s))

    def _note(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            return  # of each of them it has said why
        if error.code() in _REFUSALS:
            self._refusal = error
            return
        self._last_trouble = self._current.scrub(f"; the client reports: {error.str()}")

    def _topics(self, subscription: Subscription) -> list[KnownTopic]:
        client = self._connected()
        names = list(subscription.topics)
        if subscription.kind == "subscribePattern":
            listed = client.list_topics(timeout=self._request_s).topics
            names = sorted(name for name in listed if subscription.matches(name))
        if not names:
            return []
        found = []
        futures = client.describe_topics(TopicCollection(names), request_timeout=self._request_s)
        for name in sorted(futures):
            try:
                topic = futures[name].result()
            except KafkaException as error:
                if _code(error) not in GONE:
                    raise
                continue
            if topic.is_internal and subscription.kind == "subscribePattern":
                # As with Spark: a pattern that happens to fit does not mean the broker's own.
                continue
            topic_id = "" if str(topic.topic_id) == _NO_ID else str(topic.topic_id)
            found.append(KnownTopic(name, topic_id, tuple(sorted(part.id for part in topic.partitions))))
        return found

    def _records(
        self, wanted: Mapping[Partition, int], level: IsolationLevel, *, all_answer: bool
    ) -> dict[Partition, FoundRecord | None]:
        found, failed = self._listed(wanted, level)
        if failed:
            # Offsets are queried from the leaders that the client last learnt of. It looks for no others by itself:
            # not for partitions that were added since, nor after their broker was killed and came back.
            there = self._refresh(sorted({part.topic for part in failed}))
            # All of them: the client takes it for trouble with the brokers if there is a leader of none.
            found, failed = self._listed(wanted, level)
            missing: dict[Partition, str] = {}
            for part, error in failed.items():
                leaders = there.get(part.topic)
                # One that is there, and that its broker does not know yet, is asked for again.
                is_gone = error.code() in GONE if leaders is None else part.number not in leaders
                if not is_gone:
                    leader = (leaders or {}).get(part.number, "its leader is not known")
                    missing[part] = f"{error.str()}; {leader}"
                    all_answer |= error.code() in _HOPELESS
            # If no broker answers it is not for the leaders of some.
            is_some = bool(found) or missing.keys() <= set(self._leaders.away)
            if missing and (all_answer or not is_some or not self._leaders.miss(missing)):
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
        seconds = min(_TRIAL_S, self._request_s) if wanted.keys() <= set(self._leaders.away) else self._request_s
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
                    # So the client reports that one leader did not answer, while others did.
                    del found[part]
                    failed[part] = KafkaError(KafkaError._TIMED_OUT, "no answer")
        return found, failed

    def _refresh(self, names: list[str]) -> dict[str, dict[int, str]]:
        """The partitions of topics, and who leads them; the client learns their leaders.

        What fails here fails again when they are asked. That there are no others, or none, is an answer and no trouble.
        """
        futures = self._connected().describe_topics(TopicCollection(names), request_timeout=self._request_s)
        there: dict[str, dict[int, str]] = {}
        for name, future in futures.items():
            try:
                there[name] = {part.id: _led(part) for part in future.result().partitions}
            except KafkaException as error:
                if _code(error) in GONE:
                    there[name] = {}
                elif _code(error) == KafkaError._TIMED_OUT:
                    self._hear_of_brokers()
        return there


def _led(part: Any) -> str:
    """Who leads a partition, by what the client has of it."""
    if part.leader is not None:
        return f"its leader is broker {part.leader.id} at {part.leader.host}:{part.leader.port}"
    return f"its replicas are on brokers {', '.join(str(node.id) for node in part.replicas)}"


def _code(error: KafkaException) -> int | None:
    cause = error.args[0] if error.args else None
    return cause.code() if isinstance(cause, KafkaError) else None

"""What the brokers know beside records: topics, and offsets of all partitions in one call."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from streaming_source import api
from streaming_source.connectors.kafka.client import GONE, ClientConfig, client_error
from streaming_source.connectors.kafka.split import KnownTopic
from streaming_source.connectors.kafka.subscription import EARLIEST, LATEST, MAX_TIMESTAMP, Partition, Subscription
from streaming_source.exceptions import SourceError

__all__ = ["FoundRecord", "KafkaAdmin", "LogEnd", "LogEnds", "RetryPolicy"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

_REQUEST_S: Final = 10.0
_FRESH_S: Final = 0.2
"""How long the end of a log holds, and after a failure how long nobody asks."""
_FIRST_CONTACT: Final = (
    ". No broker has answered since the query started: do kafka.bootstrap.servers name one, and does "
    "kafka.security.protocol (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL) fit its listener?"
)
_NO_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"

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


class RetryPolicy(api.RetryPolicy):
    """Of calls of the client: what it names itself, but for errors of the configuration."""

    def passes(self, error: Exception) -> bool:
        return isinstance(error, KafkaException) and _code(error) not in _HOPELESS


class FoundRecord(NamedTuple):
    """What an index by time answers: it may be the mark of a transaction, which is no record, or an aborted one."""

    offset: int
    time_ms: int


class LogEnd(NamedTuple):
    """Where a partition's log ends: all before `readable` can be read, under the isolation level of the consumer.

    `written` is beyond that by what a transaction that is open holds back.
    """

    readable: int
    written: int


class KafkaAdmin:
    """Asks for topics and offsets, and connects when it is first asked.

    All methods raise `SourceError` if the brokers do not say, in all the time of patience.
    """

    def __init__(self, config: ClientConfig, patience: RetryPolicy) -> None:
        self._config = config
        self._patience = patience
        self._client: AdminClient | None = None
        self._last_trouble = ""
        self._refusal: KafkaError | None = None
        self._reads_committed = config.isolation_level == "read_committed"

    def topics(self, subscription: Subscription) -> list[KnownTopic]:
        """The topics of a subscription that there are, by name. One call; for a pattern two."""
        return self._ask("asking for topics", lambda: self._topics(subscription))

    def offsets(self, wanted: Mapping[Partition, int], *, committed: bool | None = None) -> dict[Partition, int | None]:
        """See `subscription.Lookup`: one call for all. Of partitions that are gone there is no answer.

        `committed` says whether logs end with what is committed; None: as for the consumer.
        """
        found = self.records(wanted, committed=committed)
        return {part: None if record is None else record.offset for part, record in found.items()}

    def records(
        self, wanted: Mapping[Partition, int], *, committed: bool | None = None
    ) -> dict[Partition, FoundRecord | None]:
        """The same with timestamps; also the one at `MAX_TIMESTAMP`, which is the latest.

        Nothing at or behind the end of what can be read is found.
        """
        if not wanted:
            return {}
        ends_committed = self._reads_committed if committed is None else committed
        level = IsolationLevel.READ_COMMITTED if ends_committed else IsolationLevel.READ_UNCOMMITTED
        return self._ask("asking for offsets", lambda: self._records(wanted, level))

    def ends(self, parts: Sequence[Partition]) -> dict[Partition, LogEnd]:
        """Where logs end; two calls where transactions may be open: all ends first, then what can be read."""
        latest = dict.fromkeys(parts, LATEST)
        written = self.offsets(latest, committed=False)
        readable = self.offsets(latest) if self._reads_committed else written
        return {
            part: LogEnd(until, max(until, written.get(part) or 0))
            for part, until in readable.items()
            if until is not None
        }

    def _ask(self, what: str, call: Callable[[], T]) -> T:
        try:
            return self._patience.run(lambda: self._tried(call))
        except KafkaException as error:
            failed = client_error(self._config, what, error)
        advice = "" if self._patience.has_succeeded else _FIRST_CONTACT
        raise SourceError(f"{failed}{self._last_trouble}{advice}") from None

    def _tried(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except KafkaException:
            if self._client is not None:
                # What it has to say of its connections waits for this.
                self._client.poll(0)
            if self._refusal is not None and not self._patience.has_succeeded:
                raise KafkaException(self._refusal) from None
            raise

    def _connected(self) -> AdminClient:
        if self._client is None:
            self._client = AdminClient({**self._config.for_admin(), "error_cb": self._note})
        return self._client

    @property
    def _request_s(self) -> float:
        # Half, so that a first call can be tried twice.
        return min(_REQUEST_S, self._patience.seconds if self._patience.has_succeeded else self._patience.seconds / 2)

    def _note(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            return  # of each of them it has said why
        if error.code() in _REFUSALS:
            self._refusal = error
            return
        self._last_trouble = self._config.scrub(f"; the client says: {error.str()}")

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

    def _records(self, wanted: Mapping[Partition, int], level: IsolationLevel) -> dict[Partition, FoundRecord | None]:
        found, failed = self._listed(wanted, level)
        if failed:
            # Offsets are asked of the leaders that the client last heard of. It does not ask for others by itself: not
            # for partitions that were added since, nor after their broker was killed and came back.
            there = self._refresh(sorted({part.topic for part in failed}))
            # All of them: the client takes it for trouble with the brokers if there is a leader of none.
            found, failed = self._listed(wanted, level)
            for part, error in failed.items():
                numbers = there.get(part.topic)
                # One that is there, and that its broker does not know yet, is asked for again.
                is_gone = _code(error) in GONE if numbers is None else part.number not in numbers
                if not is_gone:
                    raise error
        return found

    def _listed(
        self, wanted: Mapping[Partition, int], level: IsolationLevel
    ) -> tuple[dict[Partition, FoundRecord | None], dict[Partition, KafkaException]]:
        specs = {TopicPartition(part.topic, part.number): _spec(number) for part, number in wanted.items()}
        futures = self._connected().list_offsets(specs, isolation_level=level, request_timeout=self._request_s)
        found: dict[Partition, FoundRecord | None] = {}
        failed: dict[Partition, KafkaException] = {}
        for where, future in futures.items():
            part = Partition(where.topic, where.partition)
            try:
                answer = future.result()
            except KafkaException as error:
                failed[part] = error
            else:
                found[part] = FoundRecord(answer.offset, answer.timestamp) if answer.offset >= 0 else None
        return found, failed

    def _refresh(self, names: list[str]) -> dict[str, tuple[int, ...]]:
        """The partitions of topics; the client hears of their leaders. What fails here fails again when they are asked.

        That there are no others, or none, is an answer and no trouble.
        """
        futures = self._connected().describe_topics(TopicCollection(names), request_timeout=self._request_s)
        there: dict[str, tuple[int, ...]] = {}
        for name, future in futures.items():
            try:
                there[name] = tuple(part.id for part in future.result().partitions)
            except KafkaException as error:
                if _code(error) in GONE:
                    there[name] = ()
        return there


def _spec(number: int) -> Any:
    if number == EARLIEST:
        return OffsetSpec.earliest()
    if number == MAX_TIMESTAMP:
        return OffsetSpec.max_timestamp()
    return OffsetSpec.latest() if number == LATEST else OffsetSpec.for_timestamp(number)


def _code(error: KafkaException) -> int | None:
    cause = error.args[0] if error.args else None
    return cause.code() if isinstance(cause, KafkaError) else None


class LogEnds:
    """Keeps ends for a moment, so that a thousand partitions are one question and not a thousand.

    It knows the splits that discovery has seen, and only those: before discovery has looked, a split of an offset may
    be one of a topic that was created again since. Used by many threads: one asks, the others wait for its answer.

    `ask` is `KafkaAdmin.ends`. Failures are no error for `patience_s`; `end` and `ask_again` raise `SourceError` after
    that.
    """

    def __init__(
        self,
        ask: Callable[[Sequence[Partition]], Mapping[Partition, LogEnd]],
        patience_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._patience_s = patience_s
        self._clock = clock
        self._lock = threading.Lock()
        self._there: Mapping[str, Partition] = {}
        self._gone: set[str] = set()
        self._known: Mapping[Partition, LogEnd] = {}
        self._fails_since: float | None = None
        self._asked_at: float | None = None

    def update(self, there: Mapping[str, Partition], gone: Iterable[str]) -> None:
        """Take what discovery has seen: partitions by split id, and ids of splits whose partitions are no more."""
        with self._lock:
            if there.keys() != self._there.keys():
                self._asked_at = None
            self._there = dict(there)
            self._gone.update(gone)

    def is_gone(self, split_id: str) -> bool:
        """Whether there will be nothing of a split any more."""
        return split_id in self._gone

    def end(self, split_id: str) -> LogEnd | None:
        """Of one split, as it was a moment ago; None if discovery has not seen it, or the brokers do not say."""
        with self._lock:
            part = self._there.get(split_id)
            if part is None:
                return None
            now = self._clock()
            if self._asked_at is None or now - self._asked_at >= _FRESH_S:
                self._look(now)
            return self._known.get(part)

    def ask_again(self) -> dict[str, LogEnd]:
        """Of all that are known, asked for now whatever is kept. O(n)."""
        with self._lock:
            if self._there:
                self._look(self._clock())
            return {split_id: self._known[part] for split_id, part in self._there.items() if part in self._known}

    def _look(self, now: float) -> None:
        try:
            self._known, self._fails_since = self._ask(sorted(self._there.values())), None
        except SourceError as error:
            if self._fails_since is None:
                self._fails_since = now
                _log.warning("nothing is idle until the brokers say where their logs end: %s", error)
            self._known = {}
            if self._clock() - self._fails_since >= self._patience_s:
                raise
        # When it was asked, not when the answer came: what was written since is not in it.
        self._asked_at = now if self._fails_since is None else self._clock()

"""Errors of the client: which are repeated, what a user can do about the others, and which brokers are away."""

from __future__ import annotations

import math
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from alignment.shown import log_of
from streaming_source.api import RetryPolicy
from streaming_source.connectors.kafka.subscription import Partition
from streaming_source.exceptions import DataLossError, SourceError

_log = log_of(__name__)

GONE: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
"""Codes of errors by which a topic or partition does not exist."""

SILENCE: Final = frozenset(
    {KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE}
)
"""Codes of errors where no broker has answered."""

REFUSALS: Final = (KafkaError._AUTHENTICATION, KafkaError._SSL)
"""Codes of errors of connections that a broker refuses; they end a query whose brokers have never answered."""

HOPELESS: Final = frozenset(
    {
        KafkaError._INVALID_ARG,
        KafkaError._NOT_IMPLEMENTED,
        KafkaError._UNSUPPORTED_FEATURE,
        KafkaError.UNSUPPORTED_VERSION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
        *REFUSALS,
    }
)
"""Codes of errors that are raised at once: another call would fail as well."""

OF_GROUPS: Final = frozenset({KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.INVALID_GROUP_ID})
"""Codes of errors about consumer groups, which prevent nothing here.

A consumer of librdkafka must have the name of a group, and looks for the coordinator of that group by itself. The
coordinator is not used: partitions are assigned from given offsets, no group is joined and no offset is committed.
"""


class TopicsRefusedError(KafkaException):  # type: ignore[misc]  # confluent_kafka has no types
    """A broker refuses to describe these topics to the user."""

    def __init__(self, topics: Iterable[str]) -> None:
        super().__init__(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
        self.topics = tuple(sorted(topics))


class BrokerRetries(RetryPolicy):
    """Repeats calls of the client that failed, unless the error is `HOPELESS`."""

    def passes(self, error: Exception) -> bool:
        return isinstance(error, KafkaException) and code_of(error) not in HOPELESS


def code_of(error: KafkaException) -> int | None:
    """Return the code of an error of the client; None if it has none."""
    cause = error.args[0] if error.args else None
    return cause.code() if isinstance(cause, KafkaError) else None


def is_answer(error: KafkaException) -> bool:
    """Return whether an error is the answer of a broker. The client gives negative codes to errors of its own."""
    return (code_of(error) or 0) > 0


def report_loss(what: str, to_go_on: str, *, fails: bool) -> None:
    """Raise a `DataLossError` for records that no longer exist, or log that reading goes on without them."""
    if fails:
        raise DataLossError(f"{what}. Start with a new checkpointLocation, or set failOnDataLoss = false {to_go_on}")
    _log.warning("%s; reading goes on, since failOnDataLoss = false", what)


# ---- what a user can do ----------------------------------------------------------------------------------------------


_LOGIN: Final = (
    "The broker was reached and refuses the login: check kafka.sasl.username, kafka.sasl.password and "
    "kafka.sasl.mechanism, or kafka.sasl.jaas.config, which has all three in Java's form"
)
_TOKEN: Final = (
    "The broker was reached and refuses the token: check for whom option tokenProvider, or kafka.sasl.oauthbearer.*, "
    "makes it, and when it expires"
)
_PROBE_S: Final = 2.0


def fix_of(report: str, settings: Mapping[str, str]) -> str:
    """Return the sentence for an error that a client reports, by its settings; empty if none fits.

    If a certificate was refused, the first broker is connected to once more, to find out whether its name is the cause.
    """
    if "Unsupported SASL mechanism" in report:
        return "Set kafka.sasl.mechanism to one of the broker's mechanisms"
    if re.search(r"SASL authentication error|Authentication failed|AUTHENTICATION_FAILED", report):
        mechanism = settings.get("sasl.mechanism", settings.get("sasl.mechanisms"))
        return _TOKEN if mechanism == "OAUTHBEARER" else _LOGIN
    if "TOPIC_EXCEPTION" in report:
        return "Names of topics have up to 249 letters, digits, '.', '_' and '-': correct the option that names it"
    if "mac verify failure" in report:
        return "kafka.ssl.keystore.password does not open the file of kafka.ssl.keystore.location: give its password"
    if re.search(r"bad decrypt|bad password", report):
        return "kafka.ssl.key.password does not open the private key: give its password"
    if "certificate verify failed" in report:
        return _of_certificate(settings)
    if found := re.search(r"\bssl\.[\w.]*location\b", report):
        name, path = found[0], settings.get(found[0], "")
        if not Path(path).exists():
            return (
                f"There is no file {path!r} on this host: set kafka.{name} to one that is on the driver's host and on "
                "every executor"
            )
        return (
            f"The file {path!r} of kafka.{name} is of another format, or may not be read: see docs/from-spark-kafka.md"
        )
    return ""


def fix_of_right(right: str, topics: Iterable[str]) -> str:
    """Return the sentence for topics on which a right is missing: `Describe` to look them up, `Read` to read them."""
    names = sorted(set(topics))
    on = f"topic{'s' if len(names) > 1 else ''} {', '.join(map(repr, names))}"
    unknown = " or there is no such topic, which brokers do not tell apart" if right == "Describe" else ""
    command = f"kafka-acls --add --allow-principal User:NAME --operation Read --topic {names[0]}"
    return (
        f"The user of this query lacks the right {right} on {on}{',' if unknown else ''}{unknown}: let an "
        f"administrator give the right Read, which has Describe in it, by {command!r}"
    )


def _of_certificate(settings: Mapping[str, str]) -> str:
    host, _, port = settings.get("bootstrap.servers", "").split(",")[0].strip().rpartition(":")
    authority = (
        "The broker's certificate is signed by no authority that is known here: set kafka.ssl.ca.location to the "
        "certificate of the one that signed it (PEM)"
    )
    name = (
        f"The broker's certificate is trusted, but not for the name {host!r}: use a name of the certificate in "
        "kafka.bootstrap.servers and in the broker's advertised.listeners; or set "
        "kafka.ssl.endpoint.identification.algorithm = none to accept any name"
    )
    try:
        context = ssl.create_default_context(cafile=settings.get("ssl.ca.location") or None)
        context.check_hostname = False
        with socket.create_connection((host.strip("[]"), int(port)), _PROBE_S) as connection:
            context.wrap_socket(connection).close()
    except ssl.SSLCertVerificationError:
        return authority
    except (OSError, ValueError):
        return f"{authority}. Or the certificate is not for the name in kafka.bootstrap.servers: use one that it has"
    return name


# ---- brokers that do not answer --------------------------------------------------------------------------------------


_SILENT_S: Final = 2.0
"""A call that waits for less is no outage."""

_TRY_S: Final = 5.0
"""Seconds after which leaders that are away are tried again: a call may take seconds, and the others wait for it."""


class Away:
    """The brokers that do not answer, and since when: leaders of partitions while others do, or all of them.

    `brokers` are the addresses that the user gave; what is away for `patience_s` fails the query. A leader that has
    never answered is not waited for: it is not known from where its partition is to be read. Used by all clients of one
    planner, from any thread; leaders are noted on a worker.
    """

    def __init__(
        self,
        brokers: str = "",
        patience_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._brokers = brokers
        self._patience_s = patience_s
        self._clock, self._wall_clock = clock, wall_clock
        self._lock = threading.Lock()
        # The time of the first call that no broker has answered, by both clocks.
        self._since: tuple[float, float] | None = None
        self._why = ""
        self._is_logged = False
        self._answered: set[Partition] = set()
        # By partition: since when its leader is away, and why. The mapping is replaced, never changed.
        self._leaders: Mapping[Partition, tuple[float, str]] = {}
        self._try_at = -math.inf

    # ---- all brokers -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Record that a call is made."""
        with self._lock:
            self._since = self._since or (self._clock(), self._wall_clock())

    def fail(self, why: str) -> None:
        """Record that no broker has answered."""
        with self._lock:
            self._why = f" ({why})"

    def end(self) -> None:
        """Record that a broker has answered."""
        with self._lock:
            was_logged, self._since, self._why, self._is_logged = self._is_logged, None, "", False
        if was_logged:
            _log.warning("the Kafka brokers at %s answer again", self._brokers)

    def description(self) -> str | None:
        """Describe the outage, with what follows from it; None while brokers answer. Logs it once."""
        with self._lock:
            if self._since is None or self._clock() - self._since[0] < _SILENT_S:
                return None
            times = (self._since[1], self._since[1] + self._patience_s)
            since, until = (time.strftime("%H:%M:%S UTC", time.gmtime(at)) for at in times)
            text = (
                f"no Kafka broker at {self._brokers} has answered since {since}{self._why}; if none does, the query "
                f"fails at {until} (brokerTimeout), and goes on from its checkpoint when it is started again"
            )
            is_new, self._is_logged = not self._is_logged, True
        if is_new:
            _log.warning("%s. See that they run, and can be reached from the driver", text)
        return text

    # ---- leaders of partitions ---------------------------------------------------------------------------------------

    @property
    def leaders(self) -> Mapping[Partition, str]:
        """Why leaders that are away did not answer, by partition. O(partitions of these)."""
        return {part: why for part, (_, why) in self._leaders.items()}

    def of(self, partitions: Mapping[str, Partition]) -> Mapping[str, str]:
        """Return why those of some splits are away; all of them while no broker answers. O(n)."""
        if (why := self.description()) is not None:
            return dict.fromkeys(partitions, why)
        leaders = self.leaders
        return {i: leaders[part] for i, part in partitions.items() if part in leaders} if leaders else {}

    def are_due(self) -> bool:
        """Return whether leaders that are away should be tried now; the next time is some seconds later."""
        now = self._clock()
        is_due = bool(self._leaders) and now >= self._try_at
        if is_due:
            self._try_at = now + _TRY_S
        return is_due

    def answer(self, parts: Iterable[Partition]) -> None:
        """Record that the leaders of these partitions have answered."""
        answered = set(parts)
        self._answered |= answered
        if back := sorted(answered & self._leaders.keys()):
            self._leaders = {part: known for part, known in self._leaders.items() if part not in answered}
            _log.warning("the leader of partition %s is back%s", back[0], _others(back))

    def miss(self, why: Mapping[Partition, str]) -> bool:
        """Record leaders that did not answer while others did; return whether all of them can be waited for."""
        if not why.keys() <= self._answered:
            return False
        now = self._clock()
        new = sorted(why.keys() - self._leaders.keys())
        self._leaders = {**self._leaders, **{part: (self._leaders.get(part, (now,))[0], why[part]) for part in why}}
        if new:
            _log.warning(
                "partition %s is waited for, and holds the watermark: %s%s; the others are read on. After "
                "brokerTimeout, %g s, the query fails",
                *(new[0], why[new[0]], _others(new), self._patience_s),
            )
        return True

    def check(self) -> None:
        """Raise a `SourceError` if a leader has been away for `patience_s`."""
        for part, (since, why) in sorted(self._leaders.items()):
            if self._clock() - since >= self._patience_s:
                raise SourceError(
                    f"partition {part} could not be read for {self._patience_s:g} s: {why}. Bring its broker back and "
                    "start the query again, it goes on from its checkpoint; option brokerTimeout waits longer"
                )

    def keep(self, parts: Collection[Partition]) -> None:
        """Forget all partitions but these."""
        self._answered.intersection_update(parts)
        self._leaders = {part: known for part, known in self._leaders.items() if part in parts}


def _others(parts: Collection[Partition]) -> str:
    return f" (and so for {len(parts) - 1} more)" if len(parts) > 1 else ""

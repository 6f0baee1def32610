"""Clients of the brokers: how they are configured, outlive a reader, fail, and keep what is secret."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final, TypeAlias
from uuid import uuid4

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from streaming_source.api import KeptClients
from streaming_source.connectors.kafka.java_settings import translated
from streaming_source.connectors.kafka.subscription import Partition
from streaming_source.exceptions import DataLossError, OptionError, SourceError

__all__ = [
    "GONE",
    "ClientConfig",
    "MakeToken",
    "PartitionConsumer",
    "TokenProvider",
    "client_error",
    "report_loss",
    "scrubbed",
]

_log = logging.getLogger(__name__)

GONE: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
"""Codes of errors that say that there is no such topic or partition."""

_QUIET: Final = {
    # On standard error it says twenty times a second that a broker is down. What matters is raised, or logged, here.
    "log_level": "2",
}

_DEFAULTS: Final = {
    **_QUIET,
    # One request is under way at a time: a long one for a partition without news would keep the next one waiting.
    "fetch.wait.max.ms": "10",
    # The default of a second lets a reader that empties its queue in milliseconds wait for most of its time.
    "fetch.queue.backoff.ms": "5",
}

_OWN: Final = {
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "true",
    # Any other value jumps over records without a word.
    "auto.offset.reset": "error",
}

_REFUSED: Final = {
    **dict.fromkeys(("enable.auto.commit", "enable.auto.offset.store", "enable.partition.eof"), "it is set here"),
    "auto.offset.reset": "say where to start with option startingOffsets; a lost position is never jumped over",
}

_SECRET: Final = re.compile(r"password|secret|token|jaas|\.pem$|ssl\.key|username|oauthbearer\.config")

MakeToken: TypeAlias = Callable[[], tuple[Any, ...]]
"""Returns a token and when it expires, in seconds since the epoch; a principal and extensions may follow."""

_YEAR_5138_S: Final = 1e11

_ASK_S: Final = 10.0
_LOOK_S: Final = 2.0


@dataclass(unsafe_hash=True)
class TokenProvider:
    """Makes tokens of OAUTHBEARER by a function of the user's, wherever a client connects.

    It is equal to its copies in other processes, by its name, so that clients are kept by it. `trouble` is why the last
    call brought no token, without a word of what it raised: that may quote a secret.
    """

    make: MakeToken = field(repr=False, compare=False)
    name: str = field(default_factory=lambda: uuid4().hex)
    trouble: str = field(default="", init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not callable(self.make):
            raise OptionError(
                f"token_provider = {type(self.make).__name__}: must be a function without arguments that returns a "
                "token and the second since the epoch at which it expires"
            )

    @classmethod
    def of_name(cls, option: str, text: str) -> TokenProvider:
        """That of an importable name, `module:function`; an `OptionError` if there is none."""
        module, _, function = text.partition(":")
        try:
            return cls(getattr(import_module(module), function), text)
        except (ImportError, AttributeError, ValueError) as error:
            raise OptionError(
                f"option {option} = {text!r}: must be 'module:function' that Python can import on the driver and the "
                f"executors ({error}); install the module there, or give KafkaSource the function itself"
            ) from None

    def __call__(self, settings: str) -> tuple[Any, ...]:
        """A token, as the client wants it of its `oauth_cb`."""
        try:
            made = self.make()
        except Exception as error:  # whatever the user's function raises
            raise self._failed(f"it raised {type(error).__name__}; call it by itself to see why") from None
        if not (isinstance(made, tuple) and len(made) >= 2 and isinstance(made[0], str)):
            raise self._failed("it must return a tuple: the token, and the second since the epoch at which it expires")
        if not isinstance(made[1], (int, float)) or made[1] > _YEAR_5138_S:
            raise self._failed("it must say in seconds since the epoch when the token expires, not in milliseconds")
        self.trouble = ""
        return made

    def _failed(self, why: str) -> SourceError:
        self.trouble = f"; the token provider failed: {why}"
        return SourceError(self.trouble[2:])


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Settings of librdkafka: names (without `kafka.`) and values, sorted. Hashable, and silent about secrets.

    The consumer group's prefix is for access control lists: no group is ever joined.
    """

    settings: tuple[tuple[str, str], ...] = field(repr=False)
    group_id_prefix: str = "spark-kafka-source"
    token_provider: TokenProvider | None = None

    @classmethod
    def of(
        cls,
        settings: Mapping[str, str],
        group_id_prefix: str = "spark-kafka-source",
        token_provider: TokenProvider | None = None,
    ) -> ClientConfig:
        """Translate, check and sort what the user gave; those of the Java client are taken where librdkafka has them.

        An `OptionError` if brokers are missing, librdkafka does not take one, or this source must set it itself.
        """
        if not settings.get("bootstrap.servers", "").strip():
            raise OptionError(
                "option kafka.bootstrap.servers is missing: give the brokers, as in 'host1:9092,host2:9092'"
            )
        for name in settings:
            if name in _REFUSED:
                raise OptionError(f"option kafka.{name} cannot be set: {_REFUSED[name]}")
        given = translated({name: str(value) for name, value in settings.items()})
        given = _with_tokens(given, token_provider)
        config = cls(tuple(sorted(given.items())), group_id_prefix, token_provider)
        config._try()
        return config

    @property
    def brokers(self) -> str:
        return dict(self.settings)["bootstrap.servers"]

    @property
    def isolation_level(self) -> str:
        """`read_committed` unless it was set, as in librdkafka."""
        return dict(self.settings).get("isolation.level", "read_committed")

    def for_consumer(self) -> dict[str, Any]:
        """Settings of a consumer that reads what is assigned to it, and joins no group."""
        own = {**_OWN, **self._tokens()}
        return {**_DEFAULTS, "group.id": f"{self.group_id_prefix}-aligned", **dict(self.settings), **own}

    def for_admin(self) -> dict[str, Any]:
        """Settings of an admin client: those that have to do with connections."""
        of_consumers = ("fetch.", "max.partition.", "isolation.", "group.", "queued.", "session.", "check.crcs")
        settings = {name: value for name, value in self.settings if not name.startswith(of_consumers)}
        return {**_QUIET, **settings, **self._tokens()}

    def scrub(self, text: str) -> str:
        """A text without the values of secret settings."""
        return scrubbed(text, {value for name, value in self.settings if _SECRET.search(name)})

    def _tokens(self) -> dict[str, Any]:
        return {} if self.token_provider is None else {"oauth_cb": self.token_provider}

    def _try(self) -> None:
        """Let a client take the settings, in a tenth of a millisecond: it connects to nobody."""
        # Without brokers, whose names it would look up, and tokens, which it would wait for; without files, which need
        # not be on the host of a remote session.
        left_out = re.compile(r"bootstrap\.servers|oauth_cb|.*\.location")
        settings = {name: value for name, value in self.for_consumer().items() if not left_out.fullmatch(name)}
        try:
            Consumer(settings).close()
            return
        except KafkaException as error:
            why = self.scrub(error.args[0].str()).removeprefix("Failed to create consumer: ")
        named = re.search(r'configuration property:? "([\w.]+)"', why)
        raise OptionError(
            f"option kafka.{named[1] if named else '*'}: {why}; give settings of librdkafka (its CONFIGURATION.md), "
            "or those of the Java client that it has under another name"
        )


def _with_tokens(settings: dict[str, str], provider: TokenProvider | None) -> dict[str, str]:
    mechanism = settings.get("sasl.mechanism", settings.get("sasl.mechanisms"))
    if provider is None:
        if mechanism == "OAUTHBEARER" and not any("sasl.oauthbearer." in name for name in settings):
            raise OptionError(
                "option kafka.sasl.mechanism = 'OAUTHBEARER' needs tokens: give option tokenProvider, "
                "'module:function' that returns a token and the second at which it expires, or set "
                "kafka.sasl.oauthbearer.method = oidc"
            )
        return settings
    protocol = settings.get("security.protocol", "PLAINTEXT")
    if mechanism not in (None, "OAUTHBEARER") or not protocol.upper().startswith("SASL_"):
        raise OptionError(
            "option tokenProvider needs kafka.security.protocol = SASL_SSL and kafka.sasl.mechanism = OAUTHBEARER; "
            f"they are {protocol} and {mechanism}"
        )
    return settings if mechanism else {**settings, "sasl.mechanism": "OAUTHBEARER"}


class PartitionConsumer:
    """A consumer of partitions that outlives who uses it.

    It is made, or taken from those that are kept, when it is first needed: until then it costs no connection.
    """

    def __init__(self, config: ClientConfig, clients: KeptClients) -> None:
        self._config = config
        self._clients = clients
        self._taken: Consumer | None = None

    @property
    def client(self) -> Consumer:
        if self._taken is None:
            try:
                self._taken = self._clients.take(self._key, lambda: Consumer(self._config.for_consumer()))
            except KafkaException as error:
                failed = client_error(self._config, "making a consumer", error)
                raise failed from None
        return self._taken

    def offset_at(self, part: Partition, at: int) -> int | None:
        """The offset of a partition at `EARLIEST` or `LATEST`; None if there is no such partition."""
        # Not get_watermark_offsets: it can take an error for an empty partition.
        where = [TopicPartition(*part, at)]
        try:
            try:
                answers = self.client.offsets_for_times(where, timeout=_ASK_S)
            except KafkaException as error:
                if error.args[0].code() not in GONE:
                    raise
                # The client says so by what it knew last, too.
                if part.number not in (self.partitions(part.topic) or ()):
                    return None
                answers = self.client.offsets_for_times(where, timeout=_ASK_S)
        except KafkaException as error:
            failed = client_error(self._config, f"asking for the offsets of partition {part}", error)
            raise failed from None
        return int(answers[0].offset)

    def partitions(self, topic: str) -> frozenset[int] | None:
        """The partitions that a topic has now, none if there is no such topic; None if the brokers do not say."""
        try:
            found = self.client.list_topics(topic, timeout=_LOOK_S).topics[topic]
        except KafkaException:
            return None
        if found.error is not None and found.error.code() not in GONE:
            return None
        return frozenset(found.partitions)

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
        return "kafka-consumer", self._config


def scrubbed(text: str, secrets: Iterable[str]) -> str:
    """A text with each secret struck out where it stands by itself: a user `p` is none of the letters of `topics`."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        begin = r"(?<![^\W_])" if secret[0].isalnum() else ""
        end = r"(?![^\W_])" if secret[-1].isalnum() else ""
        text = re.sub(f"{begin}{re.escape(secret)}{end}", "***", text)
    return text


def client_error(config: ClientConfig, what: str, error: Exception) -> SourceError:
    """An error of the client, with what was to be done, and without secrets.

    To be raised `from None`: the client's own error may quote its settings.
    """
    cause = error.args[0] if isinstance(error, KafkaException) and error.args else error
    why = f"{cause.str()} ({cause.name()})" if isinstance(cause, KafkaError) else str(cause)
    trouble = "" if config.token_provider is None else config.token_provider.trouble
    return SourceError(config.scrub(f"{what} at {config.brokers} failed: {why}{trouble}"))


def report_loss(what: str, to_go_on: str, *, fails: bool) -> None:
    """Records that were to be read are not there any more: an error, or a warning that reading goes on."""
    if fails:
        raise DataLossError(f"{what}. Start with a new checkpointLocation, or set failOnDataLoss = false {to_go_on}")
    _log.warning("%s; reading goes on, since failOnDataLoss = false", what)

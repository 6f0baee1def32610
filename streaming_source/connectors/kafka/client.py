"""How clients of the broker are configured, and how what is secret of it stays so."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException

from streaming_source.connectors.kafka.java_settings import translated
from streaming_source.connectors.kafka.tokens import TokenProvider
from streaming_source.exceptions import OptionError, SourceError

__all__ = ["GONE", "ClientConfig", "client_error", "scrubbed"]

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


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Settings of librdkafka: hashable, and silent about secrets.

    Attributes
    ----------
    settings
        Names (without `kafka.`) and values, sorted.
    group_id_prefix
        Of the consumer group, for access control lists: no group is ever joined.
    token_provider
        Makes tokens of OAUTHBEARER.
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

        Raises
        ------
        OptionError
            If there are no brokers among them, or librdkafka does not take them, or one is set that this source must
            set itself.
        """
        if not settings.get("bootstrap.servers", "").strip():
            raise OptionError(
                "option kafka.bootstrap.servers is missing: give the brokers, as in 'host1:9092,host2:9092'"
            )
        for name in settings:
            if name in _REFUSED:
                raise OptionError(f"option kafka.{name} cannot be set: {_REFUSED[name]}")
        given = translated({name: str(value) for name, value in settings.items()})
        if token_provider is not None:
            given = {**_for_tokens(given), **given}
        config = cls(tuple(sorted(given.items())), group_id_prefix, token_provider)
        config._try()
        return config

    @property
    def brokers(self) -> str:
        """`bootstrap.servers`."""
        return dict(self.settings)["bootstrap.servers"]

    @property
    def isolation_level(self) -> str:
        """`read_committed` unless it was set, as in librdkafka."""
        return dict(self.settings).get("isolation.level", "read_committed")

    def for_consumer(self) -> dict[str, Any]:
        """Settings of a consumer that reads what it is told to, and joins no group."""
        return {**self._plain(), **self._tokens()}

    def for_admin(self) -> dict[str, Any]:
        """Settings of an admin client: those that have to do with connections."""
        of_consumers = ("fetch.", "max.partition.", "isolation.", "group.", "queued.", "session.", "check.crcs")
        settings = {name: value for name, value in self.settings if not name.startswith(of_consumers)}
        return {**_QUIET, **settings, **self._tokens()}

    def scrub(self, text: str) -> str:
        """A text without the values of secret settings."""
        return scrubbed(text, {value for name, value in self.settings if _SECRET.search(name)})

    def _plain(self) -> dict[str, str]:
        return {**_DEFAULTS, "group.id": f"{self.group_id_prefix}-aligned", **dict(self.settings), **_OWN}

    def _tokens(self) -> dict[str, Any]:
        return {} if self.token_provider is None else {"oauth_cb": self.token_provider}

    def _try(self) -> None:
        """Let a client take the settings, in a tenth of a millisecond: it connects to nobody."""
        # Without brokers, whose names it would look up, and tokens, which it would wait for; without files, which need
        # not be on the host of a remote session.
        settings = self._plain()
        for name in [name for name in settings if name.endswith(".location") or name == "bootstrap.servers"]:
            del settings[name]
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


def _for_tokens(settings: Mapping[str, str]) -> dict[str, str]:
    mechanism = settings.get("sasl.mechanism", settings.get("sasl.mechanisms", "OAUTHBEARER"))
    protocol = settings.get("security.protocol", "PLAINTEXT")
    if mechanism != "OAUTHBEARER" or not protocol.upper().startswith("SASL_"):
        raise OptionError(
            "option tokenProvider needs kafka.security.protocol = SASL_SSL and kafka.sasl.mechanism = OAUTHBEARER; "
            f"they are {protocol} and {mechanism}"
        )
    return {} if "sasl.mechanisms" in settings else {"sasl.mechanism": mechanism}


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

"""Settings of clients of the brokers: checked, with their credentials, and without secrets in errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from typing import Any, Final, TypeAlias
from uuid import uuid4

from confluent_kafka import Consumer, KafkaError, KafkaException

from alignment.shown import SECRET_NAMES, scrubbed
from streaming_source.api.credentials import Credentials
from streaming_source.connectors.kafka.faults import fix_of, fix_of_right
from streaming_source.connectors.kafka.java_settings import translated
from streaming_source.exceptions import OptionError, SourceError

MakeToken: TypeAlias = Callable[[], tuple[Any, ...]]
"""Returns a token and when it expires, in seconds since the epoch; a principal and extensions may follow."""

_YEAR_5138_S: Final = 1e11


@dataclass(unsafe_hash=True)
class TokenProvider:
    """Makes tokens of OAUTHBEARER by a function of the user's, wherever a client connects.

    Copies of it in other processes are equal, by `name`, so that clients can be kept by it. `trouble` is why the last
    call returned no token; it does not quote the error that was raised, which may have a secret.
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
        """Import `module:function`; raises an `OptionError` if that fails."""
        module, _, function = text.partition(":")
        try:
            return cls(getattr(import_module(module), function), text)
        except (ImportError, AttributeError, ValueError) as error:
            raise OptionError(
                f"option {option} = {text!r}: must be 'module:function' that Python can import on the driver and the "
                f"executors ({error}); install the module there, or give KafkaSource the function itself"
            ) from None

    def __call__(self, settings: str) -> tuple[Any, ...]:
        """Return a token, as `oauth_cb` of the client does."""
        try:
            made = self.make()
        except Exception as error:  # whatever the user's function raises
            raise self._failed(f"it raised {type(error).__name__}; call it by itself to see why") from None
        if not (isinstance(made, tuple) and len(made) >= 2 and isinstance(made[0], str)):
            raise self._failed("it must return a tuple: the token, and the second since the epoch at which it expires")
        if not isinstance(made[1], (int, float)) or made[1] > _YEAR_5138_S:
            raise self._failed("it must give the expiry of the token in seconds since the epoch, not in milliseconds")
        self.trouble = ""
        return made

    def _failed(self, why: str) -> SourceError:
        self.trouble = f"; the token provider failed: {why}"
        return SourceError(self.trouble[2:])


_QUIET: Final = {
    # The client would log twenty times a second that a broker is down. What matters is raised or logged here.
    "log_level": "2",
}

_DEFAULTS: Final = {
    **_QUIET,
    # One request is sent at a time: a long wait for one broker's partitions would delay the next request.
    "fetch.wait.max.ms": "10",
    # With the default of a second a reader that empties its queue in milliseconds would wait most of the time.
    "fetch.queue.backoff.ms": "5",
}

_OWN: Final = {
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "true",
    # Any other value skips records without an error.
    "auto.offset.reset": "error",
}

_SET_HERE: Final = {
    **dict.fromkeys(_OWN, "it is set here"),
    "auto.offset.reset": "say where to start with option startingOffsets; a lost position is never jumped over",
}

_PREFIX: Final = "kafka."
CREDENTIALS_OF: Final = (_PREFIX, "schemaRegistry.", "storage.")
"""Prefixes of the options that a function of credentials may return."""


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Settings of librdkafka: names (without `kafka.`) and values, sorted. Hashable; its `repr` has no secrets.

    The consumer group's prefix is for access control lists: no group is ever joined. With `credentials` the settings
    are as the user gave them, and `current` returns those to connect with.
    """

    settings: tuple[tuple[str, str], ...] = field(repr=False)
    group_id_prefix: str = "spark-kafka-source"
    token_provider: TokenProvider | None = None
    credentials: Credentials | None = None

    @classmethod
    def of(
        cls,
        settings: Mapping[str, str],
        group_id_prefix: str = "spark-kafka-source",
        token_provider: TokenProvider | None = None,
        credentials: Credentials | None = None,
    ) -> ClientConfig:
        """Translate settings of the Java client to those of librdkafka, check and sort them.

        Raises an `OptionError` if brokers are missing, librdkafka does not accept a setting, or this source must set it
        itself. With `credentials` the check is made by `current`.
        """
        if not settings.get("bootstrap.servers", "").strip():
            raise OptionError(
                "option kafka.bootstrap.servers is missing: give the brokers, as in 'host1:9092,host2:9092'"
            )
        for name in settings:
            if name in _SET_HERE:
                raise OptionError(f"option kafka.{name} cannot be set: {_SET_HERE[name]}")
        given = {name: str(value) for name, value in settings.items()}
        if credentials is not None:
            return cls(tuple(sorted(given.items())), group_id_prefix, token_provider, credentials)
        given = _with_tokens(translated(given), token_provider)
        config = cls(tuple(sorted(given.items())), group_id_prefix, token_provider)
        config._try()
        return config

    def current(self) -> ClientConfig:
        """Return the settings with the credentials that are valid now."""
        if self.credentials is None:
            return self
        return _with_credentials(self, tuple(sorted(self.credentials.current(CREDENTIALS_OF).items())))

    @property
    def brokers(self) -> str:
        return dict(self.settings)["bootstrap.servers"]

    @property
    def isolation_level(self) -> str:
        """The isolation level; `read_committed` by default, as in librdkafka."""
        return dict(self.settings).get("isolation.level", "read_committed")

    def for_consumer(self) -> dict[str, Any]:
        """Return the settings of a consumer that reads assigned partitions, and joins no group."""
        own = {**_OWN, **self._tokens()}
        return {**_DEFAULTS, "group.id": f"{self.group_id_prefix}-aligned", **dict(self.settings), **own}

    def for_admin(self) -> dict[str, Any]:
        """Return the settings of an admin client: those of connections."""
        of_consumers = ("fetch.", "max.partition.", "isolation.", "group.", "queued.", "session.", "check.crcs")
        settings = {name: value for name, value in self.settings if not name.startswith(of_consumers)}
        return {**_QUIET, **settings, **self._tokens()}

    def scrub(self, text: str) -> str:
        """Return a text without the values of secret settings."""
        return scrubbed(text, {value for name, value in self.settings if SECRET_NAMES.search(name.lower())})

    def error(
        self,
        what: str,
        error: Exception,
        *,
        more: str = "",
        fix: str = "",
        topics: Iterable[str] = (),
        right: str = "Describe",
    ) -> SourceError:
        """Return the error to raise for an error of the client: what failed, why, and in the last sentence the fix.

        It has no secrets. `more` follows the client's report, `fix` is the last sentence if none is known for the
        report; the trouble of a token provider has its own. A broker that refuses the call on `topics` requires the
        `right` for it. Raise it `from None`: the client's own error may quote its settings.
        """
        cause = error.args[0] if isinstance(error, KafkaException) and error.args else error
        why = f"{cause.str()} ({cause.name()})" if isinstance(cause, KafkaError) else str(cause)
        trouble = "" if self.token_provider is None else self.token_provider.trouble
        if isinstance(cause, KafkaError) and cause.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            fix = fix_of_right(right, topics)
        advice = "" if trouble else fix_of(f"{why}{more}", dict(self.settings)) or fix
        report = self.scrub(f"{what} at {self.brokers} failed: {why}{more}")
        return SourceError(f"{report}{trouble}" + (f". {advice}" if advice else ""))

    def _tokens(self) -> dict[str, Any]:
        return {} if self.token_provider is None else {"oauth_cb": self.token_provider}

    def _try(self) -> None:
        """Check the settings by making a consumer that connects to no broker. Takes 0.1 ms."""
        # Without brokers, whose names it would look up, without tokens, for which it would wait, and without files,
        # which need not be on the host of a remote session.
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


@lru_cache(maxsize=8)
def _with_credentials(config: ClientConfig, given: tuple[tuple[str, str], ...]) -> ClientConfig:
    """Add credentials, and check the settings once for each value of them."""
    of_clients = {name.removeprefix(_PREFIX): value for name, value in given if name.startswith(_PREFIX)}
    return ClientConfig.of({**dict(config.settings), **of_clients}, config.group_id_prefix, config.token_provider)


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

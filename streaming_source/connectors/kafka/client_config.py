"""Settings of clients of the brokers, from those of the Java client: checked, and without secrets in errors."""

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
from streaming_source.exceptions import OptionError, SourceError

_RENAMED: Final = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "request.timeout.ms": "socket.timeout.ms",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.truststore.certificates": "ssl.ca.pem",
}

_TOKENS: Final = (
    "give option tokenProvider, 'module:function' that returns a token and the second at which it expires, in place of "
    "sasl.* (for Amazon MSK the package aws-msk-iam-sasl-signer-python makes such tokens)"
)
_TLS: Final = "it is one of Java's TLS; leave it out: the newest version that both sides know is taken"
_BINARY: Final = "key and value are binary; see option valueFormat"
_PLUGIN: Final = "it names a class of Java; leave it out"

_NOT_IN_LIBRDKAFKA: Final = {
    "config.providers": _PLUGIN,
    "default.api.timeout.ms": "option brokerTimeout sets for how long calls are repeated that brokers do not answer",
    "exclude.internal.topics": "Kafka's own topics are never chosen by a pattern; leave it out",
    "interceptor.classes": _PLUGIN,
    "key.deserializer": _BINARY,
    "metric.reporters": _PLUGIN,
    "partition.assignment.strategy": "no group is joined; leave it out",
    "sasl.client.callback.handler.class": f"it names a class of Java; {_TOKENS}",
    "sasl.login.callback.handler.class": f"it names a class of Java; {_TOKENS}",
    "sasl.login.class": f"it names a class of Java; {_TOKENS}",
    "security.providers": _PLUGIN,
    "ssl.enabled.protocols": _TLS,
    "ssl.engine.factory.class": _TLS,
    "ssl.keymanager.algorithm": _TLS,
    "ssl.protocol": _TLS,
    "ssl.provider": _TLS,
    "ssl.secure.random.implementation": _TLS,
    "ssl.trustmanager.algorithm": _TLS,
    "value.deserializer": _BINARY,
}

_ENDINGS: Final = {".p12": "PKCS12", ".pfx": "PKCS12", ".pem": "PEM", ".crt": "PEM", ".cer": "PEM"}
_JAAS: Final = re.compile(r"\s*(?:[\w$]+\.)*([\w$]+)\s+(?:required|requisite|sufficient|optional)\b(.*);\s*", re.DOTALL)
_QUOTED: Final = r""""((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'"""
_JAAS_OPTION: Final = re.compile(rf"""([\w.]+)\s*=\s*(?:{_QUOTED}|([^\s;"']+))""", re.DOTALL)


def translated(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings for librdkafka, without `kafka.`; names that are not of the Java client stay as they are.

    Raises an `OptionError` with the fix for a setting that librdkafka does not have. It shows no value that may be
    secret.
    """
    left = dict(settings)
    for name in left:
        if name in _NOT_IN_LIBRDKAFKA:
            raise _cannot(name, _NOT_IN_LIBRDKAFKA[name])
    found = [_login(left), _truststore(left), _keystore(left)]
    found += [{_RENAMED[name]: left.pop(name)} for name in sorted(left.keys() & _RENAMED.keys())]
    if "ssl.endpoint.identification.algorithm" in left:
        algorithm = left.pop("ssl.endpoint.identification.algorithm").strip().lower()
        found.append({"ssl.endpoint.identification.algorithm": algorithm or "none"})
    for part in found:
        for name, value in part.items():
            if left.setdefault(name, value) != value:
                raise _cannot(name, "it conflicts with another setting of the Java client that is given; give only one")
    return left


def _login(left: dict[str, str]) -> dict[str, str]:
    mechanism = left.get("sasl.mechanism") or left.get("sasl.mechanisms")
    if mechanism == "AWS_MSK_IAM":
        raise _cannot("sasl.mechanism", f"AWS_MSK_IAM is a mechanism of the Java client; {_TOKENS}")
    text = left.pop("sasl.jaas.config", None)
    if text is None:
        return {}
    parts = _JAAS.fullmatch(text)
    if parts is None:
        raise _cannot(
            "sasl.jaas.config",
            "it must be of one line, as in 'org.apache.kafka.common.security.plain.PlainLoginModule required "
            'username="..." password="...";\' with the semicolon; or set kafka.sasl.username, kafka.sasl.password',
        )
    module = parts[1]
    given = {
        match[1]: match[4] if match[4] is not None else re.sub(r"\\(.)", r"\1", match[2] or match[3] or "")
        for match in _JAAS_OPTION.finditer(parts[2])
    }
    if module in ("PlainLoginModule", "ScramLoginModule"):
        fits = mechanism == "PLAIN" if module == "PlainLoginModule" else (mechanism or "").startswith("SCRAM-")
        if not fits:
            needed = "PLAIN" if module == "PlainLoginModule" else "SCRAM-SHA-256 or SCRAM-SHA-512"
            raise _cannot("sasl.jaas.config", f"{module} needs kafka.sasl.mechanism = {needed}, and it is {mechanism}")
        if "username" not in given or "password" not in given:
            raise _cannot("sasl.jaas.config", f"{module} needs username and password")
        return {"sasl.username": given["username"], "sasl.password": given["password"]}
    if module == "OAuthBearerLoginModule" and "clientId" in given and "sasl.oauthbearer.token.endpoint.url" in left:
        names = {"clientId": "client.id", "clientSecret": "client.secret", "scope": "scope"}
        oidc = {f"sasl.oauthbearer.{names[name]}": value for name, value in given.items() if name in names}
        return {"sasl.oauthbearer.method": "oidc", **oidc}
    if module == "Krb5LoginModule":
        raise _cannot(
            "sasl.jaas.config",
            "Krb5LoginModule is one of the Java client; set kafka.sasl.kerberos.keytab and "
            "kafka.sasl.kerberos.principal, with a confluent-kafka that was built with GSSAPI",
        )
    raise _cannot("sasl.jaas.config", f"{module} is a class of Java; {_TOKENS}")


def _truststore(left: dict[str, str]) -> dict[str, str]:
    path, kind = left.pop("ssl.truststore.location", None), left.pop("ssl.truststore.type", None)
    password = left.pop("ssl.truststore.password", None)
    if path is None:
        return {}
    kind = _kind(path, kind)
    if kind != "PEM":
        raise _cannot(
            "ssl.truststore.location",
            f"a truststore of type {kind} is read by Java alone; write it as PEM (keytool -list -rfc -storetype {kind} "
            "-keystore FILE > ca.pem) and set kafka.ssl.ca.location to that file, without type and password",
        )
    if password is not None:
        raise _cannot("ssl.truststore.password", "a truststore of type PEM has none; leave it out")
    return {"ssl.ca.location": path}


def _keystore(left: dict[str, str]) -> dict[str, str]:
    path, kind = left.pop("ssl.keystore.location", None), left.pop("ssl.keystore.type", None)
    if path is None:
        return {}
    kind = _kind(path, kind)
    if kind == "PEM":
        return {"ssl.certificate.location": path, "ssl.key.location": path}
    if kind == "PKCS12":
        return {"ssl.keystore.location": path}
    raise _cannot(
        "ssl.keystore.location",
        f"a keystore of type {kind} is read by Java alone; write it as PKCS12 (keytool -importkeystore -srckeystore "
        "FILE -destkeystore client.p12 -deststoretype PKCS12) and name that file",
    )


def _kind(path: str, kind: str | None) -> str:
    """Return the type of a store: the given one, that of the ending of its name, or Java's default."""
    return kind.strip().upper() if kind else _ENDINGS.get(path[path.rfind(".") :].lower(), "JKS")


def _cannot(name: str, why: str) -> OptionError:
    return OptionError(f"option kafka.{name} cannot be set: {why}")


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

"""Settings of the Java client, as Spark's own source takes them, translated to those of librdkafka."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from streaming_source.exceptions import OptionError

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

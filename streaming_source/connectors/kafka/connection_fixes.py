"""What a user can do about a connection or a right that is refused: a sentence, by what the client reports."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

__all__ = ["fix_of", "fix_of_right"]

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

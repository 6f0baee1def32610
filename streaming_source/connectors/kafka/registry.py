"""A schema registry, and values that are decoded one by one with its schemas."""

from __future__ import annotations

import io
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Final, NamedTuple, NoReturn, TypeAlias
from urllib.parse import urlsplit

import pyarrow as pa

from alignment.shown import SECRET_NAMES, scrubbed
from streaming_source.api.credentials import Credentials
from streaming_source.connectors.kafka.client_config import CREDENTIALS_OF
from streaming_source.connectors.kafka.records import Invalid, ValueFormat
from streaming_source.exceptions import OptionError, SourceError

_FORMAT: Final = "serialized"
"""A format of schemas that only Protobuf has: descriptors instead of text."""

_NOT_FOUND: Final = 404
_MOST_REFERENCES: Final = 1000
_PREFIX: Final = "schemaRegistry."

_NUMBERS: Final = frozenset(
    {"timeout", "cache.capacity", "cache.latest.ttl.sec", "max.retries", "retries.wait.ms", "retries.max.wait.ms"}
)


class SchemaText(NamedTuple):
    """A schema as the registry has it: JSON of Avro, or a file descriptor of Protobuf in base64.

    `referenced` has names and texts of the schemas that it refers to, each after those that it refers to itself.
    """

    text: str
    referenced: tuple[tuple[str, str], ...] = ()


class UnknownSchemaError(LookupError):
    """The registry has no such schema."""


@dataclass(frozen=True, slots=True)
class SchemaRegistry:
    """A registry, or several URLs separated by commas. The process keeps schemas by id, which never change.

    Methods raise a `SourceError` if the registry does not answer.
    """

    url: str = field(repr=False)
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    credentials: Credentials | None = None

    @classmethod
    def of(cls, url: str, settings: Mapping[str, str], credentials: Credentials | None = None) -> SchemaRegistry:
        """Check the user's options; raises an `OptionError` if the client does not accept them, or is not installed."""
        if "url" in settings:
            raise OptionError(
                "option schemaRegistry.url cannot be set: name the registry with option schemaRegistryUrl"
            )
        for number, part in enumerate(url.split(","), 1):
            if not _is_address(part):
                # Not shown: there may be a password in it.
                raise OptionError(
                    f"option schemaRegistryUrl: address {number} of {url.count(',') + 1} is none of a web service; "
                    "it must be as in 'https://host:8081'"
                )
        registry = cls(url, tuple(sorted(settings.items())), credentials)
        if credentials is None:
            registry._client().close()
        return registry

    def latest(self, subject: str) -> SchemaText:
        """Return the newest version of a subject; raises an `OptionError` if there is none."""
        try:
            return self._get(f"subject {subject!r}", lambda client: client.get_latest_version(subject, _FORMAT).schema)
        except UnknownSchemaError:
            raise OptionError(
                f"the schema registry knows no subject {subject!r}: name the one that values are written with in "
                "option valueSubject; by default it is <topic>-value"
            ) from None

    def by_id(self, schema_id: Any) -> SchemaText:
        """Return a schema by the client's `SchemaId`; raises an `UnknownSchemaError` if there is none."""
        return _by_id(self, None if schema_id.guid is None else str(schema_id.guid), schema_id.id)

    def scrub(self, text: str) -> str:
        """Return a text without secrets of the settings and passwords in the address."""
        secrets = [value for name, value in self._current().items() if value and SECRET_NAMES.search(name.lower())]
        secrets += [part.password for part in map(urlsplit, self.url.split(",")) if part.password]
        return scrubbed(text, {one for secret in secrets for one in (secret, *secret.split(":", 1))})

    def _current(self) -> dict[str, str]:
        given = {} if self.credentials is None else self.credentials.current(CREDENTIALS_OF)
        of_registry = {name[len(_PREFIX) :]: given[name] for name in given if name.startswith(_PREFIX)}
        return {**dict(self.settings), **of_registry}

    def _get(self, what: str, call: Callable[[Any], Any]) -> SchemaText:
        # Calls are few: no connection is kept.
        try:
            with self._client() as client:
                schema = call(client)
                if not isinstance(schema.schema_str, str):
                    raise ValueError("the answer has no schema")
                return SchemaText(schema.schema_str, tuple(_referenced(client, schema, {}).items()))
        except OptionError:
            raise
        except Exception as error:  # of the client, of HTTP, of connections
            if getattr(error, "http_status_code", None) == _NOT_FOUND:
                raise UnknownSchemaError(what) from None
            failed = self.scrub(f"looking up {what} in the schema registry failed: {type(error).__name__}: {error}")
        raise SourceError(failed)

    def _client(self) -> Any:
        try:
            from confluent_kafka.schema_registry import SchemaRegistryClient
        except ImportError as error:
            missing_package("valueFormat", error)
        settings = self._current()
        given = {name: settings[name].strip() for name in _NUMBERS & settings.keys()}
        numbers = {name: float(text) for name, text in given.items() if re.fullmatch(r"\d+(\.\d*)?", text)}
        try:
            return SchemaRegistryClient({**settings, **numbers, "url": self.url})
        except (ValueError, TypeError, OSError) as error:
            failed = self.scrub(f"options schemaRegistryUrl, schemaRegistry.*: {error}")
        raise OptionError(failed)


def _referenced(client: Any, schema: Any, found: dict[str, str]) -> dict[str, str]:
    """Add what a schema refers to, each name once, after what that refers to itself."""
    for reference in schema.references or ():
        if reference.name in found:
            continue
        if len(found) == _MOST_REFERENCES:
            raise ValueError(f"it refers to more than {_MOST_REFERENCES} schemas")
        other = client.get_version(reference.subject, reference.version, fmt=_FORMAT).schema
        _referenced(client, other, found)
        found[reference.name] = other.schema_str
    return found


@lru_cache(maxsize=1000)
def _by_id(registry: SchemaRegistry, guid: str | None, number: int) -> SchemaText:
    if guid is not None:
        return registry._get(f"schema {guid}", lambda client: client.get_schema_by_guid(guid, _FORMAT))
    return registry._get(f"schema {number}", lambda client: client.get_schema(number, None, _FORMAT))


def missing_package(option: str, error: ImportError) -> NoReturn:
    """Raise an `OptionError` with the package to install."""
    raise OptionError(
        f"option {option}: Avro and Protobuf values need packages that are not installed ({error}): "
        "pip install 'spark-watermark-alignment[kafka-schema]'"
    ) from None


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # brackets that do not close, a port that is no number
        return False


Decode: TypeAlias = Callable[[Any, io.BytesIO], Any]
"""Decodes a value from its `SchemaId` and the bytes after it; raises anything but `SourceError` if it cannot."""

Change: TypeAlias = Callable[[Any], Any]
"""Changes a decoded value to one that Arrow accepts."""


@dataclass(frozen=True)
class DecodedValues(ValueFormat):
    """Values that have the id of the schema they were written with. All are read with one schema, the reader's.

    The reader's schema is the `given` one, or the latest of the subject. It is looked up once, with `type`, and travels
    with this object to the executors: the next run of a query uses a newer one. `type` raises an `OptionError` if the
    schema has no type of Spark, or cannot be looked up.
    """

    framing: ClassVar[str]

    registry: SchemaRegistry
    subject: str
    invalid: Invalid = "fail"
    given: str | None = None

    @cached_property
    def schema(self) -> SchemaText:
        return self.registry.latest(self.subject) if self.given is None else SchemaText(self.given)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out functions made from the schema: each process makes its own."""
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}

    @abstractmethod
    def decoder(self) -> Decode:
        """Return a function that decodes values. Called once a process."""

    def to_arrow(self, decoded: list[Any]) -> pa.Array:
        """Return an array of `type` of decoded values; None is null. Raises an `ArrowException` if one does not fit."""
        return pa.array(decoded, self.type)

    @cached_property
    def _decode(self) -> Callable[[bytes], Any]:
        from confluent_kafka.schema_registry import prefix_schema_id_deserializer
        from confluent_kafka.schema_registry.serde import SchemaId

        decode = self.decoder()

        def framed(value: bytes) -> Any:
            schema_id = SchemaId(self.framing)
            return decode(schema_id, prefix_schema_id_deserializer(value, None, schema_id))

        return framed

    def read(self, values: list[bytes | None]) -> pa.Array:
        decode = self._decode
        try:
            return self.to_arrow([None if value is None else decode(value) for value in values])
        except SourceError:
            raise
        except UnknownSchemaError as error:
            raise pa.ArrowInvalid(f"the registry does not know {error}") from None
        except Exception as error:  # whatever a decoder raises of bytes of another format
            raise pa.ArrowInvalid(f"{type(error).__name__}: {error}") from None

"""Values that are decoded one by one with schemas that a registry keeps, and that registry."""

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

from streaming_source.connectors.kafka.client import scrubbed
from streaming_source.connectors.kafka.values import Invalid, ValueFormat
from streaming_source.exceptions import OptionError, SourceError

__all__ = ["Decode", "DecodedValues", "SchemaRegistry", "SchemaText", "UnknownSchemaError", "missing_package"]

Decode: TypeAlias = Callable[[Any, io.BytesIO], Any]
"""What a value is, by its `SchemaId` and what follows that; raises anything but `SourceError` if it is none."""

_FORMAT: Final = "serialized"
"""Descriptors instead of text, for Protobuf; nothing else has it."""

_NOT_FOUND: Final = 404

_SECRET: Final = re.compile(r"password|secret|token|user\.info|key|proxy")
_NUMBERS: Final = frozenset(
    {"timeout", "cache.capacity", "cache.latest.ttl.sec", "max.retries", "retries.wait.ms", "retries.max.wait.ms"}
)


class SchemaText(NamedTuple):
    """A schema as the registry has it: JSON of Avro, or a file descriptor of Protobuf in base64.

    `referenced` has names and texts of those that it refers to, each behind those that it refers to itself.
    """

    text: str
    referenced: tuple[tuple[str, str], ...] = ()


class UnknownSchemaError(LookupError):
    """The registry has no such schema."""


@dataclass(frozen=True, slots=True)
class SchemaRegistry:
    """A registry, or several with commas between them; schemas that never change are remembered by this process.

    A `SourceError` says that it does not answer.
    """

    url: str = field(repr=False)
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, url: str, settings: Mapping[str, str]) -> SchemaRegistry:
        """Check what the user gave; an `OptionError` if the client does not take it, or cannot be had."""
        if "url" in settings:
            raise OptionError("option schemaRegistry.url cannot be set: say where it is with option schemaRegistryUrl")
        for number, part in enumerate(url.split(","), 1):
            if not _is_address(part):
                # Not shown: there may be a password in it.
                raise OptionError(
                    f"option schemaRegistryUrl: address {number} of {url.count(',') + 1} is none of a web service; "
                    "it must be as in 'https://host:8081'"
                )
        registry = cls(url, tuple(sorted(settings.items())))
        registry._client().close()
        return registry

    def latest(self, subject: str) -> SchemaText:
        """The newest version of a subject; `OptionError` if there is none."""
        try:
            return self._get(f"subject {subject!r}", lambda client: client.get_latest_version(subject, _FORMAT).schema)
        except UnknownSchemaError:
            raise OptionError(
                f"the schema registry knows no subject {subject!r}: name the one that values are written with in "
                "option valueSubject; by default it is <topic>-value"
            ) from None

    def by_id(self, schema_id: Any) -> SchemaText:
        """A schema by the client's `SchemaId`; `UnknownSchemaError` if there is none."""
        return _by_id(self, None if schema_id.guid is None else str(schema_id.guid), schema_id.id)

    def scrub(self, text: str) -> str:
        """A text without what is secret of the settings and of the address."""
        secrets = [value for name, value in self.settings if value and _SECRET.search(name)]
        secrets += [part.password for part in map(urlsplit, self.url.split(",")) if part.password]
        return scrubbed(text, {one for secret in secrets for one in (secret, *secret.split(":", 1))})

    def _get(self, what: str, call: Callable[[Any], Any]) -> SchemaText:
        # Questions are few: no connection is kept for the next.
        try:
            with self._client() as client:
                schema = call(client)
                if not isinstance(schema.schema_str, str):
                    raise ValueError("the answer has no schema")
                return SchemaText(schema.schema_str, tuple(_referenced(client, schema).items()))
        except OptionError:
            raise
        except Exception as error:  # of the client, of HTTP, of connections
            if getattr(error, "http_status_code", None) == _NOT_FOUND:
                raise UnknownSchemaError(what) from None
            failed = self.scrub(f"asking the schema registry for {what} failed: {type(error).__name__}: {error}")
        raise SourceError(failed)

    def _client(self) -> Any:
        try:
            from confluent_kafka.schema_registry import SchemaRegistryClient
        except ImportError as error:
            missing_package("valueFormat", error)
        numbers = {name: float(value) for name, value in self.settings if name in _NUMBERS and _is_number(value)}
        try:
            return SchemaRegistryClient({**dict(self.settings), **numbers, "url": self.url})
        except (ValueError, TypeError, OSError) as error:
            failed = self.scrub(f"options schemaRegistryUrl, schemaRegistry.*: {error}")
        raise OptionError(failed)


def _referenced(client: Any, schema: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    for reference in schema.references or ():
        other = client.get_version(reference.subject, reference.version, fmt=_FORMAT).schema
        found.update(_referenced(client, other))
        found[reference.name] = other.schema_str
    return found


@lru_cache(maxsize=1000)
def _by_id(registry: SchemaRegistry, guid: str | None, number: int) -> SchemaText:
    if guid is not None:
        return registry._get(f"schema {guid}", lambda client: client.get_schema_by_guid(guid, _FORMAT))
    return registry._get(f"schema {number}", lambda client: client.get_schema(number, None, _FORMAT))


def missing_package(option: str, error: ImportError) -> NoReturn:
    """Say what to install, by an `OptionError`."""
    raise OptionError(
        f"option {option}: Avro and Protobuf values need packages that are not installed ({error}): "
        "pip install 'spark-watermark-alignment[kafka-schema]'"
    ) from None


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\d+(\.\d*)?", text.strip()) is not None


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # brackets that do not close, a port that is no number
        return False


@dataclass(frozen=True)
class DecodedValues(ValueFormat):
    """Values that say with which schema they were written; they are read as one, the reader's.

    That is the `given` one, else the latest of the subject. It must be known before reading: it is looked up once, with
    `type`, and goes with this object to the executors. A newer one is heeded by the next run of a query.
    """

    framing: ClassVar[str]

    registry: SchemaRegistry
    subject: str
    invalid: Invalid = "fail"
    given: str | None = None

    @cached_property
    def schema(self) -> SchemaText:
        return self.registry.latest(self.subject) if self.given is None else SchemaText(self.given)

    @cached_property
    def type(self) -> pa.DataType:
        """Of the column; an `OptionError` if the reader's schema has no type of Spark, or cannot be had."""
        return self.arrow_type()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_decode"}

    @abstractmethod
    def arrow_type(self) -> pa.DataType:
        """That of the reader's schema."""

    @abstractmethod
    def decoder(self) -> Decode:
        """Reads values. Called once a process."""

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
            return pa.array([None if value is None else decode(value) for value in values], self.type)
        except SourceError:
            raise
        except UnknownSchemaError as error:
            raise pa.ArrowInvalid(f"the registry does not know {error}") from None
        except Exception as error:  # whatever a decoder makes of bytes that are something else
            raise pa.ArrowInvalid(f"{type(error).__name__}: {error}") from None

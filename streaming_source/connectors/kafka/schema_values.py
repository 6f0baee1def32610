"""Values that are decoded one by one, with the schemas of a registry."""

from __future__ import annotations

import io
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import pyarrow as pa

from streaming_source.connectors.kafka.records import Invalid, ValueFormat
from streaming_source.connectors.kafka.registry import SchemaRegistry, SchemaText, UnknownSchemaError
from streaming_source.exceptions import SourceError

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

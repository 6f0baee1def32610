"""Values that are decoded one by one with schemas that a registry keeps, whatever version wrote them."""

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

__all__ = ["Change", "Decode", "DecodedValues"]

Decode: TypeAlias = Callable[[Any, io.BytesIO], Any]
"""What a value is, by its `SchemaId` and what follows that; raises anything but `SourceError` if it is none."""

Change: TypeAlias = Callable[[Any], Any]
"""What makes of a decoded value one that Arrow takes."""


@dataclass(frozen=True)
class DecodedValues(ValueFormat):
    """Values that say with which schema they were written; they are read as one, the reader's.

    That is the `given` one, else the latest of the subject. It must be known before reading: it is looked up once, with
    `type`, and goes with this object to the executors. A newer one is heeded by the next run of a query. `type` raises
    an `OptionError` if it has no type of Spark, or cannot be had.
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
        """Without what is made of the schema: functions, which each process makes for itself."""
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}

    @abstractmethod
    def decoder(self) -> Decode:
        """Reads values. Called once a process."""

    def to_arrow(self, decoded: list[Any]) -> pa.Array:
        """Return an array of `type` of decoded values; None is null. An `ArrowException` if one does not fit."""
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
        except Exception as error:  # whatever a decoder makes of bytes that are something else
            raise pa.ArrowInvalid(f"{type(error).__name__}: {error}") from None

"""Values that are decoded one by one with schemas of a registry, as one column of structs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from streaming_source.connectors.kafka.schemas.registry import SchemaRegistry, SchemaText, UnknownSchemaError
from streaming_source.connectors.kafka.values import Invalid, ValueFormat
from streaming_source.exceptions import SourceError

__all__ = ["Decode", "DecodedValues"]

Decode = Callable[[bytes], Any]
"""What a value is; raises anything but `SourceError` if it is none."""


@dataclass(frozen=True)
class DecodedValues(ValueFormat):
    """Values that say with which schema they were written; they are read as one, the reader's.

    What that is must be known before reading: it is asked for once, with `type`, and goes with this object to the
    executors. A newer one is heeded by the next run of a query.

    Attributes
    ----------
    registry
        Knows what they were written with.
    subject
        Of which the latest schema is the reader's.
    given
        The reader's schema, if the user gave it.
    """

    registry: SchemaRegistry
    subject: str
    invalid: Invalid = "fail"
    given: str | None = None

    @cached_property
    def schema(self) -> SchemaText:
        """The reader's."""
        return self.registry.latest(self.subject) if self.given is None else SchemaText(self.given)

    @cached_property
    def type(self) -> pa.DataType:
        """See `ValueFormat`.

        Raises
        ------
        OptionError
            If the schema has no type of Spark, or cannot be had.
        """
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
    def _decode(self) -> Decode:
        return self.decoder()

    def read(self, values: list[bytes | None]) -> pa.Array:
        """See `ValueFormat`."""
        decode = self._decode
        try:
            return pa.array([None if value is None else decode(value) for value in values], self.type)
        except SourceError:
            raise
        except UnknownSchemaError as error:
            raise pa.ArrowInvalid(f"the registry does not know {error}") from None
        except Exception as error:  # whatever a decoder makes of bytes that are something else
            raise pa.ArrowInvalid(f"{type(error).__name__}: {error}") from None

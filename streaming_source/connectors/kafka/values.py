"""What is in the values of records, a block at a time: bytes, text, or JSON here."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import json as arrow_json

from streaming_source.connectors.kafka.subscription import Partition
from streaming_source.exceptions import MalformedDataError

__all__ = ["BinaryValues", "JsonValues", "TextValues", "ValueFormat", "one_by_one"]

Offsets = npt.NDArray[np.int64]

_WIDTH: Final = 80


class ValueFormat(Protocol):
    """How values become a column."""

    @property
    def type(self) -> pa.DataType:
        """Of the column."""
        ...

    def column(self, values: list[bytes | None], part: Partition, offsets: Offsets) -> pa.Array:
        """The column of `n` values of one partition; None is null.

        Raises
        ------
        MalformedDataError
            If a value is not what it should be; names partition and offset.
        """
        ...


class ReadsValues(Protocol):
    """How single values become one, for those formats of which some values may be invalid."""

    @property
    def type(self) -> pa.DataType:
        """See `ValueFormat`."""
        ...

    @property
    def invalid(self) -> Literal["fail", "null"]:
        """What becomes of values that are not of the format."""
        ...

    def read(self, value: bytes | None) -> pa.Array:
        """One value. Raises `pa.ArrowInvalid` or `pa.ArrowNotImplementedError` if it is not of the format."""
        ...


@dataclass(frozen=True, slots=True)
class BinaryValues:
    """Values as they are."""

    @property
    def type(self) -> pa.DataType:
        """See `ValueFormat`."""
        return pa.binary()

    def column(self, values: list[bytes | None], part: Partition, offsets: Offsets) -> pa.Array:
        """See `ValueFormat`."""
        return pa.array(values, pa.binary())


@dataclass(frozen=True, slots=True)
class TextValues:
    """Values that are UTF-8.

    Attributes
    ----------
    invalid
        What becomes of others.
    """

    invalid: Literal["fail", "null"] = "fail"

    @property
    def type(self) -> pa.DataType:
        """See `ValueFormat`."""
        return pa.string()

    def column(self, values: list[bytes | None], part: Partition, offsets: Offsets) -> pa.Array:
        """See `ValueFormat`."""
        try:
            return pa.array(values, pa.binary()).cast(pa.string())
        except pa.ArrowInvalid:
            return one_by_one(self, values, part, offsets, "UTF-8 text")

    def read(self, value: bytes | None) -> pa.Array:
        """One value."""
        return pa.array([value], pa.binary()).cast(pa.string())


@dataclass(frozen=True, slots=True)
class JsonValues:
    """Values that are JSON objects.

    Fields that are not in the schema are left out, those that an object lacks are null.

    Attributes
    ----------
    fields
        Of the objects.
    invalid
        What becomes of values that are no such objects.
    """

    fields: pa.Schema
    invalid: Literal["fail", "null"] = "fail"

    @property
    def type(self) -> pa.DataType:
        """See `ValueFormat`."""
        return pa.struct(list(self.fields))

    def column(self, values: list[bytes | None], part: Partition, offsets: Offsets) -> pa.Array:
        """See `ValueFormat`."""
        try:
            return self._parse(values)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return one_by_one(self, values, part, offsets, "a JSON object of the fields in valueSchema")

    def read(self, value: bytes | None) -> pa.Array:
        """One value."""
        return self._parse([value])

    def _parse(self, values: list[bytes | None]) -> pa.Array:
        # Wrapped, so that a null stays a row; then what closes the wrapping itself shows in the number of rows.
        text = b"".join([b'{"v":' + (b"null" if value is None else value) + b"}\n" for value in values])
        table = arrow_json.read_json(
            io.BytesIO(text),
            arrow_json.ReadOptions(use_threads=False, block_size=len(text) + 1),
            arrow_json.ParseOptions(
                explicit_schema=pa.schema([("v", self.type)]),
                newlines_in_values=True,
                unexpected_field_behavior="ignore",
            ),
        )
        if table.num_rows != len(values):
            raise pa.ArrowInvalid(f"{len(values)} values hold {table.num_rows} objects")
        column: pa.Array = table.column("v").combine_chunks()
        return column


def one_by_one(
    values_of: ReadsValues, values: list[bytes | None], part: Partition, offsets: Offsets, what: str
) -> pa.Array:
    """The column where a value cannot be read: the one path on which each is looked at by itself.

    Raises
    ------
    MalformedDataError
        If a value is not of the format, and that is not to be null.
    """
    read = []
    for value, offset in zip(values, offsets.tolist(), strict=True):
        try:
            read.append(values_of.read(value))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            if values_of.invalid == "fail":
                shown = repr(value if value is None or len(value) <= _WIDTH else value[:_WIDTH] + b"...")
                raise MalformedDataError(
                    f"partition {part}, offset {offset}: the value {shown} is not {what}: {error}; option "
                    "invalidValue = null reads such values as null"
                ) from None
            read.append(pa.nulls(1, values_of.type))
    return pa.concat_arrays(read)

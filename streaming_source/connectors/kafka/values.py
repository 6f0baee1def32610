"""How values become a column, a block at a time: bytes, text, or JSON here."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import json as arrow_json

from streaming_source.connectors.kafka.subscription import Partition
from streaming_source.exceptions import MalformedDataError

__all__ = ["BinaryValues", "Invalid", "JsonValues", "TextValues", "ValueFormat"]

Invalid: TypeAlias = Literal["fail", "null"]
"""What becomes of values that are not of their format."""

_WIDTH: Final = 80


class ValueFormat(ABC):
    """How values become a column; equal to another that reads them in the same way."""

    invalid: Invalid

    @property
    @abstractmethod
    def type(self) -> pa.DataType:
        """Of the column."""

    @property
    @abstractmethod
    def what(self) -> str:
        """What a value should be, for errors."""

    @abstractmethod
    def read(self, values: list[bytes | None]) -> pa.Array:
        """The column of `n` values; None is null.

        Raises `pa.ArrowInvalid` or `pa.ArrowNotImplementedError` if one is not of the format.
        """

    def column(self, values: list[bytes | None], part: Partition, offsets: npt.NDArray[np.int64]) -> pa.Array:
        """The column of `n` values of one partition.

        A `MalformedDataError` names partition and offset of one that is not what it should be, unless it becomes null.
        """
        try:
            return self.read(values)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            # The one path on which each is looked at by itself.
            return pa.concat_arrays([self._one(*one, part) for one in zip(values, offsets.tolist(), strict=True)])

    def _one(self, value: bytes | None, offset: int, part: Partition) -> pa.Array:
        try:
            return self.read([value])
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            if self.invalid == "null":
                return pa.nulls(1, self.type)
            shown = repr(value if value is None or len(value) <= _WIDTH else value[:_WIDTH] + b"...")
            raise MalformedDataError(
                f"partition {part}, offset {offset}: the value {shown} is not {self.what}: {error}; option "
                "invalidValue = null reads such values as null"
            ) from None


@dataclass(frozen=True)
class BinaryValues(ValueFormat):
    """Values as they are."""

    type = pa.binary()
    what = "bytes"

    def read(self, values: list[bytes | None]) -> pa.Array:
        return pa.array(values, pa.binary())


@dataclass(frozen=True)
class TextValues(ValueFormat):
    """Values that are UTF-8."""

    invalid: Invalid = "fail"
    type = pa.string()
    what = "UTF-8 text"

    def read(self, values: list[bytes | None]) -> pa.Array:
        return pa.array(values, pa.binary()).cast(pa.string())


@dataclass(frozen=True)
class JsonValues(ValueFormat):
    """Values that are JSON objects of these fields: others are left out, those that an object lacks are null."""

    fields: pa.Schema
    invalid: Invalid = "fail"
    what = "a JSON object of the fields in valueSchema"

    @property
    def type(self) -> pa.DataType:
        return pa.struct(list(self.fields))

    def read(self, values: list[bytes | None]) -> pa.Array:
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

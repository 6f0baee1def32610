"""Values that are JSON objects, read as Spark's `from_json` and files of JSON are."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pyarrow as pa

from alignment.watermarks import BoolArray, Int64Array
from streaming_source.connectors.kafka.records import Invalid, ValueFormat
from streaming_source.connectors.kafka.subscription import Partition
from streaming_source.data_files.evolution import types_in
from streaming_source.data_files.formats.json import JsonFormat, check_maps, fault_of, read_values
from streaming_source.exceptions import OptionError

_EMPTY: Final = b"{}"
_NULL: Final = b"null"


@dataclass(frozen=True)
class JsonValues(ValueFormat):
    """Values that are JSON objects with these fields: other fields are left out, and missing ones are null.

    `format` has how times are written. A value with a field that is not of its type is invalid as a whole.
    """

    fields: pa.Schema
    invalid: Invalid = "fail"
    format: JsonFormat = field(default_factory=JsonFormat)
    what = "a JSON object of the fields in valueSchema"

    def __post_init__(self) -> None:
        try:
            check_maps(self.fields)
        except pa.ArrowNotImplementedError as error:
            raise OptionError(f"option valueSchema: {error}; give a struct, or string keys") from None

    @property
    def type(self) -> pa.DataType:
        return pa.struct(list(self.fields))

    def in_zone(self, zone: str) -> JsonValues:
        may_lack_zone = any(pa.types.is_timestamp(kind) and kind.tz is not None for kind in types_in(self.type))
        is_zoned = self.format.time_zone is not None or not may_lack_zone
        return self if is_zoned else replace(self, format=replace(self.format, time_zone=zone))

    def column(self, values: list[bytes | None], part: Partition, offsets: Int64Array) -> pa.Array:
        array, malformed = self._read(values)
        if self.invalid == "fail" and malformed.any():
            number = int(np.argmax(malformed))
            self._one(values[number], int(offsets[number]), part)
        return array

    def read(self, values: list[bytes | None]) -> pa.Array:
        array, malformed = self._read(values)
        if malformed.any():
            value = values[int(np.argmax(malformed))]
            raise pa.ArrowInvalid(fault_of(self.format, value or b"", self.fields) or "it is none of this format")
        return array

    def _read(self, values: list[bytes | None]) -> tuple[pa.Array, BoolArray]:
        """Return the column, null where a value is or cannot be read, and which cannot."""
        is_null = np.array([value is None or value.strip() == _NULL for value in values], np.bool_)
        there = [_EMPTY if lacks else value or b"" for value, lacks in zip(values, is_null.tolist(), strict=True)]
        arrays, malformed = read_values(self.format, there, self.fields)
        return pa.StructArray.from_arrays(arrays, fields=[*self.fields], mask=pa.array(is_null | malformed)), malformed

"""ORC."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from alignment.arrow_times import time_zone
from alignment.exceptions import InvalidArgumentError
from alignment.time_texts import UTC, in_utc
from streaming_source.data_files.file import StoredFile
from streaming_source.data_files.formats.columnar import ColumnarFile, ColumnarFormat
from streaming_source.data_files.formats.orc_stored import gregorian_days, has_decimals_of_hive, mapped, read_far_times
from streaming_source.exceptions import MalformedDataError, SourceError

_SPARK_TYPE: Final = b"spark.sql.catalyst.type"
_OF_HIVE: Final = "decimal128(38, 6)"
"""As pyarrow reads a decimal without a scale."""
_LOCALTIME: Final = Path("/etc/localtime")


@dataclass(frozen=True, slots=True)
class OrcFormat(ColumnarFormat):
    """ORC: blocks are stripes. pyarrow does not read the statistics of ORC."""

    name: ClassVar[str] = "orc"
    title: ClassVar[str] = "ORC"

    def _open(self, file: StoredFile, stream: pa.NativeFile) -> ColumnarFile:
        return _OrcFile(file.path, stream)


class _OrcFile(ColumnarFile):
    def __init__(self, path: str, stream: pa.NativeFile) -> None:
        # Imported here: it takes longer than all pyarrow imports of a query over another format.
        from pyarrow import orc

        self._stream, self._file = stream, orc.ORCFile(stream)
        schema = pa.schema([field.with_type(_in_micros(field)) for field in self._file.schema])
        super().__init__(path, "orc", schema)

    def schema_for(self, wanted: pa.Schema) -> pa.Schema:
        # A timestamp without a zone is stored in UTC, just as an instant, or as a number.
        local = pa.timestamp("us")
        readable = {(pa.timestamp("us", UTC), local), (local, pa.int64())}
        types = {field.name: field.type for field in wanted}
        fields = [(field, types.get(field.name)) for field in self.schema]
        return pa.schema([f.with_type(kind) if (f.type, kind) in readable else f for f, kind in fields])

    def batches(self, columns: Sequence[str], first: int, stop_row: int) -> Iterator[pa.RecordBatch]:
        if any(_OF_HIVE in str(self._file.schema.field(name).type) for name in columns) and has_decimals_of_hive(
            self._stream
        ):
            raise MalformedDataError(
                f"{self.path} has decimals without a scale, as Hive 0.11 wrote them, which pyarrow does not read; name "
                "the other columns in option columns, or write it again"
            )
        # To ORC a name with a dot is that of a field in a struct, if there is such a one.
        named = None if any("." in name for name in columns) else list(columns)
        for stripe in range(first, self._file.nstripes):
            chunk = self._stripe(stripe, named)
            fields = [self._file.schema.field(name) for name in chunk.schema.names]
            arrays = [
                _moments(f"{self.path}: column {field.name!r}", array, field)
                for field, array in zip(fields, chunk.columns, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, chunk.schema.names) if arrays else chunk

    def _stripe(self, stripe: int, names: list[str] | None) -> pa.RecordBatch:
        try:
            return self._file.read_stripe(stripe, columns=names)
        except pa.ArrowInvalid as error:
            if "out of range" not in str(error):
                raise
            found = read_far_times(self._stream, stripe, names, self._file.schema)
            if found is None:
                raise MalformedDataError(
                    f"{self.path} has a time beyond those of Spark, or one before 1677 or after 2262 in a file that is "
                    "compressed by LZO; name the other columns in option columns, or write Parquet"
                ) from None
            return found


def _in_micros(field: pa.Field) -> pa.DataType:
    """Return a column's type in microseconds: ORC has nanoseconds alone; Spark, and most writers, have microseconds.

    Timestamps are moments, as Spark writes and reads them; it writes those without a zone as numbers.
    """
    kind, types = field.type, pa.types
    if types.is_timestamp(kind):
        return pa.timestamp("us", UTC)
    if types.is_int64(kind) and (field.metadata or {}).get(_SPARK_TYPE) == b"timestamp_ntz":
        return pa.timestamp("us")
    if types.is_struct(kind):
        return pa.struct([inner.with_type(_in_micros(inner)) for inner in kind])
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_micros(kind.value_field)))
    if types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(key.with_type(_in_micros(key)), item.with_type(_in_micros(item)))
    return kind


def _moments(what: str, array: pa.Array, field: pa.Field) -> pa.Array:
    """Return a column in the type that `_in_micros` gives; `what` names it, for errors.

    A timestamp of ORC is what a clock showed where it was written, and is read by the clock of the reader's machine.
    """

    def read(stored: pa.DataType, times: pa.Array) -> pa.Array:
        if pa.types.is_date(stored):
            return _dates(times)
        if stored.tz is not None or (zone := machine_zone()) == UTC:
            return times
        return _on_clock(what, times, zone)

    return mapped(read, field.type, array.cast(_in_micros(field), safe=False))


def _dates(array: pa.Array) -> pa.Array:
    days = array.cast(pa.int32()).fill_null(0).cast(pa.int64()).to_numpy()
    found = gregorian_days(days)
    return (
        array if found is days else pa.array(found, mask=np.asarray(array.is_null())).cast(pa.int32()).cast(pa.date32())
    )


def _on_clock(what: str, array: pa.Array, zone: str) -> pa.Array:
    local = array.cast(pa.timestamp("us"))
    first, last = (
        pc.assume_timezone(local, zone, ambiguous=which, nonexistent="earliest") for which in ("earliest", "latest")
    )
    if not first.equals(last):
        twice = local.filter(pc.not_equal(first, last))[0]
        raise MalformedDataError(
            f"{what} has the time {twice}, which a clock in {zone} shows twice, and pyarrow does not give which "
            "of them ORC has; write Parquet, or let Spark write and read with TZ=UTC in its environment"
        )
    moments = in_utc(np.asarray(local.cast(pa.int64()).fill_null(0)), zone)
    return pa.array(moments, mask=np.asarray(local.is_null())).cast(array.type)


def machine_zone() -> str:
    """Return the zone of this machine, as Java finds it: of the variable TZ, else of the link /etc/localtime."""
    name = os.environ.get("TZ", "").removeprefix(":")
    if not name and _LOCALTIME.exists():
        name = str(_LOCALTIME.resolve()).partition("zoneinfo/")[2]
    try:
        return UTC if not name and time.tzname[0] == UTC else time_zone(name)
    except InvalidArgumentError:
        raise SourceError(
            f"the zone of this machine, by which times in ORC are read, is not known: TZ is {name!r}; set TZ to a zone "
            "such as Europe/Berlin or UTC in the environment of Spark's processes"
        ) from None

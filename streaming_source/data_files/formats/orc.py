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
from streaming_source.exceptions import MalformedDataError, SourceError

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

        self._file = orc.ORCFile(stream)
        schema = pa.schema([field.with_type(_in_micros(field.type)) for field in self._file.schema])
        super().__init__(path, "orc", schema)

    def schema_for(self, wanted: pa.Schema) -> pa.Schema:
        # Spark stores a timestamp without a zone in UTC, just as an instant.
        local, moment = pa.timestamp("us"), pa.timestamp("us", "UTC")
        names = {field.name for field in wanted if field.type == local}
        return pa.schema([f.with_type(local) if f.name in names and f.type == moment else f for f in self.schema])

    def batches(self, columns: Sequence[str], first: int, stop_row: int) -> Iterator[pa.RecordBatch]:
        # To ORC a name with a dot is that of a field in a struct, if there is such a one.
        named = None if any("." in name for name in columns) else list(columns)
        for stripe in range(first, self._file.nstripes):
            chunk = self._stripe(stripe, named)
            named_arrays = zip(chunk.schema.names, chunk.columns, strict=True)
            arrays = [_moments(f"{self.path}: column {name!r}", array) for name, array in named_arrays]
            yield pa.RecordBatch.from_arrays(arrays, chunk.schema.names) if arrays else chunk

    def _stripe(self, stripe: int, names: list[str] | None) -> pa.RecordBatch:
        try:
            return self._file.read_stripe(stripe, columns=names)
        except pa.ArrowInvalid as error:
            if "out of range" not in str(error):
                raise
            far = [name for name in names or self.stored.names if self._is_far(stripe, name)]
            raise MalformedDataError(
                f"{self.path}: column {', '.join(map(repr, far))} has a time before 1677 or after 2262, which pyarrow "
                "does not read from ORC; name the other columns in option columns, or write Parquet"
            ) from None

    def _is_far(self, stripe: int, name: str) -> bool:
        try:
            self._file.read_stripe(stripe, columns=[name])
        except pa.ArrowInvalid:
            return True
        return False


def _in_micros(data_type: pa.DataType) -> pa.DataType:
    """Return the type in microseconds: ORC has nanoseconds alone; Spark, and most writers, have microseconds.

    Timestamps are moments, as Spark writes and reads them.
    """
    if pa.types.is_timestamp(data_type):
        return pa.timestamp("us", UTC)
    if pa.types.is_struct(data_type):
        return pa.struct([field.with_type(_in_micros(field.type)) for field in data_type])
    if pa.types.is_list(data_type):
        return pa.list_(data_type.value_field.with_type(_in_micros(data_type.value_type)))
    if pa.types.is_map(data_type):
        key, item = data_type.key_field, data_type.item_field
        return pa.map_(key.with_type(_in_micros(key.type)), item.with_type(_in_micros(item.type)))
    return data_type


def _moments(what: str, array: pa.Array) -> pa.Array:
    """Return a column in the type that `_in_micros` gives; `what` names it, for errors.

    A timestamp of ORC is what a clock showed where it was written, and is read by the clock of the reader's machine.
    """
    kind, moments = array.type, array.cast(_in_micros(array.type), safe=False)
    if kind == moments.type or (zone := machine_zone()) == UTC:
        return moments
    return _by_clock(what, moments, kind, zone)


def _by_clock(what: str, array: pa.Array, stored: pa.DataType, zone: str) -> pa.Array:
    """Move times on a clock, which are moments in UTC in `array`, to the zone of that clock."""
    kind = array.type
    if pa.types.is_timestamp(kind):
        return array if stored.tz is not None else _on_clock(what, array, zone)
    if pa.types.is_struct(kind):
        inner = [_by_clock(what, array.field(n), stored.field(n).type, zone) for n in range(kind.num_fields)]
        return pa.StructArray.from_arrays(inner, fields=list(kind), mask=array.is_null())
    if pa.types.is_list(kind):
        values = _by_clock(what, array.values, stored.value_type, zone)
        return pa.ListArray.from_arrays(array.offsets, values, type=kind, mask=array.is_null())
    if pa.types.is_map(kind):
        keys = _by_clock(what, array.keys, stored.key_type, zone)
        items = _by_clock(what, array.items, stored.item_type, zone)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=kind, mask=array.is_null())
    return array


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

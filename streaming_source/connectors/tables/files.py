"""A file of a table, whatever its format, files as columns, and bounds of event times out of their statistics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from alignment import arrow_compute as pc
from alignment.arrow_times import is_order_preserving
from alignment.column_paths import fields_on_path
from alignment.time_texts import UTC
from alignment.timestamps import NO_TIMESTAMP, FieldTimestampAssigner, TimestampAssigner
from alignment.watermarks import MAX_WATERMARK, BoolArray, Int64Array

Partition: TypeAlias = tuple[tuple[str, str | None], ...]
"""The values of a file's partition as text, by what the format calls their columns; None is null."""

FILES: Final = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("version", pa.int64(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("low_us", pa.int64()),
        pa.field("high_us", pa.int64()),
        pa.field("partition", pa.map_(pa.string(), pa.string())),
        pa.field("deletes", pa.struct([("sequence", pa.int64()), ("partition", pa.string())])),
    ]
)
"""Files as columns: a table has a million of them. See `TableFile`."""

LISTED: Final = pa.schema([*FILES, pa.field("rows", pa.int64()), pa.field("complete", pa.bool_(), nullable=False)])
"""The files of a lister, in the order in which Spark's own source reads them.

`rows` is how many rows the table has of a file, null where that is not known; `complete` is true where the table's
metadata show that each of them has an event time.
"""


class Deletes(NamedTuple):
    """The place where the lister finds which rows of a file the table has deleted.

    `sequence` is the number of the commit that added the file, or of the version whose deletes apply; `partition` is a
    short name of the file's partition, empty where deletes are not listed by partitions.
    """

    sequence: int
    partition: str = ""


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of a table, as its metadata have it. A row of `FILES` is one, with its values as arguments.

    `path` is as the table writes it, and `version` that of the snapshot for its files, else of the commit that added
    the file: they name it for good, and offsets have both. No valid event time in it is before `low_us` or after
    `high_us`, which need not be reached: `MAX_WATERMARK` and `NO_TIMESTAMP` where no record has a valid one, None where
    the metadata lack them and the file's own footer is read. `deletes` is where its deleted rows are known; None if it
    has none. An offset has that and `partition` as long as the file is read.
    """

    path: str
    version: int
    size: int
    low_us: int | None
    high_us: int | None
    partition: Partition = ()
    deletes: Deletes | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "partition", tuple(self.partition or ()))
        if isinstance(self.deletes, Mapping):
            object.__setattr__(self, "deletes", Deletes(**self.deletes))


def listed(
    paths: pa.Array,
    version: int,
    sizes: pa.Array,
    bounds: tuple[pa.Array, pa.Array, pa.Array],
    rows: pa.Array,
    partitions: Iterable[Mapping[str, str | None]] | None = None,
    deletes: Sequence[Deletes | None] | None = None,
) -> pa.Table:
    """Return files of a version as `LISTED`. O(n).

    `bounds` are the columns `low_us`, `high_us` and `complete`; without `partitions` or `deletes` no file has them.
    Where a file has deletes, `rows` is not known.
    """
    n, (low, high, complete) = len(paths), bounds
    values = None if partitions is None else [list(of.items()) for of in partitions]
    if deletes is not None:
        rows = pc.if_else(pa.array([one is not None for one in deletes], pa.bool_()), None, rows)
    found = None if deletes is None else [None if one is None else one._asdict() for one in deletes]
    of_type = {field.name: field.type for field in FILES}
    columns = [
        paths.cast(pa.string()),
        pa.array(np.full(n, version, np.int64)),
        sizes.cast(pa.int64()),
        low,
        high,
        pa.nulls(n, of_type["partition"]) if values is None else pa.array(values, of_type["partition"]),
        pa.nulls(n, of_type["deletes"]) if found is None else pa.array(found, of_type["deletes"]),
        rows.cast(pa.int64()),
        complete,
    ]
    return pa.Table.from_arrays(columns, schema=LISTED)


NO_TIMES: Final = (MAX_WATERMARK, NO_TIMESTAMP)
"""The bounds of a file in which no record has a valid event time."""


def whole_milliseconds(low_us: Int64Array) -> Int64Array:
    """Return lower bounds as the last milliseconds that are not after them; those that are no times as they are.

    Files are opened in the order of these, also after a restart: it must be the same by statistics, which may be cut to
    milliseconds, and by the footers of the files, once a checkpoint of the table's log has left the statistics out.
    """
    is_no_time = (low_us == MAX_WATERMARK) | (low_us < NO_TIMESTAMP + 1000)
    return np.where(is_no_time, low_us, low_us - low_us % 1000)


def end_of_milliseconds(high_us: Int64Array) -> Int64Array:
    """Return upper bounds of event times as the last microseconds of their milliseconds, which writers may cut them to.

    One with microseconds was not cut.
    """
    return high_us + np.where(high_us % 1000, 0, 999)


@dataclass(frozen=True, slots=True)
class TimeBounds:
    """The event-time column, where statistics of it bound event times.

    `path` leads to it by the names of the table's columns, through structs; `data_type` is its type there.
    """

    path: tuple[str, ...]
    data_type: pa.DataType
    assigner: TimestampAssigner

    @staticmethod
    def of(schema: pa.Schema, assigner: TimestampAssigner) -> TimeBounds | None:
        """Return what to look for in statistics; None where they say nothing of event times (text, a function)."""
        dotted = assigner.statistics_column
        if dotted is None:
            return None
        fields = fields_on_path(schema, dotted)
        if not fields:
            return None
        path, data_type = tuple(field.name for field in fields), fields[-1].type
        unit = getattr(assigner, "unit", None)
        return TimeBounds(path, data_type, assigner) if is_order_preserving(data_type, unit) else None

    def convert(self, values: pa.Array) -> tuple[Int64Array, BoolArray]:
        """Convert smallest or largest values, of `data_type`, to event times: `int64[n]`, and which of them hold.

        O(n): of a column of moments by whole arrays, of local times in a zone with a clock change one by one.
        """
        if values.type != self.data_type:
            values = values.cast(self.data_type)
        assigner, is_local = self.assigner, pa.types.is_date(self.data_type)
        is_local = is_local or (pa.types.is_timestamp(self.data_type) and self.data_type.tz is None)
        if isinstance(assigner, FieldTimestampAssigner) and (not is_local or assigner.zone in (None, UTC)):
            column = FieldTimestampAssigner("value", assigner.unit, assigner.zone)
            times = column.extract(pa.RecordBatch.from_arrays([values], ["value"]), None)
            return times.values, times.valid
        found = [assigner.from_statistics(self.data_type, value) for value in values.to_pylist()]
        valid = np.array([value is not None for value in found], np.bool_)
        return np.array([NO_TIMESTAMP if value is None else value for value in found], np.int64), valid

"""Facts of a file beside its name in a Delta table: bounds of its event times, and which of its rows are deleted.

Bounds are in the statistics and partition values of the log; deletion vectors of a version are loaded while they are
needed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import deltalake
import numpy as np
import pyarrow as pa
from deltalake.exceptions import DeltaError

from alignment import arrow_compute as pc
from streaming_source.connectors.delta.columns import DeltaColumns
from streaming_source.connectors.delta.commits import path_in_table
from streaming_source.connectors.tables.files import NO_TIMES, TimeBounds, end_of_milliseconds, whole_milliseconds
from streaming_source.data_files.file import DeletedRows
from streaming_source.exceptions import UnsupportedOperationError
from streaming_source.from_data import as_json

Bounds: TypeAlias = tuple[pa.Array, pa.Array, pa.Array]


class FileStatistics:
    """Finds the columns `low_us`, `high_us` and `complete` of files; see `LISTED`. Bounds that are not known are null.

    `bounds` is None where statistics say nothing of event times.
    """

    def __init__(self, columns: DeltaColumns, bounds: TimeBounds | None) -> None:
        self._columns = columns
        self._bounds = bounds

    def bounds_in_snapshot(self, actions: pa.Table, partitions: Sequence[Mapping[str, str | None]]) -> Bounds:
        """Of the files of a version: `DeltaTable.get_add_actions`, nested, and their partitions as the log has them."""
        bounds, unknown = self._bounds, _unknown(actions.num_rows)
        if bounds is None or not actions.num_rows:
            return unknown
        if partitions and self._columns.is_partition(bounds.path[0], partitions[0]):
            return self._of_partition(bounds.path[0], partitions, str(actions["path"][0]))
        path = self._columns.physical(bounds.path)
        low, high, nulls = (_inside(actions, kind, path) for kind in ("min", "max", "null_count"))
        if low is None or high is None:
            return unknown
        rows = as_array(actions["num_records"])
        is_empty = pc.equal(rows, 0) if nulls is None else pc.or_kleene(pc.equal(rows, 0), pc.equal(rows, nulls))
        complete = pa.repeat(pa.scalar(False), len(rows)) if nulls is None else pc.fill_null(pc.equal(nulls, 0), False)
        return (*self._converted(low, high, pc.fill_null(is_empty, False)), as_array(complete))

    def bounds_in_log(self, adds: list[Mapping[str, Any]]) -> tuple[pa.Array, pa.Array, pa.Array, pa.Array]:
        """Of the files that a commit adds, as its JSON has them; and how many rows they have."""
        stats = [_statistics_of(add) for add in adds]
        return (*self._in_log(adds, stats), pa.array([of["numRecords"] for of in stats], pa.int64()))

    def _in_log(self, adds: list[Mapping[str, Any]], stats: list[dict[str, Any]]) -> Bounds:
        bounds = self._bounds
        if bounds is None or not adds:
            return _unknown(len(adds))
        partitions = [add.get("partitionValues") or {} for add in adds]
        is_partition = [self._columns.is_partition(bounds.path[0], values) for values in partitions]
        if all(is_partition):
            return self._of_partition(bounds.path[0], partitions, adds[0]["path"])
        if any(is_partition):
            return _unknown(len(adds))
        path = self._columns.physical(bounds.path)
        low, high = (
            _from_json([_at(of.get(kind), path) for of in stats], bounds.data_type)
            for kind in ("minValues", "maxValues")
        )
        rows, nulls = ([of["numRecords"] for of in stats], [_at(of.get("nullCount"), path) for of in stats])
        empty = [count is not None and (count == 0 or count == null) for count, null in zip(rows, nulls, strict=True)]
        complete = pa.array([null == 0 for null in nulls], pa.bool_())
        return (*self._converted(low, high, pa.array(empty, pa.bool_())), complete)

    def _of_partition(self, name: str, partitions: Sequence[Mapping[str, str | None]], path: str) -> Bounds:
        values = self._columns.values(name, partitions, path)
        return (*self._converted(values, values, pc.is_null(values), are_exact=True), pc.is_valid(values))

    def _converted(
        self, low: pa.Array, high: pa.Array, empty: pa.Array, *, are_exact: bool = False
    ) -> tuple[pa.Array, pa.Array]:
        assert self._bounds is not None
        low_us, knows_low = self._bounds.convert(as_array(low))
        low_us = whole_milliseconds(low_us)
        high_us, knows_high = self._bounds.convert(as_array(high))
        is_empty = np.asarray(as_array(empty).to_numpy(zero_copy_only=False), np.bool_)
        has = (knows_low & knows_high) | is_empty
        low_us = np.where(is_empty, NO_TIMES[0], low_us)
        high_us = np.where(is_empty, NO_TIMES[1], high_us if are_exact else end_of_milliseconds(high_us))
        return pa.array(low_us, pa.int64(), mask=~has), pa.array(high_us, pa.int64(), mask=~has)


def _statistics_of(add: Mapping[str, Any]) -> dict[str, Any]:
    """The statistics of a file, with a `numRecords` that is None where it is none; empty ones where they are no object.

    A reader may do without statistics, so that what its writer has made of them is no error.
    """
    try:
        found = as_json(add.get("stats") or "{}")
    except (TypeError, ValueError):
        found = None
    stats = found if isinstance(found, dict) else {}
    rows = stats.get("numRecords")
    return {**stats, "numRecords": rows if type(rows) is int and rows >= 0 else None}


def _unknown(count: int) -> Bounds:
    nothing = pa.nulls(count, pa.int64())
    return nothing, nothing, pa.repeat(pa.scalar(False), count)


def as_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A column as one array."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _inside(actions: pa.Table, kind: str, path: list[str]) -> pa.Array | None:
    """A field of a struct of statistics; None where they have none of it."""
    index = actions.schema.get_field_index(kind)
    column = as_array(actions.column(index)) if index >= 0 else None
    for name in path:
        if column is None or not pa.types.is_struct(column.type) or column.type.get_field_index(name) < 0:
            return None
        column = pc.struct_field(column, [column.type.get_field_index(name)])
    return column


def _at(values: Any, path: list[str]) -> Any:
    for name in path:
        values = values.get(name) if isinstance(values, Mapping) else None
    return values


def _from_json(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Bounds as the log writes them; null where one cannot be read."""
    if pa.types.is_timestamp(kind):
        texts = pa.array([value if isinstance(value, str) else None for value in values], pa.string())
        # Spark writes moments with the offset of its session's zone; times without a zone have none.
        plain = texts if kind.tz is not None else pc.replace_substring_regex(texts, r"(?i)Z$", "")
        try:
            return plain.cast(pa.timestamp("us", kind.tz)).cast(kind)
        except pa.ArrowInvalid:
            return pa.nulls(len(values), kind)
    if pa.types.is_date(kind):
        values = [value if isinstance(value, str) else None for value in values]
    try:
        return pa.array(values, pa.string() if pa.types.is_date(kind) else None).cast(kind)
    except (pa.ArrowException, TypeError, ValueError):
        return pa.nulls(len(values), kind)


class DeletionVectors:
    """The deleted rows of files, by version and path in the table; each stays until it is released.

    `title` is the table in messages, `open_table` loads a version. Called by several threads.
    """

    def __init__(self, title: str, open_table: Callable[[int], deltalake.DeltaTable]) -> None:
        self._title, self._open_table = title, open_table
        self._loaded: dict[int, dict[str, DeletedRows]] = {}
        # Held for no I/O: who releases a file must not wait for a store.
        self._guard = threading.Lock()
        self._reading = threading.Lock()

    def __len__(self) -> int:
        with self._guard:
            return sum(map(len, self._loaded.values()))

    def load(self, version: int, table: deltalake.DeltaTable) -> Mapping[str, DeletedRows]:
        """Load those of all files of a version, which is opened as `table`. O(their rows)."""
        found = self._read(version, table)
        with self._guard:
            self._loaded[version] = dict(found)
        return found

    def of(self, version: int, path: str) -> DeletedRows | None:
        """Return the deleted rows of a file; None if there are none. O(1) where the version is loaded."""
        if (known := self._known(version, path)) is not None:
            return known
        # One thread reads a version, others that need it wait for that.
        with self._reading:
            if (known := self._known(version, path)) is not None:
                return known
            found = self._read(version, self._open_table(version))
            with self._guard:
                if version in self._loaded:
                    # One that was released is read again by itself; after a restart all that is in work is needed.
                    found = {path: found[path]} if path in found else {}
                self._loaded.setdefault(version, {}).update(found)
            return found.get(path)

    def release(self, version: int, path: str) -> None:
        """Forget a file, which was read to its end. O(1)."""
        with self._guard:
            loaded = self._loaded.get(version, {})
            loaded.pop(path, None)
            if not loaded:
                self._loaded.pop(version, None)

    def retain(self, paths: Iterable[str]) -> None:
        """Forget all files but these. O(paths), where there are deleted rows at all."""
        with self._guard:
            known = {path for loaded in self._loaded.values() for path in loaded}
        if not known:
            return
        needed = known.intersection(paths)
        with self._guard:
            left = {
                version: {path: rows for path, rows in loaded.items() if path in needed}
                for version, loaded in self._loaded.items()
            }
            self._loaded = {version: loaded for version, loaded in left.items() if loaded}

    def _known(self, version: int, path: str) -> DeletedRows | None:
        with self._guard:
            return self._loaded.get(version, {}).get(path)

    def _read(self, version: int, table: deltalake.DeltaTable) -> dict[str, DeletedRows]:
        found: dict[str, DeletedRows] = {}
        if "deletionVectors" not in (table.protocol().reader_features or ()):
            return found
        base = path_in_table(table.table_uri).rstrip("/") + "/"
        try:
            for batch in pa.RecordBatchReader.from_stream(table.deletion_vectors()):
                for path, is_left in zip(batch["filepath"].to_pylist(), batch["selection_vector"], strict=True):
                    deleted = np.flatnonzero(~is_left.values.to_numpy(zero_copy_only=False))
                    found[path_in_table(path).removeprefix(base)] = DeletedRows.of_rows(deleted)
        except DeltaError as error:
            raise UnsupportedOperationError(
                f"{self._title}, version {version}: its deletion vectors cannot be read ({error}). Read it with "
                "spark.readStream.format('delta'), or purge them (REORG TABLE ... APPLY (PURGE))"
            ) from None
        return found

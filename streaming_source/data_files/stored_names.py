"""Columns that a file has under other names than a query, found by these names or by the ids of their fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from alignment import arrow_compute as pc
from streaming_source.data_files.file import StoredColumn

_FIELD_ID: Final = b"PARQUET:field_id"

_NONE: Final[Mapping[str, StoredColumn]] = {}


@dataclass(frozen=True, slots=True)
class StoredNames:
    """Translates between the names of columns in a query and in a file, by what `DataFile.stored` has."""

    columns: Mapping[str, StoredColumn]

    def known_as(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of a file under the query's names, without those that are not in `columns`."""
        return pa.schema([_known_as(schema[index], name, column) for name, column, index in self._found(schema)])

    def stored_as(self, schema: pa.Schema, names: Sequence[str]) -> list[str]:
        """Return the names that a file has for these columns of the query."""
        return [schema[index].name for name, _, index in self._found(schema) if name in names]

    def path_in(self, schema: pa.Schema, dotted: str) -> str:
        """Translate a dotted path through structs to the names in a file; a path without a column stays as it is."""
        columns, fields, rest, found = self.columns, list(schema), dotted, []
        while rest:
            # As with any path the longest name goes first.
            name = max((n for n in columns if rest == n or rest.startswith(f"{n}.")), key=len, default=None)
            index = None if name is None else _index_of(fields, columns[name])
            if name is None or index is None:
                return dotted
            found.append(fields[index].name)
            fields = list(fields[index].type) if pa.types.is_struct(fields[index].type) else []
            columns, rest = columns[name].inner, rest.removeprefix(name).lstrip(".")
        return ".".join(found)

    def renamed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch of a file under the query's names. No value is copied."""
        arrays, fields = [], []
        for name, column, index in self._found(batch.schema):
            array = batch.column(index)
            field = _known_as(batch.schema[index], name, column)
            arrays.append(_retyped(array, field.type, column))
            fields.append(field)
        if not arrays:
            # A batch that is made of no arrays has no rows.
            return batch.select([])
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def _found(self, schema: pa.Schema) -> Iterator[tuple[str, StoredColumn, int]]:
        fields = list(schema)
        for name, column in self.columns.items():
            if (index := _index_of(fields, column)) is not None:
                yield name, column, index


def _index_of(fields: Sequence[pa.Field], column: StoredColumn) -> int | None:
    """Return the index of a column among the fields of a file; None if it is not there."""
    for index, field in enumerate(fields):
        if column.field_id is None:
            if field.name == column.name:
                return index
        elif (field.metadata or {}).get(_FIELD_ID) == str(column.field_id).encode():
            return index
    if column.aliases and not any(_FIELD_ID in (field.metadata or {}) for field in fields):
        return next((index for index, field in enumerate(fields) if field.name in column.aliases), None)
    return None


def _inner_fields(kind: pa.DataType, columns: Mapping[str, StoredColumn]) -> list[tuple[str, StoredColumn | None, int]]:
    """Return name in the query, column and index of each field of a struct that is read."""
    fields = [kind.field(index) for index in range(kind.num_fields)]
    if not columns:
        return [(field.name, None, index) for index, field in enumerate(fields)]
    found = [(name, column, _index_of(fields, column)) for name, column in columns.items()]
    return [(name, column, index) for name, column, index in found if index is not None]


def _known_as(field: pa.Field, name: str, column: StoredColumn | None) -> pa.Field:
    kind = field.type if column is None else _type_of(field.type, column.inner)
    return pa.field(name, kind, field.nullable)


def _type_of(kind: pa.DataType, inner: Mapping[str, StoredColumn]) -> pa.DataType:
    types = pa.types
    if not inner:
        return kind
    if types.is_struct(kind):
        return pa.struct([_known_as(kind.field(index), name, col) for name, col, index in _inner_fields(kind, inner)])
    if types.is_list(kind) or types.is_large_list(kind):
        value = _known_as(kind.value_field, kind.value_field.name, inner.get("element"))
        return pa.list_(value) if types.is_list(kind) else pa.large_list(value)
    if types.is_map(kind):
        key = _known_as(kind.key_field, kind.key_field.name, inner.get("key"))
        return pa.map_(key, _known_as(kind.item_field, kind.item_field.name, inner.get("value")))
    return kind


def _retyped(array: pa.Array, kind: pa.DataType, column: StoredColumn | None) -> pa.Array:
    """Return the same values in a type whose inner fields have other names."""
    inner = _NONE if column is None else column.inner
    if array.type.equals(kind) or not inner:
        return array
    types = pa.types
    mask = array.is_null() if array.null_count else None
    if types.is_struct(kind):
        parts = [
            _retyped(pc.struct_field(array, [index]), kind.field(number).type, col)
            for number, (_, col, index) in enumerate(_inner_fields(array.type, inner))
        ]
        fields = [kind.field(number) for number in range(kind.num_fields)]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=mask)
    offsets = array.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    shifted = pc.subtract(offsets, pa.scalar(first, offsets.type))
    if types.is_map(kind):
        keys = _retyped(array.keys.slice(first, last - first), kind.key_type, inner.get("key"))
        items = _retyped(array.items.slice(first, last - first), kind.item_type, inner.get("value"))
        return pa.MapArray.from_arrays(shifted, keys, items, type=kind, mask=mask)
    values = _retyped(array.values.slice(first, last - first), kind.value_type, inner.get("element"))
    of_lists = pa.ListArray if types.is_list(kind) else pa.LargeListArray
    return of_lists.from_arrays(shifted, values, type=kind, mask=mask)

"""The columns of an Iceberg table: their types in Arrow, their ids in its files, and what a commit changes of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, TypeAlias

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from streaming_source.data_files.file import StoredColumn
from streaming_source.exceptions import UnsupportedOperationError

_PLAIN: Final[dict[type[IcebergType], pa.DataType]] = {
    BooleanType: pa.bool_(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    FloatType: pa.float32(),
    DoubleType: pa.float64(),
    DateType: pa.date32(),
    TimestampType: pa.timestamp("us"),
    TimestamptzType: pa.timestamp("us", "UTC"),
    StringType: pa.string(),
    BinaryType: pa.binary(),
}


@dataclass(frozen=True)
class IcebergColumns:
    """The columns of one schema of a table, of which a query may read some: `names`, None for all.

    `aliases` are the names of fields, by their ids, in files that have no ids.
    """

    title: str
    schema: Schema
    names: tuple[str, ...] | None = None
    aliases: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """The columns to read in Arrow's types; those that are not read may have any type.

        An `UnsupportedOperationError` names a column whose type or default value is not read.
        """
        fields = [field for field in self.schema.fields if self.names is None or field.name in self.names]
        return pa.schema([self._field(field, field.name) for field in fields])

    @cached_property
    def stored(self) -> dict[str, StoredColumn]:
        """Return where files have the columns: by the ids of their fields."""
        return {field.name: _stored(field, self.aliases) for field in self.schema.fields}

    def id_of(self, path: Sequence[str]) -> int | None:
        """Return the id of a field by a path through structs; None if there is none."""
        fields: Sequence[NestedField] = self.schema.fields
        found = None
        for name in path:
            found = next((field for field in fields if field.name == name), None)
            if found is None:
                return None
            fields = found.field_type.fields if isinstance(found.field_type, StructType) else ()
        return None if found is None else found.field_id

    def top_level(self) -> dict[int, tuple[str, IcebergType]]:
        """Id -> name and type, of the columns at the top."""
        return {field.field_id: (field.name, field.field_type) for field in self.schema.fields}

    def _field(self, field: NestedField, path: str) -> pa.Field:
        if getattr(field, "initial_default", None) is not None:
            raise UnsupportedOperationError(
                f"{self.title}: column {path!r} has a default for files that were written before it "
                "(initial-default), which is not read. Leave it out with option columns"
            )
        return pa.field(field.name, self._type(field.field_type, path))

    def _type(self, kind: IcebergType, path: str) -> pa.DataType:
        if type(kind) in _PLAIN:
            return _PLAIN[type(kind)]
        if isinstance(kind, DecimalType):
            return pa.decimal128(kind.precision, kind.scale)
        if isinstance(kind, StructType):
            return pa.struct([self._field(inner, f"{path}.{inner.name}") for inner in kind.fields])
        if isinstance(kind, ListType):
            return pa.list_(self._type(kind.element_type, f"{path}.element"))
        if isinstance(kind, MapType):
            return pa.map_(self._type(kind.key_type, f"{path}.key"), self._type(kind.value_type, f"{path}.value"))
        raise UnsupportedOperationError(
            f"{self.title}: column {path!r} has the type {kind}, which is not read. Leave it out with option columns"
        )


_Aliases: TypeAlias = Mapping[int, tuple[str, ...]]


def aliases_of(mapping: NameMapping | None) -> dict[int, tuple[str, ...]]:
    """Return the names of fields by their ids, of a table's property `schema.name-mapping.default`."""
    found: dict[int, tuple[str, ...]] = {}
    left = list(mapping or ())
    while left:
        one = left.pop()
        left += one.fields
        if one.field_id is not None:
            found[one.field_id] = tuple(one.names)
    return found


def _stored(field: NestedField, aliases: _Aliases) -> StoredColumn:
    inner = dict(_inner(field.field_type, aliases))
    return StoredColumn(field.name, field.field_id, inner, aliases.get(field.field_id, ()))


def _inner(kind: IcebergType, aliases: _Aliases) -> Iterator[tuple[str, StoredColumn]]:
    if isinstance(kind, StructType):
        for field in kind.fields:
            yield field.name, _stored(field, aliases)
    elif isinstance(kind, ListType):
        yield "element", _stored(kind.element_field, aliases)
    elif isinstance(kind, MapType):
        yield "key", _stored(kind.key_field, aliases)
        yield "value", _stored(kind.value_field, aliases)

"""Columns of one file become those of a query: what it lacks, which types widen, which values are given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa

from alignment.arrow_times import cut_nanoseconds
from streaming_source.data_files.file import StoredColumn
from streaming_source.exceptions import MalformedDataError, SchemaError


def with_given(batch: pa.RecordBatch, schema: pa.Schema, given: Mapping[str, pa.Scalar]) -> pa.RecordBatch:
    """Add the columns whose values are given to a batch of a file's own columns, in the order of `schema`."""
    if given.keys().isdisjoint(schema.names):
        return batch
    columns = [
        pa.repeat(given[name], batch.num_rows) if name in given else batch.column(batch.schema.get_field_index(name))
        for name in schema.names
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


# ---- names -----------------------------------------------------------------------------------------------------------


def found_as(path: str, found: Sequence[str], wanted: Sequence[str], case_sensitive: bool = False) -> dict[str, str]:
    """Return by the wanted names those under which a file has the columns, without columns that it lacks. O(n).

    Names of the query that differ in case alone are taken as they are written. Raises a `SchemaError` if a file has
    two names for one that is wanted.
    """
    if case_sensitive:
        return {name: name for name in wanted if name in found}
    by_key: dict[str, list[str]] = {}
    for name in found:
        by_key.setdefault(name.lower(), []).append(name)
    keys = [name.lower() for name in wanted]
    names: dict[str, str] = {}
    for name, key in zip(wanted, keys, strict=True):
        same = by_key.get(key, [])
        if len(same) > 1 and keys.count(key) > 1:
            same = [other for other in same if other == name]
        if len(same) > 1:
            raise _ambiguous(path, same)
        if same:
            names[name] = same[0]
    return names


def is_spelled_as(found: Iterable[pa.Field], wanted: Iterable[pa.Field]) -> bool:
    """Return whether a file has each wanted column, and each field in it, under exactly that name, and no other one.

    Most files do, and nothing is renamed.
    """
    by_name, keys = {field.name: field for field in found}, set[str]()
    for name in by_name:
        keys.add(name.lower())
    if len(keys) < len(by_name):
        return False
    return all(
        field.name in by_name and _is_type_spelled_as(by_name[field.name].type, field.type)
        for field in wanted
        if field.name.lower() in keys
    )


def spelled_as(path: str, found: Sequence[pa.Field], wanted: Sequence[pa.Field]) -> dict[str, StoredColumn]:
    """Return the columns of a file by the names of a query, which may differ in case, also inside of others."""
    fields = {field.name: field for field in found}
    types = {field.name: field.type for field in wanted}
    return {
        name: StoredColumn(stored, inner=_inner(path, fields[stored].type, types[name]))
        for name, stored in found_as(path, [field.name for field in found], [*types]).items()
    }


def check_distinct(path: str, fields: Iterable[pa.Field], *, case_sensitive: bool) -> None:
    """Raise a `SchemaError` if two columns, or two fields in one, have the same name."""
    seen: dict[str, str] = {}
    for field in fields:
        key = field.name if case_sensitive else field.name.lower()
        if key in seen:
            raise _ambiguous(path, [seen[key], field.name])
        seen[key] = field.name
        if parts := _parts(field.type):
            check_distinct(path, parts, case_sensitive=case_sensitive)


def _ambiguous(path: str, names: Sequence[str]) -> SchemaError:
    if len({*names}) < len(names):
        return SchemaError(f"{path} has more than one column of the name {names[0]!r}; rename them")
    return SchemaError(
        f"{path} has the columns {' and '.join(map(repr, names))}, whose names differ in case alone; rename one, or "
        "set spark.sql.caseSensitive = true (option caseSensitive)"
    )


def _is_type_spelled_as(found: pa.DataType, wanted: pa.DataType) -> bool:
    if found.num_fields == 0 or wanted.num_fields == 0:
        return True
    if pa.types.is_struct(found) or pa.types.is_struct(wanted):
        return is_spelled_as(_parts(found), _parts(wanted))
    pairs = zip(_parts(found), _parts(wanted), strict=False)
    return all(_is_type_spelled_as(one.type, other.type) for one, other in pairs)


def _inner(path: str, found: pa.DataType, wanted: pa.DataType) -> dict[str, StoredColumn]:
    """Return the fields inside of a type under other names, as `StoredColumn.inner` has them; empty for none."""
    if _is_type_spelled_as(found, wanted):
        return {}
    if pa.types.is_struct(found) and pa.types.is_struct(wanted):
        return spelled_as(path, _parts(found), _parts(wanted))
    names = ("key", "value") if pa.types.is_map(found) else ("element",)
    pairs = zip(names, _parts(found), _parts(wanted), strict=False)
    return {name: StoredColumn(name, inner=_inner(path, one.type, other.type)) for name, one, other in pairs}


def types_in(kind: pa.DataType) -> Iterator[pa.DataType]:
    """Yield a type, and all types within it."""
    yield kind
    for part in _parts(kind):
        yield from types_in(part.type)


def _parts(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields of a struct, the value of a list, or key and value of a map."""
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    if isinstance(kind, pa.BaseExtensionType) or not pa.types.is_nested(kind):
        return []
    return [kind.field(index) for index in range(kind.num_fields)]


# ---- types -----------------------------------------------------------------------------------------------------------


_LACKS_OF_FILES: Final = "Read it as a source of its own, or leave it out with pathGlobFilter"
_WIDER_OF_FILES: Final = "Write it in one type, or give the wider one in dataSchema"
_WIDER_OF_TABLE: Final = "Write the file again in the type of the table, or leave the column out with option columns"


def check_columns(path: str, found: pa.Schema, wanted: pa.Schema, *, of_table: bool) -> None:
    """Raise a `SchemaError` if a file has no column that a query reads, or one in a type that does not widen.

    A file `of_table` may lack all of them: they were added to the table after the file. The types are those of the
    table, where the file has them without annotations.
    """
    own = own_columns(found.names, wanted.names)
    if wanted.names and not own and not of_table:
        raise SchemaError(
            f"{path} has no column {wanted.names[0]!r} nor any other that is read; it has {', '.join(found.names)}. "
            f"{_LACKS_OF_FILES}"
        )
    check_distinct(path, [field for field in found if field.name in own], case_sensitive=True)
    for name in own:
        has, reads = found.field(name).type, wanted.field(name).type
        if not _widens(has, reads, of_table):
            raise SchemaError(
                f"{path} has column {name!r} as {has}; the query reads it as {reads}, which does not hold all its "
                f"values. {_WIDER_OF_TABLE if of_table else _WIDER_OF_FILES}"
            )


def own_columns(found: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """Return those of the wanted columns that a file has."""
    return [name for name in wanted if name in found]


def conformed(path: str, batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """Return a batch of a file in the columns of a query; those that the file lacks are null."""
    if batch.schema.equals(wanted):
        return batch
    columns = []
    for field in wanted:
        index = batch.schema.get_field_index(field.name)
        try:
            columns.append(
                pa.nulls(batch.num_rows, field.type) if index < 0 else _as_type(batch.column(index), field.type)
            )
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise MalformedDataError(f"{path}: column {field.name!r} does not fit {field.type}: {error}") from None
    if not columns:
        return batch.select([])
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def merged(path: str, known: pa.Schema, found: pa.Schema, *, case_sensitive: bool = False) -> pa.Schema:
    """Add the columns of one more file to those of others, also inside of structs.

    The first way to write a name stays. Of two types of a column the wider one counts.
    """
    key: Callable[[str], str] = str if case_sensitive else str.lower
    fields = {key(field.name): field for field in known}
    if (other := _merge(fields, found, key)) is not None:
        raise SchemaError(
            f"{path} has column {other.name!r} as {other.type}, others as {fields[key(other.name)].type}: neither "
            "holds the other. Write it in one type"
        )
    return pa.schema(list(fields.values()))


def _merge(fields: dict[str, pa.Field], found: Iterable[pa.Field], key: Callable[[str], str]) -> pa.Field | None:
    """Add what was found to the fields that are known by name; return the first whose type does not fit, if any."""
    for field in found:
        known = fields.get(key(field.name), field)
        kind = _merged_type(known.type, field.type, key)
        if kind is None:
            return field
        fields[key(field.name)] = known.with_type(kind)
    return None


def _merged_type(known: pa.DataType, found: pa.DataType, key: Callable[[str], str]) -> pa.DataType | None:
    """Return a type that holds the values of both; None if neither holds those of the other."""
    types = pa.types
    if types.is_struct(known) and types.is_struct(found):
        fields = {key(field.name): field for field in known}
        return pa.struct(list(fields.values())) if _merge(fields, found, key) is None else None
    if _is_list(known) and _is_list(found):
        value = _merged_type(known.value_type, found.value_type, key)
        return None if value is None else pa.list_(known.value_field.with_type(value))
    if types.is_map(known) and types.is_map(found):
        of_keys = _merged_type(known.key_type, found.key_type, key)
        item = _merged_type(known.item_type, found.item_type, key)
        return None if of_keys is None or item is None else pa.map_(of_keys, item)
    if _widens(known, found):
        return found
    return known if _widens(found, known) else None


def names_in(fields: Iterable[pa.Field]) -> tuple[str, ...]:
    """Return the names of columns, each before those of the fields in it as dotted paths, also in lists and maps."""
    found: list[str] = []
    for field in fields:
        found.append(field.name)
        if pa.types.is_nested(field.type):
            found += [f"{field.name}.{name}" for name in names_in(_fields_in(field.type))]
    return tuple(found)


def _fields_in(data_type: pa.DataType) -> list[pa.Field]:
    if pa.types.is_struct(data_type):
        return list(data_type)
    if _is_list(data_type):
        return _fields_in(data_type.value_type)
    return _fields_in(data_type.item_type) if pa.types.is_map(data_type) else []


def _as_type(column: pa.Array, data_type: pa.DataType) -> pa.Array:
    if column.type == data_type:
        return column
    # Not by the cast, which refuses times that are finer than microseconds.
    return cut_nanoseconds(column).cast(data_type)


def _is_bare(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a type of Parquet lacks what it is annotated with in newer files: Spark reads the wanted one.

    Text without its character set, small numbers without their width, moments without the flag of UTC.
    """
    types = pa.types
    if types.is_timestamp(found) and types.is_timestamp(wanted):
        return found.tz is None and wanted.tz is not None
    if types.is_int8(wanted) or types.is_int16(wanted):
        return bool(types.is_int32(found))
    return _is_bytes(found) and _is_text(wanted)


def _widens(found: pa.DataType, wanted: pa.DataType, of_table: bool = False) -> bool:
    """Return whether `wanted` holds all values of `found`: as Spark's readers widen types, and for other encodings."""
    types = pa.types
    if of_table and _is_bare(found, wanted):
        return True
    if types.is_dictionary(found) or types.is_dictionary(wanted):
        values = [kind.value_type if types.is_dictionary(kind) else kind for kind in (found, wanted)]
        return _widens(values[0], values[1], of_table)
    if found == wanted or types.is_null(found):
        return True
    if (_is_text(found) and _is_text(wanted)) or (_is_bytes(found) and _is_bytes(wanted)):
        return True
    if types.is_struct(found) and types.is_struct(wanted):
        return all(
            _widens(found.field(own).type, wanted.field(own).type, of_table)
            for own in {f.name for f in found} & {f.name for f in wanted}
        )
    if _is_list(found) and _is_list(wanted):
        return _widens(found.value_type, wanted.value_type, of_table)
    if types.is_map(found) and types.is_map(wanted):
        of_keys = _widens(found.key_type, wanted.key_type, of_table)
        return of_keys and _widens(found.item_type, wanted.item_type, of_table)
    if types.is_timestamp(found) and types.is_timestamp(wanted):
        units = ["s", "ms", "us", "ns"]
        finer = units.index(found.unit) <= units.index(wanted.unit) or wanted.unit == "us"
        return bool(finer and (found.tz is None) == (wanted.tz is None))
    if types.is_integer(found) and types.is_integer(wanted):
        wider = found.bit_width < wanted.bit_width
        return bool(wider and (types.is_unsigned_integer(found) or types.is_signed_integer(wanted)))
    if types.is_floating(wanted):
        exact = 53 if wanted.bit_width == 64 else 24 if wanted.bit_width == 32 else 11
        is_small = types.is_integer(found) and found.bit_width <= exact
        return bool(is_small or (types.is_floating(found) and found.bit_width < wanted.bit_width))
    if types.is_date(found) and types.is_timestamp(wanted):
        return wanted.tz is None
    if types.is_integer(found) and types.is_decimal(wanted):
        digits = len(str((1 << found.bit_width - types.is_signed_integer(found)) - 1))
        return bool(wanted.precision - wanted.scale >= digits)
    if types.is_decimal(found) and types.is_decimal(wanted):
        whole, more = found.precision - found.scale, wanted.precision - wanted.scale
        return bool(found.scale <= wanted.scale and whole <= more)
    return False


def _is_text(data_type: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_string(data_type) or types.is_large_string(data_type) or types.is_string_view(data_type))


def _is_bytes(data_type: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_binary(data_type) or types.is_large_binary(data_type) or types.is_binary_view(data_type))


def _is_list(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_list(data_type) or pa.types.is_large_list(data_type))

"""The columns of a Delta table: their names in its files, the values of its partitions, and what a commit changes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable, Schema

from alignment import arrow_compute as pc
from alignment.time_texts import UTC, parse_iso8601
from streaming_source.data_files.file import StoredColumn
from streaming_source.exceptions import MalformedDataError, OptionError, UnsupportedOperationError
from streaming_source.from_data import as_json

_PHYSICAL: Final = "delta.columnMapping.physicalName"
_MODE: Final = "delta.columnMapping.mode"


@dataclass(frozen=True)
class DeltaColumns:
    """The columns of one version.

    `schema_json` is the schema as the log has it, `partition_columns` are those in the names of directories,
    `configuration` the table's properties. `zone` is that of times of partitions that are written without one; None
    if it is not known.
    """

    schema_json: str
    partition_columns: tuple[str, ...] = ()
    configuration: tuple[tuple[str, str], ...] = ()
    zone: str | None = None

    @staticmethod
    def of_action(metadata: Mapping[str, Any]) -> DeltaColumns:
        """Take them from a `metaData` action of the log."""
        configuration = tuple(sorted((metadata.get("configuration") or {}).items()))
        return DeltaColumns(metadata["schemaString"], tuple(metadata.get("partitionColumns") or ()), configuration)

    @staticmethod
    def of_table(table: DeltaTable, zone: str | None = None) -> DeltaColumns:
        """Take them from the version that is loaded."""
        metadata = table.metadata()
        configuration = tuple(sorted(metadata.configuration.items()))
        return DeltaColumns(table.schema().to_json(), tuple(metadata.partition_columns), configuration, zone)

    @cached_property
    def schema(self) -> pa.Schema:
        """In Arrow's types, under the names that users see."""
        return pa.schema([_bare(field) for field in pa.schema(Schema.from_json(self.schema_json))])

    @cached_property
    def stored(self) -> dict[str, StoredColumn] | None:
        """Return where files have the columns, nested ones too; None where they have them under the same names."""
        if dict(self.configuration).get(_MODE, "none") == "none":
            return None
        return {field["name"]: _stored(field) for field in as_json(self.schema_json)["fields"]}

    def physical(self, path: Sequence[str]) -> list[str]:
        """Return a path through structs by its names in files and statistics."""
        columns: Mapping[str, StoredColumn] = self.stored or {}
        found = []
        for name in path:
            column = columns.get(name)
            found.append(name if column is None else column.name)
            columns = {} if column is None else column.inner
        return found

    def by_physical_name(self) -> dict[str, tuple[str, pa.DataType]]:
        """Name in files -> name that users see, and type: of the columns at the top."""
        return {self.physical([field.name])[0]: (field.name, field.type) for field in self.schema}

    # ---- partition values --------------------------------------------------------------------------------------------

    def given(self, values: Mapping[str, str | None], path: str, read: Collection[str]) -> dict[str, pa.Scalar]:
        """Return those columns of a file's partition that are read by their names for users, from the log's texts.

        The file of another version may be partitioned otherwise than the table is now: it has other columns itself.
        """
        return {name: self.values(name, [values], path)[0] for name in read if self.is_partition(name, values)}

    def is_partition(self, name: str, values: Mapping[str, str | None]) -> bool:
        """Return whether the partition of a file has a column."""
        return bool(values) and (name in values or self.physical([name])[0] in values)

    def values(self, name: str, partitions: Sequence[Mapping[str, str | None]], path: str) -> pa.Array:
        """Return a column of partitions, from the texts in the log; `path` is a file of them."""
        stored, kind = self.physical([name])[0], self.schema.field(name).type
        if pa.types.is_binary(kind):
            raise UnsupportedOperationError(
                f"{unquote(path)}: partition column {name!r} is {kind}, whose values writers put down in several ways; "
                "leave it out with option columns, or out of the partitioning"
            )
        texts = pa.array([values.get(stored, values.get(name)) for values in partitions], pa.string())
        # The protocol writes null as an empty text too.
        texts = pc.if_else(pc.equal(texts, ""), None, texts)
        try:
            if is_moment(kind):
                return self._moments(name, texts, kind)
            if pa.types.is_timestamp(kind):
                texts = pc.replace_substring_regex(texts, r"(?i)(Z|\+00:?00)$", "")
            return texts.cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise MalformedDataError(
                f"{unquote(path)}: the value of the partition column {name!r} is no {kind}: {error}; correct the table"
            ) from None

    def _moments(self, name: str, texts: pa.Array, kind: pa.DataType) -> pa.Array:
        """`2024-01-31 10:00:00[.ffffff]` as Spark and deltalake write it, or ISO-8601 with a zone, as newer ones do."""
        zoneless = pc.invert(pc.match_substring_regex(texts, HAS_ZONE))
        if self.zone is None and pc.any(zoneless).as_py():
            example = texts.filter(zoneless)[0].as_py()
            raise OptionError(
                f"option timeZone is missing: the partition column {name!r} has times without a zone, as {example!r}, "
                "and readStream.format does not know that of the session.\nAdd .option('timeZone', 'UTC'), or the zone "
                "that they are in; or load with read_stream(spark), which takes that of the session"
            )
        times, valid = parse_iso8601(texts, self.zone or UTC)
        if not (known := valid | texts.is_null().to_numpy(zero_copy_only=False)).all():
            raise pa.ArrowInvalid(texts.filter(pa.array(~known))[0].as_py())
        return pa.array(times, pa.int64(), mask=~valid).cast(kind)


HAS_ZONE: Final = r"(?i)(Z|[+-]\d\d:?(\d\d)?)$"
"""The end of the text of a time with a zone."""


def is_moment(kind: pa.DataType) -> bool:
    """Return whether a column is of moments, and not of local times."""
    return pa.types.is_timestamp(kind) and kind.tz is not None


def _bare(field: pa.Field) -> pa.Field:
    """A field without its metadata in the log."""
    kind, types = field.type, pa.types
    if types.is_struct(kind):
        kind = pa.struct([_bare(inner) for inner in kind])
    elif types.is_list(kind):
        kind = pa.list_(_bare(kind.value_field))
    elif types.is_map(kind):
        kind = pa.map_(_bare(kind.key_field), _bare(kind.item_field))
    return pa.field(field.name, kind, field.nullable)


def _stored(field: Mapping[str, Any]) -> StoredColumn:
    metadata = field.get("metadata") or {}
    return StoredColumn(metadata.get(_PHYSICAL, field["name"]), inner=dict(_inner(field["type"])))


def _inner(kind: Any) -> Iterator[tuple[str, StoredColumn]]:
    if not isinstance(kind, dict):
        return
    if kind["type"] == "struct":
        for field in kind["fields"]:
            yield field["name"], _stored(field)
    elif kind["type"] == "array":
        yield "element", StoredColumn("element", inner=dict(_inner(kind["elementType"])))
    elif kind["type"] == "map":
        yield "key", StoredColumn("key", inner=dict(_inner(kind["keyType"])))
        yield "value", StoredColumn("value", inner=dict(_inner(kind["valueType"])))

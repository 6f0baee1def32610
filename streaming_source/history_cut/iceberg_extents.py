"""Which offsets the files of an Iceberg table have, by its manifests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyiceberg.table import Table

from alignment.timestamps import RecordTimestampAssigner
from streaming_source.connectors.iceberg.columns import IcebergColumns, aliases_of
from streaming_source.connectors.iceberg.lister import IcebergLister
from streaming_source.connectors.iceberg.locations import located_files
from streaming_source.connectors.tables.files import FILES, TableFile
from streaming_source.connectors.tables.lister import Start
from streaming_source.data_files.stores import NO_STORAGE_OPTIONS
from streaming_source.history_cut.extent import Columns, Extent, Statistics, check_columns, extent_of_file

__all__ = ["of_iceberg"]


def of_iceberg(table: Table, columns: Columns) -> Iterator[Extent]:
    """Yield the files of the current snapshot; none of them is opened, but delete files are."""
    name = ".".join(table.name())
    check_columns(name, [field.name for field in table.schema().fields], columns)
    snapshot = table.current_snapshot()
    if snapshot is None:
        return
    known = IcebergColumns(f"Iceberg table {name}", table.schema(), columns, aliases_of(table.name_mapping()))
    schema = pa.schema([known.arrow_schema.field(column) for column in columns])
    filesystem = located_files(NO_STORAGE_OPTIONS, {**table.io.properties})
    lister = IcebergLister(
        title=known.title,
        table=table,
        reload=lambda _: table,
        start=lambda *_: Start(snapshot.snapshot_id),
        columns=lambda _: known,
        files=filesystem,
        schema=schema,
        # Event times are not looked at.
        assigner=RecordTimestampAssigner(),
        schema_evolution="ignore",
    )
    statistics = {row["file_path"]: row for row in table.inspect.files().to_pylist() if row["content"] == 0}
    for row in lister.snapshot(snapshot.snapshot_id).select(FILES.names).to_pylist():
        of_file = statistics[row["path"]]

        def of_column(name: str, metrics: Mapping[str, Any] = of_file["readable_metrics"]) -> Statistics:
            found = metrics.get(name) or {}
            return found.get("lower_bound"), found.get("upper_bound"), found.get("null_value_count")

        file = lister.data_file(TableFile(**row))
        yield extent_of_file(filesystem, file, of_file["record_count"], schema, of_column)

"""Which offsets the files of a Delta table have, by its log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from alignment.timestamps import RecordTimestampAssigner
from streaming_source.connectors.delta import DeltaSource
from streaming_source.connectors.tables.files import FILES, TableFile
from streaming_source.history_cut.extent import Columns, Extent, Statistics, check_columns, extent_of_file

__all__ = ["of_delta"]

_KINDS: Final = ("min", "max", "null_count")


def of_delta(path: str, columns: Columns) -> Iterator[Extent]:
    """Yield the files of a table as it is now; no file is opened."""
    source = DeltaSource(path)
    schema = source.table_schema()
    check_columns(path, schema.names, columns)
    schema = pa.schema([schema.field(name) for name in columns])
    # Event times are not looked at.
    lister = source.open_lister(schema, RecordTimestampAssigner())
    version = lister.start().version
    stored = {name: lister.name_in_files(name) for name in columns}
    filesystem = source.open_files()
    statistics = {row["path"]: row for row in lister.statistics(version).to_pylist()}
    for row in lister.snapshot(version).select(FILES.names).to_pylist():
        of_file = statistics[row["path"]]

        def of_column(name: str, of_file: Mapping[str, Any] = of_file) -> Statistics:
            low, high, nulls = (of_file.get(f"{kind}.{stored[name]}") for kind in _KINDS)
            return low, high, nulls

        file = lister.data_file(TableFile(**row))
        yield extent_of_file(filesystem, file, of_file["num_records"] or -1, schema, of_column)

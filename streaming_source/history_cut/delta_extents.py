"""Which offsets the files of a Delta table have, by its log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from alignment.timestamps import RecordTimestampAssigner
from streaming_source.connectors.delta import DeltaSource
from streaming_source.connectors.tables.lister import FILES, TableFile
from streaming_source.history_cut.extent import Columns, Extent, check_columns, extent_of, reader_of_file

__all__ = ["of_delta"]

_BOUNDS: Final = ("min", "max")


def of_delta(path: str, columns: Columns) -> Iterator[Extent]:
    """Yield the files of a table as it is now; no file is opened."""
    source = DeltaSource(path)
    schema = source.table_schema()
    check_columns(path, schema.names, columns)
    schema = pa.schema([schema.field(name) for name in columns])
    # Event times are not looked at.
    lister = source.open_lister(schema, RecordTimestampAssigner())
    version = lister.begin().version
    stored = {name: lister.name_in_files(name) for name in columns}
    filesystem = source.open_files()
    statistics = {row["path"]: row for row in lister.statistics(version).to_pylist()}
    for row in lister.snapshot(version).select(FILES.names).to_pylist():
        file, known = lister.data_file(TableFile(**row)), statistics[row["path"]]
        ranges, nulls = [], []
        for name in columns:
            if name in file.given:
                ranges.append((file.given[name].as_py(),) * 2)
                continue
            ranges.append(tuple(known.get(f"{kind}.{stored[name]}") for kind in _BOUNDS))
            nulls.append(known.get(f"null_count.{stored[name]}"))
        piece, rows = reader_of_file(filesystem, file, schema), known["num_records"] or -1
        # The statistics of a file include the rows of it that are deleted.
        yield Extent(piece, rows) if file.deleted is not None else extent_of(piece, rows, ranges, nulls)

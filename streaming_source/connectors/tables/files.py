"""A file of a table, whatever its format, and files as columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

__all__ = ["FILES", "LISTED", "TableFile", "files_of"]

FILES: Final = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("version", pa.int64(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("low_us", pa.int64()),
        pa.field("high_us", pa.int64()),
        pa.field("detail", pa.string(), nullable=False),
    ]
)
"""Files as columns: a table has a million of them. See `TableFile`."""

LISTED: Final = pa.schema([*FILES, pa.field("rows", pa.int64()), pa.field("complete", pa.bool_(), nullable=False)])
"""The files of a lister, in the order in which Spark's own source reads them.

`rows` is how many rows the table has of a file, null where that is not known; `complete` is true where the table's
metadata show that each of them has an event time.
"""


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of a table, as its metadata have it.

    Attributes
    ----------
    path
        As the table writes it. With the version it names the file for good: offsets have both.
    version
        Of the snapshot for its files, else of the commit that added the file.
    size
        In bytes.
    low_us, high_us
        No valid event time in the file is before or after these, in microseconds; they need not be reached.
        `MAX_WATERMARK` and `NO_TIMESTAMP` where no record has a valid one. Both are None where the metadata lack them:
        then the file's own footer is read.
    detail
        What else the lister needs to describe the file with `TableLister.data_file` after a restart, in its own words:
        partition values, delete files. It is in the offset as long as the file is read: keep it short.
    """

    path: str
    version: int
    size: int
    low_us: int | None
    high_us: int | None
    detail: str = ""


def files_of(files: list[TableFile]) -> pa.Table:
    """Return files as columns, for a lister that has them one by one."""
    columns = [[getattr(file, name) for file in files] for name in FILES.names]
    return pa.Table.from_arrays([pa.array(c, f.type) for c, f in zip(columns, FILES, strict=True)], schema=FILES)

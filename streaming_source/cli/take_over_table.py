"""Taking over the checkpoint of a query that read a table with Spark's own source, whatever the table's format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from streaming_source.cli.copied_checkpoint import CopiedCheckpoint, state_at
from streaming_source.connectors.tables.checkpoint import TableCheckpoint
from streaming_source.connectors.tables.files import FILES, TableFile
from streaming_source.connectors.tables.source import TableSource
from streaming_source.connectors.tables.split import TableSplit
from streaming_source.connectors.tables.waiting import Progress
from streaming_source.exceptions import OffsetError, UnsupportedOperationError
from streaming_source.spark.offsets import OffsetCodec

__all__ = ["TakenOverTable", "Unread", "take_over_table", "unread_files"]

_FILES: Final = 500
"""Most files, unread by Spark's source, that an offset may have; all of them are in work."""


@dataclass(frozen=True, slots=True)
class TakenOverTable:
    """Where a query continues: the number of its first micro-batch, and unread files of the last version."""

    next_batch: int
    version: int
    files: int


@dataclass(frozen=True, slots=True)
class Unread:
    """What Spark's source has not read: these files of the versions up to `after`, and what is committed after it."""

    table_id: str
    after: int
    files: list[TableFile]


def take_over_table(
    checkpoint: str, new_checkpoint: str, number: int, source: TableSource, unread: Callable[[str], Unread]
) -> TakenOverTable:
    """Copy the checkpoint of a stopped query, with offsets of `source` in place of those of its source `number`.

    `unread` is what an offset of Spark's source, as text, leaves to read. Raises an `OffsetError` if the last
    micro-batch was not committed, or the query has read nothing yet, and what `CopiedCheckpoint` raises.
    """
    copied = CopiedCheckpoint(checkpoint, new_checkpoint, number)
    if copied.is_read_again:
        # No offset of ours has its files unread: the last one has them read, and earlier ones do not list them.
        raise OffsetError(
            f"checkpoint {checkpoint!r}: micro-batch {copied.next_batch} was planned and not committed. Start the old "
            "query with Trigger.AvailableNow, let it end, and take it over then"
        )
    if (last := copied.last_offset) is None:
        raise OffsetError(f"checkpoint {checkpoint!r} has no offset of source {number}: the query has read nothing yet")
    left = unread(last)
    state = TableCheckpoint(left.table_id, Progress(left.after))

    def encode(sequence: int, _: str, watermark_ms: int) -> object:
        # Where the query goes on, also in the offset before that: what it names may be gone from the table.
        return OffsetCodec(source).encode(state_at(sequence, map(TableSplit, left.files), watermark_ms, state))

    copied.write(encode)
    return TakenOverTable(copied.next_batch, left.after, len(left.files))


def unread_files(title: str, version: int, listed: pa.Table, first: int) -> list[TableFile]:
    """Return the files of a version from number `first` on, in the order in which Spark's source reads them.

    Without bounds, which files in work do not need. An `UnsupportedOperationError` if they are too many for an offset.
    """
    left = listed.slice(first)
    if left.num_rows > _FILES:
        raise UnsupportedOperationError(
            f"{title}: {left.num_rows} files of version {version} were not read yet, and an offset of ours takes "
            f"{_FILES} of them. Let the old query read on, or start the new one with another checkpointLocation, which "
            "reads the table by event time"
        )
    rows = left.select([name for name in FILES.names if name not in ("low_us", "high_us")]).to_pylist()
    return [TableFile(**row, low_us=None, high_us=None) for row in rows]

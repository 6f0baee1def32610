"""Taking over the checkpoint of a query that read a table with Spark's own source, whatever the table's format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from alignment.timestamps import RecordTimestampAssigner
from streaming_source.auditing.sources.table_reads import TableReads
from streaming_source.checkpoint.source_offsets import TableOffset, table_offset
from streaming_source.cli.copied_checkpoint import GIVE_NUMBER, CopiedCheckpoint, state_at
from streaming_source.connectors.tables.checkpoint import TableCheckpoint
from streaming_source.connectors.tables.files import FILES, TableFile
from streaming_source.connectors.tables.lister import TableLister
from streaming_source.connectors.tables.source import TableSource
from streaming_source.connectors.tables.split import TableSplit
from streaming_source.connectors.tables.waiting import Progress
from streaming_source.exceptions import DataLossError, OffsetError, OptionError, UnsupportedOperationError
from streaming_source.spark.offsets import OffsetCodec

_FILES: Final = 500
"""Most files, unread by Spark's source, that an offset may have; all of them are in work."""


@dataclass(frozen=True, slots=True)
class TakenOverTable:
    """The place where a query continues: the number of its first micro-batch, and unread files of the last version."""

    next_batch: int
    version: int
    files: int


def take_over_table(checkpoint: str, new_checkpoint: str, table: TableSource, *, source: int = 0) -> TakenOverTable:
    """Copy the checkpoint of a stopped query, with offsets of ours for those of Spark's own source over a table.

    Numbers of micro-batches, the query's id, its watermark and its state are kept, so that sinks recognise what they
    have. The old checkpoint is not changed. The query over an Iceberg table had neither branch nor tag.

    Parameters
    ----------
    checkpoint, new_checkpoint
        A path each, or a URI that `pyarrow.fs` knows; the new checkpoint must not exist yet.
    table
        The table, as the new query loads it: the checkpoint names only its id, or its snapshots.
    source
        Number of the query's source, counted from 0 as in its progress.

    Raises
    ------
    OptionError
        If there is no such checkpoint, the new one exists, or the table is another one or cannot be loaded.
    OffsetError
        If the checkpoint is of no query over Spark's source of that format, its last micro-batch was not committed, or
        it is at a version that is not known any more.
    UnsupportedOperationError
        If more than 500 files of a version are unread: our offsets cannot hold the order in which Spark reads them.
    """
    copied = CopiedCheckpoint(checkpoint, new_checkpoint, source)
    if copied.is_read_again:
        # No offset of ours has its files unread: the last one has them read, and earlier ones do not list them.
        raise OffsetError(
            f"checkpoint {checkpoint!r}: micro-batch {copied.next_batch} was planned and not committed. Start the old "
            "query with Trigger.AvailableNow, let it end, and take it over then"
        )
    if (last := copied.last_offset) is None:
        raise OffsetError(f"checkpoint {checkpoint!r} has no offset of source {source}: the query has read nothing yet")
    offset = table_offset(table.name.removeprefix("aligned_"), last, GIVE_NUMBER)
    # Bounds of event times are not needed: files that are not all read are in work.
    lister = table.open_lister(table.schema(), RecordTimestampAssigner())
    if offset.table_id not in (None, lister.table_id):
        raise OptionError(
            f"the {table.title} has the id {lister.table_id}, and the checkpoint is of the table {offset.table_id}; "
            "give the folder of that one"
        )
    left = _unread(checkpoint, table, lister, offset)
    state = TableCheckpoint(lister.table_id, Progress(offset.version))

    def encode(sequence: int, _: str, watermark_ms: int) -> object:
        # Where the query goes on, also in the offset before that: what it names may be gone from the table.
        return OffsetCodec(table).encode(state_at(sequence, map(TableSplit, left), watermark_ms, state))

    copied.write(encode)
    return TakenOverTable(copied.next_batch, offset.version, len(left))


def _unread(checkpoint: str, table: TableSource, lister: TableLister, offset: TableOffset) -> list[TableFile]:
    """Return the files of the offset's version that are not read, without bounds, which files in work do not need."""
    # What a Delta query reads of commits that change rows is not in its checkpoint; Iceberg's reads nothing of them.
    reads_changes = None if offset.table_id is not None else False
    try:
        left = TableReads(lister, reads_changes=reads_changes).rest(offset)
    except DataLossError as error:
        raise OffsetError(
            f"checkpoint {checkpoint!r} is at version {offset.version}: {str(error).partition('. ')[0]}, or the query "
            "reads another table. Give that one, or start the new query with another checkpointLocation"
        ) from None
    if left.num_rows > _FILES:
        raise UnsupportedOperationError(
            f"{table.title}: {left.num_rows} files of version {offset.version} were not read yet, and an offset of "
            f"ours takes {_FILES} of them. Let the old query read on, or start the new one with another "
            "checkpointLocation, which reads the table by event time"
        )
    names = [name for name in FILES.names if name not in ("low_us", "high_us")]
    return [TableFile(**row, low_us=None, high_us=None) for row in left.select(names).to_pylist()]

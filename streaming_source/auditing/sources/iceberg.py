"""Iceberg's source in Spark: each micro-batch's files by the snapshots of the table, event times from these."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from alignment.column_paths import exact_path, top_level_column
from alignment.timestamps import NO_TIMESTAMP
from streaming_source.auditing.sources.base import AuditedSource, SplitRead, TimeBlock
from streaming_source.auditing.sources.event_time import EventTime, time_column
from streaming_source.auditing.sources.files import file_blocks
from streaming_source.checkpoint.files import RESTORE
from streaming_source.checkpoint.micro_batches import Checkpoint, CommittedBatch
from streaming_source.connectors.iceberg import IcebergSource
from streaming_source.connectors.iceberg.catalog import properties_of
from streaming_source.connectors.iceberg.chain import BEFORE_ALL
from streaming_source.connectors.iceberg.spark_offset import SparkIcebergOffset
from streaming_source.connectors.tables.files import FILES, TableFile
from streaming_source.data_files.file import StoredFile
from streaming_source.data_files.formats import ParquetFormat
from streaming_source.exceptions import CheckpointError, DataLossError, OptionError

__all__ = ["IcebergTableSource"]

_CATALOG = "catalog."


class IcebergTableSource(AuditedSource):
    """An Iceberg table. A split is a data file.

    The query read what the snapshots of the main branch have added, one after the other, from the oldest one on that
    there was. Those that only compact have added nothing, as far as a stream is concerned.

    Parameters
    ----------
    checkpoint, place
        The query, and which of its sources this is.
    table
        Name of the table: the checkpoint has the ids of its snapshots only.
    options
        The catalog, as `catalog.type` and what else `pyiceberg` needs.

    Raises
    ------
    OptionError
        If `table` is None, or the catalog has no such table.
    """

    kind = "iceberg"

    def __init__(
        self,
        checkpoint: Checkpoint,
        place: int,
        event_time: EventTime,
        *,
        table: str | None,
        options: Mapping[str, str],
    ) -> None:
        if table is None:
            raise OptionError(
                f"source {place} reads an Iceberg table, and the checkpoint keeps ids of its snapshots, not its name; "
                "give it with --source db.clicks, and its catalog with -o catalog.type=rest"
            )
        self._place, self.name = place, table
        # Spark writes down where a query begins.
        begin = f"sources/{checkpoint.source_names[place]}/offsets/0"
        initial = _at(checkpoint.log.text(begin))
        if initial is None:
            raise CheckpointError(f"{checkpoint.path}/{begin}, where the query began, is missing; {RESTORE}")
        self._initial = initial
        given = {name[len(_CATALOG) :]: value for name, value in options.items() if name.startswith(_CATALOG)}
        self._source = IcebergSource(table, catalog=properties_of(given))
        self._all_columns = self._source.schema()
        self._format, self._filesystem = ParquetFormat(), self._source.open_files()
        column = event_time.column
        if column is None:
            latest_of = partial(self._latest_of, event_time)
            column = time_column(self._all_columns, checkpoint.batches, event_time, latest_of)
        self._set_time(replace(event_time, column=exact_path(self._all_columns, column)))

    @property
    def time(self) -> str:
        """The event-time column."""
        return self._column

    @property
    def format_name(self) -> str:
        """The format of the table's files."""
        return self._format.name

    def reads(self, batches: Sequence[CommittedBatch], purged_until: str | None) -> Iterator[SplitRead]:
        """Yield each file once."""
        for batch in batches:
            begin, end = (_at(offset[self._place]) for offset in (batch.starts, batch.ends))
            yield from (self._read(batch, file) for file in self._between(begin, end))
        if purged_until is not None:
            yield from (self._read(None, file) for file in self._between(None, _at(purged_until)))

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _set_time(self, time: EventTime) -> None:
        self._column = str(time.column)
        top = top_level_column(self._column, self._all_columns.names)
        if top not in self._all_columns.names:
            names = ", ".join(self._all_columns.names)
            raise OptionError(f"time = {time.column!r}: the table has no such column, it has {names}; name one of them")
        self._schema = pa.schema([self._all_columns.field(top)])
        self._assigner = time.assigner()
        self._lister = self._source.open_lister(self._schema, self._assigner)
        self._added: dict[int, list[TableFile]] = {}

    def _read(self, batch: CommittedBatch | None, file: TableFile | str) -> SplitRead:
        if isinstance(file, str):
            return SplitRead(batch, file, "", partial(_unreadable, file))
        return SplitRead(batch, file.path, posixpath.dirname(file.path), partial(self._blocks, file))

    def _blocks(self, file: TableFile) -> Iterator[TimeBlock]:
        stored = StoredFile(self._filesystem, self._lister.data_file(file))
        yield from file_blocks(self._format, stored, self._schema, self._assigner)

    def _between(self, begin: SparkIcebergOffset | None, end: SparkIcebergOffset | None) -> Iterator[TableFile | str]:
        """Yield the files that a stream read between two positions; where they are not known any more, why."""
        begin = begin or self._initial
        if end is None or begin == end:
            return
        snapshots, broken = self._lister.commits(begin.snapshot_id, end.snapshot_id).known()
        for snapshot_id in (begin.snapshot_id, *(one.version for one in snapshots)):
            if snapshot_id == BEFORE_ALL:
                continue
            if not self._lister.has_snapshot(snapshot_id):
                yield f"{self.name} has no snapshot {snapshot_id} any more: it has expired"
                continue
            first = begin.position if snapshot_id == begin.snapshot_id else 0
            last = end.position if snapshot_id == end.snapshot_id else None
            yield from self._files(snapshot_id)[first:last]
        if broken is not None:
            yield broken.why

    def _files(self, snapshot_id: int) -> list[TableFile]:
        """Return the files that a snapshot added, in the order in which Iceberg's source reads them."""
        if snapshot_id not in self._added:
            rows = self._lister.added_by(snapshot_id).select(FILES.names).to_pylist()
            self._added[snapshot_id] = [TableFile(**row) for row in rows]
        return self._added[snapshot_id]

    def _latest_of(self, time: EventTime, column: str, batch: CommittedBatch) -> int:
        self._set_time(replace(time, column=column))
        begin, end = (_at(offset[self._place]) for offset in (batch.starts, batch.ends))
        blocks = (block for file in self._between(begin, end) for block in self._read(batch, file).blocks())
        return max((int(block.load().max(initial=NO_TIMESTAMP)) for block in blocks), default=NO_TIMESTAMP)


def _unreadable(why: str) -> Iterator[TimeBlock]:
    raise DataLossError(why)


def _at(offset: str | None) -> SparkIcebergOffset | None:
    if offset is None:
        return None
    try:
        return SparkIcebergOffset.parse(offset)
    except (LookupError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"offset {offset} of an Iceberg table cannot be read ({error!r}); restore it from a copy of the checkpoint"
        ) from None

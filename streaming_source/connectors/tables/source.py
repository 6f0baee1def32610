"""The source over a table, whatever its format."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import pyarrow as pa

from alignment.time_texts import UTC, iso8601_us
from streaming_source.api import Boundedness, OptionSet, Source, SourceReaderContext, SplitEnumeratorContext
from streaming_source.connectors.tables.enumerator import TableEnumerator
from streaming_source.connectors.tables.lister import Table
from streaming_source.connectors.tables.split import (
    TableCheckpoint,
    TableCheckpointSerializer,
    TableSplit,
    TableSplitSerializer,
)
from streaming_source.data_files.faults import faults_of
from streaming_source.data_files.split_reader import FileEmitter, FileSplitReader
from streaming_source.data_files.stores import STORAGE_OPTIONS
from streaming_source.exceptions import DataLossError, OffsetError, OptionError, SchemaError

LIMIT: Final = "which files are opened follows from their event times; limit a micro-batch with maxRowsPerTrigger"
"""The advice to who limits a micro-batch by files or bytes."""

_FOREIGN: Final = {"maxFilesPerTrigger": LIMIT, "maxBytesPerTrigger": LIMIT} | dict.fromkeys(
    ("fileFormat", "dataSchema"), "a table's metadata have its columns, and its files are Parquet; leave it out"
)


@dataclass(frozen=True, kw_only=True, repr=False)
class TableSource(Table, Source[TableSplit, TableCheckpoint]):
    """A table: its snapshot, then what is committed. A format has `name`, `identity`, and what is abstract here."""

    split_serializer = TableSplitSerializer()
    enumerator_checkpoint_serializer = TableCheckpointSerializer()

    # ---- for formats -------------------------------------------------------------------------------------------------

    @abstractmethod
    def table_schema(self) -> pa.Schema:
        """Return all columns of the table now, or of the version that a batch reads."""

    def files_came(self) -> Mapping[str, int]:
        """Return by path the order in which the files came that a batch reads; files of one commit came together.

        Files that are not in it came together.
        """
        return {}

    @abstractmethod
    def _at_version(self, version: int) -> TableSource:
        """Return the source of a batch that reads this version; an `OptionError` if a stream begins elsewhere.

        A `DataLossError` if the table does not have the version any more.
        """

    def _version_gone(self, version: str, why: str) -> DataLossError:
        return DataLossError(
            f"{self.title} has no {version} any more, up to which the query had read it: {why}. Give the repairs a new "
            "checkpointLocation: they then read up to the last one that the query has read"
        )

    def for_batch_at(self, checkpoint: TableCheckpoint) -> tuple[TableSource, TableCheckpoint]:
        """Read the last version whose files were known: what of them waits is later than all closed windows."""
        assert checkpoint.progress is not None, "a state with records has looked at the table"
        return self._at_version(checkpoint.progress.last), checkpoint

    @property
    @abstractmethod
    def _as_of(self) -> dict[str, object]:
        """The options that choose the version that a batch reads, with their values; None where one is not given."""

    def time_us(self, value: datetime | str) -> int | None:
        """Convert a time that an option names to microseconds since 1970, by `time_zone` where it has no zone.

        ISO-8601 text, a date, or a `datetime`; None if it is no time.
        """
        written = value.isoformat() if isinstance(value, datetime) else value
        return iso8601_us(written, self.time_zone or UTC)

    # ---- Source ------------------------------------------------------------------------------------------------------

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED if self.bounded else Boundedness.CONTINUOUS_UNBOUNDED

    def for_stream(self) -> TableSource:
        """The table as it is now, or one version of it in a stream that ends with that."""
        as_of = next((f"{name} = {value}" for name, value in self._as_of.items() if value is not None), None)
        if as_of is not None and not self.bounded:
            raise OptionError(
                f"{as_of} is the version that a batch reads, or a stream with bounded = true, which ends with "
                "it; a stream that goes on begins with the table as it is now: leave it out"
            )
        return self

    def schema(self) -> pa.Schema:
        """The table's columns, or of these the ones to read; a `SchemaError` if `columns` has another one."""
        with faults_of(self.title):
            schema = self.table_schema()
        if self.columns is None:
            return schema
        if missing := [name for name in self.columns if schema.get_field_index(name) < 0]:
            raise SchemaError(
                f"columns: {', '.join(map(repr, missing))} are not in the {self.title}; choose among "
                f"{', '.join(schema.names)}"
            )
        return pa.schema([schema.field(name) for name in self.columns])

    def create_enumerator(self, context: SplitEnumeratorContext[TableSplit]) -> TableEnumerator:
        return self.restore_enumerator(context, TableCheckpoint(indexing=self.indexing, bounded=self.bounded))

    def restore_enumerator(
        self, context: SplitEnumeratorContext[TableSplit], checkpoint: TableCheckpoint
    ) -> TableEnumerator:
        self.for_stream()
        if checkpoint.table_id is not None and checkpoint.indexing != self.indexing:
            raise OffsetError(
                f"indexing = {self.indexing!r}: it was {checkpoint.indexing!r} when the checkpoint was written, and "
                "the order of files follows from it; give it as it was, or use a new checkpointLocation"
            )
        if checkpoint.bounded and not self.bounded:
            raise OffsetError(
                "the checkpoint is of a source with bounded = true, which ends with what the table had at its start, "
                "and closed its windows with that; without it later commits would never be read. Set bounded = true "
                "again, or use a new checkpointLocation"
            )
        return TableEnumerator(self, context, checkpoint)

    def names_finished(self, checkpoint: TableCheckpoint) -> bool:
        """Files are opened in the order of their keys, and those that are not open any more are finished."""
        return checkpoint.progress is not None

    def create_split_reader(self, context: SourceReaderContext) -> FileSplitReader[TableSplit]:
        return FileSplitReader(self.open_files(), self, context.schema, context.timestamp_assigner)

    def create_record_emitter(self, context: SourceReaderContext) -> FileEmitter[TableSplit]:
        return FileEmitter(self, context.timestamp_assigner)


def table_options(kind: type[TableSource], foreign: dict[str, str]) -> OptionSet:
    """The options of a format, and names of others with what to do instead."""
    return OptionSet.of(kind) | OptionSet(STORAGE_OPTIONS, _FOREIGN | foreign)

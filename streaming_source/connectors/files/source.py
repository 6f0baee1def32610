"""A source over files."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from streaming_source.api import (
    Boundedness,
    OptionSet,
    SimpleVersionedSerializer,
    Source,
    SourceReaderContext,
    SplitEnumeratorContext,
)
from streaming_source.connectors.files.config import FILES_OPTIONS, FilesConfig, files_arguments
from streaming_source.connectors.files.formats import ParquetFormat, StoredFile
from streaming_source.connectors.files.places.hive import partition_schema
from streaming_source.connectors.files.places.listing import ListedFile, list_files
from streaming_source.connectors.files.split import (
    FilesCheckpoint,
    FilesCheckpointSerializer,
    FileSplit,
    FileSplitSerializer,
)
from streaming_source.connectors.files.split_reader import FileSplitReader
from streaming_source.exceptions import NoDataError, NoSchemaError, OffsetError, OptionError, SchemaError

if TYPE_CHECKING:
    from streaming_source.connectors.files.enumerator import FileSplitEnumerator

__all__ = ["FileSource"]


@dataclass(frozen=True, repr=False)
class FileSource(FilesConfig, Source[FileSplit, FilesCheckpoint]):
    """Files below a directory, all of one format. The arguments are those of `FilesConfig`."""

    @staticmethod
    def options() -> OptionSet:
        """The options of `readStream.format("aligned_files")` beside those of every format."""
        return FILES_OPTIONS

    @classmethod
    def from_options(cls, values: Mapping[str, Any]) -> FileSource:
        """From parsed values of `options`.

        Raises
        ------
        OptionError
            If there is no path, or options contradict each other.
        """
        return cls(**files_arguments(values))

    @property
    def name(self) -> str:
        """See `Source`."""
        return "aligned_files"

    @property
    def identity(self) -> str:
        """See `Source`."""
        # Where a single directory is read, the same as ever.
        patterns = self.root.patterns()
        place = f"{self.split_by}:{','.join(patterns)}"
        return place if self.format == ParquetFormat() else f"{place}:{self.format.identity}"

    @property
    def boundedness(self) -> Boundedness:
        """See `Source`."""
        return Boundedness.BOUNDED if self.bounded else Boundedness.CONTINUOUS_UNBOUNDED

    def for_batch(self) -> FileSource:
        """See `Source`. Nothing is remembered, and nothing becomes of the files."""
        return replace(
            self,
            file_order="eventTime",
            max_files_per_trigger=None,
            max_bytes_per_trigger=None,
            state_location=None,
            clean_source="off",
            source_archive_dir=None,
        )

    def schema(self) -> pa.Schema:
        """The columns of the files, or those of the first one by directory and name; of these the ones to read.

        Raises
        ------
        PathNotFoundError
            If there is no such directory.
        NoDataError
            If it holds no file yet.
        NoSchemaError
            If files of this format have no names and types of columns.
        SchemaError
            If one of `columns` is not among them.
        """
        return _chosen_columns(self)

    def create_enumerator(self, context: SplitEnumeratorContext[FileSplit]) -> FileSplitEnumerator:
        """See `Source`."""
        return self._enumerator(context, FilesCheckpoint())

    def restore_enumerator(
        self, context: SplitEnumeratorContext[FileSplit], checkpoint: FilesCheckpoint
    ) -> FileSplitEnumerator:
        """See `Source`.

        Raises
        ------
        OffsetError
            If the checkpoint is of a bounded source and this one is not: that one is over, or will be.
        """
        if checkpoint.until_ms is not None and not self.bounded:
            raise OffsetError(
                "the checkpoint is of a source with bounded = true, which ends with the files that were there at its "
                "start, and closed its windows with them; without it later files would never be read. Set bounded = "
                "true again, or use a new checkpointLocation"
            )
        return self._enumerator(context, checkpoint)

    def _enumerator(
        self, context: SplitEnumeratorContext[FileSplit], checkpoint: FilesCheckpoint
    ) -> FileSplitEnumerator:
        # Either is imported when it is used, and not by tasks.
        if self.split_by == "file":
            from streaming_source.connectors.files.finite.enumerator import FiniteFileEnumerator

            return FiniteFileEnumerator(self, context, checkpoint)
        from streaming_source.connectors.files.directories import DirectoryEnumerator

        return DirectoryEnumerator(self, context, checkpoint)

    def create_split_reader(self, context: SourceReaderContext) -> FileSplitReader:
        """See `Source`."""
        return FileSplitReader(self.root.open()[0], self.reading, context.schema, self.tolerance)

    @property
    def split_serializer(self) -> SimpleVersionedSerializer[FileSplit]:
        """See `Source`."""
        return FileSplitSerializer()

    @property
    def enumerator_checkpoint_serializer(self) -> SimpleVersionedSerializer[FilesCheckpoint]:
        """See `Source`."""
        return FilesCheckpointSerializer()


def _chosen_columns(config: FilesConfig) -> pa.Schema:
    """All columns, or those that the source names; see `FileSource.schema`."""
    if config.columns is None:
        return _all_columns(config)
    try:
        schema = _all_columns(config)
    except NoSchemaError as error:
        raise OptionError(f"columns = {','.join(config.columns)} cannot be looked up: {error}") from None
    missing = [name for name in config.columns if schema.get_field_index(name) < 0]
    if missing:
        raise SchemaError(
            f"columns: {', '.join(map(repr, missing))} are not in the data; choose among {', '.join(schema.names)}"
        )
    return pa.schema([schema.field(name) for name in config.columns])


def _all_columns(config: FilesConfig) -> pa.Schema:
    """Those that are given, or those of the first file; and those in the names of directories."""
    given = config.data_schema
    if given is not None and config.recursive_file_lookup:
        return given
    first: ListedFile | None = None
    directories = set()
    for file in list_files(config.root):
        first = file if first is None else min(first, file)
        directories.add(file.directory)
    own = _columns_of_first(config, first) if given is None else given
    if config.recursive_file_lookup:
        return own
    named = partition_schema(sorted(directories), {field.name: field.type for field in given or ()})
    # As in Spark: the value of a directory goes before that of a file under the same name.
    return pa.schema(list({field.name: field for field in [*own, *named]}.values()))


def _columns_of_first(config: FilesConfig, first: ListedFile | None) -> pa.Schema:
    """Of the first file, or the first that can be read where the source goes on without others."""
    filesystem, root = config.root.open()
    if first is not None:
        with config.tolerance.tolerated():
            return config.format.schema_of(StoredFile(filesystem, posixpath.join(root, first.relative_path)))
        for file in sorted(list_files(config.root)):
            with config.tolerance.tolerated():
                return config.format.schema_of(StoredFile(filesystem, posixpath.join(root, file.relative_path)))
    raise NoDataError(
        f"path {root!r} holds no file yet whose columns could be read; add one, or give readStream a schema"
    )

"""A source over files."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa

from alignment.arrow_times import format_timestamp
from alignment.shown import log_of
from alignment.time_texts import UTC
from streaming_source.api import Boundedness, OptionSet, Source, SourceReaderContext, SplitEnumeratorContext
from streaming_source.connectors.files.config import FILES_OPTIONS, FilesConfig, files_arguments
from streaming_source.connectors.files.enumerator import FileSplitEnumerator
from streaming_source.connectors.files.given_columns import METADATA, partition_schema
from streaming_source.connectors.files.listing import ListedDirectory, ListedFile, Lister, list_files
from streaming_source.connectors.files.split import (
    FilesCheckpoint,
    FilesCheckpointSerializer,
    FileSplit,
    FileSplitSerializer,
    Remembered,
    Segment,
)
from streaming_source.data_files.evolution import found_as, merged
from streaming_source.data_files.faults import StoreRetries, faults_of
from streaming_source.data_files.file import DataFile, StoredFile
from streaming_source.data_files.formats import ParquetFormat
from streaming_source.exceptions import (
    FileGoneError,
    MalformedDataError,
    NoDataError,
    NoSchemaError,
    OffsetError,
    OptionError,
    PathNotFoundError,
    SchemaError,
)

if TYPE_CHECKING:
    from streaming_source.data_files.split_reader import FileEmitter, FileSplitReader

_log = log_of(__name__)

_RANDOM: Final = re.compile(r"(part-\d+-)?[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}")
"""The beginning of random names of files: a number that is the same in each job, and a UUID."""

_AT_ONCE: Final = 16
"""Files whose columns are read at once."""


@dataclass(frozen=True, repr=False)
class FileSource(FilesConfig, Source[FileSplit, FilesCheckpoint]):
    """Files below a directory, all of one format. The arguments are those of `FilesConfig`.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from streaming_source.connectors.files import JsonFormat
    >>> schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("user", pa.string())])
    >>> clicks = FileSource("/data/clicks", format=JsonFormat(), data_schema=schema, max_files_per_trigger=100)
    """

    name = "aligned_files"
    split_serializer = FileSplitSerializer()
    enumerator_checkpoint_serializer = FilesCheckpointSerializer()

    @staticmethod
    def options() -> OptionSet:
        """The options of `readStream.format("aligned_files")` beside those of every format."""
        return FILES_OPTIONS

    @classmethod
    def from_options(cls, values: Mapping[str, Any]) -> FileSource:
        return cls(**files_arguments(values))

    @property
    def identity(self) -> str:
        paths = ",".join(self.root.patterns())
        if self.path_glob_filter is not None:
            paths = f"{paths}:{self.path_glob_filter}"
        return paths if self.format == ParquetFormat() else f"{paths}:{self.zoned_format.identity}"

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED if self.bounded else Boundedness.CONTINUOUS_UNBOUNDED

    @property
    def keeps_records(self) -> bool:
        return self.clean_source == "off"

    @property
    def reads_zoneless_times(self) -> bool:
        # Those in names of directories are moments only where the zone is known.
        return bool(self.modified_after or self.modified_before) or self.format.in_zone(UTC) is not self.format

    def in_zone(self, zone: str) -> FileSource:
        return self if self.time_zone is not None else replace(self, time_zone=zone)

    def for_batch(self) -> FileSource:
        """Return the source for a batch read: it remembers no files, and cleans none."""
        return replace(
            self,
            file_order="eventTime",
            max_files_per_trigger=None,
            max_bytes_per_trigger=None,
            state_location=None,
            clean_source="off",
            source_archive_dir=None,
            watermark_from=None,
        )

    def for_batch_at(self, checkpoint: FilesCheckpoint) -> tuple[FileSource, FilesCheckpoint]:
        """Split the path as the stream does; finished files are remembered in the checkpoint, and not in a log."""
        remembered = checkpoint.remembered
        if remembered.log is not None and self.state_location is not None:
            # Imported here: few queries are repaired.
            from streaming_source.connectors.files.finished_log import FinishedLog

            marks = FinishedLog(checkpoint.order, self.place(self.state_location), remembered).load()
            segment = Segment((0, ""), marks.tobytes())
            remembered = replace(remembered, segments=(segment,), log=None, last=None)
        source = replace(self.for_batch(), split_by=checkpoint.split_by, bounded=False)
        if checkpoint.until_ms is not None:
            # What came after a bounded stream began is no part of it.
            source = replace(source, modified_before=format_timestamp((checkpoint.until_ms + 1) * 1000))
        return source, replace(checkpoint, remembered=remembered)

    def schema(self) -> pa.Schema:
        """Return the columns to read: of `data_schema`, of the first file by directory and name, or of all files.

        Raises a `PathNotFoundError` if there is no such directory, a `NoDataError` if it has no file yet, a
        `NoSchemaError` if files of this format have no types of columns, a `SchemaError` if `columns` names a column
        that is not there.
        """
        try:
            with faults_of(f"path {self.root.patterns()[0]!r}"):
                schema = _all_columns(self)
        except NoSchemaError as error:
            if self.columns is None:
                raise
            raise OptionError(f"columns = {','.join(self.columns)} cannot be found: {error}") from None
        if self.columns is not None:
            names = found_as("the data", schema.names, self.columns, self.case_sensitive)
            if missing := [name for name in self.columns if name not in names]:
                raise SchemaError(
                    f"columns: {', '.join(map(repr, missing))} are not in the data; choose among "
                    f"{', '.join(schema.names)}"
                )
            schema = pa.schema([schema.field(name) for name in names.values()])
        for field in (*self.format.added_columns, *([METADATA] if self.file_metadata else [])):
            if field.name in schema.names:
                raise SchemaError(
                    f"the data has a column {field.name!r} of its own, which fileMetadata or rescuedDataColumn would "
                    "add; read it without"
                )
            schema = schema.append(field)
        return schema

    def create_enumerator(self, context: SplitEnumeratorContext[FileSplit]) -> FileSplitEnumerator:
        new = FilesCheckpoint(split_by=self._layout(), order=self.file_order, by_name=self.file_name_only)
        return self.restore_enumerator(context, new)

    def restore_enumerator(
        self, context: SplitEnumeratorContext[FileSplit], checkpoint: FilesCheckpoint
    ) -> FileSplitEnumerator:
        if self.split_by not in ("auto", checkpoint.split_by):
            raise OffsetError(
                f"splitBy = {self.split_by!r}: the checkpoint is of splitBy = {checkpoint.split_by!r}, which has other "
                "splits; set that, or use a new checkpointLocation"
            )
        if checkpoint.until_ms is not None and not self.bounded:
            raise OffsetError(
                "the checkpoint is of a source with bounded = true, which ends with the files that were there at its "
                "start, and closed its windows with them; without it later files would never be read. Set bounded = "
                "true again, or use a new checkpointLocation"
            )
        # Imported here: a planner runs one of the two, and a task neither.
        if checkpoint.split_by == "file":
            from streaming_source.connectors.files.finite import FiniteFileEnumerator

            self._check_remembered(checkpoint)
            return FiniteFileEnumerator(self._begun_as(checkpoint), context, checkpoint)
        from streaming_source.connectors.files.directories import DirectoryEnumerator

        return DirectoryEnumerator(self._begun_as(checkpoint), context, checkpoint)

    def _begun_as(self, checkpoint: FilesCheckpoint) -> FileSource:
        """Return the source with `modifiedAfter` of the first start, where it names a later time now."""
        first_ms, now_ms = checkpoint.after_ms, self.root.after_ms
        if first_ms is None or now_ms is None or now_ms <= first_ms:
            return self
        return replace(self, modified_after=format_timestamp(1000 * first_ms))

    def _check_remembered(self, checkpoint: FilesCheckpoint) -> None:
        """Raise an `OffsetError` if an option has changed by which finished files are known again."""
        is_logged = self.state_location is not None
        was_logged = is_logged if checkpoint.remembered == Remembered() else checkpoint.remembered.log is not None
        for option, now, was in (
            ("fileOrder", self.file_order, checkpoint.order),
            ("fileNameOnly", self.file_name_only, checkpoint.by_name),
            # Given anew, the log begins with what the offset remembers.
            ("stateLocation is given", is_logged, was_logged or is_logged),
        ):
            if now != was:
                raise OffsetError(
                    f"{option} = {now!r}: it was {was!r} when the checkpoint was written, and finished files would be "
                    "read once more; set it as it was, or use a new checkpointLocation"
                )

    def _layout(self) -> Literal["directory", "file"]:
        if self.split_by != "auto":
            return self.split_by
        first = StoreRetries().run(self._first_directory)
        by_file = self.needs_files or first is None or any(_RANDOM.match(file.name) for file in first.files[:1])
        if by_file:
            _log.info("splitBy = auto: each file is a split, and they are read in the order %s", self.file_order)
        return "file" if by_file else "directory"

    def _first_directory(self) -> ListedDirectory | None:
        listed = Lister(self.root).list_changed()
        return next((found for found in listed if found.files or (found.path and found.is_empty)), None)

    def names_finished(self, checkpoint: FilesCheckpoint) -> bool:
        """Return where each file is a split, the offset has the marks of those that its micro-batch has finished."""
        return checkpoint.names_finished

    def create_split_reader(self, context: SourceReaderContext) -> FileSplitReader[FileSplit]:
        # Imported here: the planner does not need it.
        from streaming_source.data_files.split_reader import FileSplitReader

        return FileSplitReader(self.root.open()[0], self, context.schema, context.timestamp_assigner)

    def create_record_emitter(self, context: SourceReaderContext) -> FileEmitter[FileSplit]:
        from streaming_source.data_files.split_reader import FileEmitter

        return FileEmitter(self, context.timestamp_assigner)


def _all_columns(config: FilesConfig) -> pa.Schema:
    """Return the columns that are given, or those of the files, with those in the names of directories."""
    given = config.format.fixed_schema if config.data_schema is None else config.data_schema
    if given is not None and config.recursive_file_lookup and config.bounded:
        return given
    first: ListedFile | None = None
    directories = set()
    try:
        for file in list_files(config.root):
            first = file if first is None else min(first, file)
            directories.add(file.directory)
    except PathNotFoundError:
        # A query that has read it to its end needs it no more. Any other fails at its first listing.
        if given is None or not config.bounded:
            raise
        return given
    own = _columns_of_files(config, first) if given is None else given
    if config.recursive_file_lookup:
        return own
    named = partition_schema(
        sorted(directories),
        given or (),
        case_sensitive=config.case_sensitive,
        zone=config.time_zone,
        infers=not config.text_in_names,
    )
    # As in Spark, a column in the names of directories replaces one of the same name in the files, in its place.
    replaced = found_as("the data", named.names, own.names, config.case_sensitive)
    fields = [named.field(replaced.get(field.name, "")) if field.name in replaced else field for field in own]
    return pa.schema([*fields, *(field for field in named if field.name not in replaced.values())])


def _columns_of_files(config: FilesConfig, first: ListedFile | None) -> pa.Schema:
    """Return the columns of the first file, or the first that is not skipped.

    With `addAtRestart` those of all files.
    """
    filesystem, root = config.root.open()

    def columns_of(file: ListedFile) -> pa.Schema | None:
        try:
            path = posixpath.join(root, file.relative_path)
            return config.format.schema_of(StoredFile(filesystem, DataFile(path), case_sensitive=config.case_sensitive))
        except (FileGoneError, MalformedDataError) as error:
            config.skip(error)
            return None

    found: pa.Schema | None = None
    if config.schema_evolution == "addAtRestart":
        files = sorted(list_files(config.root))
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for file, schema in zip(files, pool.map(columns_of, files), strict=True):
                if schema:
                    path, case = file.relative_path, config.case_sensitive
                    found = schema if found is None else merged(path, found, schema, case_sensitive=case)
    elif first is not None and (found := columns_of(first)) is None:
        others = map(columns_of, sorted(list_files(config.root)))
        found = next((schema for schema in others if schema is not None), None)
    if found is None:
        raise NoDataError(
            f"path {root!r} holds no file yet whose columns could be read; add one, or give readStream a schema"
        )
    return found

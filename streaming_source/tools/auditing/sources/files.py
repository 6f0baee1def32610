"""Spark's file sources: each micro-batch's files from the source's log, their event times from statistics."""

from __future__ import annotations

import posixpath
import sys
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Final
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa

from alignment.column_paths import exact_path
from alignment.timestamps import NO_TIMESTAMP, TimestampAssigner
from streaming_source.checkpoint.offset_log import CommittedBatch
from streaming_source.checkpoint.source_offsets import LoggedFile, file_log, parse_file_offset, parsed
from streaming_source.data_files.file import DataFile, FileRows, StoredFile
from streaming_source.data_files.formats import FileFormat
from streaming_source.data_files.formats.options import FORMAT_OPTIONS, format_of
from streaming_source.data_files.stores import NO_STORAGE_OPTIONS, Root, StorageOptions
from streaming_source.exceptions import DataLossError, OptionError
from streaming_source.from_data import as_place
from streaming_source.tools.auditing.sources.base import (
    Asked,
    AuditedSource,
    EventTime,
    LostRows,
    SplitRead,
    TimeBlock,
    loaded,
    one_column,
    time_column,
)

_FORMATS: Final = {
    **dict.fromkeys(("parquet", "orc", "csv", "json"), None),
    **{"txt": "text", "text": "text", "log": "text", "jsonl": "json", "ndjson": "json"},
}
_LACK_IT: Final = "the files have no such column, they have"
_COMPRESSED: Final = ("gz", "bz2", "zst", "lz4", "deflate", "snappy")
_ALL: Final = sys.maxsize
_ZONES: Final = ("UTC", "+01:00")
_NS_A_MS: Final = 1_000_000


class FilesSource(AuditedSource):
    """Files that Spark listed, each in one micro-batch. A split is a file.

    The path is the directory in which the files are now, if they were moved. Options are those of `aligned_files`, for
    formats that need them, and Spark's `sourceArchiveDir`, if it archives read files.
    """

    kind = "files"

    def __init__(self, asked: Asked) -> None:
        checkpoint, moved_to, options, event_time = asked.checkpoint, asked.path, asked.options, asked.event_time
        self._number = asked.number
        last = checkpoint.batches[-1].ends if checkpoint.batches else checkpoint.purged_until or ()
        folder = checkpoint.source_folders[self._number]
        self._logged = file_log(checkpoint.log, folder, _log_offset(last[self._number]))
        uris = [one.uri for one in self._logged]
        self.root = _common_directory(uris)
        self.name = moved_to or unquote(self.root)
        archive = options.get("sourceArchiveDir")
        self._files = StoredFiles(self.root, moved_to, archive, asked.storage, [checkpoint.path])
        # Copies have times of their own.
        self._has_times = moved_to is None and archive is None
        if self._files.is_remote:
            self.workers = 32
        given = {name: value for name, value in options.items() if name != "sourceArchiveDir"}
        fmt, self._all_columns = self._readable(uris, given)
        schema, chosen = self._all_columns, FORMAT_OPTIONS.parse(given)
        self._given_columns: pa.Schema | None = chosen["dataSchema"]
        self._zoneless_format = _by_place(fmt, schema)
        self._drops_malformed = fmt.name in ("csv", "json") and chosen.get("mode") == "DROPMALFORMED"
        self._format, self.format_name = self._zoneless_format.in_zone(event_time.zone_name), fmt.name
        if event_time.column is None:
            column = time_column(asked, schema, partial(self._latest_of, event_time.zone))
            event_time = replace(event_time, column=column)
        event_time = replace(event_time, column=exact_path(schema, str(event_time.column)))
        self._time, self.time = event_time, str(event_time.column)
        self._assigner = event_time.assigner()
        self._schema = one_column(schema, self.time, _LACK_IT)

    def reads(self, batches: Sequence[CommittedBatch], purged_until: str | None) -> Iterator[SplitRead]:
        """Yield each file once."""
        ends = [_log_offset(batch.ends[self._number]) for batch in batches]
        purged = _log_offset(purged_until)
        for one in self._logged:
            if one.entry > (ends[-1] if ends else purged):
                return
            batch = None if one.entry <= purged else batches[bisect_left(ends, one.entry)]
            split = unquote(one.uri[len(self.root) :].strip("/"))
            yield SplitRead(batch, split, posixpath.dirname(split), partial(self._blocks, one))

    @property
    def has_assumed_order(self) -> bool:
        """Return whether the files are CSV, and no schema was given."""
        return self._format.name == "csv" and self._given_columns is None

    @property
    def needs_zone(self) -> bool:
        """True if the times of the first file that is there depend on the zone in which they are read."""
        kind = self._schema.field(0).type
        if self._format.has_statistics and pa.types.is_timestamp(kind) and kind.tz is not None:
            return False
        for one in self._logged:
            file = FileRows(self._files.at(one.uri), 0, _ALL)
            in_zones = ((self._zoneless_format.in_zone(zone), replace(self._time, zone=zone)) for zone in _ZONES)
            try:
                utc, other = (fmt.event_times(file, self._schema, time.assigner()) for fmt, time in in_zones)
            except DataLossError:
                continue
            return not np.array_equal(utc, other)
        return False

    def _readable(self, uris: Sequence[str], options: Mapping[str, str]) -> tuple[FileFormat, pa.Schema]:
        """Return the format and all columns, from the first file that still exists."""
        fmt = _format_of(uris[0], options)
        fields = FORMAT_OPTIONS.parse(options)["dataSchema"]
        if fields is not None:
            return fmt.with_columns(fields), fields
        gone: DataLossError | None = None
        for uri in uris:
            try:
                return fmt, fmt.schema_of(self._files.at(uri))
            except DataLossError as error:
                gone = gone or error
        raise DataLossError(
            f"none of the {len(uris):,} files that the query read from {self.name} is there any more; if they were "
            "moved, give the directory with --source, or with -o sourceArchiveDir=DIRECTORY if Spark archived them"
        ) from gone

    def _blocks(self, one: LoggedFile) -> Iterator[TimeBlock | LostRows]:
        if self._has_times:
            self._files.check_unchanged(one)
        if self._drops_malformed:
            return self._without_malformed(FileRows(self._files.at(one.uri), 0, _ALL))
        return file_blocks(self._format, self._files.at(one.uri), self._schema, self._assigner)

    def _without_malformed(self, file: FileRows) -> Iterator[TimeBlock | LostRows]:
        """Yield what the query has read. Spark drops a record that is malformed in a column that the query needs."""
        kept = sum(block.batch.num_rows for block in self._format.read_rows(file, self._schema))
        for block in self._format.read_rows(file, self._all_columns):
            kept -= block.batch.num_rows
            yield loaded(self._assigner.extract(block.batch, None).values)
        yield LostRows(kept, "records that are malformed, but not in the event time, which the query has read or not")

    def _latest_of(self, zone: str | None, column: str, batch: CommittedBatch) -> int:
        """Return the latest time of a column in a micro-batch."""
        latest = NO_TIMESTAMP
        time = EventTime(column, zone=zone)
        for one in self._logged:
            if _log_offset(batch.starts[self._number]) < one.entry <= _log_offset(batch.ends[self._number]):
                file = self._files.at(one.uri)
                schema = one_column(self._given_columns or self._format.schema_of(file), column, _LACK_IT)
                blocks = self._format.describe(file, schema, time.assigner(), "auto")
                latest = max(latest, int(blocks.max_us.max(initial=NO_TIMESTAMP)))
        return latest


class StoredFiles:
    """Files by the URIs that a log has, below the directory `root` of all of them.

    Files are looked up below `moved_to` if that is given, and missing files under their paths in `archive`. `named` are
    places that the user has named, by whose schemes the files may be in stores as well.
    """

    def __init__(
        self,
        root: str,
        moved_to: str | None,
        archive: str | None,
        storage: StorageOptions = NO_STORAGE_OPTIONS,
        named: Sequence[str] = (),
    ) -> None:
        self._prefix = len(root)
        if moved_to is None:
            # Paths in a log are percent-encoded, as in a URI; a local path from a user is not.
            self._filesystem, self._root = storage.located(as_place(unquote(root), named), named)
        else:
            self._filesystem, self._root = Root(moved_to, _of(moved_to, storage)).open()
        self._archive = None if archive is None else Root(archive, _of(archive, storage)).open()
        self._path_in_archive = unquote(urlsplit(root).path)

    @property
    def is_remote(self) -> bool:
        """True if reading a file takes requests to a store."""
        return bool(self._filesystem.type_name != "local")

    def check_unchanged(self, one: LoggedFile) -> None:
        """Raise a `DataLossError` if a file was modified since the query listed it; some stores keep no such times."""
        info = self._filesystem.get_file_info(self.at(one.uri).path)
        if not one.modified_ms or not info.is_file or info.mtime_ns is None:
            return
        # Some stores have whole seconds.
        step = 1 if one.modified_ms % 1_000 else 1_000
        if one.modified_ms // step != info.mtime_ns // _NS_A_MS // step:
            raise DataLossError(
                "it was changed after the query had read it; if it was only copied, give the directory with --source"
            )

    def at(self, uri: str) -> StoredFile:
        """Return a file, which need not exist."""
        below = unquote(uri[self._prefix :].strip("/"))
        path = posixpath.join(self._root, below)
        if self._archive is not None and not self._filesystem.get_file_info(path).is_file:
            filesystem, root = self._archive
            return StoredFile(filesystem, DataFile(f"{root}/{self._path_in_archive.strip('/')}/{below}"))
        return StoredFile(self._filesystem, DataFile(path))


def file_blocks(
    fmt: FileFormat, file: StoredFile, schema: pa.Schema, assigner: TimestampAssigner
) -> Iterator[TimeBlock]:
    """Yield the rows of a file: of Parquet by row groups with statistics, of other formats as they are read."""
    if not fmt.has_statistics:
        yield loaded(fmt.event_times(FileRows(file, 0, _ALL), schema, assigner))
        return
    described = fmt.describe(file, schema, assigner, "auto")
    begin = 0
    for rows, low, high in zip(
        *(a.tolist() for a in (described.rows, described.min_us, described.max_us)), strict=True
    ):
        part = FileRows(file, begin, begin + rows)
        yield TimeBlock(rows, low, high, partial(fmt.event_times, part, schema, assigner))
        begin += rows


def _of(path: str, storage: StorageOptions) -> StorageOptions:
    return NO_STORAGE_OPTIONS if Root(path).is_local or path.startswith("file:") else storage


def _by_place(fmt: FileFormat, schema: pa.Schema) -> FileFormat:
    """Return the format with the columns of CSV in the order of `schema`, as Spark has them, whatever a header has."""
    if fmt.name != "csv":
        return fmt
    from streaming_source.data_files.formats.csv import CsvFormat

    assert isinstance(fmt, CsvFormat)
    return replace(replace(fmt, header=False).with_columns(schema), header=fmt.header)


def _log_offset(offset: str | None) -> int:
    """Return the number of the last entry of its log that a source has read."""
    return -1 if offset is None else parsed(parse_file_offset, offset, "an offset of Spark's own file source")


def _common_directory(uris: Sequence[str]) -> str:
    schemes = {uri.partition("://")[0] for uri in uris}
    directories = {uri.rpartition("/")[0] for uri in uris}
    if len(schemes) > 1:
        raise OptionError(f"its files are in several file systems ({', '.join(sorted(schemes))}): audit each by itself")
    first, last = min(directories), max(directories)
    if first == last:
        return first
    pairs = zip(first.split("/"), last.split("/"), strict=False)
    return "/".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _format_of(uri: str, options: Mapping[str, str]) -> FileFormat:
    parts = uri.rpartition("/")[2].lower().split(".")
    while len(parts) > 2 and parts[-1] in _COMPRESSED:
        parts.pop()
    ending = parts[-1]
    given = dict(options)
    if not any(name.lower() == "fileformat" for name in options):
        if ending not in _FORMATS:
            raise OptionError(
                f"the names of the files do not show their format ({uri.rpartition('/')[2]}); give it with "
                "-o fileFormat=parquet, orc, json, csv or text"
            )
        given["fileFormat"] = _FORMATS[ending] or ending
    values = FORMAT_OPTIONS.parse(given)
    infers = values["fileFormat"] in ("csv", "json") and values["dataSchema"] is None
    return format_of({**values, "inferSchema": True} if infers else values)

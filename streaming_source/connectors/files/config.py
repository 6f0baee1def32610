"""What a source over files is given, and what that makes of the file system."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Literal

import pyarrow as pa

from alignment.durations import parse_duration_us
from streaming_source.api.options import duration_argument
from streaming_source.connectors.files.backlog import FileOrder
from streaming_source.connectors.files.cleaning import CleanSource
from streaming_source.connectors.files.formats import FileFormat, ParquetFormat
from streaming_source.connectors.files.hive import PartitionedFormat
from streaming_source.connectors.files.layout import CLEAN_SOURCE, FILE_ORDERS
from streaming_source.connectors.files.options import SHORTEST_US
from streaming_source.connectors.files.selection import Selection, split_paths
from streaming_source.connectors.files.storage import NO_STORAGE_OPTIONS, Root, StorageOptions, repr_without_secrets
from streaming_source.connectors.files.tolerance import Tolerance
from streaming_source.exceptions import OptionError

__all__ = ["FilesConfig"]

_ONLY_FOR_FILES: Final = {
    "file_order": ("eventTime", "a directory is read in the order of its files' names"),
    "max_files_per_trigger": (None, "what a directory brings is limited by maxRowsPerTrigger"),
    "max_bytes_per_trigger": (None, "what a directory brings is limited by maxRowsPerTrigger"),
    "state_location": (None, "of a directory the offset holds how far it was read, and no file that is finished"),
    "allow_overwrites": (False, "in a directory that is a log, files stay as they are"),
}


@dataclass(frozen=True, repr=False)
class FilesConfig:
    """Files below a directory, all of one format.

    Attributes
    ----------
    path
        A path or a URI of any file system that pyarrow opens.
    split_by
        `directory`: each directory is an append-only log, its files in order of their names. `file`: each file is a
        finite split.
    bounded
        End after the files that are present at the start.
    discovery_interval
        How often to look for new files: a `timedelta`, or text such as `"5 seconds"`; at least a millisecond.
    indexing
        `auto`, `statistics` or `scan`: where event times come from ahead of reading.
    max_file_age
        With `split_by="file"`, how long finished files are remembered, by modification time; at least a millisecond.
    format
        Of the files, with its options.
    data_schema
        Columns of the files, where the format needs to be told; None to look into the first file.
    columns
        Names of the columns to read; None for all.
    file_order
        With `split_by="file"`, in which order files are begun: `eventTime`, `name`, `modificationTime`. With the latter
        two later files bring later records, within the bound on out-of-orderness.
    max_files_per_trigger, max_bytes_per_trigger
        With `split_by="file"`, how many files, and about how many bytes of files, begin in one micro-batch.
    state_location
        With `split_by="file"`, where finished files are written down: a directory, as a path or URI.
    allow_overwrites
        With `split_by="file"`, read a file again as a whole that was rewritten after it was read.
    path_glob_filter
        Pattern of the names of files that are there; None for all.
    recursive_file_lookup
        Read no columns from the names of directories.
    ignore_missing_files, ignore_corrupt_files
        Go on without files that are gone, or cannot be read.
    clean_source
        What becomes of files that were read: `off`, `archive` or `delete`.
    source_archive_dir
        Where they are moved.
    storage
        Arguments of the file system; they show nowhere.

    Notes
    -----
    Durations are kept as `timedelta`, so that sources given the same ones in different words are equal.

    Raises
    ------
    OptionError
        If a value is not one of these.
    """

    path: str
    split_by: Literal["directory", "file"] = "directory"
    bounded: bool = False
    discovery_interval: timedelta | str = "1 second"
    indexing: Literal["auto", "statistics", "scan"] = "auto"
    max_file_age: timedelta | str = "7 days"
    format: FileFormat = field(default_factory=ParquetFormat)
    data_schema: pa.Schema | None = None
    columns: tuple[str, ...] | None = None
    file_order: FileOrder = "eventTime"
    max_files_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    state_location: str | None = None
    allow_overwrites: bool = False
    path_glob_filter: str | None = None
    recursive_file_lookup: bool = False
    ignore_missing_files: bool = False
    ignore_corrupt_files: bool = False
    clean_source: CleanSource = "off"
    source_archive_dir: str | None = None
    storage: StorageOptions = NO_STORAGE_OPTIONS

    def __post_init__(self) -> None:
        if str(self.indexing) == "off":
            raise OptionError(
                "indexing = 'off': which records a micro-batch has is decided by their event times, ahead of reading; "
                "use auto, which takes them from statistics where there are any and else reads the time column alone"
            )
        for name, known in (
            ("split_by", ("directory", "file")),
            ("indexing", ("auto", "statistics", "scan")),
            ("file_order", FILE_ORDERS),
            ("clean_source", CLEAN_SOURCE),
        ):
            if getattr(self, name) not in known:
                raise OptionError(f"{name} = {getattr(self, name)!r}: must be one of {', '.join(known)}")
        if self.indexing == "statistics" and not self.format.has_statistics:
            raise OptionError(
                f"indexing = 'statistics': files of format {self.format.name} have no statistics of event times that "
                "can be read, only those of parquet have; use auto or scan, which read the time column ahead"
            )
        if self.data_schema is not None:
            object.__setattr__(self, "format", self.format.told(self.data_schema))
        for name in ("discovery_interval", "max_file_age"):
            object.__setattr__(self, name, duration_argument(name, getattr(self, name), SHORTEST_US))
        self._check_layout()

    def _check_layout(self) -> None:
        if self.split_by == "directory":
            for name, (default, reason) in _ONLY_FOR_FILES.items():
                value = getattr(self, name)
                if value != default:
                    raise OptionError(
                        f"{_camel_case(name)} = {value!r} needs splitBy = file, and splitBy is directory: {reason}"
                    )
        if (self.clean_source == "archive") != (self.source_archive_dir is not None):
            raise OptionError(
                f"cleanSource = {self.clean_source!r}, sourceArchiveDir = {self.source_archive_dir!r}: to archive "
                "needs a directory, and a directory needs cleanSource = archive"
            )
        for name in ("max_files_per_trigger", "max_bytes_per_trigger"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise OptionError(f"{_camel_case(name)} = {value!r}: must be at least 1, or left out")

    def __repr__(self) -> str:
        return repr_without_secrets(self)

    @property
    def discovery_interval_us(self) -> int:
        """`discovery_interval` in microseconds."""
        return parse_duration_us(self.discovery_interval, name="discovery_interval")

    @property
    def max_file_age_us(self) -> int:
        """`max_file_age` in microseconds."""
        return parse_duration_us(self.max_file_age, name="max_file_age")

    @property
    def root(self) -> Selection:
        """Which files there are."""
        return Selection(split_paths("path", self.path), self.storage, self.path_glob_filter)

    @property
    def state_root(self) -> Root | None:
        """Where finished files are written down, or None."""
        return (
            None if self.state_location is None else Root(self.state_location, self._storage_for(self.state_location))
        )

    @property
    def archive_root(self) -> Root | None:
        """Where files are moved that were read, or None."""
        place = self.source_archive_dir
        return None if place is None else Root(place, self._storage_for(place))

    def _storage_for(self, place: str) -> StorageOptions:
        """The storage options, for a place that is not on the local file system."""
        return NO_STORAGE_OPTIONS if Root(place).is_local else self.storage

    @property
    def reading(self) -> FileFormat:
        """How files are read: their format, and columns in the names of directories."""
        return self.format if self.recursive_file_lookup else PartitionedFormat(self.format, self.root.open()[1])

    @property
    def tolerance(self) -> Tolerance:
        """Which files it goes on without."""
        return Tolerance(self.ignore_missing_files, self.ignore_corrupt_files)


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)

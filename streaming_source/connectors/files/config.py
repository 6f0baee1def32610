"""Which files a source reads, and in which order: attributes, each with the option that sets it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from os import PathLike
from typing import Any, Final, Literal, TypeAlias, get_args

import pyarrow as pa

from alignment.durations import parse_duration_us
from alignment.time_texts import UTC
from streaming_source.api import Option, OptionSet
from streaming_source.api.options import (
    arguments,
    boolean,
    choice,
    duration_field,
    durations_as_timedelta,
    flag_field,
    integer,
    option,
    option_field,
    option_names,
    text,
)
from streaming_source.connectors.files.given_columns import GivenColumns
from streaming_source.connectors.files.selection import Selection, modified_ms, split_paths
from streaming_source.connectors.files.split import FileOrder
from streaming_source.data_files.config import ClaimOptions, ReadingConfig
from streaming_source.data_files.formats.options import FORMAT_OPTIONS, format_of
from streaming_source.data_files.stores import NO_STORAGE_OPTIONS, STORAGE_OPTIONS, Root, StorageOptions
from streaming_source.exceptions import OptionError

SplitBy: TypeAlias = Literal["auto", "directory", "file"]
CleanSource: TypeAlias = Literal["off", "archive", "delete"]

_SHORTEST_US: Final = 1000

_ONLY_FOR_FILES: Final = {
    "file_order": ("eventTime", "a directory is read in the order of its files' names"),
    "max_files_per_trigger": (None, "the rows of directories are limited by maxRowsPerTrigger"),
    "max_bytes_per_trigger": (None, "the rows of directories are limited by maxRowsPerTrigger"),
    "state_location": (None, "for a directory the offset has how far it was read, and no finished files"),
    "allow_overwrites": (False, "in a directory that is a log, files stay as they are (see ignoreChangedFiles)"),
    "file_name_only": (False, "in a directory no two files have one name"),
    "watermark_from": (None, "what Spark's file sink writes is in no order of names"),
}


def _not_latest_first(name: str, value: str) -> bool:
    if boolean(name, value):
        raise OptionError(
            "option latestFirst = true: what is read next is chosen by event time, so that no split runs ahead of the "
            "others; the newest files first would carry the watermark past all older ones. Leave it out; to skip old "
            "files, give a narrower path or pathGlobFilter"
        )
    return False


def _time_text(name: str, value: str) -> str:
    """Check ISO-8601 text, whose zone is not known yet."""
    modified_ms(name, value, UTC)
    return value


@dataclass(frozen=True, repr=False)
class FilesConfig(ClaimOptions, ReadingConfig):
    """Which files there are, in which order they are read, and what is done with them; how is in `ReadingConfig`.

    Most attributes are described by their options. `storage` has arguments of the file system, which may be secret.
    Durations are given as `timedelta` or text such as `"5 seconds"`, and kept as `timedelta`, so that sources with
    equal durations are equal. Raises an `OptionError` if a value is wrong, or has no meaning together with the others.
    """

    path: str = field(
        metadata=option(
            "path",
            text,
            "Directory to read, a path or URI; also the argument of `load`. Several are a JSON list; `*`, `?`, `[a-z]` "
            "and `{a,b}` match parts of names.",
            "required",
        )
    )
    split_by: SplitBy = option_field(
        "auto",
        "splitBy",
        choice(*get_args(SplitBy)),
        "What a split is. `directory`: each is a log, to which files are added under later names; `file`: each "
        "is a finite split. `auto`: `file` if an option needs it, if no file is there yet, or if names are random, as "
        "those of Spark's own writer are; else `directory`. The first start decides.",
    )
    bounded: bool = flag_field(
        "bounded",
        "The source ends after the files that are present at the start. A query ends with it only in AvailableNow.",
    )
    discovery_interval: timedelta | str = duration_field(
        "1 second",
        "discoveryInterval",
        _SHORTEST_US,
        "How often to list files. They are also listed whenever a trigger finds nothing to read, if a listing takes "
        "less than 20 ms.",
    )
    max_file_age: timedelta | str = duration_field(
        "7 days",
        "maxFileAge",
        _SHORTEST_US,
        "With fileNameOnly in the order of event times: names of finished files that are older than the newest file by "
        "this are forgotten. Otherwise it means nothing: a file of any age is read.",
    )
    file_order: FileOrder = option_field(
        "eventTime",
        "fileOrder",
        choice(*get_args(FileOrder)),
        "With splitBy=file: the order in which files are read. `eventTime`: by the earliest record in each; all files "
        "are looked into for that when they are found. `name`, `modificationTime`: you declare that later files have "
        "later records, within `maxOutOfOrderness`; a file is looked into when it is the next one.",
    )
    max_files_per_trigger: int | None = option_field(
        None,
        "maxFilesPerTrigger",
        integer(1),
        "With splitBy=file: how many new files are opened in one micro-batch at most.",
    )
    max_bytes_per_trigger: int | None = option_field(
        None,
        "maxBytesPerTrigger",
        integer(1),
        "With splitBy=file: no further file is opened in a micro-batch once the opened ones have this many bytes.",
    )
    state_location: str | None = option_field(
        None,
        "stateLocation",
        text,
        "With splitBy=file: a directory for a log of finished files, so that offsets do not list them. It may be "
        "given to a query that has run without.",
    )
    allow_overwrites: bool = flag_field(
        "allowOverwrites",
        "With splitBy=file: a file that was rewritten after it was read is read again as a whole, instead of failing "
        "the query.",
    )
    ignore_changed_files: bool = flag_field(
        "ignoreChangedFiles",
        "A file that has changed since it was found is taken as it is now, with a line in the log: what was added to "
        "it after it was read is not read. Otherwise it fails the query.",
    )
    path_glob_filter: str | None = option_field(
        None,
        "pathGlobFilter",
        text,
        "Only files whose names match are read: `*`, `?`, `[a-z]` and `{a,b}` match parts of a name.",
    )
    modified_after: str | None = option_field(
        None, "modifiedAfter", _time_text, "Only files modified later than this are read, as in `2024-01-31T00:00:00`."
    )
    modified_before: str | None = option_field(
        None, "modifiedBefore", _time_text, "Only files modified earlier than this are read."
    )
    file_name_only: bool = flag_field(
        "fileNameOnly",
        "With splitBy=file: a file whose name was found before, in whatever directory, is not read again.",
    )
    recursive_file_lookup: bool = flag_field(
        "recursiveFileLookup",
        "Names of directories such as `day=2024-01-31` give no columns. All below the path is read in any case.",
    )
    clean_source: CleanSource = option_field(
        "off",
        "cleanSource",
        choice(*get_args(CleanSource)),
        "What is done with a file when the micro-batch with its last records is committed.",
    )
    source_archive_dir: str | None = option_field(
        None, "sourceArchiveDir", text, "With cleanSource=archive: where files are moved, under their paths."
    )
    file_metadata: bool = flag_field(
        "fileMetadata",
        "Add Spark's column `_metadata`, with `file_path`, `file_name`, `file_size`, `file_modification_time`.",
    )
    storage: StorageOptions = NO_STORAGE_OPTIONS
    ignore_sink_log: bool = flag_field(
        "ignoreSinkLog",
        "Read all files of a directory that Spark's file sink writes, not only those in its log. `read_stream` and "
        "`from_source` take it from `spark.sql.streaming.fileStreamSink.ignoreMetadata`; with `readStream.format` it "
        "has to be given.",
        "the session's, else false",
    )

    text_in_names: bool = flag_field(
        "textInNames",
        "Columns in names of directories are text: the session has `partitionColumnTypeInference.enabled=false`.",
        is_private=True,
    )

    def __post_init__(self) -> None:
        self._take_paths()
        super().__post_init__()
        durations_as_timedelta(self)
        options = option_names(type(self))
        if self.split_by == "directory" and self.needs_files:
            name = self.needs_files[0]
            raise OptionError(
                f"{options[name]} = {getattr(self, name)!r} needs splitBy = file, and splitBy is directory: "
                f"{_ONLY_FOR_FILES[name][1]}"
            )
        if (self.clean_source == "archive") != (self.source_archive_dir is not None):
            raise OptionError(
                f"cleanSource = {self.clean_source!r}, sourceArchiveDir = {self.source_archive_dir!r}: to archive "
                "needs a directory, and a directory needs cleanSource = archive"
            )
        if self.ignore_sink_log and self.watermark_from is not None:
            raise OptionError(
                "ignoreSinkLog = true beside watermarkFrom: files that are not in the log are of no micro-batch of a "
                "writer, so that nothing is claimed of them; leave one of the two out, or unset "
                "spark.sql.streaming.fileStreamSink.ignoreMetadata"
            )
        for name in ("max_files_per_trigger", "max_bytes_per_trigger"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise OptionError(f"{options[name]} = {value!r}: must be at least 1, or left out")

    def _take_paths(self) -> None:
        path = self.path
        if isinstance(path, list | tuple) and path and all(isinstance(one, str | PathLike) for one in path):
            object.__setattr__(self, "path", json.dumps([str(one) for one in path]))
        elif isinstance(path, PathLike):
            object.__setattr__(self, "path", str(path))
        elif not isinstance(path, str):
            raise OptionError(f"path = {path!r}: must be a path, or a list of paths; give one such as '/data/logs'")

    @property
    def needs_files(self) -> list[str]:
        """The names of attributes that are set and have a meaning only if each file is a split."""
        return [name for name, (default, _) in _ONLY_FOR_FILES.items() if getattr(self, name) != default]

    @property
    def discovery_interval_us(self) -> int:
        return parse_duration_us(self.discovery_interval, name="discovery_interval")

    @property
    def max_file_age_us(self) -> int:
        return parse_duration_us(self.max_file_age, name="max_file_age")

    @cached_property
    def root(self) -> Selection:
        zone = self.time_zone or UTC
        after = modified_ms("modifiedAfter", self.modified_after, zone)
        before = modified_ms("modifiedBefore", self.modified_before, zone)
        paths, by_log = split_paths("path", self.path), not self.ignore_sink_log
        return Selection(paths, self.storage, self.path_glob_filter, after, before, by_sink_log=by_log)

    def given_columns(self, schema: pa.Schema) -> GivenColumns:
        """Return the columns of a query whose values are known by the paths of files."""
        root = self.root
        return GivenColumns(
            root.open()[0],
            root.paths[0],
            schema,
            in_names=not self.recursive_file_lookup,
            with_metadata=self.file_metadata,
            case_sensitive=self.case_sensitive,
            zone=self.time_zone,
        )

    def place(self, uri: str) -> Root:
        """Return another directory, with the storage options unless it is on the local file system."""
        return self.storage.at(uri)


# ---- options ---------------------------------------------------------------------------------------------------------

_OLD_FILES: Final = "to skip files, give modifiedAfter, a narrower path or pathGlobFilter"
_DELTA: Final = "it is one of Delta tables: read them with format aligned_delta; of files leave it out"

_PLAIN_JSON: Final = (
    "JSON is read as in RFC 8259; leave it out, or read other files with fileFormat = text and parse them in the query "
    "with from_json, which takes this option"
)
_PLAIN_CSV: Final = (
    "fields of CSV are read as they are; leave it out, or read the column as string and convert it in the query"
)

_WITHOUT_MEANING: Final = (
    *("datetimeRebaseMode", "discardCachedInputRatio", "dropFieldIfAllNull", "enableDateTimeParsingFallback"),
    *("enforceSchema", "int96RebaseMode", "locale", "maxCachedFiles", "maxCharsPerColumn", "maxColumns", "preferDate"),
    *("prefersDecimal", "primitivesAsString", "samplingRatio", "unescapedQuoteHandling", "wholetext"),
)
_OF_JSON: Final = (
    *("allowBackslashEscapingAnyCharacter", "allowComments", "allowNonNumericNumbers", "allowNumericLeadingZeros"),
    *("allowSingleQuotes", "allowUnquotedControlChars", "allowUnquotedFieldNames"),
)
_OF_CSV: Final = (
    *("charToEscapeQuoteEscaping", "emptyValue", "ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace", "nanValue"),
    *("negativeInf", "positiveInf"),
)

_FOREIGN: Final = {
    **dict.fromkeys(_WITHOUT_MEANING, "it is one of Spark's own file sources, and means nothing here; leave it out"),
    **dict.fromkeys(_OF_JSON, _PLAIN_JSON),
    **dict.fromkeys(_OF_CSV, _PLAIN_CSV),
    "lineSep": "lines end with \\n or \\r\\n, whichever is there; leave it out, or write the files with such ends",
    "basePath": "columns in names of directories are found without it; leave it out",
    "mergeSchema": "columns are those of the first file; name others with option dataSchema, or see schemaEvolution",
    "timestampNTZFormat": "it is called timestampFormat here",
    "cloudFiles.allowOverwrites": "it is called allowOverwrites here",
    "cloudFiles.cleanSource": "it is called cleanSource here",
    "cloudFiles.format": "it is called fileFormat here",
    "cloudFiles.includeExistingFiles": _OLD_FILES,
    "cloudFiles.inferColumnTypes": "it is called inferSchema here",
    "cloudFiles.maxBytesPerTrigger": "it is called maxBytesPerTrigger here",
    "cloudFiles.maxFilesPerTrigger": "it is called maxFilesPerTrigger here",
    "cloudFiles.schemaHints": "it is called dataSchema here, and names all columns",
    "cloudFiles.*": "it is one of Databricks' Auto Loader; leave it out, and see docs/files.md",
    **dict.fromkeys(("ignoreChanges", "ignoreDeletes", "skipChangeCommits", "startingVersion"), _DELTA),
}
"""Options of other sources: name or pattern -> what to do instead. The first that matches counts."""

_OF_READING: Final = {option.name for kind in (ReadingConfig, ClaimOptions) for option in OptionSet.of(kind)}

FILES_OPTIONS: Final = (
    OptionSet(option for option in OptionSet.of(FilesConfig) if option.name not in _OF_READING)
    | OptionSet.of(ReadingConfig)
    | OptionSet.of(ClaimOptions)
    | OptionSet(
        [
            Option(
                "latestFirst",
                _not_latest_first,
                "Refused: what is read next is chosen by event time, and the newest first would make all others late.",
                False,
            ),
            *STORAGE_OPTIONS,
        ],
        _FOREIGN,
    )
    | FORMAT_OPTIONS
)


def files_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return parsed values of `FILES_OPTIONS` as keywords of a `FilesConfig`."""
    if values["path"] is None:
        raise OptionError("option path is missing: give the directory to read, as in .load('/data/flights')")
    return {
        **arguments(FilesConfig, values),
        "format": format_of(values),
        "data_schema": values["dataSchema"],
        "storage": StorageOptions.of_options(values),
    }

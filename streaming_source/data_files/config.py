"""The way in which the files of a source are read: attributes, each with the option that sets it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

import pyarrow as pa

from alignment.shown import log_of
from alignment.time_texts import UTC
from streaming_source.api.options import (
    check_plain_types,
    choice,
    duration_field,
    flag_field,
    integer,
    option_field,
    text,
)
from streaming_source.data_files.formats import ParquetFormat
from streaming_source.data_files.formats.base import FileFormat
from streaming_source.data_files.stores import repr_without_secrets
from streaming_source.exceptions import FileGoneError, MalformedDataError, OptionError

SchemaEvolution: TypeAlias = Literal["ignore", "addAtRestart", "fail"]
Indexing: TypeAlias = Literal["auto", "statistics", "scan"]

_log = log_of(__name__)

_GIVEN_OF_FILES = "schemaEvolution = addAtRestart: the columns are given by dataSchema; add new ones there, or leave it"


def _distinct_names(name: str, value: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in value.split(","))
    if not all(found) or len({*found}) < len(found):
        raise OptionError(f"option {name} = {value!r}: must be different names separated by commas, as in a,b")
    return found


@dataclass(frozen=True, kw_only=True, repr=False)
class ReadingConfig:
    """The way in which files are read: their format, their columns, and which faults are tolerated.

    Most attributes are described by their options. `format` is the format of the files, with its options. `data_schema`
    are the columns of the files, for formats that do not store them; None: the first file is inspected. `time_zone` is
    the zone of times that are written without one; None: that of the session. Raises an `OptionError` if a value is
    wrong, or has no meaning together with the others.
    """

    indexing: Indexing = option_field(
        "auto",
        "indexing",
        choice(*get_args(Indexing), "off"),
        "Where event times come from ahead of reading: the files' `statistics`, the time column itself (`scan`), or "
        "`auto`: statistics where there are any, else the column, unless no plan depends on it. `off` is refused: what "
        "is read next is chosen by event time.",
    )
    format: FileFormat = field(default_factory=ParquetFormat)
    data_schema: pa.Schema | None = None
    columns: tuple[str, ...] | None = option_field(
        None,
        "columns",
        _distinct_names,
        "Columns to read from disk, separated by commas; the query does not have the others.",
        "all",
    )
    ignore_missing_files: bool = flag_field("ignoreMissingFiles", "Skip files that were deleted before they were read.")
    ignore_corrupt_files: bool = flag_field(
        "ignoreCorruptFiles", "Skip files that cannot be read, and the rest of a file that breaks in its middle."
    )
    schema_evolution: SchemaEvolution = option_field(
        "ignore",
        "schemaEvolution",
        choice(*get_args(SchemaEvolution)),
        "What happens to columns that a file has and the query has not. `ignore`: the log names them; `addAtRestart`: "
        "the same, and `load` takes the columns of all files; `fail`: the query fails. A column that a file lacks is "
        "null.",
    )
    files_ahead: int | None = option_field(
        None,
        "filesAhead",
        integer(1),
        "How many files a reader opens ahead, each on a thread, so that it does not wait for a store; files of up to "
        "4 MiB are fetched whole. Set it for a local path that is a network mount.",
        "16, none for local files",
    )
    case_sensitive: bool = flag_field(
        "caseSensitive",
        "Whether upper and lower case count in names of columns. `read_stream` and `from_source` take it from "
        "`spark.sql.caseSensitive`; with `readStream.format` it has to be given.",
        "the session's, else false",
    )
    time_zone: str | None = None

    def __repr__(self) -> str:
        return repr_without_secrets(self)

    def __post_init__(self) -> None:
        self._check_types()
        if str(self.indexing) == "off":
            raise OptionError(
                "indexing = 'off': which records a micro-batch has is decided by their event times, ahead of reading; "
                "use auto, which takes them from statistics where there are any and else reads the time column alone"
            )
        kind: Any = type(self)
        for name, known in _choices(kind).items():
            if getattr(self, name) not in known:
                raise OptionError(f"{name} = {getattr(self, name)!r}: must be one of {', '.join(known)}")
        if self.indexing == "statistics" and not self.format.has_statistics:
            raise OptionError(
                f"indexing = 'statistics': files of format {self.format.name} have no statistics of event times that "
                "can be read, only those of parquet have; use auto or scan, which read the time column ahead"
            )
        if self.data_schema is not None:
            if self.schema_evolution == "addAtRestart":
                raise OptionError(_GIVEN_OF_FILES)
            object.__setattr__(self, "format", self.format.with_columns(self.data_schema))
        if self.files_ahead is not None and self.files_ahead < 1:
            raise OptionError(f"filesAhead = {self.files_ahead!r}: must be at least 1, or left out")

    def _check_types(self) -> None:
        if not isinstance(self.format, FileFormat):
            raise OptionError(
                f"format = {self.format!r}: must be a format with its options; give one of "
                "streaming_source.connectors.files, such as CsvFormat(header=True)"
            )
        if self.data_schema is not None and not isinstance(self.data_schema, pa.Schema):
            raise OptionError(
                f"data_schema = {self.data_schema!r}: must be a pyarrow.Schema; give one, as in "
                "pa.schema([('ts', pa.timestamp('us', 'UTC'))])"
            )
        if isinstance(self.columns, str):
            raise OptionError(f"columns = {self.columns!r}: must be a tuple of names, as in ('a', 'b')")
        check_plain_types(self)

    @property
    def zoned_format(self) -> FileFormat:
        """The format, which reads times without a zone in the zone of the source."""
        return self.format.in_zone(self.time_zone or UTC)

    def skip(self, error: FileGoneError | MalformedDataError) -> None:
        """Log the error of a file that was deleted or cannot be read if the options skip such files, else raise it."""
        if not (self.ignore_missing_files if isinstance(error, FileGoneError) else self.ignore_corrupt_files):
            raise error
        _log.warning("ignored: %s", error)


@cache
def _choices(kind: type[ReadingConfig]) -> dict[str, tuple[Any, ...]]:
    return {name: get_args(of) for name, of in get_type_hints(kind).items() if get_origin(of) is Literal}


@dataclass(frozen=True, kw_only=True, repr=False)
class ClaimOptions:
    """The origin of the watermark that the writers of a table claim."""

    watermark_from: str | None = option_field(
        None,
        "watermarkFrom",
        text,
        "The checkpoints of the queries that write this, separated by commas; `old -> new` is one that another has "
        "replaced. Its watermark is then what their commits claim: exact, without `maxOutOfOrderness` and "
        "`idleTimeout`, and an error where nothing can be claimed. For queries of Spark as they are: see "
        "docs/bronze-to-gold.md.",
    )
    claim_delay: timedelta | str | None = duration_field(
        None,
        "claimDelay",
        0,
        "With `watermarkFrom`: how far the event time of a row that comes may be behind the watermark of its writer, "
        "where that does not follow from what the writer does (joins, sessions, state of your own, a column under "
        "another name). You vouch for it.",
        optional=True,
    )

    @property
    def emits_watermark(self) -> bool:
        """True if the watermark comes from the writers."""
        return self.watermark_from is not None

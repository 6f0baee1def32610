"""The contract of a table format: what a user decides of a table, which files a version has, what commits did to it.

To the rest of this package a version is a number that it compares with nothing but equality: Delta's versions and
Iceberg's snapshot ids will do. What comes after what, the lister alone knows.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, get_args

import pyarrow as pa
from pyarrow import fs

from alignment.durations import parse_duration_us
from alignment.shown import log_of
from alignment.timestamps import TimestampAssigner
from alignment.watermarks import Claim
from streaming_source.api.options import choice, duration_field, durations_as_timedelta, flag_field, option_field
from streaming_source.connectors.claims import open_claims
from streaming_source.connectors.tables.claimed import ClaimedCommits
from streaming_source.connectors.tables.commits import Chain, ChangeRules, Commit, NewestMicroBatches
from streaming_source.connectors.tables.files import TableFile
from streaming_source.data_files.config import ClaimOptions, ReadingConfig
from streaming_source.data_files.file import DataFile
from streaming_source.data_files.stores import NO_STORAGE_OPTIONS, StorageOptions
from streaming_source.exceptions import SchemaError

_log = log_of(__name__)

_Columns: TypeAlias = Mapping[Any, tuple[str, Any]]


class ColumnChanges:
    """Finds how the columns of a table change: it has those of a version by a key each, with their names and types.

    A column that was only renamed keeps its key, and is read under the name that the query knows. New columns are
    named, each once: in the log, or where `schema_evolution` is `fail` by a `SchemaError`.
    """

    def __init__(self, schema_evolution: str) -> None:
        self._fails = schema_evolution == "fail"
        self._named: set[str] = set()

    def check(self, where: str, before: _Columns, now: _Columns, read: Collection[str]) -> None:
        """Compare the columns that a query knows, and reads some of, with those `where`: `Delta table /a, version 3,`.

        A `SchemaError` where one that it reads was dropped, or has another type.
        """
        for key, (name, kind) in before.items():
            if name not in read:
                continue
            if key not in now:
                raise SchemaError(
                    f"{where} has no column {name!r} any more, which the query reads. Start the query again without "
                    "it, or with a new checkpointLocation where its state depends on it"
                )
            if now[key][1] != kind:
                raise SchemaError(
                    f"{where} has column {name!r} as {now[key][1]}, and the query reads it as {kind}. Start the query "
                    "again: it then reads it as the table has it now"
                )
        new = {name for key, (name, _) in now.items() if key not in before} - self._named
        if not new:
            return
        listed = ", ".join(sorted(new))
        if self._fails:
            raise SchemaError(
                f"{where} has new columns that the query does not read: {listed}. schemaEvolution = ignore goes on "
                "without them; a query that is started again has them"
            )
        self._named |= new
        _log.warning(
            "%s has new columns that the query does not read: %s. A query that is started again has them "
            "(schemaEvolution)",
            where,
            listed,
        )


BEFORE_ALL: Final = -1
"""The version of a table that has none yet."""


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a stream: with the files of a version, or after it (`has_snapshot` is false).

    Where the user wants what is committed from a time on, and nothing is yet, that is `from_ms`: commits until the
    first one of then are passed over.
    """

    version: int
    has_snapshot: bool = True
    from_ms: int | None = None


class ColumnBounds(NamedTuple):
    """The smallest and the largest value of a column in a file, and how many are null; None where one is not known.

    They are of all rows that the file has, also of those that the table has deleted.
    """

    low: Any = None
    high: Any = None
    nulls: int | None = None


class TableLister(Protocol):
    """Lists the files of one table, for one enumerator. It does I/O, and is made on a worker thread.

    `start`, `snapshot` and `commits` are called by one thread at a time; `data_file` by any thread, at the same time. A
    store that fails for a moment raises an `OSError`, and the call is made again. What the format cannot do is refused
    with an error that names the feature and the version.
    """

    @property
    def table_id(self) -> str:
        """The table's identity: another one where a table was dropped and made anew under the same name."""

    def start(self) -> Start:
        """Return where a fresh stream starts, by the user's options; for a batch read, the version that it reads."""

    def snapshot(self, version: int) -> pa.Table:
        """Return all files of a version, as `LISTED`, with its own version in each.

        A `DataLossError` if the version is not there any more.
        """

    def bounds(self, version: int, columns: Sequence[str]) -> Mapping[str, Mapping[str, ColumnBounds]]:
        """Return the bounds of these columns by the paths of a version's files, and by the columns' names. O(files).

        Raises as `snapshot`.
        """

    def commit(self, version: int) -> Chain[Commit]:
        """Return the commit of one version; the chain is broken where that is not known any more."""

    def digest(self, version: int) -> str | None:
        """Return what tells a version's commit from another one of that version: one small read.

        A table has another one where it was put back to an older state and written on. None where no two commits have
        the same version, or where that commit is not known any more.
        """

    def commits(self, after: int, last: int | None = None) -> Chain[Commit]:
        """Return the commits after a version, to the newest one or to the version `last`.

        The chain is broken where one of them is not known any more, or `after` is no version that they follow: a
        watermark must not pass a commit that was not looked at. Called again and again, about once a second: where
        nothing is new it takes a request of the store, and no more.

        A `SchemaError` if a commit changes the columns so that what the query reads is not there any more, an
        `UnsupportedOperationError` if one needs a reader that knows more.
        """

    def data_file(self, file: TableFile) -> DataFile:
        """Return where a file is, and what of it is known without reading it: values, deleted rows, names.

        May do I/O for a file that has deleted rows, and keeps what it found.
        """

    def release(self, file: TableFile) -> None:
        """Forget what `data_file` keeps of a file, which was read to its end; any thread, without I/O or waiting."""

    def retain(self, paths: Iterable[str]) -> None:
        """Forget it of all files but these: called after a restart, when it is known which were not read to the end."""


ForeignWriters: TypeAlias = Literal["late", "fail"]

_SHORTEST_US: Final = 1000


@dataclass(frozen=True, kw_only=True, repr=False)
class Table(ClaimOptions, ReadingConfig):
    """A table as a user names it, and as its enumerator finds it. How its files are read is in `ReadingConfig`."""

    bounded: bool = flag_field(
        "bounded", "The source ends after what the table has at the start. A query ends with it only in AvailableNow."
    )
    discovery_interval: timedelta | str = duration_field(
        "1 second",
        "discoveryInterval",
        _SHORTEST_US,
        "How often to look for new commits, beside whenever a trigger finds nothing to read and looks take less than "
        "20 ms.",
    )
    foreign_writers: ForeignWriters = option_field(
        "late",
        "foreignWriters",
        choice(*get_args(ForeignWriters)),
        "With `watermarkFrom`: what to do with rows of a writer that it does not name, at or below the claim of those "
        "that it names. `late`: they are late, and counted by writer; `fail`: at the first file with such rows.",
    )
    storage: StorageOptions = NO_STORAGE_OPTIONS

    def __post_init__(self) -> None:
        super().__post_init__()
        durations_as_timedelta(self)

    @property
    @abstractmethod
    def title(self) -> str:
        """The table in a message, as `Delta table /data/clicks`."""

    @abstractmethod
    def open_files(self) -> fs.FileSystem:
        """Return the file system in which the paths of `TableLister.data_file` are. On executors too."""

    @abstractmethod
    def open_lister(self, schema: pa.Schema, assigner: TimestampAssigner) -> TableLister:
        """Look at the table; `schema` are the columns that the query reads, with event times by `assigner`."""

    @abstractmethod
    def newest_micro_batches(
        self, queries: Collection[str], last: int | None = None, known: NewestMicroBatches | None = None
    ) -> NewestMicroBatches:
        """Find the last commit of each of these queries up to a version, None for the newest. No data file is listed.

        `known` is what an earlier look found, which need not be read again.
        """

    @property
    @abstractmethod
    def _change_rules(self) -> ChangeRules:
        """Return what a stream does with commits that remove rows."""

    @property
    def discovery_interval_us(self) -> int:
        """Return how often to look for new commits."""
        return parse_duration_us(self.discovery_interval, name="discovery_interval")

    def _open_claims(
        self, schema: pa.Schema, assigner: TimestampAssigner, known: Iterable[Claim]
    ) -> ClaimedCommits | None:
        """Look at the checkpoints of its writers, whose last claims are `known`; None if no watermark is theirs."""
        if not self.emits_watermark:
            return None
        writers = open_claims(self, self.storage, schema, assigner, known)
        return ClaimedCommits(writers, fails=self.foreign_writers == "fail")

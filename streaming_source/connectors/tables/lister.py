"""The contract of a table format: which files a version has, which ones later commits add, and their time bounds.

To the rest of this package a version is a number that it compares with nothing but equality: Delta's versions and
Iceberg's snapshot ids will do. What comes after what, the lister alone knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

import pyarrow as pa

from streaming_source.data_files.file import DataFile
from streaming_source.exceptions import DataLossError

__all__ = ["FILES", "LISTED", "Beginning", "Chain", "Commits", "TableFile", "TableLister", "files_of"]

CommitT = TypeVar("CommitT")

FILES: Final = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("version", pa.int64(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("low_us", pa.int64()),
        pa.field("high_us", pa.int64()),
        pa.field("detail", pa.string(), nullable=False),
    ]
)
"""Files as columns: a table has a million of them. See `TableFile`."""

LISTED: Final = FILES.append(pa.field("complete", pa.bool_(), nullable=False))
"""The files of a lister, in any order; `complete` where its metadata show that each record has an event time."""


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of a table, as its metadata have it.

    Attributes
    ----------
    path
        As the table writes it. With the version it names the file for good: offsets have both.
    version
        Of the snapshot for its files, else of the commit that added the file.
    size
        In bytes.
    low_us, high_us
        No valid event time in the file is before or after these, in microseconds; they need not be reached.
        `MAX_WATERMARK` and `NO_TIMESTAMP` where no record has a valid one. Both are None where the metadata lack them:
        then the file's own footer is read.
    detail
        What else the lister needs to describe the file with `TableLister.data_file` after a restart, in its own words:
        partition values, delete files. It is in the offset as long as the file is read: keep it short.
    """

    path: str
    version: int
    size: int
    low_us: int | None
    high_us: int | None
    detail: str = ""


def files_of(files: list[TableFile]) -> pa.Table:
    """Return files as columns, for a lister that has them one by one."""
    columns = [[getattr(file, name) for file in files] for name in FILES.names]
    return pa.Table.from_arrays([pa.array(c, f.type) for c, f in zip(columns, FILES, strict=True)], schema=FILES)


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where a stream begins: with the files of a version, or behind it (`has_snapshot` is false)."""

    version: int
    has_snapshot: bool = True


@dataclass(frozen=True, slots=True)
class Commits:
    """What was committed after a version.

    Attributes
    ----------
    upto
        The last version that is covered.
    files
        Those that the commits added as data, as `LISTED`. Compaction adds none.
    count
        How many versions these are.
    expiring_ms
        By path: files that the table does not need any more, and until when they stay readable, in milliseconds of the
        clock. A file that still waits is then read in time, or the user is warned.
    """

    upto: int
    files: pa.Table
    count: int = 1
    expiring_ms: Mapping[str, int] = field(default_factory=dict)


class Chain(Generic[CommitT]):
    """The commits after one version up to another one, oldest first: all of them, or it is broken for a reason.

    Commits can be had in two ways alone, and each says what becomes of a broken chain.

    Parameters
    ----------
    commits
        Those that are known, in order. In a broken chain others are missing before, between or after them.
    broken
        Why not all of them are known, as a clause: `snapshot 17 has expired`. None where the chain is whole.
    """

    def __init__(self, commits: Sequence[CommitT], broken: str | None = None) -> None:
        self._commits, self._broken = commits, broken

    def whole(self, title: str, fix: str) -> Sequence[CommitT]:
        """Return the commits; a `DataLossError` with the title of the table and the fix if some are missing."""
        if self._broken is not None:
            raise DataLossError(f"{title}: {self._broken}. {fix}")
        return self._commits

    def known(self) -> tuple[Sequence[CommitT], str | None]:
        """Return the commits that are known, and why others are not; None where there are no others."""
        return self._commits, self._broken


class TableLister(Protocol):
    """Lists the files of one table, for one enumerator. It does I/O, and is made on a worker thread.

    `begin`, `snapshot` and `commits` are called by one thread at a time; `data_file` by any thread, at the same time. A
    store that fails for a moment raises an `OSError`, and the call is made again. What the format cannot do is refused
    with an error that names the feature and the version.
    """

    @property
    def table_id(self) -> str:
        """The table's identity: another one where a table was dropped and made anew under the same name."""

    def begin(self) -> Beginning:
        """Return where a fresh stream begins, by the user's options; for a batch read, the version that it reads."""

    def snapshot(self, version: int) -> pa.Table:
        """Return all files of a version, as `LISTED`, with its own version in each.

        A `DataLossError` if the version is there no more.
        """

    def commits(self, after: int, upto: int | None = None) -> Commits | None:
        """Return what was committed after a version, to the newest one or to `upto`; None if nothing was.

        All of it, however much that is: a watermark must not pass a commit that was not looked at. Called again and
        again, about once a second: where nothing is new it takes a request of the store, and no more.

        Raises
        ------
        MalformedDataError
            If a commit removes or changes rows, and no option lets it pass; names the version and the option.
        DataLossError
            If a version between is there no more.
        SchemaError
            If a commit changes the columns so that what the query reads is not there any more.
        """

    def data_file(self, file: TableFile) -> DataFile:
        """Return where a file is, and what of it is known without reading it: values, deleted rows, names.

        May do I/O for a file that has deleted rows, and keeps what it found.
        """

    def release(self, file: TableFile) -> None:
        """Forget what `data_file` keeps of a file, which was read to its end; any thread, without I/O or waiting."""

    def retain(self, paths: Iterable[str]) -> None:
        """Forget it of all files but these: called after a restart, when it is known which were not read to the end."""

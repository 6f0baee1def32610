"""Reads of Spark's own source over a table between two of its offsets, file by file, whatever the table's format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from streaming_source.checkpoint.source_offsets import TableOffset
from streaming_source.connectors.tables.commits import Broken, Chain, Commit, CommitKind
from streaming_source.connectors.tables.files import FILES, LISTED, TableFile
from streaming_source.connectors.tables.lister import TableLister
from streaming_source.exceptions import DataLossError


class ListedFile(NamedTuple):
    """A file of a table, how many rows of it were read, and whether each has an event time; see `LISTED`."""

    file: TableFile
    rows: int | None
    is_complete: bool


class TableReads:
    """The files of a table in the order of Spark's own source.

    Parameters
    ----------
    lister
        The table.
    reads_changes
        Whether the query reads the files of a commit that removes rows; None if it is not known.
    """

    def __init__(self, lister: TableLister, *, reads_changes: bool | None) -> None:
        self._lister, self._reads_changes = lister, reads_changes

    def rest(self, offset: TableOffset) -> pa.Table:
        """Return the files of an offset's version that are not read yet, as `LISTED`.

        A `DataLossError` if they are not known any more.
        """
        if offset.files is None:
            return LISTED.empty_table()
        if offset.in_snapshot:
            return self._lister.snapshot(offset.version).slice(offset.files)
        (commit,) = self._lister.commit(offset.version).whole()
        found = self._files(commit)
        if isinstance(found, Broken):
            raise found.error()
        return found.slice(offset.files)

    def between(self, start: TableOffset, end: TableOffset) -> Iterator[ListedFile | Broken]:
        """Yield the files that are read from one offset to another one; in place of those that are not known, why."""
        if start == end:
            return
        if start.files is not None:
            last = end.files if start.version == end.version and start.in_snapshot == end.in_snapshot else None
            yield from self._cut(start, last)
        if start.version != end.version:
            yield from self._after(self._lister.commits(start.version, end.version), end)

    def _cut(self, start: TableOffset, last: int | None) -> Iterator[ListedFile | Broken]:
        """Yield the files of the version of `start` up to number `last`."""
        assert start.files is not None
        try:
            left = self.rest(start)
        except DataLossError as error:
            why, _, fix = str(error).partition(". ")
            yield Broken(why, fix)
            return
        yield from _rows(left if last is None else left.slice(0, last - start.files))

    def _after(self, chain: Chain[Commit], end: TableOffset) -> Iterator[ListedFile | Broken]:
        commits, broken = chain.known()
        for commit in commits:
            found = self._files(commit)
            if isinstance(found, Broken):
                yield found
            else:
                yield from _rows(found if commit.version != end.version else found.slice(0, end.files))
        if broken is not None:
            yield broken

    def _files(self, commit: Commit) -> pa.Table | Broken:
        """Return the files of a commit that the query reads, or why these are not known."""
        if commit.kind in (CommitKind.APPEND, CommitKind.REWRITE) or self._reads_changes:
            return commit.files()
        if self._reads_changes is not None or commit.kind is CommitKind.DELETE:
            return LISTED.empty_table()
        return Broken(
            f"{commit.title} changes rows, and the checkpoint does not keep whether the query read what it adds",
            "Give the query's option with -o skipChangeCommits=true or -o ignoreChanges=true",
        )


def _rows(listed: pa.Table) -> Iterator[ListedFile]:
    rows: list[dict[str, Any]] = listed.to_pylist()
    for row in rows:
        file = TableFile(**{name: row[name] for name in FILES.names})
        yield ListedFile(file, row["rows"], row["complete"])

"""The commits of a table: what each added, which micro-batch wrote it, and whether all of them are known."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Generic, NamedTuple, TypeVar

import pyarrow as pa

from alignment.shown import log_of
from streaming_source.connectors.tables.files import LISTED
from streaming_source.exceptions import ClaimError, DataLossError, MalformedDataError

_log = log_of(__name__)

CommitT = TypeVar("CommitT")


class MicroBatch(NamedTuple):
    """A micro-batch of a streaming query, which its sink committed together with its rows.

    `query` is the id of the query, as `<checkpoint>/metadata` has it; `number` is that of the micro-batch.
    """

    query: str
    number: int


def gone_with(title: str, done: str, query: str) -> ClaimError:
    """Return the error of rows that a query had committed and that are gone; `done` is how, by the commit `title`."""
    return ClaimError(
        f"{title}, {done}: rows of the writer {query} are gone that its checkpoint has as committed; let it write into "
        "a new table, with a new checkpointLocation"
    )


class CommitKind(Enum):
    """Kinds of commits, by what they do to the rows of a table."""

    APPEND = "append"
    """It adds files of new rows; one that adds none changes nothing."""

    REWRITE = "rewrite"
    """It writes the same rows into other files (OPTIMIZE, compaction): its files are no data."""

    DELETE = "delete"
    """It removes rows, and adds no file."""

    OVERWRITE = "overwrite"
    """It removes rows, and its files have rows that were there before among new ones."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One version of a table, by what it did to the version before.

    `title` is the table and the version in messages, with what its writer did: `Delta table /t, version 4 (WRITE)`. It
    has no `micro_batches` if a batch or another engine wrote it, and several where its writer named several; one
    without rows may be committed too. If it `restores` an older version, no claim outlasts it. If it `overwrites`, its
    writer says so, also where there were no rows: its next one will. `made_ms`, in milliseconds since 1970, is None
    where that is not asked.

    `files` lists those that it added as data, as `LISTED`, in the order in which Spark's own source reads them, none of
    a rewrite: it may do I/O, raises a `DataLossError` where the list is gone, and is O(its files). `expiring_ms` lists
    the files that it removed by path, and until when each can be read.
    """

    version: int
    title: str
    kind: CommitKind
    micro_batches: tuple[MicroBatch, ...] = ()
    restores: bool = False
    made_ms: int | None = None
    overwrites: bool = False
    files: Callable[[], pa.Table] = field(default=LISTED.empty_table, compare=False, repr=False)
    expiring_ms: Callable[[], Mapping[str, int]] = field(default=dict, compare=False, repr=False)

    @property
    def is_data(self) -> bool:
        """True if it says something of the table's rows: a rewrite does not."""
        return self.kind is not CommitKind.REWRITE

    def check_claims(self, own: Sequence[tuple[str, int]], known: Collection[str]) -> None:
        """Raise a `ClaimError` if its micro-batches `own` claim nothing, or it ends what `known` queries claim."""
        for query in known if self.restores else ():
            raise gone_with(self.title, "restores an older one", query)
        overwrites = self.overwrites or self.kind in (CommitKind.DELETE, CommitKind.OVERWRITE)
        for query, number in own if overwrites else ():
            raise ClaimError(
                f"{self.title}: no claim can be had of the writer {query}, whose micro-batch {number} overwrites the "
                "rows that were there, as output mode complete does; write it in append mode, or leave watermarkFrom "
                "out"
            )


@dataclass(frozen=True, slots=True)
class NewestMicroBatches:
    """The last commit of each of these `queries` up to the version `last`: its micro-batch, and its version.

    In `commits` the query that committed last comes first, and one that has committed nothing is left out. By the
    `digest` of the commit `last` a later look sees that the log is still the one that was read.
    """

    last: int
    queries: frozenset[str]
    commits: Mapping[str, tuple[int, int]]
    digest: str | None = None

    @staticmethod
    def among(
        newest_first: Iterable[Commit], queries: Collection[str], last: int, digest: str | None = None
    ) -> NewestMicroBatches:
        """Find them; a `ClaimError` if one claims nothing, or if a later commit has ended the claims of its query."""
        found: dict[str, tuple[int, int]] = {}
        restoring: list[Commit] = []
        for commit in newest_first:
            for batch in commit.micro_batches:
                if batch.query not in queries:
                    continue
                for later in restoring:
                    later.check_claims((), [batch.query])
                if batch.query not in found:
                    commit.check_claims([batch], ())
                    found[batch.query] = batch.number, commit.version
            if commit.restores:
                restoring.append(commit)
        return NewestMicroBatches(last, frozenset(queries), found, digest)

    def as_commits(self, title: str) -> Iterator[Commit]:
        """Return what is known of them as commits, of the table `title`, newest first."""
        for query, (number, version) in self.commits.items():
            yield Commit(version, title, CommitKind.APPEND, (MicroBatch(query, number),))


# ---- continuity ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Broken:
    """Why some commits are not known, as a clause with the table's title, and what to do about it, as a sentence."""

    why: str
    fix: str

    def error(self) -> DataLossError:
        """Return the error of a reader that needs all commits."""
        return DataLossError(f"{self.why}. {self.fix}")


class Chain(Generic[CommitT]):
    """The commits after one version up to another one, oldest first: all of them, or it is `broken` for a reason.

    Of a broken chain others are missing before, between or after the `commits` that are known. They can be had in two
    ways alone, and each says what becomes of a broken chain.
    """

    def __init__(self, commits: Sequence[CommitT], broken: Broken | None = None) -> None:
        self._commits, self._broken = commits, broken

    def whole(self) -> Sequence[CommitT]:
        """Return the commits; a `DataLossError` if some are missing."""
        if self._broken is not None:
            raise self._broken.error()
        return self._commits

    def known(self) -> tuple[Sequence[CommitT], Broken | None]:
        """Return the commits that are known, and why others are not; None where there are no others."""
        return self._commits, self._broken


# ---- what a stream reads of them -------------------------------------------------------------------------------------

_DONE: Final = {
    CommitKind.DELETE: "deletes rows that were there before",
    CommitKind.OVERWRITE: "changes rows that were there before",
}


@dataclass(frozen=True, slots=True)
class ChangeRules:
    """Rules for commits that remove rows: by kind the option with which they are passed over, and whether it is set."""

    deletes: tuple[str, bool]
    overwrites: tuple[str, bool]

    def has_data(self, commit: Commit) -> bool:
        """Return whether a stream reads the files of a commit; a `MalformedDataError` if it can do neither."""
        if commit.kind in (CommitKind.APPEND, CommitKind.REWRITE):
            return commit.is_data
        option, is_set = self.deletes if commit.kind is CommitKind.DELETE else self.overwrites
        if is_set:
            _log.info("%s is skipped: it %s", commit.title, _DONE[commit.kind])
            return False
        raise MalformedDataError(
            f"{commit.title}, {_DONE[commit.kind]}, and a stream has them already. Set {option} = true to go on "
            "without such commits and all that they add, or use a new checkpointLocation to read the table as it is now"
        )


@dataclass(frozen=True, slots=True)
class Commits:
    """The commits after a version to the version `last`, `count` of them, as a stream reads them.

    `files` are those that they added as data, as `LISTED`. By path, `expiring_ms` has files that the table does not
    need any more, and until when they stay readable, in milliseconds of the clock. A file that still waits is then read
    in time, or the user is warned.
    """

    last: int
    files: pa.Table
    count: int = 1
    expiring_ms: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def of(chain: Chain[Commit], rules: ChangeRules) -> Commits | None:
        """Return them; None if there is none. A `DataLossError` if the chain is broken, and what `rules` refuse."""
        commits = chain.whole()
        if not commits:
            return None
        files, expiring_ms = [LISTED.empty_table()], dict[str, int]()
        for commit in commits:
            if rules.has_data(commit):
                files.append(commit.files())
            expiring_ms |= commit.expiring_ms()
        return Commits(commits[-1].version, pa.concat_tables(files).combine_chunks(), len(commits), expiring_ms)

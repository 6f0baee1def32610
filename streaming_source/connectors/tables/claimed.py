"""What the commits of a table claim, and whose the rows are that come behind a claim."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa

from alignment import arrow_compute as pc
from alignment.arrow_times import format_timestamp
from alignment.watermarks import MIN_WATERMARK
from streaming_source.checkpoint.table_claims import Claimed, TableClaims
from streaming_source.connectors.tables.commits import Commit, MicroBatch
from streaming_source.exceptions import ClaimError

__all__ = ["LATE_OF", "ClaimedCommits", "LateByWriter"]

_log = logging.getLogger(__name__)

LATE_OF: Final = "lateRecordsOf "
"""Before the name of a writer: a metric."""

_UNKNOWN: Final = "another writer"
"""One that names no micro-batch: a batch, or another engine."""
_NAMED: Final = "the writer"
"""The one that is named, or the first of several."""


class ClaimedCommits:
    """The claims of a table's writers, as its commits are listed. One thread at a time.

    Parameters
    ----------
    claims
        Those so far.
    fails
        Whether a commit of another writer with rows at or below a claim is an error.
    """

    def __init__(self, claims: TableClaims, *, fails: bool) -> None:
        self._claims, self._fails = claims, fails
        self._first = claims.lanes[0].writers[-1]
        self._writers: dict[int, str] = {}

    @property
    def now(self) -> Claimed:
        """What is claimed by the commits that were taken."""
        return self._claims.now

    @property
    def ids(self) -> frozenset[str]:
        """The ids of the writers that are named."""
        return self._claims.ids

    def take_writers(self) -> dict[int, str]:
        """Return whose the versions are that were taken since the last call, but those of the first writer named."""
        taken, self._writers = self._writers, {}
        return taken

    def take_snapshot(self, newest: Mapping[str, tuple[int, int]]) -> None:
        """Take the newest micro-batch, and its version, of each writer in a version that is read as a whole.

        The one that committed last comes first.
        """
        self._claims.take((query, *commit) for query, commit in reversed([*newest.items()]))

    def take(self, commits: Sequence[Commit], files: pa.Table, *, again: bool = False) -> None:
        """Take commits, oldest first, and the `files` that they added as data, whose bounds are known.

        Those that an earlier run has listed are taken `again`: it looked whose they are, by the claims before them.

        Raises
        ------
        ClaimError
            If a writer that is named has overwritten the table, an older version was restored behind a claim, or
            another writer adds rows there.
        """
        seen = {claim.writer for claim in self._claims.claims}
        for commit in commits:
            commit.check_claims(seen)
            seen |= {batch.query for batch in self._declared(commit)}
            if commit.is_data and (writer := self._writer_of(commit)) != self._first:
                self._writers[commit.version] = writer
        foreign = {} if again else {commit.version: commit for commit in commits if self._is_foreign(commit)}
        if foreign and self._claims.until_us > MIN_WATERMARK:
            self._look_at(foreign, files)
        self._claims.take(
            (batch.query, batch.number, commit.version) for commit in commits for batch in self._declared(commit)
        )

    def _declared(self, commit: Commit) -> Iterator[MicroBatch]:
        for batch in commit.micro_batches:
            if self._claims.is_declared(batch.query):
                batch.check_claim(commit.title, commit.kind)
                yield batch

    def _writer_of(self, commit: Commit) -> str:
        declared = [batch.query for batch in commit.micro_batches if self._claims.is_declared(batch.query)]
        return next(iter([*declared, *(batch.query for batch in commit.micro_batches)]), _UNKNOWN)

    def _is_foreign(self, commit: Commit) -> bool:
        return commit.is_data and not any(self._claims.is_declared(batch.query) for batch in commit.micro_batches)

    def _look_at(self, foreign: Mapping[int, Commit], files: pa.Table) -> None:
        """Report commits of other writers that have rows at or below the claim."""
        behind = pc.and_(
            pc.is_in(files["version"], pa.array(list(foreign), pa.int64())),
            pc.less_equal(files["low_us"], pa.scalar(self._claims.until_us, pa.int64())),
        )
        found = files.filter(behind).group_by("version", use_threads=False)
        for row in found.aggregate([("low_us", "min"), ("low_us", "count")]).to_pylist():
            commit, count = foreign[row["version"]], row["low_us_count"]
            writer = self._writer_of(commit)
            whose = "a writer that names no micro-batch" if writer == _UNKNOWN else f"the writer {writer}"
            what = (
                f"{commit.title}, of {whose}, which watermarkFrom does not name, adds {count} file{'s'[: count > 1]} "
                f"with event times from {format_timestamp(row['low_us_min'])} on, and the table was complete until "
                f"{format_timestamp(self._claims.until_us)}"
            )
            if self._fails:
                raise ClaimError(
                    f"{what}. Name its checkpoint in watermarkFrom as well, if it has one; or set foreignWriters = "
                    "late: then those of its rows that the watermark has passed are late, and counted by writer"
                )
            _log.warning("%s: those of its rows that the watermark has passed are late", what)


class LateByWriter:
    """How many late records each writer has brought, and whose the versions are of which files are in work or wait.

    `counts` are by writer. `writers` has the versions that are not of the writer that is named first.
    """

    def __init__(self, counts: Mapping[str, int], writers: Mapping[int, str]) -> None:
        self.counts = dict(counts)
        self.writers = dict(writers)

    def note(self, writers: Mapping[int, str]) -> None:
        """Remember whose the versions are that were listed."""
        self.writers |= writers

    def add(self, late: Iterable[tuple[int, int]]) -> None:
        """Count late records, so many of each version."""
        for version, records in late:
            writer = self.writers.get(version, _NAMED)
            self.counts[writer] = self.counts.get(writer, 0) + records

    def forget_all_but(self, versions: Collection[int]) -> None:
        """Forget whose the other versions are. O(versions)."""
        self.writers = {version: writer for version, writer in self.writers.items() if version in versions}

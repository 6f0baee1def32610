"""Claims of the commits of a table, and whose they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from alignment import arrow_compute as pc
from alignment.arrow_times import format_timestamp
from alignment.claims import Claims, StrangeCommit
from alignment.shown import log_of
from alignment.watermarks import MAX_WATERMARK
from streaming_source.checkpoint.writer import TableWriters
from streaming_source.connectors.tables.commits import Commit
from streaming_source.exceptions import ClaimError

_log = log_of(__name__)

LATE_OF: Final = "lateRecordsOf "
"""Before the name of a writer: a metric."""

_UNKNOWN: Final = "another writer"
"""One that names no micro-batch: a batch, or another engine."""
NAMED: Final = "the writer"
"""The one that is named, or the first of several."""


class ClaimedCommits:
    """The claims of a table's writers, as its commits are listed. One thread at a time.

    `fails` is whether a commit of another writer with rows at or below a claim is an error.
    """

    def __init__(self, writers: TableWriters, *, fails: bool) -> None:
        self.writers, self._fails = writers, fails
        self._whose: dict[int, str] = {}

    @property
    def claims(self) -> Claims:
        """Return what is claimed by the commits that were taken."""
        return self.writers.claims

    def take_whose(self) -> dict[int, str]:
        """Return whose the versions are that were taken since the last call, but those of the first writer named."""
        taken, self._whose = self._whose, {}
        return taken

    def take(self, commits: Sequence[Commit], files: pa.Table, *, again: bool = False) -> None:
        """Take commits, oldest first, and the `files` that they added as data, whose bounds are known.

        Those that an earlier run has listed are taken `again`: it looked whose they are, by the claims before them. A
        `ClaimError` if a writer that is named has overwritten the table, an older version was restored after a claim,
        or another writer adds rows there.
        """
        earliest: Mapping[int, int] = {}
        if not again:
            # `MAX_WATERMARK` is of a file without any event time.
            found = files.filter(pc.less(files["low_us"], MAX_WATERMARK)).group_by("version", use_threads=False)
            columns = found.aggregate([("low_us", "min")])
            earliest = dict(zip(columns["version"].to_pylist(), columns["low_us_min"].to_pylist(), strict=True))
        strange = self.writers.take(commits, earliest)
        first, by_version = self.claims.current[0][0], {commit.version: commit for commit in commits}
        for commit in commits:
            if commit.is_data and (writer := self._writer_of(commit)) != first:
                self._whose[commit.version] = writer
        for one in strange:
            self._report(by_version[one.version], one, files)

    def _writer_of(self, commit: Commit) -> str:
        queries = [batch.query for batch in commit.micro_batches]
        return next(iter([*filter(self.writers.ids.__contains__, queries), *queries]), _UNKNOWN)

    def _report(self, commit: Commit, strange: StrangeCommit, files: pa.Table) -> None:
        of_version = pc.equal(files["version"], commit.version)
        times = files.filter(pc.and_(of_version, pc.less_equal(files["low_us"], strange.claimed_us)))["low_us"]
        writer = self._writer_of(commit)
        whose = "a writer that names no micro-batch" if writer == _UNKNOWN else f"the writer {writer}"
        does_not = "has been replaced in watermarkFrom" if writer in self.writers.ids else "watermarkFrom does not name"
        what = (
            f"{commit.title}, of {whose}, which {does_not}, adds {len(times)} file{'s'[: len(times) > 1]} "
            f"with event times from {format_timestamp(pc.min(times).as_py())} on, and the table was complete until "
            f"{format_timestamp(strange.claimed_us)}"
        )
        if self._fails:
            raise ClaimError(
                f"{what}. Name its checkpoint in watermarkFrom as well, if it has one; or set foreignWriters = "
                "late: then those of its rows that the watermark has passed are late, and counted by writer"
            )
        _log.warning("%s: those of its rows that the watermark has passed are late", what)

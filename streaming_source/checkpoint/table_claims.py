"""What the writers of one table claim, from commit to commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from pyarrow import fs

from alignment.claims import Lane
from alignment.watermarks import Claim
from streaming_source.checkpoint.writer import Writer
from streaming_source.exceptions import ClaimError, OptionError

__all__ = ["Claimed", "TableClaims", "declared_writers"]

_REPLACED_BY: Final = "->"

Opener: TypeAlias = Callable[[str], tuple[fs.FileSystem, str] | None]
"""Opens the file system of a checkpoint; None for one that Arrow opens by its URI."""


def declared_writers(
    checkpoints: str | Sequence[str],
    column: str | None = None,
    delay_us: int | None = None,
    opened: Opener = lambda _: None,
    zone: str | None = None,
) -> list[list[Writer]]:
    """Return the writers that a user names: those side by side, each with those that it has replaced before it.

    `checkpoints` are paths or URIs, as text separated by commas; `old -> new` is one that another has replaced.
    The others are as for `Writer`. An `OptionError` if none is named.
    """
    side_by_side = checkpoints.split(",") if isinstance(checkpoints, str) else list(checkpoints)
    named = [[path.strip() for path in one.split(_REPLACED_BY)] for one in side_by_side]
    if not named or not all(path for lane in named for path in lane):
        raise OptionError(
            f"watermarkFrom = {checkpoints!r} must name the checkpoints of the writers: one; several side by side, "
            "separated by commas; or 'old -> new' where a query has replaced another"
        )
    return [[Writer(path, column, delay_us, opened(path), zone) for path in lane] for lane in named]


class Claimed(NamedTuple):
    """What the writers of a table claim at one time.

    The table is complete until `until_us`, the smallest of the `claims`, one of each writer that has any. It is that of
    the `holder`, the checkpoint of a writer.
    """

    until_us: int
    holder: str
    claims: tuple[Claim, ...]


class TableClaims:
    """The last claim of each writer of a table. Nothing is kept of earlier ones.

    Parameters
    ----------
    writers
        Those side by side, each with those that it has replaced before it: `declared_writers`.
    known
        The claims so far, as an offset has them.

    Raises
    ------
    ClaimError
        If a checkpoint is gone, or is of another query than the one whose claims are known.
    """

    def __init__(self, writers: Sequence[Sequence[Writer]], known: Iterable[Claim] = ()) -> None:
        claims = {claim.writer: claim for claim in known}
        self._writers: Mapping[str, Writer] = {}
        self.lanes: list[Lane] = []
        for lane in writers:
            # Of those that were replaced nothing is read any more: their checkpoints may be gone.
            there = [writer for writer in lane[:-1] if writer.is_there] + [lane[-1]]
            self._writers |= {writer.id: writer for writer in there}
            ids = tuple(dict.fromkeys(writer.id for writer in there))
            last = next((claims.pop(writer) for writer in reversed(ids) if writer in claims), None)
            self.lanes.append(Lane(ids, last))
        # Those whose ids are not known any more may have had the claims that are left.
        replaced = sum(len(named) > len(lane.writers) for named, lane in zip(writers, self.lanes, strict=True))
        if len(claims) > replaced:
            now = " and ".join(str(writer) for lane in writers for writer in lane)
            raise ClaimError(
                f"claims are known of {' and '.join(claims)}, and the checkpoint that is named is now of {now}: that "
                "query began anew, as after a full refresh, and writes all rows once more. If it has replaced the old "
                "one, name both in order: watermarkFrom = 'old -> new', with the same path twice where it is the same"
            )

    @property
    def ids(self) -> frozenset[str]:
        """The ids of all writers that are named."""
        return frozenset(self._writers)

    @property
    def until_us(self) -> int:
        """Up to when the table is complete, in microseconds: the smallest claim of its writers."""
        return self._slowest.until_us

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The last claim of each writer that has one: what an offset keeps."""
        return tuple(lane.claim for lane in self.lanes if lane.claim is not None)

    @property
    def column(self) -> str:
        """The column of the table that the claims are on; a `ClaimError` if they are on several, and none is named."""
        counted = [lane for number, lane in enumerate(self.lanes) if lane.claim is not None or number == 0]
        columns = [self.writer(lane).rule.column for lane in counted]
        if len(found := {column.lower(): column for column in columns}) > 1:
            raise ClaimError(
                f"the writers claim on {' and '.join(sorted(found.values()))}, and the smallest claim is none "
                "of the table; name one column of the table that all of them claim on"
            )
        return columns[0]

    def check(self) -> None:
        """Look at what the writers do that have run a micro-batch; raises what `Writer.rule` does."""
        for writer in self._writers.values():
            if writer.has_started:
                _ = writer.rule

    @property
    def now(self) -> Claimed:
        """What is claimed by the commits that were taken."""
        return Claimed(self.until_us, self.writer(self._slowest).checkpoint, self.claims)

    @property
    def _slowest(self) -> Lane:
        return min(self.lanes, key=lambda lane: lane.until_us)

    def writer(self, lane: Lane) -> Writer:
        """Return the writer of a lane that commits now."""
        return self._writers[lane.claim.writer if lane.claim is not None else lane.writers[-1]]

    def check_directory(self, title: str, newest: Callable[[], int | None]) -> None:
        """Refuse a query that has committed a micro-batch that the log of Spark's file sink lacks.

        It writes elsewhere: the log does not say of which query it is. `newest` is the last one that the log has.
        """
        writer = self._writers[self.lanes[0].writers[-1]]
        # Read before the log: the sink has a micro-batch before the query commits it.
        done, last = writer.last_committed, newest()
        if done > (-1 if last is None else last):
            raise ClaimError(
                f"no claim can be had of {writer}: it has committed micro-batch {done}, and the log of {title} ends "
                f"with {last}, so another query writes that; give the checkpointLocation of the query that does"
            )

    def is_declared(self, writer: str | None) -> bool:
        """Return whether a commit of this writer is covered by a claim; one that was replaced is a stranger."""
        return writer is not None and any(lane.has(writer) for lane in self.lanes)

    def take(self, commits: Iterable[tuple[str, int, int]]) -> None:
        """Take the newest claims from commits, oldest first: each a writer, its micro-batch, and the version.

        Reads one small file for each writer that is named. See `Writer.claimed_us` for what is raised.
        """
        newest: dict[str, tuple[int, int]] = {}
        for writer, batch, version in commits:
            # Again at the end: a new writer is known to have replaced another by the order of their commits.
            newest.pop(writer, None)
            newest[writer] = batch, version
        for writer, (batch, version) in newest.items():
            if not self.is_declared(writer):
                continue
            claimed_us = self._writers[writer].claimed_us(batch)
            if claimed_us is not None:
                claim = Claim(writer, batch, claimed_us, version)
                self.lanes = [lane.take(claim) for lane in self.lanes]

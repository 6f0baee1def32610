"""Queries as the writers of a table: what each claims of the rows that it has committed there, and all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final, TypeAlias

from pyarrow import fs

from alignment.claims import (
    ClaimRule,
    Claims,
    NoClaim,
    OperatorKind,
    StrangeCommit,
    WriterOperator,
    WriterProgress,
    WriterShape,
    WrittenCommit,
    claim_rule,
)
from alignment.column_paths import event_time_names
from alignment.time_texts import UTC
from alignment.watermarks import Claim
from streaming_source.checkpoint.offset_log import OffsetLog
from streaming_source.checkpoint.operators import AGGREGATE, JOIN, Operator, WindowLengths, operators_of
from streaming_source.checkpoint.source_offsets import is_ours
from streaming_source.exceptions import ClaimError, DataLossError, OptionError

_KINDS: Final = {
    "dedupe": OperatorKind.DEDUPLICATION,
    "dedupeWithinWatermark": OperatorKind.DEDUPLICATION,
    JOIN: OperatorKind.JOIN,
}
_REPLACED_BY: Final = "->"
_GONE: Final = "restore it; or, if another query has replaced this one, name that one's as well: 'old -> new'"


Opener: TypeAlias = Callable[[str], tuple[fs.FileSystem, str] | None]
"""Opens the file system of a checkpoint; None for one that its reader opens by itself."""


class Writer:
    """The query that uses a checkpoint, and its claims on one column of what it writes.

    Parameters
    ----------
    checkpoint
        Its `checkpointLocation`, as for `OffsetLog`. It is read, and nothing is written.
    column, delay_us
        As for `claim_rule`: the column of the table, and how far the user vouches that it may be behind the watermark.
    zone
        That in which times of the column are read, where they may have none.

    Notes
    -----
    `id` is that of the query, by which sinks commit. What the query does is read once, at its first claim; each claim
    takes one small file. How long its windows are may change when it is started anew: where a claim depends on it, the
    files of its state that came since are read too.
    """

    def __init__(
        self,
        checkpoint: str,
        column: str | None = None,
        delay_us: int | None = None,
        opened: tuple[fs.FileSystem, str] | None = None,
        zone: str | None = None,
    ) -> None:
        self.checkpoint, self._zone = checkpoint, zone
        self._log = OffsetLog(checkpoint, opened)
        self._column, self._delay_us = column, delay_us
        # By the numbers of the operators whose windows a claim depends on.
        self._lengths: dict[int, WindowLengths] = {}

    @property
    def is_there(self) -> bool:
        """True if there is such a checkpoint, of a query that has started."""
        return self._log.query_id() is not None

    @cached_property
    def id(self) -> str:
        """The id of the query; a `ClaimError` if there is no such checkpoint."""
        found = self._log.query_id()
        if found is None:
            raise ClaimError(
                f"there is no checkpoint of a streaming query at {self.checkpoint}: it has no file `metadata`, which "
                f"has the id of the writer; give the writer's checkpointLocation, or {_GONE}"
            )
        return found

    @property
    def has_started(self) -> bool:
        """True if it has run a micro-batch, so that its checkpoint shows what it does: state comes after offsets."""
        return self.last_committed >= 0

    @property
    def last_committed(self) -> int:
        """The last micro-batch that it has written to its end; -1 before the first."""
        return max(self._log.committed(), default=-1)

    @property
    def is_ours(self) -> bool:
        """True if its sources are of this library, so that its checkpoint shows why its watermark stands."""
        return self._shape.is_ours

    @cached_property
    def rule(self) -> ClaimRule:
        """Return how its claims follow; a `ClaimError` that names the writer, the reason and the fix, if none does.

        An `OptionError` if times of the column are in another zone than the claims.
        """
        found = claim_rule(self._shape, self._column, self._delay_us)
        if isinstance(found, NoClaim):
            raise ClaimError(f"no claim can be had of {self}: {found.reason}. To go on, {found.fix}")
        zones = self._zones if found.by_sources else {UTC}
        if self._zone is not None and (others := zones - {self._zone}):
            how = (
                "reads them in the zone"
                if found.by_sources
                else "has them compared by Spark as if they were in the zone"
            )
            raise OptionError(
                f"option timeZone = {self._zone!r}: times in {found.column} may have no zone, and {self}, {how} "
                f"{' and '.join(sorted(others))}; give timeZone = {min(others)}"
            )
        return found

    def claimed_us(self, batch: int) -> int | None:
        """Return up to when its rows have been committed, after a micro-batch that is in the table.

        `MIN_WATERMARK` if that claims nothing yet; None if Spark has removed the offsets of the micro-batch: an older
        or a newer claim is true as well.

        Raises
        ------
        ClaimError
            If the checkpoint is gone, no claim follows from what the query does, or it has not written the offsets of a
            micro-batch before its data.
        """
        progress = self.progress(batch)
        if self._lengths and progress is not None:
            self.__dict__.pop("rule", None)
        return None if progress is None else self.rule.until_us(progress)

    def progress(self, batch: int) -> WriterProgress | None:
        """Return the watermarks of a micro-batch that is in the table; None if Spark has removed its offsets."""
        try:
            logged = self._log.read(batch)
        except DataLossError:
            left = self._log.batches()
            if left and batch < left[0]:
                return None
            # Else the table has what the checkpoint lacks.
            known = f"it has {left[0]} to {left[-1]}" if left else "it has none"
            raise ClaimError(
                f"no claim can be had of {self}: the table has its micro-batch {batch}, and its checkpoint no offsets "
                f"of that ({known}), which Spark writes before the data. It runs in real-time mode or with "
                "asyncProgressTrackingEnabled, which write them after the data; or the checkpoint is an older copy. "
                f"Run it without these; or, if it is gone, {_GONE}"
            ) from None
        ours = [offset if is_ours(offset) else {} for offset in logged.parsed()]
        return WriterProgress(logged.watermark_us, tuple(offset.get("watermark") for offset in ours))

    def since_us(self, batch: int) -> int | None:
        """Return when the claim of a micro-batch was first committed, by the time of its file; None if that is gone."""
        claimed, times, since_us = self.progress(batch), self._log.commit_times_us(), None
        for number in range(batch, -1, -1):
            progress = self.progress(number) if number in times and claimed is not None else None
            if progress is None or claimed is None or self.rule.until_us(progress) != self.rule.until_us(claimed):
                break
            since_us = times[number]
        return since_us

    def next_us(self, batch: int) -> int | None:
        """Return the watermark that the query goes on with, if that is further than in its last micro-batch, else None.

        The next micro-batch claims it: one without data, unless `noDataMicroBatches` are off.
        """
        if self.rule.by_sources or batch != max(self._log.batches(), default=-1):
            return None
        follows, progress = self._log.next_watermark_us(batch), self.progress(batch)
        return None if follows is None or progress is None or follows <= progress.watermark_us else follows

    def __str__(self) -> str:
        return f"the writer {self.id}, whose checkpoint is {self.checkpoint}"

    @property
    def _zones(self) -> set[str]:
        """Those in which its sources read times that may have none."""
        last = self._log.read(self._log.batches()[-1])
        fixed = [offset.get("fixed") or {} for offset in last.parsed() if is_ours(offset)]
        return {str(one["timeZone"]) for one in fixed if one.get("timeZone")}

    @property
    def _shape(self) -> WriterShape:
        batches = self._log.batches()
        if not batches:
            raise ClaimError(f"no claim can be had of {self}: it has planned no micro-batch yet; start it")
        last = self._log.read(batches[-1])
        sources = tuple(
            event_time_names(offset["source"], offset.get("fixed") or {}) if is_ours(offset) else None
            for offset in last.parsed()
        )
        operators = [self._operator(one) for one in reversed(operators_of(self._log) or ())]
        return WriterShape(tuple(operators), sources)

    def _operator(self, operator: Operator) -> WriterOperator:
        if operator.name != AGGREGATE or not operator.is_known or operator.window_column is None:
            known = "" if operator.is_known else ", whose state is of an unknown version"
            kind = _KINDS.get(operator.name, OperatorKind.OTHER)
            return WriterOperator(kind, f"{operator.title}{known}")
        column = operator.window_column
        length_us = None
        if self._column is not None and self._column.lower() == f"{operator.key[column]}.start".lower():
            windows = self._lengths.setdefault(operator.number, WindowLengths(self._log, operator, column))
            length_us = windows.longest_us()
        return WriterOperator(OperatorKind.WINDOWS, operator.title, operator.key[column], length_us)


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
    if not named or not all(path for side in named for path in side):
        raise OptionError(
            f"watermarkFrom = {checkpoints!r} must name the checkpoints of the writers: one; several side by side, "
            "separated by commas; or 'old -> new' where a query has replaced another, or has ended beside it"
        )
    return [[Writer(path, column, delay_us, opened(path), zone) for path in side] for side in named]


class TableWriters:
    """The writers of a table, and their `claims` by the commits that were taken. One thread at a time.

    Parameters
    ----------
    sides
        Those side by side, each with those that it has replaced before it: `declared_writers`.
    known
        The claims of an offset.

    Raises
    ------
    ClaimError
        If a checkpoint is gone, or claims are known of a writer that is not named.
    """

    def __init__(self, sides: Sequence[Sequence[Writer]], known: Iterable[Claim] = ()) -> None:
        # Of those that were replaced nothing is read any more: their checkpoints may be gone.
        there = [[*(writer for writer in side[:-1] if writer.is_there), side[-1]] for side in sides]
        ids = [list(dict.fromkeys(writer.id for writer in side)) for side in there]
        self._writers: Mapping[str, Writer] = {writer.id: writer for side in there for writer in side}
        known = list(known)
        left = [claim.writer for claim in known if claim.writer not in self._writers]
        # Those whose ids are not known any more may have had the claims that are left.
        if len(left) > sum(len(side) - len(one) for side, one in zip(sides, ids, strict=True)):
            now = " and ".join(str(writer) for side in sides for writer in side)
            raise ClaimError(
                f"the offset has claims of writer {' and '.join(left)}, which watermarkFrom, {now}, no longer names. A "
                "query that was started with a new checkpoint is another writer, and writes all rows once more: if it "
                "has replaced the old one, name both in order, watermarkFrom = 'old -> new', with the same path twice "
                "where it is the same. Of a writer that has ended beside others, name it before one that goes on, "
                f"watermarkFrom = 'ended -> {sides[0][-1].checkpoint}', whether or not its checkpoint is still there. "
                "One that goes on must be named as before"
            )
        self.claims = Claims.of(ids, known)

    @property
    def ids(self) -> frozenset[str]:
        """The ids of all writers that are named."""
        return frozenset(self._writers)

    def writer(self, query: str) -> Writer:
        """Return the writer of this id."""
        return self._writers[query]

    @property
    def column(self) -> str:
        """The column of the table that the claims are on; a `ClaimError` if they are on several, and none is named."""
        first, *others = self.claims.current
        columns = [self._writers[one].rule.column for one, claim in (first, *others) if claim or one == first[0]]
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

    def check_directory(self, title: str, newest: Callable[[], int | None]) -> None:
        """Refuse a query that has committed a micro-batch that the log of Spark's file sink lacks.

        It writes elsewhere: the log does not say of which query it is. `newest` is the last one that the log has.
        """
        writer = self._writers[self.claims.current[0][0]]
        # Read before the log: the sink has a micro-batch before the query commits it.
        done, last = writer.last_committed, newest()
        if done > (-1 if last is None else last):
            raise ClaimError(
                f"no claim can be had of {writer}: it has committed micro-batch {done}, and the log of {title} ends "
                f"with {last}, so another query writes that; give the checkpointLocation of the query that does"
            )

    def take(
        self, commits: Iterable[WrittenCommit], earliest_us: Mapping[int, int] | None = None
    ) -> list[StrangeCommit]:
        """Take commits, and return those of strangers behind a claim; see `Claims.take` and `Writer.claimed_us`."""
        self.claims, strange = self.claims.take(
            commits, lambda query, batch: self._writers[query].claimed_us(batch), earliest_us
        )
        return strange

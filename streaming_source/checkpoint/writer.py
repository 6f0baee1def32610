"""A query as the writer of a table: what it claims of the rows that it has committed there."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

from pyarrow import fs

from alignment.arrow_times import UTC
from alignment.claims import ClaimRule, NoClaim, OperatorKind, WriterOperator, WriterProgress, WriterShape, claim_rule
from streaming_source.checkpoint.offset_log import OffsetLog
from streaming_source.checkpoint.operators import AGGREGATE, JOIN, Operator, operators_of
from streaming_source.checkpoint.source_offsets import is_ours
from streaming_source.checkpoint.state_keys import window_length
from streaming_source.exceptions import ClaimError, DataLossError, OptionError

__all__ = ["Writer"]

_KINDS: Final = {
    "dedupe": OperatorKind.DEDUPLICATION,
    "dedupeWithinWatermark": OperatorKind.DEDUPLICATION,
    JOIN: OperatorKind.JOIN,
}
_GONE: Final = "restore it; or, if another query has replaced this one, name that one's as well: 'old -> new'"


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
    takes one small file.
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

    @property
    def is_there(self) -> bool:
        """Whether there is such a checkpoint, of a query that has started."""
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
        """Whether it has run a micro-batch, so that its checkpoint shows what it does: state comes after offsets."""
        return self.last_committed >= 0

    @property
    def last_committed(self) -> int:
        """The last micro-batch that it has written to its end; -1 before the first."""
        return max(self._log.committed(), default=-1)

    @property
    def is_ours(self) -> bool:
        """Whether its sources are of this library, so that its checkpoint shows why its watermark stands."""
        return self._shape.is_ours

    @cached_property
    def rule(self) -> ClaimRule:
        """How its claims follow; a `ClaimError` that names the writer, the reason and the fix, if none does.

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
        """Return up to when its rows have been committed, behind a micro-batch that is in the table.

        `MIN_WATERMARK` if that claims nothing yet; None if Spark has removed the offsets of the micro-batch: an older
        or a newer claim is true as well.

        Raises
        ------
        ClaimError
            If the checkpoint is gone, no claim follows from what the query does, or it has not written the offsets of a
            micro-batch before its data.
        """
        progress = self.progress(batch)
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
        claimed_us, times, since_us = self.claimed_us(batch), self._log.commit_times_us(), None
        for number in range(batch, -1, -1):
            if number not in times or self.claimed_us(number) != claimed_us:
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

    @cached_property
    def _shape(self) -> WriterShape:
        batches = self._log.batches()
        if not batches:
            raise ClaimError(f"no claim can be had of {self}: it has planned no micro-batch yet; start it")
        last = self._log.read(batches[-1])
        sources = tuple(_event_times(offset) if is_ours(offset) else None for offset in last.parsed())
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
            length_us = window_length(self._log, operator.number, len(operator.key), column)
        return WriterOperator(OperatorKind.WINDOWS, operator.title, operator.key[column], length_us)


def _event_times(offset: dict[str, Any]) -> tuple[str, ...]:
    """Return the names that the event time may have in the frame of a source of this library; none for a function's."""
    fixed = offset.get("fixed") or {}
    column = fixed.get("eventTimeColumn")
    if column is None:
        return ("timestamp",) if offset["source"] == "aligned_kafka" else ("event_time",)
    if column == "a function":
        return ()
    # Of a number or a nested field the frame has a column of its own for it.
    return (column, "event_time") if fixed.get("timestampUnit") or "." in column else (column,)

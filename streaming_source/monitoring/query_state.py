"""The state of a query, and what ended it: by any `StreamingQuery`, or by the notes of its planners."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile, takewhile
from typing import Any, Final, Protocol, Self

from alignment.exceptions import AlignmentError
from alignment.explain import QueryEnd
from streaming_source.checkpoint.offset_log import OffsetLog
from streaming_source.exceptions import ERROR_IN_TEXT
from streaming_source.monitoring.micro_batch import MicroBatch
from streaming_source.monitoring.planner_note import PlannerNote

_AT_WORK: Final = "Processing new data"
"""The status that Spark gives a query between the planning of a micro-batch and its commit."""

_WRAPPED: Final = re.compile(r"^\[STREAM_FAILED\] .*?terminated with exception: ", re.DOTALL)
_TRACE: Final = "Traceback (most recent call last):"
_BEHIND: Final = (" SQLSTATE", "===", "\tat ")
"""Beginnings of the lines that Spark adds after an error."""
_NOTHING_SAID: Final = ("SQLSTATE:", "null")
"""Beginnings of an error that has no message."""
_OURS: Final = re.compile(ERROR_IN_TEXT)
"""Errors of this library: their message is shown as a whole, since its last sentence is the fix."""
_SHOWN: Final = 600
"""Characters of an error."""
_NO_MESSAGE: Final = "an error without a message"
_LEVELS: Final = 20
"""Causes of causes that are looked at."""
_SAME: Final = 80
"""Characters by which the message of a cause is found in that of its error."""


class Query(Protocol):
    """A `StreamingQuery`, classic or of Spark Connect."""

    @property
    def name(self) -> str | None:
        """Its `queryName`."""

    @property
    def isActive(self) -> bool:  # noqa: N802
        """True if it runs."""

    @property
    def status(self) -> Mapping[str, Any]:
        """Return what it does at this moment, under `message`."""

    @property
    def recentProgress(self) -> Sequence[Mapping[str, Any]]:  # noqa: N802
        """Its last reports, oldest first."""

    def exception(self) -> Exception | None:
        """Return what ended it, if it failed."""


@dataclass(frozen=True, slots=True)
class QueryState:
    """A query at this moment: its name, its `end` if it does not run, and whether a micro-batch is being processed.

    `checkpoint` is its checkpoint location, None if that is not known (Spark Connect).
    """

    name: str | None
    end: QueryEnd | None
    is_at_work: bool
    checkpoint: str | None

    @classmethod
    def of(cls, query: Query) -> Self:
        """Return the state of a query, by its status and its error."""
        end = None if query.isActive else _end_of(query)
        return cls(query.name, end, end is None and query.status.get("message") == _AT_WORK, _checkpoint_of(query))

    def last_batch(self) -> MicroBatch | None:
        """Return the last micro-batch in the checkpoint; None if there is none, or it cannot be read."""
        return next(reversed(self.batches()), None)

    def batches(self) -> list[MicroBatch]:
        """Return the micro-batches in the checkpoint, oldest first; none if it cannot be read."""
        if self.checkpoint is None:
            return []
        try:
            return MicroBatch.of_checkpoint(self.checkpoint)
        except (AlignmentError, OSError):
            # It may be on a file system that only Spark has credentials for.
            return []

    def end_with(self, notes: Sequence[PlannerNote]) -> QueryEnd | None:
        """Return the end with what the checkpoint and the last note of each planner have in addition.

        Spark knows of a planner that was killed only that a connection ended, and nothing of another run.
        """
        if self.end is None:
            return None
        others = [note.pid for note in notes if note.runs]
        cut_off = any(note.was_cut_off for note in notes)
        is_gone, other_pid = _is_gone(self.checkpoint), others[0] if others else None
        end = replace(self.end, is_gone=is_gone, other_pid=other_pid, was_cut_off=cut_off)
        is_unknown = end.error == _NO_MESSAGE
        if end.error is None or not (is_unknown or any(note.was_killed for note in notes)):
            return end
        by_notes = end_by_notes(notes)
        if by_notes is None or by_notes.error is None:
            error = f"{_NO_MESSAGE}: the process of its planner was killed, or crashed"
            return replace(end, error=error, was_killed=True)
        spark = "" if is_unknown else f". Spark's error is: {end.error}"
        return replace(end, error=f"{by_notes.error}{spark}", was_killed=by_notes.was_killed)


def end_by_notes(notes: Sequence[PlannerNote]) -> QueryEnd | None:
    """Return how a query has ended by the last note of each of its planners; None if it runs, or there are none."""
    for note in notes:
        if note.error is not None:
            return QueryEnd(note.error, note.at_us, pid=note.pid, is_gone=False)
        if note.was_killed:
            error = f"its planner, process {note.pid}, was killed or has crashed, as where memory runs out"
            return QueryEnd(error, None, pid=note.pid, is_gone=False, was_killed=True)
    if not notes or any(note.runs for note in notes):
        return None
    last = max(notes, key=lambda note: note.at_us)
    return QueryEnd(None, last.at_us, pid=last.pid, is_gone=False, was_cut_off=any(note.was_cut_off for note in notes))


def _is_gone(checkpoint: str | None) -> bool | None:
    """Return whether a checkpoint has no offsets any more; None if that cannot be seen from here."""
    try:
        return None if checkpoint is None else not OffsetLog(checkpoint).batches()
    except (AlignmentError, OSError):
        return None


def _end_of(query: Query) -> QueryEnd:
    error = query.exception()
    at_us, text = None, None if error is None else first_line(str(error))
    try:
        failed: Any = query._jsq.exception()  # type: ignore[attr-defined]
        if failed.isDefined():
            at_us = failed.get().time() * 1000
            text = with_cause(text, failed.get())
    except Exception:
        # Spark Connect has no JVM, and other versions of Spark may keep it elsewhere: the time is not known then.
        pass
    return QueryEnd(text, at_us)


def with_cause(text: str | None, thrown: Any) -> str | None:
    """Return an error with the message of what caused it, of which a Throwable of the JVM knows several levels."""
    cause, levels = thrown, 0
    while levels < _LEVELS and (behind := cause.getCause()) is not None:
        cause, levels = behind, levels + 1
    said = first_line(str(cause.getMessage() or ""))
    if text is None or not levels or said == _NO_MESSAGE or said[:_SAME] in text:
        return text
    return f"{text.rstrip('.')}; caused by {cause.getClass().getSimpleName()}: {said}"[: 2 * _SHOWN]


def _checkpoint_of(query: Query) -> str | None:
    """Return the checkpoint location that the JVM has; None without a JVM, or in a version of Spark without it."""
    try:
        execution: Any = query._jsq.streamingQuery()  # type: ignore[attr-defined]
        return str(execution.resolvedCheckpointRoot())
    except Exception:
        return None


def first_line(error: str) -> str:
    r"""Return the message of an error without what Spark and Python add to it.

    Examples
    --------
    >>> first_line("[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: the disk is full\nat x.y")
    'the disk is full'
    """
    lines = [line for line in _WRAPPED.sub("", error).splitlines() if line.strip()]
    if not lines or lines[0].strip().startswith(_NOTHING_SAID):
        return _NO_MESSAGE
    found = lines[:1]
    if any(_TRACE in line for line in lines):
        # The error is after the lines of its trace, which are indented.
        at = max(i for i, line in enumerate(lines) if _TRACE in line)
        lines = list(dropwhile(lambda line: line.startswith((" ", "\t")), lines[at + 1 :])) or lines
        found = lines[:1]
    if (ours := _OURS.search(lines[0])) is not None:
        found = [lines[0][ours.start() :], *takewhile(lambda line: not line.startswith(_BEHIND), lines[1:])]
    text = " ".join(" ".join(found).split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."

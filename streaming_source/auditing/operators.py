"""Which stateful operator gets the rows of the sources first, and by which rule it drops some."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from streaming_source.auditing.rule import NothingDropped, RowTimes, Rule, SessionWindows, Undecided, Windows
from streaming_source.checkpoint.micro_batches import Checkpoint
from streaming_source.checkpoint.operators import AGGREGATE, BY_ROW, SESSIONS, Operator
from streaming_source.exceptions import OptionError

_NO_STATE: Final = (
    "the query has a watermark, and its checkpoint has no state; either it has no stateful operator, and dropped "
    "none, or the folder state was lost: restore it from a copy of the checkpoint"
)


def first_operator(operators: Sequence[Operator], sources: int) -> Operator | None:
    """Return the first operator that gets the rows of all sources; None if it cannot be determined.

    Spark numbers operators from the sink back, so that in a chain the last number is the first operator. A query with
    several sources may have several chains.
    """
    if len(operators) == 1 or sources == 1:
        return operators[-1]
    is_one_chain = operators[-1].is_join and sources == 2 and not any(one.is_join for one in operators[:-1])
    return operators[-1] if is_one_chain else None


def rule_of(checkpoint: Checkpoint, operators: Sequence[Operator] | None, mode: str | None, window: str | None) -> Rule:
    """Return the rule of the first stateful operator. `window` describes its windows as the user gives them.

    `mode` None is append or update. `operators` None is a checkpoint without state.

    Raises
    ------
    OptionError
        If it has windows and `window` is None.
    """
    sources = len(checkpoint.source_folders)
    if not operators:
        # Spark makes no folder for the state of a query without one. If there was one, it may have dropped rows.
        had_watermark = any(batch.next_us or batch.watermark_us for batch in checkpoint.batches)
        return Undecided(_NO_STATE) if had_watermark else NothingDropped()
    operator = first_operator(operators, sources)
    if operator is None:
        names = ", ".join(one.title for one in reversed(operators))
        return Undecided(f"the query has {sources} sources and several stateful operators ({names})")
    if operator.name not in (AGGREGATE, SESSIONS, *BY_ROW):
        return Undecided(f"whether {operator.name} drops a row is decided by code of the query's own")
    if not operator.is_known:
        return Undecided(f"the schema of the state of {operator.name} is of an unknown version")
    if mode == "complete" and len(operators) == 1 and operator.name == AGGREGATE:
        return NothingDropped(any(field.is_window for field in operator.event_times))
    if operator.name == SESSIONS:
        return SessionWindows(Windows.parse(_given(window, operator)).size_us, waits=mode == "append")
    if operator.is_join and any(field.is_window for field in operator.event_times):
        return Undecided("it joins windows of two streams")
    if operator.name in BY_ROW:
        return RowTimes() if operator.event_times or not operator.is_join else NothingDropped()
    if not operator.event_times:
        return NothingDropped()
    waits = None if mode is None else mode == "append"
    if not any(field.is_window for field in operator.event_times):
        return RowTimes(waits=waits)
    found = Windows.parse(_given(window, operator))
    return Windows(found.size_us, found.slide_us, found.start_us, waits=waits)


def _given(window: str | None, operator: Operator) -> str:
    if window is None:
        what = "the gap" if operator.name == SESSIONS else "the size (and the slide, where there is one)"
        raise OptionError(
            f"the checkpoint shows that the query has {operator.title}, and not {what}; give it with --window, as in "
            '--window "1 hour" or --window "1 hour, 15 minutes"'
        )
    return window

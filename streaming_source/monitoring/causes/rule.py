"""Causes: each has a condition, a sentence, and advice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from alignment.explain import Cause, Explanation, SplitExplanation, WaitsFor
from alignment.sentence import duration_text, moment
from alignment.watermarks import MIN_WATERMARK

_STANDING_US: Final = 1_000_000
"""A watermark that has not moved for less than this *is* somewhere; after that it *stands* there."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A thing that was seen, and what to do about it.

    `option` is the option to change, or else `query`, `sink`, `source`, or `data` where the records themselves are
    wrong.
    """

    option: str
    text: str


Advise = Callable[[Sequence[Explanation]], Iterator[Advice]]
"""Advice from the explanations of a source, oldest first: some look for what grows or repeats."""


def _no_advice(reports: Sequence[Explanation]) -> Iterator[Advice]:
    yield from ()


@dataclass(frozen=True, slots=True)
class Rule:
    """A cause: whether it `applies`, if none before it does, what it `says` of the watermark, and what it `advises`.

    A rule without a cause only advises: `always`, whatever the cause is.
    """

    cause: Cause | None = None
    applies: Callable[[Explanation], bool] = lambda _: False
    says: Callable[[Explanation], str] = lambda _: ""
    advises: Advise = _no_advice
    always: Advise = _no_advice


def advice(option: str, text: str | Callable[[Sequence[Explanation]], str]) -> Advise:
    """One advice: the same whatever the explanations are, or a `text` made of them."""
    return lambda reports: iter([Advice(option, text if isinstance(text, str) else text(reports))])


def first_waits(waits_for: WaitsFor) -> Callable[[Explanation], bool]:
    """Return the condition that the first split that holds the watermark waits for this."""
    return lambda explanation: bool(explanation.holders) and explanation.holders[0].waits_for is waits_for


def where(explanation: Explanation, *, stands: bool = True) -> str:
    """Return where the watermark is: how most sentences begin."""
    if explanation.watermark == MIN_WATERMARK:
        return "There is no watermark yet"
    stands &= explanation.at_us - explanation.stands_since_us >= _STANDING_US
    return f"The watermark {'stands' if stands else 'is'} at {moment(explanation.watermark)}"


def because(explanation: Explanation, why: str, idle: str | None = None) -> str:
    """Return that the watermark is there because of what the first split that holds it does, and when it is `idle`."""
    first, others = explanation.holders[0], len(explanation.holders) - 1
    holder = f"split {first.split_id!r}" + (f" (and {others} more)" if others else "")
    idle = becomes_idle(explanation, first) if idle is None else idle
    return f"{where(explanation)} because {holder} {why}{idle}."


def becomes_idle(explanation: Explanation, holder: SplitExplanation, never: str = "") -> str:
    """When a split that holds the watermark is idle; `never` if it is not going to be."""
    idle_at_us, near_us = explanation.idle_at_us(holder), explanation.at_us
    if explanation.counts_runs and explanation.is_draining:
        return "; it is idle in the next run that brings nothing of it either" if holder.missed_run else ""
    if idle_at_us is None:
        return never if explanation.bounds.idle_timeout_us is None else ""
    if explanation.is_draining:
        return f"; it is idle in the first run that begins after {moment(idle_at_us, near_us)}"
    if idle_at_us <= near_us:
        return "; it is idle as soon as the query looks again"
    return f"; it becomes idle in {duration_text(idle_at_us - near_us)}, at {moment(idle_at_us, near_us)}"


def records_outside(explanation: Explanation) -> int:
    """Return how many records lie outside of the range of event times."""
    return dict(explanation.metrics).get("outOfRangeRecords", 0)

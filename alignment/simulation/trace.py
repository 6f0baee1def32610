"""The trace of a simulated source, step by step; and those of one workload under several settings, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import product
from typing import Any, Final, Self, TypeAlias

import numpy as np

from alignment.combine import SplitStatus
from alignment.durations import format_duration, parse_duration_us
from alignment.events import RangeReport
from alignment.exceptions import InvalidArgumentError
from alignment.plan import MicroBatchPlan, SplitTable
from alignment.sentence import duration_text, watermark_text
from alignment.watermarks import MIN_WATERMARK, Int64Array

_COLUMNS: Final = ("now_us", "watermark", "drift_us", "paused", "rows", "held_rows", "late")


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """One micro-batch of one source: when, and from which state, it was planned, and what.

    `reached_us` (`int64[n]`) is the watermark that all records read so far give each split, reported or not. `late`
    records are at or below the watermark announced before; `held_rows` is as in `SourceTrace`. `reports` came in before
    it was planned.
    """

    now_us: int
    before: SplitTable
    plan: MicroBatchPlan
    reached_us: Int64Array
    late: int
    held_rows: int
    reports: Sequence[RangeReport] = ()


@dataclass(frozen=True, slots=True)
class SourceTrace:
    """The result of each step of one source. All arrays are `int64[steps]`; a source that hangs or ended has no steps.

    Of each step: when it was planned, from the start of the run; the announced watermark; event time between the
    watermarks that what was read gives the fastest and the slowest split that count (`drift_us`); how many splits are
    paused; records read, and those at or below the watermark announced before (`late`). `held_rows` are records read so
    far that are later than that: what Spark has in its state after the step if it keeps records, as joins and
    deduplication do, since it drops what a watermark has passed one step later.

    `unread` records were there, or would have come. It `has_ended` if all was read, and the watermark stays there. If
    it is not `is_exact`, an estimated event time decided about some records: so many were `late` at least.
    """

    now_us: Int64Array
    watermark: Int64Array
    drift_us: Int64Array
    paused: Int64Array
    rows: Int64Array
    held_rows: Int64Array
    late: Int64Array
    unread: int
    has_ended: bool
    is_exact: bool = True


class TraceColumns:
    """A trace while its run goes on."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, ...]] = []

    def add(self, step: SimulatedStep) -> None:
        """One more step. O(n)."""
        after, reached_us = step.plan.after, step.reached_us
        paused = after.statuses == SplitStatus.PAUSED
        counts = paused | (after.statuses == SplitStatus.ACTIVE)
        started = reached_us[counts & (reached_us > MIN_WATERMARK)]
        self._rows.append(
            (
                step.now_us,
                after.combined,
                int(started.max() - started.min()) if started.size else 0,
                int(np.count_nonzero(paused)),
                step.plan.rows,
                step.held_rows,
                step.late,
            )
        )

    @property
    def rows(self) -> int:
        """Records read so far. O(steps)."""
        return sum(row[_COLUMNS.index("rows")] for row in self._rows)

    def trace(self, *, unread: int, has_ended: bool, is_exact: bool = True) -> SourceTrace:
        """All of it."""
        columns = np.array(self._rows, np.int64).reshape(-1, len(_COLUMNS)).T
        return SourceTrace(
            **dict(zip(_COLUMNS, columns, strict=True)), unread=unread, has_ended=has_ended, is_exact=is_exact
        )


Span: TypeAlias = timedelta | str | None

_OPTIONS: Final = {
    "max_drift_us": "maxDrift",
    "out_of_orderness_us": "maxOutOfOrderness",
    "idle_timeout_us": "idleTimeout",
    "max_rows": "maxRowsPerTrigger",
}
_HEADS: Final = (
    ("micro-", "batches"),
    ("rows in the", "largest"),
    ("rows", "late"),
    ("rows", "not read"),
    ("splits apart", "at most"),
    ("rows in state", "at most"),
    ("watermark", "at the end"),
)


_AT_LEAST: Final = (
    "≥: at least: those before the first micro-batch that an estimated event time decided. With --source, which is",
    "where the data is, event times are read, and late rows are exact.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The user's decisions for a source; None for no limit, and for never idle."""

    max_drift_us: int | None
    out_of_orderness_us: int
    idle_timeout_us: int | None
    max_rows: int | None

    def texts(self) -> dict[str, str]:
        """Each under the name of its option."""
        return {
            option: "none" if value is None else f"{value:,}" if name == "max_rows" else format_duration(value)
            for name, option in _OPTIONS.items()
            for value in [getattr(self, name)]
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one workload with some settings."""

    settings: Settings
    trace: SourceTrace

    def to_json(self) -> dict[str, Any]:
        """Return what the table shows, in microseconds, with the rows of each micro-batch."""
        trace = self.trace
        return {
            **asdict(self.settings),
            "batches": trace.rows.tolist(),
            "late": int(trace.late.sum()),
            "late_is_exact": trace.is_exact,
            "unread": trace.unread,
            "most_apart_us": int(trace.drift_us.max(initial=0)),
            "most_in_state": int(trace.held_rows.max(initial=0)),
            "watermark_us": int(trace.watermark.max(initial=MIN_WATERMARK)),
        }

    def cells(self) -> tuple[str, ...]:
        """One row of the table, without the settings."""
        found = self.to_json()
        batches, most = f"{len(found['batches']):,}", f"{max(found['batches'], default=0):,}"
        late, unread = f"{'' if self.trace.is_exact else '≥ '}{found['late']:,}", f"{found['unread']:,}"
        apart, state = duration_text(found["most_apart_us"]), f"{found['most_in_state']:,}"
        return batches, most, late, unread, apart, state, watermark_text(found["watermark_us"])


@dataclass(frozen=True, slots=True)
class Comparison:
    """Outcomes of one workload, in the order of the settings. `str` of it is a table, and how to read it."""

    outcomes: tuple[Outcome, ...]
    workload: str

    @classmethod
    def of(cls, play: Callable[[Settings], SourceTrace], settings: Iterable[Settings], workload: str) -> Self:
        """Play the workload with each of the settings, once."""
        return cls(tuple(Outcome(one, play(one)) for one in dict.fromkeys(settings)), workload)

    def __str__(self) -> str:
        """Return what a row is, the table, and what its last columns mean, as text."""
        texts = [outcome.settings.texts() for outcome in self.outcomes]
        varied = [option for option in texts[0] if len({text[option] for text in texts}) > 1]
        same = ", ".join(f"{option} {text}" for option, text in texts[0].items() if option not in varied)
        upper, lower = zip(*[("", option) for option in varied], *_HEADS, strict=True)
        rows = [
            (*[text[option] for option in varied], *outcome.cells())
            for text, outcome in zip(texts, self.outcomes, strict=True)
        ]
        table = [upper, lower, *rows]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        return "\n".join(
            [
                f"Each row is one run over the same workload: {self.workload}.",
                *([f"All runs have {same}."] if same else []),
                *("  ".join(map(str.rjust, row, widths)) for row in table),
                "Splits apart: event time between the watermarks of the fastest and slowest split; more than maxDrift",
                "where they begin or jump further apart, or are read before their event times are known.",
                "Rows in state: read already and not passed by the watermark, "
                "which Spark applies one micro-batch later.",
                *(_AT_LEAST if not all(outcome.trace.is_exact for outcome in self.outcomes) else ()),
            ]
        )


def combinations(
    base: Settings,
    *,
    max_drift: Sequence[Span] = (),
    max_out_of_orderness: Sequence[timedelta | str] = (),
    idle_timeout: Sequence[Span] = (),
    max_rows: Sequence[int | str | None] = (),
) -> list[Settings]:
    """Each combination of these values; what has none is as in `base`.

    Durations may be None or `"none"` for no limit, and for never idle; so may read limits, which are at least 1. An
    `InvalidArgumentError` if a value is none of these.
    """
    values = product(
        [_span_us(value, "max_drift") for value in max_drift] or [base.max_drift_us],
        [parse_duration_us(value, name="max_out_of_orderness") for value in max_out_of_orderness]
        or [base.out_of_orderness_us],
        [_span_us(value, "idle_timeout") for value in idle_timeout] or [base.idle_timeout_us],
        [_rows(value) for value in max_rows] or [base.max_rows],
    )
    return [
        Settings(max_drift_us=drift_us, out_of_orderness_us=bound_us, idle_timeout_us=idle_us, max_rows=rows)
        for drift_us, bound_us, idle_us, rows in values
    ]


def _span_us(value: Span, name: str) -> int | None:
    if value is None or (isinstance(value, str) and value.strip().lower() == "none"):
        return None
    return parse_duration_us(value, name=name)


def _rows(value: int | str | None) -> int | None:
    if value is None or (isinstance(value, str) and value.strip().lower() == "none"):
        return None
    try:
        rows = int(value)
    except ValueError:
        rows = 0
    if rows < 1:
        raise InvalidArgumentError(
            f"max_rows = {value!r}: must be a number of rows, at least 1, or 'none' for no limit"
        )
    return rows

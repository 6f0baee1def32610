"""Causes of a split itself: it is silent, empty, idle or slow, or its event times are wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from alignment.combine import SplitStatus
from alignment.durations import format_duration
from alignment.explain import FUTURE_US, Cause, Explanation, SplitExplanation, WaitsFor
from alignment.sentence import counted, duration_text, moment, named
from alignment.watermarks import MIN_WATERMARK
from streaming_source.monitoring.causes.of_waits import beyond_the_limit, usual_move_us
from streaming_source.monitoring.causes.rule import (
    Advice,
    Rule,
    advice,
    because,
    becomes_idle,
    first_waits,
    records_outside,
    where,
)

_SOON_US: Final = 1_000_000
"""A split that has had nothing to read for less is not silent: its next records are on their way."""
_YEAR_US: Final = 365 * 86_400_000_000
_UNIT_YEARS: Final = 500
"""Event times further ahead are of a wrong unit: no clock is that wrong."""
_ZONES_US: Final = 14 * 3_600_000_000
"""The zone that is furthest ahead of UTC."""
_NEVER_IDLE: Final = "; without idleTimeout it never becomes idle"


# ---- nothing to read ----


def _silence(reports: Sequence[Explanation]) -> Iterator[Advice]:
    last = reports[-1]
    if last.furthest_in_the_future is not None:
        return
    timeout_us, holder = last.bounds.idle_timeout_us, last.holders[0]
    idle_at_us = last.idle_at_us(holder)
    if last.counts_runs:
        if holder.missed_run:
            yield Advice(
                "idleTimeout",
                f"See why split {holder.split_id!r} delivers nothing. Where it may be away for longer than one run, "
                "give an idleTimeout that is longer than that; with one that is shorter than the time between two runs "
                "nothing waits for it.",
            )
    elif timeout_us is None:
        yield Advice(
            "idleTimeout",
            f"Without idleTimeout split {holder.split_id!r} holds the watermark for as long as it is silent. If it may "
            "be left out after a while, give that time as idleTimeout.",
        )
    elif idle_at_us is not None:
        yield Advice(
            "idleTimeout",
            f"With an idleTimeout of {format_duration(timeout_us)} split {holder.split_id!r} holds the watermark until "
            f"{moment(idle_at_us, last.at_us)}. A shorter one releases it earlier, if its silence is normal; if not, "
            "see why it delivers nothing.",
        )


def _because(explanation: Explanation, why: str) -> str:
    return because(explanation, why, becomes_idle(explanation, explanation.holders[0], never=_NEVER_IDLE))


def _has_none(explanation: Explanation) -> bool:
    return first_waits(WaitsFor.RECORDS)(explanation) and explanation.holders[0].watermark == MIN_WATERMARK


def _says_invalid(explanation: Explanation) -> str:
    read = counted(explanation.holders[0].invalid, "position")
    return _because(explanation, f"has been read for {read}, and no record there has a valid event time")


def _see_the_column(reports: Sequence[Explanation]) -> Iterator[Advice]:
    invalid = {split.split_id: split.invalid for split in reports[-1].splits if split.invalid}
    if invalid:
        yield Advice(
            "eventTimeColumn",
            f"No record of {named(invalid)} had a valid event time so far, in "
            f"{counted(sum(invalid.values()), 'position')}: they are null, cannot be read, or lie outside of what "
            "maxFutureSkew and the exact watermark take. See that eventTimeColumn and timestampUnit are those of these "
            "records.",
        )


INVALID: Final = Rule(
    Cause.INVALID,
    lambda explanation: _has_none(explanation) and explanation.holders[0].invalid > 0,
    _says_invalid,
    _silence,
    always=_see_the_column,
)


def _since(explanation: Explanation, split: SplitExplanation) -> str:
    near_us = explanation.watermark if explanation.watermark > MIN_WATERMARK else None
    return "" if split.silent_since_us is None else f" since {moment(split.silent_since_us, near_us)}"


def _says_empty(explanation: Explanation) -> str:
    in_range = " in the range" if records_outside(explanation) else ""
    since = _since(explanation, explanation.holders[0])
    return _because(explanation, f"has never had a record with an event time{in_range}, and nothing to read{since}")


EMPTY: Final = Rule(Cause.EMPTY, _has_none, _says_empty, _silence)


def _others_wait(explanation: Explanation) -> bool:
    return any(split.waits_for is not WaitsFor.RECORDS for split in explanation.counting)


def _is_silent(explanation: Explanation) -> bool:
    """Return whether others went on after the split that holds the watermark.

    Where all fell silent with it, nothing is the matter with this one: all that is there has been read.
    """
    if not first_waits(WaitsFor.RECORDS)(explanation):
        return False
    if explanation.holders[0].missed_run:
        return not all(split.missed_run for split in explanation.counting)
    at_us, probed_us = explanation.at_us, explanation.probed_us
    known_us = at_us if probed_us is None else min(probed_us, at_us)
    silent_us = explanation.holders[0].silent_since_us
    since_us = known_us if silent_us is None else silent_us
    latest_us = max(split.silent_since_us or 0 for split in explanation.counting)
    went_on = _others_wait(explanation) or latest_us >= since_us + _SOON_US
    return went_on and known_us - max(since_us, explanation.stands_since_us) >= _SOON_US


SILENT: Final = Rule(
    Cause.SILENT,
    _is_silent,
    lambda explanation: _because(explanation, f"has delivered nothing{_since(explanation, explanation.holders[0])}"),
    _silence,
)


def _says_all_is_read(explanation: Explanation) -> str:
    """That nothing is wrong; if nothing has come for a while, since when, and what becomes of the slowest split."""
    slowest, since_us = explanation.holders[0], explanation.silent_since_us
    text = f"{where(explanation, stands=False)}: all that is there has been read"
    if since_us is None or explanation.at_us - since_us < _SOON_US:
        return f"{text}, and split {slowest.split_id!r} is the slowest."
    holds_others = any(split.holds_us > slowest.holds_us for split in explanation.counting)
    idle = becomes_idle(explanation, slowest, never=_NEVER_IDLE if holds_others else "")
    since = moment(since_us, explanation.at_us)
    return f"{text}, nothing has come since {since}, and split {slowest.split_id!r} is the slowest{idle}."


NOTHING: Final = Rule(
    Cause.NOTHING,
    lambda explanation: first_waits(WaitsFor.RECORDS)(explanation) and not _others_wait(explanation),
    _says_all_is_read,
)


def _others_wait_for_it(reports: Sequence[Explanation]) -> Iterator[Advice]:
    last, drift_us = reports[-1], reports[-1].bounds.max_drift_us
    at_limit = any(split.waits_for is WaitsFor.DRIFT for split in last.splits)
    if drift_us is not None and at_limit and last.watermark > MIN_WATERMARK and not usual_move_us(reports) > drift_us:
        yield Advice(
            "maxDrift",
            f"The others wait for {named(last.held_by)}, no further ahead than maxDrift, {format_duration(drift_us)}. "
            "Nothing to do where it catches up; where it never does, a larger maxDrift lets them go on, for more "
            "state.",
        )


SLOWEST: Final = Rule(
    Cause.SLOWEST,
    lambda explanation: bool(explanation.holders),
    lambda explanation: because(explanation, "is the slowest", idle=""),
    _others_wait_for_it,
)


# ---- no split that holds the watermark ----


def _says_idle(explanation: Explanation) -> str:
    n = len(explanation.splits)
    return f"{where(explanation)}: " + (f"all {n} splits are idle." if n > 1 else "its only split is idle.")


ALL_IDLE: Final = Rule(
    Cause.ALL_IDLE,
    lambda explanation: not explanation.holders and bool(explanation.splits),
    _says_idle,
    advice(
        "source",
        lambda reports: (
            f"Nothing has come for {'two runs in a row' if reports[-1].counts_runs else 'idleTimeout'}: "
            "see whether the producers write. The watermark goes on with the next record; windows that end later than "
            "it stay open until then."
        ),
    ),
)


def _says_no_splits(explanation: Explanation) -> str:
    read = "" if explanation.reads is None else f" in {explanation.reads}"
    if explanation.watermark > MIN_WATERMARK:
        return f"{where(explanation)}: every split that was found{read} has been read to its end."
    return f"{where(explanation)}: no split has been found{read}."


def _see_the_path(reports: Sequence[Explanation]) -> Iterator[Advice]:
    last = reports[-1]
    # With a watermark there were some, and all were read to their ends.
    if last.watermark == MIN_WATERMARK:
        yield Advice(
            "source",
            f"See that {last.reads or 'what is read'} is the path, pattern or topic that is meant, and that something "
            "is there: names that begin with _ or . are not read.",
        )


NO_SPLITS: Final = Rule(Cause.NO_SPLITS, lambda explanation: not explanation.splits, _says_no_splits, _see_the_path)


# ---- event times ----


def _has_earlier(explanation: Explanation) -> bool:
    if not explanation.holders or explanation.holders[0].earlier is None:
        return False
    return explanation.holders[0].waits_for not in (WaitsFor.SOURCE, WaitsFor.TRANSACTION)


def _says_earlier(explanation: Explanation) -> str:
    record = explanation.holders[0].earlier
    assert record is not None
    return because(
        explanation,
        f"has a record that is not read yet, at {record.place}, of {moment(record.time_us)}: a record that the "
        "planner has seen is never late, so no window that ends later closes before it is read",
    )


def _open_at_once(explanation: Explanation) -> str:
    """Return the cost of splits that overlap in event time: those read further than the watermark lets windows go."""
    ahead = [split for split in explanation.splits if split.watermark > explanation.watermark]
    if not ahead or explanation.watermark == MIN_WATERMARK:
        return ""
    span_us = max(split.watermark for split in ahead) - explanation.watermark
    return (
        f"{counted(len(ahead), 'split')} in work overlap there, read up to {duration_text(span_us)} beyond the "
        "watermark: streaming-source advise prints how many records such an order keeps as state. "
    )


def _have_windows_earlier(reports: Sequence[Explanation]) -> str:
    split = reports[-1].holders[0]
    record = split.earlier
    assert record is not None
    return (
        f"The record at {record.place} of split {split.split_id!r} is dated {moment(record.time_us)}, and at most "
        f"{counted(split.behind, 'record')} of that split are still to be read up to it. Nothing is lost, and Spark "
        f"keeps the windows in between as state. {_open_at_once(reports[-1])}To have them earlier set "
        "lateness=bounded: such records are late then. If the event time is wrong, eventTimeFrom leaves out what lies "
        "before a time, or correct it at its source."
    )


EARLIER: Final = Rule(Cause.EARLIER, _has_earlier, _says_earlier, advice("lateness", _have_windows_earlier))


def _is_of_the_future(explanation: Explanation) -> bool:
    next_us = explanation.holders[0].next_us if explanation.holders else None
    is_next = next_us is not None and next_us > explanation.at_us + FUTURE_US
    return explanation.is_in_the_future or (is_next and not _has_earlier(explanation))


def far_record(split: SplitExplanation) -> str:
    """The record that brought the watermark of a split into the future."""
    if split.far is None:
        return f"a record of split {split.split_id!r}, before position {split.position}, is dated so"
    return f"a record of split {split.split_id!r}, at {split.far.place}, is dated {moment(split.far.time_us)}"


def _says_future(explanation: Explanation) -> str:
    if not explanation.is_in_the_future:
        return because(explanation, beyond_the_limit(explanation, explanation.holders[0]))
    latest = explanation.furthest_in_the_future
    ahead = duration_text(explanation.watermark - explanation.at_us)
    record = "a record is dated so" if latest is None else far_record(latest)
    return f"{where(explanation)}, {ahead} in the future: {record}, and whatever follows in time is late."


def _limit_the_future(reports: Sequence[Explanation]) -> Iterator[Advice]:
    """Advice on a record that is dated later than the clock: not read yet, or read."""
    last = reports[-1]
    limit_us = last.at_us + FUTURE_US
    ahead = [split for split in last.splits if split.next_us is not None and split.next_us > limit_us]
    if ahead:
        split = max(ahead, key=lambda split: split.next_us or 0)
        yield Advice(
            "maxFutureSkew",
            f"The record at {split.next_place} of split {split.split_id!r}, of {moment(split.next_us or 0)}, is from "
            "the future: all records after it wait until the others have come that far. Give maxFutureSkew, '1 hour' "
            "say, and invalidTimestamp=null or drop: what is further ahead of the clock then moves no watermark and "
            "holds back no split. Or correct the record at its source.",
        )
    if (latest := last.furthest_in_the_future) is not None:
        yield Advice(
            "maxFutureSkew",
            f"{_dated(reports, latest)}. {_leap(last)}begin with a new checkpoint, and with maxFutureSkew, '1 hour' "
            "say. Records that are further ahead of the clock are then invalid: they move no watermark, and "
            f"invalidTimestamp decides how they are handled.{_zone(last, latest)}",
        )


def _zone(last: Explanation, latest: SplitExplanation) -> str:
    """That so few hours are rather another zone than a wrong clock."""
    if latest.watermark - last.at_us > _ZONES_US:
        return ""
    return (
        f" If all records of split {latest.split_id!r} are so far ahead, they are written in another zone: give that "
        "as timeZone."
    )


def _dated(reports: Sequence[Explanation], split: SplitExplanation) -> str:
    """Which record is dated so, as closely as that is known."""
    if split.far is not None:
        far = split.far
        return f"The record at {far.place} of split {split.split_id!r} is dated {moment(far.time_us)}"
    known = [one for report in reports for one in report.splits if one.split_id == split.split_id]
    first = next((a for a, b in pairwise(known) if a.watermark < b.watermark == split.watermark), None)
    behind = min((one.position for one in known if one.watermark == split.watermark), default=split.position)
    between = f"before position {behind}" if first is None else f"from position {first.position} to {behind}"
    return f"Among the records of split {split.split_id!r} {between} one is dated {moment(split.watermark)} or later"


def _leap(last: Explanation) -> str:
    """Return what a split in the future does to the watermark, or has done."""
    if last.is_in_the_future or not last.holders:
        return "Watermarks never go back: "
    idle_us = [us for us in map(last.idle_at_us, last.holders) if us is not None]
    until = f" until {moment(max(idle_us), last.at_us)}, when it is idle," if idle_us else ""
    # Others than those that this record makes late.
    before = "nothing more is late by it" if last.late else "nothing is late"
    return (
        f"The watermark has not followed yet, since {named(last.held_by)} holds it{until} and {before} before it does: "
        "a shorter idleTimeout would let it leap at once. Stop the query before that, "
    )


FUTURE: Final = Rule(Cause.FUTURE, _is_of_the_future, _says_future, always=_limit_the_future)


def _give_the_unit(reports: Sequence[Explanation]) -> Iterator[Advice]:
    last = reports[-1]
    latest_us = last.at_us + _UNIT_YEARS * _YEAR_US
    old = [s.split_id for s in last.splits if -_YEAR_US < s.watermark < _YEAR_US]
    far = [s.split_id for s in last.splits if s.watermark > latest_us]
    far += [s.split_id for s in last.splits if s.next_us is not None and s.next_us > latest_us]
    if any(_YEAR_US <= s.watermark <= latest_us for s in last.splits):
        # The option is right for those.
        for split_id in [*old, *far]:
            yield Advice(
                "data",
                f"The event times of {split_id!r} are {'of 1970' if split_id in old else 'far in the future'}, and "
                "those of other splits are not: its numbers are of another unit. Correct them at their source, or "
                "read that split in a query with its own timestampUnit.",
            )
        return
    if old:
        yield Advice(
            "timestampUnit",
            f"The event times of {named(old)} are of 1970: seconds that are read as milliseconds, or milliseconds as "
            "microseconds, look like this. Give the unit of the column as timestampUnit, and a new checkpoint.",
        )
    elif far:
        yield Advice(
            "timestampUnit",
            f"The event times of {named(far)} are more than {_UNIT_YEARS} years ahead: milliseconds that are read as "
            "seconds look like this. Give the unit of the column as timestampUnit, and a new checkpoint.",
        )


UNIT: Final = Rule(always=_give_the_unit)


def _late(reports: Sequence[Explanation]) -> Iterator[Advice]:
    """Why records were late: too small a bound, an idle split that came back, or a split that was new."""
    disordered: Counter[str] = Counter()
    came_back: Counter[str] = Counter()
    joined: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    # Behind the watermark all records of a split are late until it has caught up, for the reason for which it is there.
    behind: dict[str, Counter[str]] = {}
    # Before the first report there is none to compare it with: only its planner knows why a record was late.
    for split in reports[0].splits:
        if split.was_idle and split.late:
            behind[split.split_id] = came_back
            came_back[split.split_id] += split.late
        elif len(reports) == 1 and split.late:
            is_known = split.stray is not None or reports[0].needed_bound_us is not None
            (disordered if is_known else unknown)[split.split_id] += split.late
    for before, after in pairwise(reports):
        known = {split.split_id: split for split in before.splits}
        for split in after.splits:
            last = known.get(split.split_id)
            if last is None or last.watermark == MIN_WATERMARK:
                cause = joined
            elif last.status is SplitStatus.IDLE or (split.was_idle and not last.was_idle):
                cause = came_back
            elif last.watermark < before.watermark:
                cause = behind.get(split.split_id, unknown)
            else:
                cause = disordered
            behind[split.split_id] = cause
            if (more := split.late - (0 if last is None else last.late)) > 0:
                cause[split.split_id] += more
    bounds = reports[-1].bounds
    strays = [split for split in reports[-1].splits if split.stray is not None]
    yield from map(_dated_wrongly, strays)
    is_explained = strays and not any(one.needed_bound_us for one in reports)
    if disordered and bounds.out_of_orderness_us is not None and not is_explained:
        yield Advice(
            "maxOutOfOrderness",
            f"{counted(disordered.total(), 'record')} of {named(disordered)} came late while their split was being "
            f"read: they were further behind the latest one before them than maxOutOfOrderness, "
            f"{format_duration(bounds.out_of_orderness_us)}. "
            f"Raise it{_enough(reports)}: streaming_source.advise(frame), or streaming-source advise, prints which "
            "bound covers how many records.",
        )
    counts_runs = reports[-1].counts_runs
    if came_back and (counts_runs or bounds.idle_timeout_us is not None):
        longer = f"A longer idleTimeout than {format_duration(bounds.idle_timeout_us or 0)}"
        if counts_runs:
            longer = "It had brought nothing in two runs in a row: an idleTimeout longer than it may be away, or none,"
        yield Advice(
            "idleTimeout",
            f"{counted(came_back.total(), 'record')} of {named(came_back)} came late because their split had been "
            f"idle. {longer} would have waited for them.",
        )
    if joined:
        kept = "late=route keeps such records for late_records"
        if reports[-1].routes_late:
            kept = "They are kept: late_records(frame, checkpoint) reads them"
        yield Advice(
            "late",
            f"{counted(joined.total(), 'record')} of {named(joined)} came late because the split was found when the "
            f"watermark was past them already: no bound helps there. {kept}; to count them in their windows start with "
            "a new checkpoint.",
        )
    if unknown:
        yield Advice(
            "late",
            f"{counted(unknown.total(), 'record')} of {named(unknown)} came late, and the reports that are kept do "
            "not say why: their split was new or had been idle, or maxOutOfOrderness is too small. "
            "streaming_source.advise(frame), or streaming-source advise, prints which bound covers how many records.",
        )


def _dated_wrongly(split: SplitExplanation) -> Advice:
    """Return what a record is that is further behind than any bound can cover."""
    stray = split.stray
    assert stray is not None
    why = "no delay is that long"
    if stray.time_us == 0:
        why = "0 stands there for no time: give such records null, and invalidTimestamp=null or drop"
    elif abs(stray.time_us) < _YEAR_US:
        why = "that is a number of another unit than the records before it: timestampUnit is right for those"
    return Advice(
        "data",
        f"The record at {stray.place} of split {split.split_id!r} is dated {moment(stray.time_us)}: {why}. "
        "It is late, and no bound helps. Correct it at its source, or give eventTimeFrom, which leaves such times out.",
    )


def _enough(reports: Sequence[Explanation]) -> str:
    """The bound that would have been enough, rounded up to milliseconds."""
    needed_us = max((one.needed_bound_us or 0 for one in reports), default=0)
    return f", to {format_duration(-(-needed_us // 1000) * 1000)} at least" if needed_us else ""


LATE: Final = Rule(always=_late)

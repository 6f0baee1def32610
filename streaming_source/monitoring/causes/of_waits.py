"""Causes outside of a split: its source is away, or an option or another source lets it wait."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile
from statistics import median
from typing import Final

from alignment.durations import format_duration
from alignment.explain import FUTURE_US, Cause, Explanation, SplitExplanation, WaitsFor
from alignment.sentence import counted, duration_text, moment, named
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK
from streaming_source.monitoring.causes.rule import Advice, Rule, advice, because, first_waits, where

_FEW: Final = 3
"""Micro-batches that make a trend."""
_LONG: Final = 10
_LONG_US: Final = 60_000_000
"""Micro-batches, and the time, in which a backlog must have grown: at the start it does because it is being found."""
_DAY_S: Final = 86_400


def _says_away(explanation: Explanation) -> str:
    away = [split.split_id for split in explanation.splits if split.waits_for is WaitsFor.SOURCE]
    if len(away) > 1 and len(away) == len(explanation.splits):
        why = explanation.away or "the source is away"
        read = "" if explanation.reads is None else f" in {explanation.reads}"
        return because(explanation, f"cannot be reached, like all {len(away)} splits{read}: {why}")
    reason = f" ({explanation.away})" if explanation.away else ""
    return because(explanation, f"cannot be reached{reason}, so that what it has is not known")


def _see_the_source(reports: Sequence[Explanation]) -> Iterator[Advice]:
    last = reports[-1]
    away = [split.split_id for split in last.splits if split.waits_for is WaitsFor.SOURCE]
    if away:
        yield Advice(
            "source",
            f"{named(away)} cannot be reached: see that the brokers, or the store, can be reached from the driver, and "
            "that each partition has a leader. The log of the driver has the error. Nothing is lost meanwhile, and no "
            "split that cannot be reached becomes idle.",
        )
    left_s = dict(last.metrics).get("retentionSecondsLeft")
    if left_s is not None and left_s < _DAY_S:
        yield Advice(
            "source",
            "At the present pace retention removes records that are still to be read in "
            f"{duration_text(left_s * 1_000_000)}, and the query then fails: raise retention.ms or retention.bytes of "
            "the topic, or let the query read faster.",
        )


AWAY: Final = Rule(Cause.SOURCE, first_waits(WaitsFor.SOURCE), _says_away, always=_see_the_source)


def _says_transaction(explanation: Explanation) -> str:
    holder = explanation.holders[0]
    if not holder.locked:
        return because(explanation, "has an open transaction: its next records cannot be read until that ends")
    locked = f"{counted(holder.locked, 'record')} of it cannot be read until that ends, and {holder.behind:,} can be"
    return because(explanation, f"has an open transaction: {locked}")


TRANSACTION: Final = Rule(
    Cause.TRANSACTION,
    first_waits(WaitsFor.TRANSACTION),
    _says_transaction,
    advice(
        "source",
        lambda reports: (
            f"A producer has a transaction open in {named(reports[-1].held_by)}: let it commit or abort. "
            "If it is gone, the brokers abort it after its transaction.timeout.ms."
        ),
    ),
)


SCAN: Final = Rule(
    Cause.SCAN,
    first_waits(WaitsFor.SCAN),
    lambda explanation: because(
        explanation,
        "has records that are not scanned for event times yet, and what is not scanned may be earlier: they are read "
        "meanwhile, and windows come out once all that was found at the start is scanned",
    ),
)


REPORT: Final = Rule(
    Cause.REPORT,
    first_waits(WaitsFor.REPORT),
    lambda explanation: because(
        explanation,
        f"waits for what its readers report of the records before position {explanation.holders[0].position}",
    ),
    advice(
        "gatewayHost",
        "If this micro-batch is done, the reports of its readers were lost: see that the executors reach the "
        "gateway of the driver (gatewayHost, gatewayPort). The next records of the split bring the watermark on.",
    ),
)


def _says_too_few(explanation: Explanation) -> str:
    """Why rows that are there are not read: the micro-batch waits for more."""
    rows = f"has {counted(explanation.holders[0].behind, 'record')} left that wait"
    if explanation.bounds.min_rows is not None:
        unread = sum(split.behind for split in explanation.splits)
        rows += f" until minRowsPerTrigger = {explanation.bounds.min_rows:,} are there in all splits, of {unread:,} now"
    if explanation.reads_at_us < MAX_WATERMARK:
        rows += f", or until {moment(explanation.reads_at_us, explanation.at_us)} (maxTriggerDelay)"
    return because(explanation, rows)


MIN_ROWS: Final = Rule(
    Cause.MIN_ROWS,
    first_waits(WaitsFor.MIN_ROWS),
    _says_too_few,
    advice(
        "minRowsPerTrigger",
        "Records that are there wait for more, as the option demands. Where they must not wait so long, give a "
        "smaller minRowsPerTrigger (Kafka: minOffsetsPerTrigger) or a shorter maxTriggerDelay.",
    ),
)


def _says_member(explanation: Explanation) -> str:
    member = explanation.group
    if member is None:
        return because(explanation, "waits for another source of its alignment group")
    reported, until = (moment(us, explanation.at_us) for us in (member.reported_us, member.until_us))
    is_at = "has no watermark"
    if member.watermark > MIN_WATERMARK:
        is_at = f"is at {moment(member.watermark, explanation.at_us)}"
    process = f"process {member.pid}" if member.pid else "on another host"
    text = f"source {member.source!r} ({process}) of its alignment group {member.group!r}, which {is_at}"
    if member.is_overdue(explanation.at_us):
        text += f" and reported last at {reported}; without a report it is left out from {until} on"
    return because(explanation, f"waits for {text}")


def _see_the_member(reports: Sequence[Explanation]) -> str:
    member = reports[-1].group
    who = "the other sources of the group" if member is None else f"source {member.source!r}"
    return f"See why {who} is not further: explain its query. A larger maxDrift lets this source go on further ahead."


GROUP: Final = Rule(Cause.GROUP, first_waits(WaitsFor.GROUP), _says_member, advice("maxDrift", _see_the_member))


def _is_at_the_horizon(explanation: Explanation) -> bool:
    if not explanation.holders:
        return explanation.horizon_us < MAX_WATERMARK
    return first_waits(WaitsFor.HORIZON)(explanation)


def _says_horizon(explanation: Explanation) -> str:
    if not explanation.holders:
        return f"{where(explanation)} because splits that are not read yet begin there."
    return because(explanation, "waits for splits that are not read yet")


HORIZON: Final = Rule(
    Cause.HORIZON,
    _is_at_the_horizon,
    _says_horizon,
    advice(
        "maxRowsPerTrigger",
        "Splits join in order of their event times, and the next ones are not read yet: nothing is wrong while the "
        "watermark moves. If it moves too slowly, raise the read limit (maxRowsPerTrigger, maxFilesPerTrigger).",
    ),
)


def _says_upstream(explanation: Explanation) -> str:
    if explanation.watermark == MIN_WATERMARK:
        return (
            f"{where(explanation)}: the writer of what is read here, {explanation.upstream}, has claimed nothing yet."
        )
    return (
        f"{where(explanation)} because the writer of what is read here, {explanation.upstream}, has claimed it to be "
        "complete up to there, and no further."
    )


UPSTREAM: Final = Rule(
    Cause.UPSTREAM,
    lambda explanation: explanation.upstream is not None,
    _says_upstream,
    advice(
        "watermarkFrom",
        lambda reports: (
            "Nothing that is there is unread, and nothing is to be changed here: see why its writer is no "
            f"further, by streaming-source explain {reports[-1].upstream}, or explain --through of this query."
        ),
    ),
)


def _growing(reports: Sequence[Explanation]) -> list[Explanation]:
    """The micro-batches, the last one first, in which the backlog grew beyond the read limit; none if it does not."""
    limited = list(takewhile(lambda one: any(s.waits_for is WaitsFor.ROWS for s in one.splits), reversed(reports)))
    if len(limited) < _LONG or limited[0].at_us - limited[-1].at_us < _LONG_US:
        return []
    # In both halves: a backlog that is found in the first one does not come in.
    first, middle, last = map(_backlog, (limited[-1], limited[len(limited) // 2], limited[0]))
    return limited if first < middle < last else []


def _backlog(explanation: Explanation) -> int:
    return sum(split.behind for split in explanation.splits)


def _raise_the_limit(reports: Sequence[Explanation]) -> Iterator[Advice]:
    """Yield whether more comes in than the read limit lets through."""
    max_rows, growing = reports[-1].bounds.max_rows, _growing(reports)
    if max_rows is None or not growing:
        return
    before, now = _backlog(growing[-1]), _backlog(growing[0])
    read = sum(report.batch.rows or 0 for report in growing[:-1] if report.batch is not None)
    come = -(-(now - before + read) // (len(growing) - 1))
    yield Advice(
        "maxRowsPerTrigger",
        f"The backlog has grown from {before:,} to {now:,} records in {len(growing) - 1} micro-batches of at most "
        f"{max_rows:,}: about {come:,} come in from one to the next, so this query does not catch up as it is. Give a "
        f"maxRowsPerTrigger of more than {come:,}, or trigger more often.",
    )


def _read_sooner(reports: Sequence[Explanation]) -> Iterator[Advice]:
    max_rows = reports[-1].bounds.max_rows
    if max_rows is not None and not _growing(reports):
        yield Advice(
            "maxRowsPerTrigger",
            f"Micro-batches of at most {max_rows:,} records read the backlog in order of event times. Nothing to "
            "do where it shrinks; a larger maxRowsPerTrigger reads it sooner.",
        )


ROWS: Final = Rule(
    Cause.ROWS,
    first_waits(WaitsFor.ROWS),
    lambda explanation: because(
        explanation, f"has {counted(explanation.holders[0].behind, 'record')} left that the read limit did not admit"
    ),
    _read_sooner,
    always=_raise_the_limit,
)


def beyond_the_limit(explanation: Explanation, split: SplitExplanation) -> str:
    """Why a split cannot go on whose next record is far beyond the limit."""
    assert split.next_us is not None
    setters = [setter.split_id for setter in explanation.setters if setter is not split]
    until = f" before {named(setters)} {'have' if setters[1:] else 'has'} come that far or is idle" if setters else ""
    beyond = duration_text(split.next_us - explanation.bound_us)
    return (
        f"cannot go on{until}: its next record, at {split.next_place}, is of {moment(split.next_us)}, {beyond} "
        f"beyond the limit, and {split.behind - 1:,} more {'waits' if split.behind == 2 else 'wait'} after it"
    )


def usual_move_us(reports: Sequence[Explanation]) -> int:
    """Return the usual step of the watermark from micro-batch to micro-batch where splits wait at the limit; else 0."""
    known = [report for report in reports if report.watermark > MIN_WATERMARK]
    moves_us = [b.watermark - a.watermark for a, b in pairwise(known) if b.watermark > a.watermark]
    at_limit = [report for report in known if any(s.waits_for is WaitsFor.DRIFT for s in report.splits)]
    is_often = len(moves_us) >= _FEW and 2 * len(at_limit) >= len(known)
    return int(median(moves_us)) if is_often else 0


def _raise_the_drift(reports: Sequence[Explanation]) -> Iterator[Advice]:
    last, drift_us = reports[-1], reports[-1].bounds.max_drift_us
    if drift_us is None:
        return
    if (move_us := usual_move_us(reports)) > drift_us:
        yield Advice(
            "maxDrift",
            f"The watermark moves on by {duration_text(move_us)} from micro-batch to micro-batch, and maxDrift is "
            f"{format_duration(drift_us)}: splits wait at the limit although they keep pace. Give at least twice as "
            "much as one trigger brings.",
        )
    ahead = [split for split in last.splits if split.next_us is not None and split.next_us <= last.at_us + FUTURE_US]
    if ahead:
        yield _next_record(last, max(ahead, key=lambda split: split.next_us or 0), drift_us)


def _next_record(last: Explanation, split: SplitExplanation, drift_us: int) -> Advice:
    """Return advice about a record that is far beyond the limit: only one that stands out in its split may be wrong."""
    next_us = split.next_us or 0
    record = f"The record at {split.next_place} of split {split.split_id!r}, of {moment(next_us)},"
    if split.is_outlier:
        return Advice(
            "data",
            f"{record} lies far ahead of those before and after it in its split, and all records after it wait until "
            "the others have come that far. See whether its event time is right; if not, correct or remove it at its "
            "source.",
        )
    slowest_us = min((one.watermark for one in last.counting if one.watermark > MIN_WATERMARK), default=next_us)
    ahead, drift = duration_text(next_us - slowest_us), format_duration(drift_us)
    return Advice(
        "maxDrift",
        f"{record} is {ahead} ahead of the slowest split, and maxDrift is {drift}: less than what lies between two "
        "records of that split, or than a gap in it. It is read when the slowest split has come that far, is idle, or "
        f"has ended; a maxDrift of more than {ahead} reads it now, for more state.",
    )


def _says_drift(explanation: Explanation) -> str:
    first = explanation.holders[0]
    return because(explanation, "is the slowest" if first.next_us is None else beyond_the_limit(explanation, first))


DRIFT: Final = Rule(Cause.DRIFT, first_waits(WaitsFor.DRIFT), _says_drift, always=_raise_the_drift)

"""Advice on what to change, from the reports of a source: one rule for each cause.

The order of the rules is that of the causes: the query, its micro-batch, the source, what an option waits for, splits,
and event times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from statistics import median
from typing import Final

from alignment.combine import SplitStatus
from alignment.durations import format_duration
from alignment.explain import FUTURE_US, Cause, Explanation, SplitExplanation, WaitsFor
from alignment.sentence import counted, duration_text, moment, named
from alignment.watermarks import MIN_WATERMARK
from streaming_source.monitoring.report import WatermarkReport

__all__ = ["Advice", "advice_on"]

_FEW: Final = 3
"""Micro-batches that make a trend."""
_LONG: Final = 10
_LONG_US: Final = 60_000_000
"""Micro-batches, and the time, in which a backlog must have grown: at the start it does because it is being found."""
_DAY_S: Final = 86_400
_CONCURRENT: Final = ("CONCURRENT_STREAM_LOG_UPDATE", "Multiple streaming jobs detected")
"""Of Spark's error where two queries write one checkpoint."""
_YEAR_US: Final = 365 * 86_400_000_000
_UNIT_YEARS: Final = 500
"""Event times further ahead are of a wrong unit: no clock is that wrong."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What was seen, and what to do about it.

    `option` is the option to change, or else `query`, `sink`, `source`, or `data` where the records themselves are
    wrong.
    """

    option: str
    text: str


def advice_on(history: Sequence[WatermarkReport]) -> list[Advice]:
    """Return advice from the reports of one source, oldest first. O(reports times splits).

    Some rules need several reports: they look for what grows or repeats.
    """
    # The last report of each micro-batch: a query reports also while it waits.
    reports = list({report.sequence: report.explanation for report in history}.values())
    rules = (
        _query,
        _micro_batch,
        _away,
        _retention,
        _left_unread,
        _group,
        _min_rows,
        _horizon,
        _drift,
        _read_limit,
        _reports,
        _future,
        _unit,
        _earlier,
        _invalid,
        _silence,
        _idle,
        _no_splits,
        _late,
    )
    return [advice for rule in rules for advice in rule(reports)]


def _query(reports: Sequence[Explanation]) -> Iterator[Advice]:
    cause, end = reports[-1].cause, reports[-1].end
    if cause not in (Cause.FAILED, Cause.STOPPED) or end is None:
        return
    mend = "Mend what the error names, and start" if cause is Cause.FAILED else "Start"
    again = "it goes on behind the last micro-batch that was committed, and loses nothing"
    text = f"{mend} the query again with the same checkpointLocation: {again}."
    is_concurrent = end.error is not None and any(words in end.error for words in _CONCURRENT)
    if is_concurrent or end.other_pid is not None:
        text = (
            "Do not start this one again: another query goes on with the same checkpoint, and one of two fails or is "
            "stopped. If both are wanted give each a checkpointLocation of its own."
        )
    elif end.is_gone:
        text = (
            "The checkpoint is gone: its directory offsets/ is not there any more. Bring it back if it can be. A start "
            "without it begins anew, at micro-batch 0, and reads all again: a sink that knows the numbers of "
            "micro-batches (files, Delta) skips those that it has, so give the query a new checkpointLocation and an "
            "empty place to write to."
        )
    elif end.is_gone is None:
        text = (
            f"{mend} the query again with the same checkpointLocation, if its directory offsets/ is still there: "
            f"{again}. Without it the query begins anew."
        )
    yield Advice("query", text)


def _micro_batch(reports: Sequence[Explanation]) -> Iterator[Advice]:
    last = reports[-1]
    if last.cause is not Cause.MICRO_BATCH or last.batch is None:
        return
    if last.batch.done_us is None:
        yield Advice(
            "sink",
            "Nothing is planned, and no split becomes idle, until Spark has committed it. Look at the sink or the "
            "state: the Spark UI has the stage that runs. If no query has this checkpoint at work any more, start it "
            "again: it reads this micro-batch once more.",
        )
    else:
        yield Advice(
            "sink",
            "Splits wait for Spark, not Spark for splits. Look at the sink or the state: sources[].metrics and "
            "durationMs of the progress have the time of addBatch. Larger micro-batches cost less where each of them "
            "is expensive.",
        )


def _away(reports: Sequence[Explanation]) -> Iterator[Advice]:
    last = reports[-1]
    away = [split.split_id for split in last.splits if split.waits_for is WaitsFor.SOURCE]
    if away:
        yield Advice(
            "source",
            f"{named(away)} cannot be reached: see that the brokers, or the store, can be reached from the driver, and "
            "that each partition has a leader. The log of the driver has the error. Nothing is lost meanwhile, and no "
            "split that cannot be reached becomes idle.",
        )
    elif last.cause is Cause.TRANSACTION:
        yield Advice(
            "source",
            f"A producer has a transaction open in {named(last.held_by)}: let it commit or abort. If it is gone, the "
            "brokers abort it after its transaction.timeout.ms.",
        )


def _retention(reports: Sequence[Explanation]) -> Iterator[Advice]:
    left_s = dict(reports[-1].metrics).get("retentionSecondsLeft")
    if left_s is not None and left_s < _DAY_S:
        yield Advice(
            "source",
            "At the present pace retention removes records that are still to be read in "
            f"{duration_text(left_s * 1_000_000)}, and the query then fails: raise retention.ms or retention.bytes of "
            "the topic, or let the query read faster.",
        )


def _left_unread(reports: Sequence[Explanation]) -> Iterator[Advice]:
    last = reports[-1]
    if last.cause is Cause.UNREAD:
        drift = last.bounds.max_drift_us if last.bounds.max_drift_us is not None else last.bounds.out_of_orderness_us
        given = "" if drift is None else f", {format_duration(drift)} now"
        yield Advice(
            "maxDrift",
            f"A later run reads them when the slowest split has come that far, or is idle. To read all in each run "
            f"raise maxDrift{given}, leave out maxDrift and maxOutOfOrderness, or use the exact watermark.",
        )


def _group(reports: Sequence[Explanation]) -> Iterator[Advice]:
    last = reports[-1]
    if last.cause is Cause.GROUP:
        who = "the other sources of the group" if last.group is None else f"source {last.group.source!r}"
        yield Advice(
            "maxDrift",
            f"See why {who} is not further: explain its query. A larger maxDrift lets this source go on further ahead.",
        )


def _min_rows(reports: Sequence[Explanation]) -> Iterator[Advice]:
    last = reports[-1]
    if last.cause is Cause.MIN_ROWS:
        yield Advice(
            "minRowsPerTrigger",
            "Records that are there wait for more, as the option demands. Where they must not wait so long, give a "
            "smaller minRowsPerTrigger (Kafka: minOffsetsPerTrigger) or a shorter maxTriggerDelay.",
        )


def _horizon(reports: Sequence[Explanation]) -> Iterator[Advice]:
    if reports[-1].cause is Cause.HORIZON:
        yield Advice(
            "maxRowsPerTrigger",
            "Splits join in order of their event times, and the next ones are not read yet: nothing is wrong while the "
            "watermark moves. If it moves too slowly, raise the read limit (maxRowsPerTrigger, maxFilesPerTrigger).",
        )


def _idle(reports: Sequence[Explanation]) -> Iterator[Advice]:
    last = reports[-1]
    if last.cause is Cause.ALL_IDLE:
        yield Advice(
            "source",
            "Nothing has come for idleTimeout: see whether the producers write. The watermark goes on with the next "
            "record; windows that end later than it stay open until then.",
        )


def _no_splits(reports: Sequence[Explanation]) -> Iterator[Advice]:
    last = reports[-1]
    # With a watermark there were some, and all were read to their ends.
    if last.cause is Cause.NO_SPLITS and last.watermark == MIN_WATERMARK:
        yield Advice(
            "source",
            f"See that {last.reads or 'what is read'} is the path, pattern or topic that is meant, and that something "
            "is there: names that begin with _ or . are not read.",
        )


def _unit(reports: Sequence[Explanation]) -> Iterator[Advice]:
    last = reports[-1]
    old = [s.split_id for s in last.splits if -_YEAR_US < s.watermark < _YEAR_US]
    far = [s.split_id for s in last.splits if s.watermark > last.at_us + _UNIT_YEARS * _YEAR_US]
    far += [
        s.split_id for s in last.splits if s.next_us is not None and s.next_us > last.at_us + _UNIT_YEARS * _YEAR_US
    ]
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


def _late(reports: Sequence[Explanation]) -> Iterator[Advice]:
    """Why records were late: too small a bound, an idle split that came back, or a split that was new."""
    disordered: Counter[str] = Counter()
    came_back: Counter[str] = Counter()
    joined: Counter[str] = Counter()
    if len(reports) == 1:
        disordered.update({split.split_id: split.late for split in reports[0].splits if split.late})
    for before, after in pairwise(reports):
        known = {split.split_id: split for split in before.splits}
        for split in after.splits:
            last = known.get(split.split_id)
            more = split.late - (0 if last is None else last.late)
            if more > 0 and (last is None or last.watermark == MIN_WATERMARK):
                joined[split.split_id] += more
            elif more > 0 and last is not None:
                (came_back if last.status is SplitStatus.IDLE else disordered)[split.split_id] += more
    bounds = reports[-1].bounds
    if disordered and bounds.out_of_orderness_us is not None:
        yield Advice(
            "maxOutOfOrderness",
            f"{counted(disordered.total(), 'record')} of {named(disordered)} came late while their split was being "
            f"read: out of order by more than maxOutOfOrderness, {format_duration(bounds.out_of_orderness_us)}. "
            f"Raise it{_enough(reports)}: streaming_source.advise(frame), or streaming-source advise, prints which "
            "bound covers how many records.",
        )
    if came_back and bounds.idle_timeout_us is not None:
        yield Advice(
            "idleTimeout",
            f"{counted(came_back.total(), 'record')} of {named(came_back)} came late because their split had been "
            f"idle. A longer idleTimeout than {format_duration(bounds.idle_timeout_us)} would have waited for them.",
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


def _enough(reports: Sequence[Explanation]) -> str:
    """The bound that would have been enough, rounded up to milliseconds."""
    needed_us = max((one.needed_bound_us or 0 for one in reports), default=0)
    return f", to {format_duration(-(-needed_us // 1000) * 1000)} at least" if needed_us else ""


def _invalid(reports: Sequence[Explanation]) -> Iterator[Advice]:
    last = reports[-1]
    invalid = {split.split_id: split.invalid for split in last.splits if split.invalid}
    if invalid:
        yield Advice(
            "eventTimeColumn",
            f"No record of {named(invalid)} had a valid event time so far, in "
            f"{counted(sum(invalid.values()), 'position')}: they are null, cannot be read, or lie outside of what "
            "maxFutureSkew and the exact watermark take. See that eventTimeColumn and timestampUnit are those of these "
            "records.",
        )


def _silence(reports: Sequence[Explanation]) -> Iterator[Advice]:
    last = reports[-1]
    if last.cause not in (Cause.SILENT, Cause.EMPTY, Cause.INVALID) or last.furthest_in_the_future is not None:
        return
    timeout_us, holder = last.bounds.idle_timeout_us, last.holders[0]
    idle_at_us = last.idle_at_us(holder)
    if timeout_us is None:
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


def _drift(reports: Sequence[Explanation]) -> Iterator[Advice]:
    drift_us = reports[-1].bounds.max_drift_us
    known = [report for report in reports if report.watermark > MIN_WATERMARK]
    moves_us = [b.watermark - a.watermark for a, b in pairwise(known) if b.watermark > a.watermark]
    at_limit = [report for report in known if any(s.waits_for is WaitsFor.DRIFT for s in report.splits)]
    often = len(moves_us) >= _FEW and 2 * len(at_limit) >= len(known)
    move_us = int(median(moves_us)) if often else 0
    if drift_us is None:
        return
    if move_us > drift_us:
        yield Advice(
            "maxDrift",
            f"The watermark moves on by {duration_text(move_us)} from micro-batch to micro-batch, and maxDrift is "
            f"{format_duration(drift_us)}: splits wait at the limit although they keep pace. Give at least twice as "
            "much as one trigger brings.",
        )
    elif reports[-1].cause is Cause.SLOWEST and at_limit and at_limit[-1] is reports[-1]:
        yield Advice(
            "maxDrift",
            f"The others wait for {named(reports[-1].held_by)}, no further ahead than maxDrift, "
            f"{format_duration(drift_us)}. Nothing to do where it catches up; where it never does, a larger maxDrift "
            "lets them go on, for more state.",
        )


def _future(reports: Sequence[Explanation]) -> Iterator[Advice]:
    last = reports[-1]
    ahead = [split for split in last.splits if split.next_us is not None]
    if ahead:
        yield _pinned(last, max(ahead, key=lambda split: split.next_us or 0))
    if (split := last.furthest_in_the_future) is not None:
        known = [one for report in reports for one in report.splits if one.split_id == split.split_id]
        first = next((a for a, b in pairwise(known) if a.watermark < b.watermark == split.watermark), None)
        behind = min((one.position for one in known if one.watermark == split.watermark), default=split.position)
        where = f"before position {behind}" if first is None else f"from position {first.position} to {behind}"
        record = (
            f"Among the records of split {split.split_id!r} {where} one is dated {moment(split.watermark)} or later"
        )
        if split.far is not None:
            far = split.far
            record = f"The record at {far.place} of split {split.split_id!r} is dated {moment(far.time_us)}"
        yield Advice(
            "maxFutureSkew",
            f"{record}. {_leap(last)}begin with a new checkpoint, and with maxFutureSkew, '1 hour' say. "
            "Records that are further ahead of the clock are then invalid: they move no watermark, and "
            "invalidTimestamp decides what becomes of them.",
        )


def _earlier(reports: Sequence[Explanation]) -> Iterator[Advice]:
    """Whether a record that is there, and far behind what was read of its split, holds the watermark."""
    last = reports[-1]
    if last.cause is not Cause.EARLIER:
        return
    (split, record), *_ = [(one, one.earlier) for one in last.holders if one.earlier is not None]
    yield Advice(
        "lateness",
        f"The record at {record.place} of split {split.split_id!r} is dated {moment(record.time_us)}, and at most "
        f"{counted(split.behind, 'record')} of that split are still to be read up to it. Nothing is lost, and Spark "
        "keeps the windows in between as state. To have them earlier set lateness=bounded: such records are late then. "
        "If the event time is wrong, eventTimeFrom leaves out what lies before a time, or correct it at its source.",
    )


def _leap(last: Explanation) -> str:
    """What a split in the future does to the watermark, or has done."""
    if last.is_in_the_future or not last.holders:
        return "Watermarks never go back: "
    idle_us = [us for us in map(last.idle_at_us, last.holders) if us is not None]
    until = f" until {moment(max(idle_us), last.at_us)}, when it is idle," if idle_us else ""
    return (
        f"The watermark has not followed yet, since {named(last.held_by)} holds it{until} and nothing is late before "
        "it does: a shorter idleTimeout would let it leap at once. Stop the query before that, "
    )


def _pinned(last: Explanation, split: SplitExplanation) -> Advice:
    next_us = split.next_us or 0
    record = f"The record at {split.next_place} of split {split.split_id!r}, of {moment(next_us)},"
    waiting = "all records behind it wait until the others have come that far"
    if next_us > last.at_us + FUTURE_US:
        return Advice(
            "maxFutureSkew",
            f"{record} is from the future: {waiting}. Give maxFutureSkew, '1 hour' say, and invalidTimestamp=null or "
            "drop: what is further ahead of the clock then moves no watermark and holds back no split. Or correct the "
            "record at its source.",
        )
    if split.is_outlier:
        return Advice(
            "data",
            f"{record} lies far ahead of those before and behind it in its split, and {waiting}. See whether its event "
            "time is right; if not, correct or remove it at its source.",
        )
    slowest_us = min((one.watermark for one in last.counting if one.watermark > MIN_WATERMARK), default=next_us)
    ahead, drift = duration_text(next_us - slowest_us), format_duration(last.bounds.max_drift_us or 0)
    return Advice(
        "maxDrift",
        f"{record} is {ahead} ahead of the slowest split, and maxDrift is {drift}: less than what lies between two "
        "records of that split, or than a gap in it. It is read when the slowest split has come that far, is idle, or "
        f"has ended; a maxDrift of more than {ahead} reads it now, for more state.",
    )


def _read_limit(reports: Sequence[Explanation]) -> Iterator[Advice]:
    """Whether more comes in than the read limit lets through."""
    max_rows, last = reports[-1].bounds.max_rows, reports[-1]
    limited = list(takewhile(lambda one: any(s.waits_for is WaitsFor.ROWS for s in one.splits), reversed(reports)))
    if max_rows is None or not limited:
        return
    # In both halves: a backlog that is found in the first one does not come in.
    middle = limited[len(limited) // 2]
    behind = [sum(split.behind for split in report.splits) for report in (limited[-1], middle, limited[0])]
    grows = behind[0] < behind[1] < behind[2] and limited[0].at_us - limited[-1].at_us >= _LONG_US
    if len(limited) < _LONG or not grows:
        if last.cause is Cause.ROWS:
            yield Advice(
                "maxRowsPerTrigger",
                f"Micro-batches of at most {max_rows:,} records read the backlog in order of event times. Nothing to "
                "do where it shrinks; a larger maxRowsPerTrigger reads it sooner.",
            )
        return
    come = -(-(behind[2] - behind[0] + _read(limited)) // (len(limited) - 1))
    yield Advice(
        "maxRowsPerTrigger",
        f"The backlog has grown from {behind[0]:,} to {behind[2]:,} records in {len(limited) - 1} micro-batches of at "
        f"most {max_rows:,}: about {come:,} come in from one to the next, so this query does not catch up as it is. "
        f"Give a maxRowsPerTrigger of more than {come:,}, or trigger more often.",
    )


def _read(limited: Sequence[Explanation]) -> int:
    """Records of the micro-batches behind the first of some, the latest of which comes first."""
    return sum(report.batch.rows or 0 for report in limited[:-1] if report.batch is not None)


def _reports(reports: Sequence[Explanation]) -> Iterator[Advice]:
    if reports[-1].cause is Cause.REPORT:
        yield Advice(
            "gatewayHost",
            "If this micro-batch is done, the reports of its readers were lost: see that the executors reach the "
            "gateway of the driver (gatewayHost, gatewayPort). The next records of the split bring the watermark on.",
        )

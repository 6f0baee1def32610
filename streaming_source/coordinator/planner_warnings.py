"""Warnings of a planner: of its clock, of records that are out of order, late or unread, of splits that are silent.

With option `overlap` = `fail` records outside of the range of event times, known ahead or met, are an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from alignment.arrow_times import format_timestamp
from alignment.combine import SplitStatus
from alignment.durations import format_duration
from alignment.event_time_range import EventTimeRange
from alignment.explain import silent_in_run
from alignment.plan import LimitedBy, MicroBatchPlan, total
from alignment.sentence import duration_text, moment, named
from alignment.shown import log_of
from alignment.timestamps import NO_TIMESTAMP, FieldTimestampAssigner, unit_warning
from alignment.watermarks import Int64Array
from streaming_source.coordinator.rules import ReadRules
from streaming_source.coordinator.source_explanation import OutlyingTimes
from streaming_source.coordinator.state import SourceState
from streaming_source.exceptions import OutOfRangeError

if TYPE_CHECKING:
    from alignment.engine import Engine
    from alignment.index import EventTimeIndex
    from streaming_source.coordinator.event_times.provider import EventTimeProvider


_log = log_of(__name__)

_CLOCKS_DIFFER_US: Final = 60_000_000
"""Microseconds that a wall clock may be behind the one that a checkpoint was written by, without a warning."""
_NAMED: Final = 10
"""Splits that a message names at most."""


class PlannerWarnings:
    """Log lines on what a user should know of a plan, most of them once in the life of a planner.

    `outlying` are the records that stand out in the plans so far.
    """

    def __init__(self, rules: ReadRules) -> None:
        self.outlying = OutlyingTimes()
        self._rules = rules
        self._behind_us = 0
        self._of_unread = self._of_waiting = self._checked_unit = False

    def of_plan(
        self, plan: MicroBatchPlan, engine: Engine, event_times: EventTimeProvider[Any], now_us: int, *, drains: bool
    ) -> None:
        """Warn of the records of a plan that is about to be committed. O(n), and O(records) where some stand out."""
        if plan.late.any():
            late, message = plan.late, "%d late records, at or below the watermark already announced, in %d splits: %s"
            _log.warning(message, late.sum(), np.count_nonzero(late), _most(plan.after.split_ids, late))
            if came_back := self.outlying.note_came_back(engine.table, late):
                self._of_came_back(came_back, drains=drains)
        bound_us, options = self._rules.strategy.out_of_orderness_us, self._rules.options
        self._of_unit(plan, engine)
        self.outlying.note(engine.table, plan, engine.index, event_times, now_us, bound_us)
        if not options.watermark_rows and bound_us is not None and not options.reports:
            self._of_disorder(plan, engine, bound_us)
        if self._rules.planning.lateness == "none":
            self.outlying.note_earlier(plan, engine.index, event_times, bound_us or 0)

    def of_clock(self, state: SourceState[Any, Any], now_us: int) -> None:
        """Warn of a wall clock that is behind the one that the checkpoint was written by."""
        written_us = self._rules.clock_at(state)
        if written_us - now_us <= _CLOCKS_DIFFER_US:
            return
        limit_us, skew_us = self._rules.time_limit_at(now_us), self._rules.options.max_future_skew_us
        _log.warning(
            "the wall clock, %s, is %s behind the checkpoint, whose last micro-batch was planned at %s or later: it is "
            "slow, or was fast then. Until it has caught up,%s splits are idle later than by idleTimeout. If it was "
            "fast, records of the future may have moved the watermark, which never goes back. Set the clock of the "
            "driver's machine, and start the query again",
            moment(now_us),
            duration_text(written_us - now_us),
            moment(written_us),
            ""
            if skew_us is None or limit_us is None
            else f" maxFutureSkew, {format_duration(skew_us)}, makes records later than {moment(limit_us - 1)} "
            "invalid, and",
        )

    def of_waiting(self, plan: MicroBatchPlan, max_rows: int) -> None:
        """Warn once that splits wait that the row limit would admit, and the offset has no space for."""
        is_due = plan.rows < max_rows and plan.limited_by is LimitedBy.HORIZON
        if not is_due or self._of_waiting or self._rules.planning.times:
            return
        self._of_waiting = True
        _log.warning(
            "maxRowsPerTrigger = %d is not reached: a micro-batch of %d rows has %d splits. The limit is the size of "
            "the offset (or maxFilesPerTrigger, maxBytesPerTrigger); more files wait. Larger files, or splitBy = "
            "directory, make full use of it",
            max_rows,
            plan.rows,
            len(plan.after),
        )

    def of_unread(self, engine: Engine) -> None:
        """Warn once, at the end of a run (AvailableNow), of the records that it leaves unread, and why."""
        table, unread = engine.table, engine.unread()
        if self._of_unread or not unread.any():
            return
        self._of_unread = True
        waits_for = (table.statuses == SplitStatus.ACTIVE) & (unread == 0)
        slowest = [table.split_ids[i] for i in np.argsort(table.watermarks, kind="stable") if waits_for[i]][:1]
        drift_us, idle_us = self._rules.planning.max_drift_us, self._rules.strategy.idle_timeout_us
        _log.warning(
            "this run ends with %d records unread, in %d splits: %s. They are later than the watermark of split %r by "
            "more than %s (maxDrift, or else maxOutOfOrderness), and that split may still get earlier ones. A later "
            "run reads them when it has got some%s. To read all in each run raise maxDrift, give neither of the two "
            "options, or use the exact watermark",
            total(unread),
            np.count_nonzero(unread),
            _most(table.split_ids, unread),
            *(slowest or ["?"]),
            format_duration(drift_us or 0),
            "" if idle_us is None else f", or has had nothing to read for idleTimeout, {format_duration(idle_us)}",
        )

    def of_silent(self, engine: Engine, now_us: int) -> None:
        """Warn at the end of a run of the splits that brought nothing in it, while others have gone on."""
        if text := silent_in_run(engine.explain(now_us)):
            _log.warning("%s", text)

    def _of_came_back(self, split_ids: Sequence[str], *, drains: bool) -> None:
        """Warn of splits whose first late records came when they were idle."""
        idle_us = self._rules.strategy.idle_timeout_us
        passed = "idleTimeout" if idle_us is None else f"idleTimeout, {format_duration(idle_us)}"
        if self._rules.counts_runs and drains:
            passed = "two runs in a row"
        _log.warning(
            "%s had been idle: nothing came for %s, and the watermark went on without %s. To wait for what comes so "
            "late, give a longer idleTimeout, or idleTimeout=none",
            named(split_ids),
            passed,
            "them" if split_ids[1:] else "it",
        )

    def _of_disorder(self, plan: MicroBatchPlan, engine: Engine, bound_us: int) -> None:
        """Without the exact watermark, warn of records that are there before Spark drops them as they are read.

        Again only where they are twice as far behind.
        """
        delay_us = max(bound_us, self._rules.planning.max_drift_us or 0)
        behind_us = self.outlying.unread_behind(plan, engine.index, engine.horizon_us, bound_us)
        if behind_us <= max(delay_us, 2 * self._behind_us):
            return
        self._behind_us = behind_us
        _log.warning(
            "records that are there and not read yet are up to %s behind those that were read, and maxOutOfOrderness "
            "is %s: files have records out of order. Spark drops them where withWatermark has a smaller delay. Use the "
            "exact watermark, with read_stream(spark) or from_source, with which a record that the planner has seen is "
            "never late; or give withWatermark a larger delay, above %s as far as the files were read",
            format_duration(behind_us),
            format_duration(bound_us),
            format_duration(behind_us),
        )

    def _of_unit(self, plan: MicroBatchPlan, engine: Engine) -> None:
        """Warn once, at the first records, if their times are numbers that seem to be of another unit."""
        assigner = self._rules.strategy.timestamp_assigner
        has_unit = isinstance(assigner, FieldTimestampAssigner) and assigner.unit is not None
        # Where readers report, the planner knows no event time.
        if self._checked_unit or not plan.rows or self._rules.options.reports or not has_unit:
            return
        self._checked_unit = True
        positions = engine.table.positions
        latest_us = engine.index.maximum_times(positions, plan.after.positions)
        others_us = (*latest_us.tolist(), *engine.index.earliest_times(positions).tolist())
        if warning := unit_warning(assigner, int(latest_us.max(initial=NO_TIMESTAMP)), others_us):
            _log.warning("%s (split %r)", warning, engine.table.split_ids[int(latest_us.argmax())])


def _most(split_ids: Sequence[str], counts: Int64Array) -> dict[str, int]:
    """Return the splits with the highest counts."""
    return {split_ids[i]: int(counts[i]) for i in np.argsort(-counts, kind="stable")[:_NAMED] if counts[i]}


def check_no_overlap(index: EventTimeIndex, wanted: EventTimeRange, event_times: EventTimeProvider[Any]) -> None:
    """Raise an `OutOfRangeError` if `overlap` is `fail` and a block of the index lies outside as a whole. O(m)."""
    if wanted.overlap != "fail" or (found := index.first_outside()) is None:
        return
    split_id, start, stop, low_us, high_us = found
    place = event_times.place_of(split_id, start) or f"record {start}"
    raise refusal(f"split {split_id!r}, {stop - start} records from {place} on", low_us, high_us, wanted)


def refusal(where: str, low_us: int, high_us: int, wanted: EventTimeRange) -> OutOfRangeError:
    """Return the error for records with event times between two bounds, both among them."""
    times = [format_timestamp(us) for us in dict.fromkeys([low_us, high_us])]
    bounds = {"eventTimeFrom": wanted.from_us, "eventTimeUntil": wanted.until_us}
    given = " and ".join(f"{name} = {format_timestamp(us)}" for name, us in bounds.items() if us is not None)
    return OutOfRangeError(
        f"{where}: event time {' to '.join(times)} is outside of {given}, and option overlap is 'fail'; leave such "
        "records to another source with overlap = drop, or hand them on with overlap = keep in a new checkpointLocation"
    )

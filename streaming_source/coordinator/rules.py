"""Decisions of the user: the options of the frame, each declared here alone, and the rules that follow from them.

Options that make a strategy are declared in `streaming_source.spark.options`, since `from_source` takes a strategy.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args

from alignment.event_time_range import EventTimeRange, Overlap
from alignment.plan import PlanningRules
from alignment.strategy import WatermarkStrategy
from alignment.time_texts import iso8601_us
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import FAR_US, LONG_AGO_US, MAX_WATERMARK
from streaming_source.api.options import (
    boolean,
    choice,
    duration,
    flag_field,
    integer,
    option_field,
    optional_duration,
    text,
)
from streaming_source.exceptions import OptionError

if TYPE_CHECKING:
    from streaming_source.coordinator.state import SourceState

EMITTED: Final = "emitted"
"""The value of option `watermarkRows` with which a data source adds watermark rows."""

_SECOND_US: Final = 1_000_000
_PASSED: Final = "records outside of the range were passed by, and are not read again"
_WORTH_A_TASK: Final = 32_768
"""Fewest records for which another task saves more than it costs."""


def _watermark_rows(name: str, value: str) -> bool | str:
    return EMITTED if value == EMITTED else boolean(name, value)


def _warn_after(name: str, value: str) -> int:
    duration_us = optional_duration(1)(name, value)
    return MAX_WATERMARK if duration_us is None else duration_us


def _time_text(name: str, value: str) -> str:
    if iso8601_us(value) is None:
        raise OptionError(f"option {name} = {value!r}: must be a time such as 2024-01-31T10:00:00Z")
    return value


class RepairRead(NamedTuple):
    """The reads of a batch that repairs windows: ranges of event times, of what a stream had read at an offset."""

    ranges: tuple[tuple[int, int], ...]
    offset: dict[str, Any]


def _repair_read(name: str, value: str) -> RepairRead:
    try:
        found = json.loads(value)
        return RepairRead(tuple((int(start), int(end)) for start, end in found["ranges"]), {**found["offset"]})
    except (ValueError, TypeError, LookupError) as error:
        raise OptionError(f"option {name} = {value!r} is not as `repair` gives it ({error}); leave it out") from None


@dataclass(frozen=True, slots=True)
class FrameOptions:
    """Options of every format, and keywords of `from_source`: each attribute has the name of its option.

    `watermark_rows` if watermark rows are emitted; `is_half_exact` if only one part of an exact frame is loaded;
    `times` is the range that `eventTimeFrom`, `eventTimeUntil` and `repairRead` leave. Three options are of formats.
    """

    event_time_as: str | None = option_field(
        None,
        "eventTimeAs",
        text,
        "Name of the event-time column. It is added, unless the event time is a timestamp column of that name already.",
        "the timestamp column where it comes from, else `event_time`",
    )
    lateness: str | None = option_field(
        None,
        "lateness",
        choice("bounded", "none"),
        "`none`: a record that the planner has already seen is never late: the watermark stays below the smallest "
        "event time that is unread. `bounded`: `maxOutOfOrderness` holds for such records as well, so that windows "
        "come out earlier, and a record that is further behind is late.",
        "with the exact watermark `none`, as far as event times are known ahead of reading; else `bounded`",
    )
    late: str = option_field(
        "keep",
        "late",
        choice("keep", "drop", "fail", "route"),
        "What to do with a record at or below the watermark already announced. `route`: leave it to the query that "
        "reads `late_records`. What is dropped or routed is counted by split; for that Kafka is read ahead.",
    )
    late_location: str | None = option_field(
        None,
        "lateLocation",
        text,
        "With `late=route`, which needs it: a directory, by a local path or a URI, into which the planner writes where "
        "the late records of each micro-batch are, until the query that reads `late_records` has read them.",
    )
    late_records_of: str | None = option_field(
        None,
        "lateRecordsOf",
        text,
        "Of `late_records`: the checkpoint of the query whose late records these are.",
        is_private=True,
    )
    late_records_from: int | None = option_field(
        None,
        "lateRecordsFrom",
        integer(0),
        "Of `late_records`: the first micro-batch of that query to read of.",
        is_private=True,
    )
    repair_delay_us: int | None = option_field(
        None,
        "repairDelay",
        duration(),
        "Of `repair`: late records wait until windows are emitted that end this long after them.",
        is_private=True,
    )
    repair_read: RepairRead | None = option_field(
        None,
        "repairRead",
        _repair_read,
        "Of `repair`: what a batch reads of what a stream has read: JSON of `ranges` of event times and the stream's "
        "`offset`.",
        is_private=True,
    )
    invalid_timestamp: str = option_field(
        "fail",
        "invalidTimestamp",
        choice("fail", "null", "drop"),
        "What to do with a record whose event time is null or unreadable, later than `maxFutureSkew` allows, or, "
        "with the exact watermark, before 1970 or after 3999.",
    )
    max_future_skew_us: int | None = option_field(
        None,
        "maxFutureSkew",
        optional_duration(),
        "A record later than the wall clock of the planner by more than this has no valid event time: it moves no "
        "watermark, and `invalidTimestamp` decides how it is handled.",
        "none",
    )
    watermark_rows: bool = option_field(
        False,
        "watermarkRows",
        _watermark_rows,
        "Of `read_stream` and `with_exact_watermark`: with `true` a query that went through neither does not start.",
        is_private=True,
    )
    is_half_exact: bool = False
    times: EventTimeRange | None = None
    event_time_from: str | None = option_field(
        None,
        "eventTimeFrom",
        _time_text,
        "Only records from this event time on, as in `2024-01-31`, `2024-01-31 10:00:00` or "
        "`2024-01-31T10:00:00+01:00`. Others are not read where that is known ahead, and left out elsewhere; they are "
        "neither late nor invalid.",
        fixed=_PASSED,
    )
    event_time_until: str | None = option_field(
        None, "eventTimeUntil", _time_text, "The same for its end: only records before this event time.", fixed=_PASSED
    )
    overlap: Overlap = option_field(
        "drop",
        "overlap",
        choice(*get_args(Overlap)),
        "With `eventTimeFrom` or `eventTimeUntil`: what to do with records outside of them, which another source may "
        "have as well. `drop`: leave them out; `keep`: read them all, and hand them on; `fail`: at the first one. "
        "What is dropped or kept is counted (`outOfRangeRecords`).",
        fixed="records outside of the range were handed on or passed by, and are not read again",
    )
    no_data_micro_batches: bool = flag_field(
        "noDataMicroBatches",
        "The value of `spark.sql.streaming.noDataMicroBatches.enabled`. With `false` a bounded source ends with a "
        "micro-batch of its watermark alone, in which Spark closes the last windows. Needed under Spark Connect alone: "
        "from a classic session frames with the exact watermark take it as they are made.",
        default=True,
    )
    available_now_checkpoint: str | None = option_field(
        None,
        "availableNowCheckpoint",
        text,
        "On Spark 4.0 and 4.1, with `trigger(availableNow=True)`: the `checkpointLocation` of the query. Without it a "
        "source that does not end can have no second run; see [Spark 4.0 and 4.1](cluster.md#spark-40-and-41).",
    )
    include_metadata: bool = flag_field(
        "includeMetadata", "Add `_split`, `_position`, `_source_timestamp` and `_late`."
    )
    alignment_scope: str = option_field(
        "application",
        "alignmentScope",
        choice("application", "query"),
        "With an alignment group: where its other sources are. `query`: in this query, whose sources plan one event "
        "time together, so that drift costs no micro-batches, and an idle one does not hold the query. Each of them "
        "must have it.",
    )
    alignment_location: str | None = option_field(
        None,
        "alignmentLocation",
        text,
        "With an alignment group: a directory, by a local path or a URI, in which its sources leave their reports. "
        "Needed where their planners share no local disk, and for sources of several applications. All must name it.",
        "the first of the driver's local directories",
    )
    max_rows_per_trigger: int | None = option_field(
        None, "maxRowsPerTrigger", integer(1), "At most this many records a micro-batch, by event time."
    )
    min_rows_per_trigger: int | None = option_field(
        None,
        "minRowsPerTrigger",
        integer(1),
        "Read nothing before there are this many records, but for no longer than `maxTriggerDelay`. The watermark goes "
        "on meanwhile. Nothing waits in AvailableNow, where no more can come, or where another source of the alignment "
        "group waits for this one.",
    )
    max_trigger_delay_us: int = option_field(
        15 * 60 * _SECOND_US,
        "maxTriggerDelay",
        duration(1),
        "With `minRowsPerTrigger`: how long a micro-batch may wait for more.",
        "15 minutes",
    )
    num_readers: int | None = option_field(
        None, "numReaders", integer(1), "Tasks that read one micro-batch, at most; default: the cores of the driver."
    )
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    allow_unaligned_source_splits: bool = flag_field(
        "allowUnalignedSourceSplits",
        "For sources of your own whose event times are read ahead with one `SplitReader` for several splits: where "
        "it cannot pause a split that is far ahead, let that one run ahead, instead of refusing to start. Of each "
        "of its records 8 to 16 bytes are kept in the planner.",
    )
    indexing: str = "auto"
    report_location: str | None = option_field(
        None,
        "reportLocation",
        text,
        "With `indexing=off`, where no port may be opened on the driver's host: a directory, by a local path or a URI, "
        "in which readers leave their reports for the planner, one file a task.",
        "a port, see `gatewayPort`",
    )
    gateway_host: str | None = option_field(
        None,
        "gatewayHost",
        text,
        "Where the planner listens to its readers, if it must: with `indexing=off`, and for sources whose readers "
        "send events. Default: the loopback address in local mode, `spark.driver.host` on a cluster.",
    )
    gateway_port: int = option_field(0, "gatewayPort", integer(0), "Port of the same; 0 for any that is free.")
    gateway_certificate: str | None = option_field(
        None, "gatewayCertificate", text, "PEM file on the driver: the gateway speaks TLS. With `gatewayKey`."
    )
    gateway_key: str | None = option_field(
        None, "gatewayKey", text, "PEM file on the driver: the private key of `gatewayCertificate`."
    )
    warn_after_us: int | None = option_field(
        None,
        "warnAfter",
        _warn_after,
        "A warning names the split that has held the watermark for this long, and the cause; `none`: never.",
        "10 times `idleTimeout`, or 10 minutes",
    )
    event_log: str | None = option_field(
        None,
        "eventLog",
        text,
        "Folder on the driver's host into which the planner writes all that it learns and plans, but no record: "
        "for `streaming-source simulate`, and for a bug report (`alignment.recording.replay` makes the same plans "
        "of it).",
    )

    @property
    def reports(self) -> bool:
        """True if event times are learnt from what readers report, and not known ahead of reading."""
        return self.indexing == "off"

    @property
    def tasks(self) -> int:
        """The largest number of tasks that read one micro-batch."""
        return max(self.num_readers or os.cpu_count() or 1, self.min_partitions or 1)

    @property
    def min_rows_per_reader(self) -> int:
        """Records for which one more task pays off; 1 if the user sets a minimum of tasks."""
        return _WORTH_A_TASK if self.min_partitions is None else 1

    def warn_after(self, idle_timeout_us: int | None) -> int:
        """Return how long a watermark may be held without a warning, in microseconds; `MAX_WATERMARK` for ever."""
        if self.warn_after_us is not None:
            return self.warn_after_us
        return 600 * _SECOND_US if idle_timeout_us is None else 10 * idle_timeout_us


@dataclass(frozen=True, slots=True)
class ReadRules:
    """The decisions of the user on a stream: its strategy, its options, and what the engine plans by.

    Event times from `time_limit_us` on are invalid. Of a source without an index up to `read_ahead_rows` records are
    read ahead, over all splits: 8 bytes each, 16 where positions have gaps. `at_once`: no micro-batch has a limit of
    rows, and no record comes after the first listing.
    """

    strategy: WatermarkStrategy
    planning: PlanningRules
    options: FrameOptions = FrameOptions()
    time_limit_us: int | None = None
    read_ahead_rows: int = 4_000_000
    at_once: bool = False

    @classmethod
    def of(
        cls, strategy: WatermarkStrategy, options: FrameOptions, *, bounded: bool, by_source: bool = False
    ) -> ReadRules:
        """Return the rules of a stream; `by_source` if the source emits one watermark for all splits."""
        is_exact = options.watermark_rows and not options.reports
        none_is_late = by_source or options.lateness == "none" or (options.lateness is None and is_exact)
        planning = PlanningRules(
            out_of_orderness_us=strategy.out_of_orderness_us,
            max_drift_us=strategy.alignment.max_drift_us if strategy.alignment else None,
            drains_past_caught_up=options.watermark_rows,
            lateness="none" if none_is_late else "bounded",
            by_source=by_source,
            bounded=bounded,
            times=options.times,
        )
        # Event times from `FAR_US` on are reserved for watermark rows.
        far_us = FAR_US if options.watermark_rows else None
        return cls(strategy, planning, options, far_us, at_once=bounded and options.max_rows_per_trigger is None)

    @property
    def group(self) -> str | None:
        """The alignment group that other sources of the application may be in."""
        return None if self.strategy.alignment is None else self.strategy.alignment.group

    @property
    def in_one_query(self) -> bool:
        """True if all sources of the group are in this query."""
        return self.options.alignment_scope == "query"

    @property
    def ends_twice(self) -> bool:
        """True if a bounded source announces its end once more, in a micro-batch of its own."""
        return self.options.watermark_rows and not self.options.no_data_micro_batches

    @property
    def counts_runs(self) -> bool:
        """True if idleness is counted in runs where they end by themselves: by default, and where a split may wait."""
        may_wait = (self.options.watermark_rows or self.planning.max_drift_us is not None) and not self.planning.bounded
        return may_wait and not (self.strategy.is_idleness_given or self.strategy.uses_source_watermarks)

    @property
    def needs_each_time(self) -> bool:
        """True if no record's event time may be unknown to the planner: late ones are counted, or none may be late."""
        return self.options.late in ("drop", "route") or self.options.lateness == "none"

    @property
    def earliest_us(self) -> int:
        """Event times before this are invalid: those before 1970, where those after 3999 are."""
        return NO_TIMESTAMP if self.time_limit_us is None else 0

    def time_limit_at(self, clock_us: int) -> int | None:
        """Event times from here on are invalid while the wall clock shows `clock_us`; None for no limit."""
        if self.options.max_future_skew_us is None:
            return self.time_limit_us
        limit_us = clock_us + self.options.max_future_skew_us + 1
        return limit_us if self.time_limit_us is None else min(limit_us, self.time_limit_us)

    def clock_at(self, state: SourceState[Any, Any]) -> int:
        """Return the latest time of the wall clock that a state shows, `LONG_AGO_US` if none.

        It is when the state was planned, if there was a `maxFutureSkew` and it has not changed.
        """
        shown_us = max(int(state.silent_since_us.max(initial=LONG_AGO_US)), state.empty_since_us)
        skew_us, limit_us = self.options.max_future_skew_us, state.time_limit_us
        if skew_us is None or limit_us is None or limit_us == self.time_limit_us:
            return shown_us
        return max(shown_us, limit_us - skew_us - 1)

    @property
    def needs_event_times(self) -> bool:
        """True if plans depend on the event times of records; see `SplitEnumeratorContext`."""
        is_limited = bool(self.planning.times) or self.planning.max_drift_us is not None
        return not self.at_once or is_limited or self.strategy.makes_own_watermarks

    @property
    def supports_opaque_blocks(self) -> bool:
        """True if watermarks follow from a bound and one event time of each cut; late records are not counted then."""
        return self.planning.out_of_orderness_us is not None and not self.options.reports and not self.needs_each_time

"""The options that every format takes, and what they mean."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple, get_args

import pyarrow as pa

from alignment.arrow_times import time_zone
from alignment.event_time_range import EventTimeRange, Overlap
from alignment.exceptions import InvalidArgumentError
from alignment.plan import PlanningRules
from alignment.strategy import AlignmentParameters, WatermarkStrategy
from alignment.time_texts import UTC, parse_iso8601
from alignment.timestamps import FieldTimestampAssigner, RecordTimestampAssigner
from alignment.watermarks import FAR_US, MAX_WATERMARK
from streaming_source.api import Option, OptionSet
from streaming_source.api.options import (
    arguments,
    boolean,
    choice,
    duration,
    integer,
    option_field,
    optional_duration,
    text,
)
from streaming_source.coordinator import ReadRules
from streaming_source.exceptions import OptionError
from streaming_source.spark.watermark_rows import EMITTED

SECRET_OPTIONS: Final = "secretOptions"
"""The option that has others with secret values: see `secret_options`."""

_SECOND_US: Final = 1_000_000
_IDLE_US: Final = 60 * _SECOND_US
_WORTH_A_TASK: Final = 32_768
"""Fewest records for which another task saves more than it costs."""


def _watermark_rows(name: str, value: str) -> bool | str:
    return EMITTED if value == EMITTED else boolean(name, value)


def _warn_after(name: str, value: str) -> int:
    duration_us = optional_duration(1)(name, value)
    return MAX_WATERMARK if duration_us is None else duration_us


def _time_zone(name: str, value: str) -> str:
    try:
        return time_zone(value)
    except InvalidArgumentError as error:
        raise OptionError(f"option {error}") from None


STRATEGY_OPTIONS: Final = OptionSet(
    [
        Option(
            "eventTimeColumn",
            text,
            "Column of the event time (dotted path, in any case); absent: the source record timestamp.",
        ),
        Option("timestampUnit", choice("s", "ms", "us", "ns"), "Unit of an event-time column of numbers."),
        Option(
            "timeZone",
            _time_zone,
            "Of times that are written without one, as in `Europe/Berlin` or `+02:00`. `spark.readStream` and "
            "`spark.read` do not know that of the session: name it there, where times may be written so.",
            None,
            "that of the session",
        ),
        Option(
            "maxOutOfOrderness",
            duration(),
            "Records that are not there yet may be so far behind the latest one of their split. With plain "
            "`withWatermark` splits are aligned only where this or `maxDrift` is given.",
            None,
            "0 seconds",
        ),
        Option(
            "idleTimeout",
            optional_duration(1),
            "A split with nothing left to read for this long no longer holds the watermark; `none`: never idle. Left "
            "out, runs are counted in AvailableNow: a split that brings nothing in one is idle in the next one that "
            "brings nothing of it either; see [Nightly runs](nightly-runs.md).",
            _IDLE_US,
            "1 minute; in AvailableNow the second run",
        ),
        Option("maxDrift", duration(), "How far any split is read ahead of the slowest one's reach."),
        Option(
            "alignmentGroup",
            text,
            "`maxDrift` also holds together the sources of this application that name the same group.",
        ),
        Option(
            "updateInterval",
            duration(1),
            "How often, at least, the sources of a group exchange how far they are.",
            _SECOND_US,
            "1 second",
        ),
    ],
    {
        "checkpointLocation": "it is one of writeStream; give it there",
        "outputMode": "it is one of writeStream; give it there",
        "schema": "call .schema(...) of the reader",
        "trigger": "it is one of writeStream; give it there",
        "watermark": "it is called maxOutOfOrderness here",
        "watermarkDelay": "it is called maxOutOfOrderness here",
    },
)
"""Options that make a `WatermarkStrategy`; `from_source` takes the strategy itself instead."""


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
    """The way in which records become rows of the frame. Each attribute is described by its option.

    `watermark_rows` if watermark rows are emitted; `is_half_exact` if only one part of an exact frame is loaded.
    """

    event_time_as: str | None = option_field(
        None,
        "eventTimeAs",
        text,
        "Name of the column with the event time, which is added unless it is a timestamp column of that name.",
        "the timestamp column where it comes from, else `event_time`",
    )
    lateness: str | None = option_field(
        None,
        "lateness",
        choice("bounded", "none"),
        "`none`: what is there is never late: the watermark stays below the smallest event time that is there and "
        "unread. `bounded`: `maxOutOfOrderness` holds for what is there as well, so that windows come out earlier, and "
        "what is further behind is late.",
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
    late_of: str | None = option_field(
        None,
        "lateRecordsOf",
        text,
        "Of `late_records`: the checkpoint of the query whose late records these are.",
        is_private=True,
    )
    late_from: int | None = option_field(
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
        text,
        "Only records from this event time on, as in `2024-01-31`, `2024-01-31 10:00:00` or "
        "`2024-01-31T10:00:00+01:00`. Others are not read where that is known ahead, and left out elsewhere; they are "
        "neither late nor invalid.",
    )
    event_time_until: str | None = option_field(
        None, "eventTimeUntil", text, "The same for its end: only records before this event time."
    )
    overlap: Overlap = option_field(
        "drop",
        "overlap",
        choice(*get_args(Overlap)),
        "With `eventTimeFrom` or `eventTimeUntil`: what to do with records outside of them, which another source may "
        "have as well. `drop`: leave them out; `keep`: read them all, and hand them on; `fail`: at the first one. "
        "What is dropped or kept is counted (`outOfRangeRecords`).",
    )
    no_data_batches: bool = option_field(
        True,
        "noDataMicroBatches",
        boolean,
        "Not needed in a classic session, from which frames with the exact watermark take it as they are made: whether "
        "`spark.sql.streaming.noDataMicroBatches.enabled`. With `false` a bounded source ends with a micro-batch of "
        "its watermark alone, in which Spark closes the last windows.",
    )
    available_now_checkpoint: str | None = option_field(
        None,
        "availableNowCheckpoint",
        text,
        "On Spark 4.0 and 4.1, with `trigger(availableNow=True)`: the `checkpointLocation` of the query. Without it a "
        "source that does not end can have no second run; see [Spark 4.0 and 4.1](cluster.md#spark-40-and-41).",
    )
    include_metadata: bool = option_field(
        False, "includeMetadata", boolean, "Add `_split`, `_position`, `_source_timestamp` and `_late`."
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
    max_rows: int | None = option_field(
        None, "maxRowsPerTrigger", integer(1), "At most this many records a micro-batch, by event time."
    )
    min_rows: int | None = option_field(
        None,
        "minRowsPerTrigger",
        integer(1),
        "Read nothing before so many records are there, but not for longer than `maxTriggerDelay`. The watermark goes "
        "on meanwhile. Nothing waits in AvailableNow, where no more can come, or where another source of the alignment "
        "group waits for this one.",
    )
    max_delay_us: int = option_field(
        15 * 60 * _SECOND_US,
        "maxTriggerDelay",
        duration(1),
        "With `minRowsPerTrigger`: how long a micro-batch may wait for more.",
        "15 minutes",
    )
    readers: int | None = option_field(
        None, "numReaders", integer(1), "Tasks that read one micro-batch, at most; default: the cores of the driver."
    )
    min_readers: int | None = None
    max_rows_per_reader: int | None = None
    allow_unaligned: bool = option_field(
        False,
        "allowUnalignedSourceSplits",
        boolean,
        "For sources of your own whose event times are read ahead with one `SplitReader` for several splits: where "
        "it cannot pause a split that is far ahead, let that one run ahead, instead of refusing to start. Of each "
        "of its records 8 to 16 bytes are kept in the planner.",
    )
    reports: bool = False
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
    def tasks(self) -> int:
        """The largest number of tasks that read one micro-batch."""
        return max(self.readers or os.cpu_count() or 1, self.min_readers or 1)

    @property
    def min_rows_per_reader(self) -> int:
        """Records for which one more task pays off; 1 if the user sets a minimum of tasks."""
        return _WORTH_A_TASK if self.min_readers is None else 1

    def warn_after(self, idle_timeout_us: int | None) -> int:
        """Return how long a watermark may be held without a warning, in microseconds; `MAX_WATERMARK` for ever."""
        if self.warn_after_us is not None:
            return self.warn_after_us
        return 600 * _SECOND_US if idle_timeout_us is None else 10 * idle_timeout_us


FRAME_OPTIONS: Final = OptionSet.of(FrameOptions)
"""Options that both `readStream.format(...)` and `from_source` take."""

SOURCE_OPTIONS: Final = OptionSet(
    [
        Option(
            "indexing",
            choice("auto", "off"),
            "`auto`: the source's own index, or reading ahead in the planner. `off`: event times are learnt from what "
            "the readers report; nothing is read twice, and `maxDrift` is kept only about.",
            "auto",
            "auto",
        )
    ]
)
"""Further options of `from_source`; the formats have options of the same names, with values of their own."""


def frame_options(values: Mapping[str, Any], driver_host: str = "127.0.0.1", zone: str | None = None) -> FrameOptions:
    """Return the frame options of parsed values of `FRAME_OPTIONS`.

    Executors reach the driver at `driver_host`; `zone` is that of zoneless times, if it is known.
    """
    most, least = values["maxRowsPerTrigger"], values["minRowsPerTrigger"]
    if most is not None and least is not None and least > most:
        raise OptionError(f"option minRowsPerTrigger = {least}: must be at most maxRowsPerTrigger = {most}; lower it")
    if (values["gatewayCertificate"] is None) != (values["gatewayKey"] is None):
        raise OptionError("options gatewayCertificate and gatewayKey: one is useless without the other; give both")
    own = {
        "watermark_rows": values["watermarkRows"] == EMITTED,
        "is_half_exact": values["watermarkRows"] is True,
        "min_readers": values.get("minPartitions"),
        "max_rows_per_reader": values.get("maxRecordsPerPartition"),
        "reports": values.get("indexing") == "off",
        "times": repair_times(_times(values, zone), values["repairRead"]),
        "gateway_host": values["gatewayHost"] or driver_host,
    }
    return FrameOptions(**arguments(FrameOptions, values) | own)


def _times(values: Mapping[str, Any], zone: str | None) -> EventTimeRange | None:
    """Return the range of `eventTimeFrom` and `eventTimeUntil`; None if neither is given."""
    from_text, until_text = values["eventTimeFrom"], values["eventTimeUntil"]
    bounds = _time("eventTimeFrom", from_text, zone), _time("eventTimeUntil", until_text, zone)
    try:
        found = EventTimeRange(*bounds, overlap=values["overlap"])
    except InvalidArgumentError:
        raise OptionError(
            f"options eventTimeFrom = {from_text!r} and eventTimeUntil = {until_text!r}: no event time lies between "
            "them; let the second be later than the first"
        ) from None
    if not found and found.overlap != "drop":
        raise OptionError(
            f"option overlap = {found.overlap!r} is for records outside of a range of event times; give eventTimeFrom "
            "or eventTimeUntil as well"
        )
    return found or None


def repair_times(wanted: EventTimeRange | None, repair_read: RepairRead | None) -> EventTimeRange | None:
    """Return the ranges of a batch that repairs windows, within those that the stream reads."""
    if repair_read is None:
        return wanted
    low, high = (None, None) if wanted is None or wanted.overlap == "keep" else (wanted.from_us, wanted.until_us)
    ranges = [
        (first, last)
        for start, end in repair_read.ranges
        if (first := start if low is None else max(start, low)) < (last := end if high is None else min(end, high))
    ]
    return EventTimeRange.of_ranges(ranges)


def _time(option: str, written: str | None, zone: str | None) -> int | None:
    """Return microseconds since the epoch; a text without a zone is in `zone`."""
    if written is None:
        return None
    of_text = pa.array([written])
    (us,), (is_time,) = parse_iso8601(of_text, zone or UTC)
    if not is_time:
        raise OptionError(f"option {option} = {written!r}: must be a time such as 2024-01-31T10:00:00Z")
    if zone is None and us != parse_iso8601(of_text, "+01:00")[0][0]:
        raise OptionError(
            f"option {option} = {written!r} has no zone, and a data source does not know that of the session; "
            "write it with one, as in 2024-01-31T10:00:00Z, or add option timeZone"
        )
    return int(us)


def strategy_of(values: Mapping[str, Any], given: Mapping[str, Any] = {}) -> WatermarkStrategy:
    """The strategy that parsed values of `STRATEGY_OPTIONS`, and `watermarkRows`, describe; of the options `given`.

    `maxDrift` has two defaults. With the exact watermark drift costs state and never records, so it is unbounded.
    Without it drift would cost records, so it is `maxOutOfOrderness`. If the user gives neither bound, no split is held
    back, as in Spark's own sources.
    """
    column, unit, bound_us = values["eventTimeColumn"], values["timestampUnit"], values["maxOutOfOrderness"]
    group, drift_us = values["alignmentGroup"], values["maxDrift"]
    if column is None and unit is not None:
        raise OptionError("option timestampUnit needs eventTimeColumn: it is the unit of that column; name it")
    if group is not None and drift_us is None:
        raise OptionError(
            f"option alignmentGroup = {group!r} needs maxDrift: how far its sources may drift apart; give it as well"
        )
    if drift_us is None and not values["watermarkRows"]:
        drift_us = bound_us
    interval_us = values["updateInterval"]
    # A minute that is written down is one that is meant.
    is_idleness_given = values["idleTimeout"] != _IDLE_US or "idletimeout" in map(str.lower, given)
    return WatermarkStrategy(
        out_of_orderness_us=bound_us or 0,
        timestamp_assigner=RecordTimestampAssigner() if column is None else FieldTimestampAssigner(column, unit),
        idle_timeout_us=values["idleTimeout"],
        is_idleness_given=is_idleness_given,
        alignment=None if drift_us is None else AlignmentParameters(group, drift_us, interval_us),
    )


def source_strategy_of(values: Mapping[str, Any], given: Mapping[str, Any]) -> WatermarkStrategy:
    """The same over a source that emits its watermark (`watermarkFrom`); of the options `given` none may make one."""
    named = {name.lower(): value for name, value in given.items()}
    for name in ("maxOutOfOrderness", "idleTimeout"):
        if (value := named.get(name.lower())) is not None:
            raise OptionError(
                f"option {name} = {value!r} beside watermarkFrom: the watermark is what the writers of the table "
                "claim, and nothing is guessed; leave it out"
            )
    made = strategy_of(values, given)
    return replace(made, out_of_orderness_us=None, idle_timeout_us=None, uses_source_watermarks=True)


def _check_by_source(options: FrameOptions) -> None:
    if not options.watermark_rows:
        raise OptionError(
            "option watermarkFrom needs the exact watermark: with a plain withWatermark Spark makes one of its own "
            "from the latest event time; load with read_stream(spark)"
        )
    if options.lateness == "bounded":
        raise OptionError(
            "option lateness = 'bounded' beside watermarkFrom: what is there and unread holds the watermark, and no "
            "bound is known by which it might not; leave it out"
        )


def read_rules(
    strategy: WatermarkStrategy, options: FrameOptions, *, bounded: bool, by_source: bool = False
) -> ReadRules:
    """Return the rules by which a stream is planned; `by_source` if the source emits one watermark for all splits."""
    if by_source:
        _check_by_source(options)
    elif not (strategy.is_idleness_given or strategy.idle_timeout_us or strategy.uses_source_watermarks):
        strategy = replace(strategy, idle_timeout_us=_IDLE_US)
    bound_us = strategy.out_of_orderness_us
    if options.reports:
        _check_reports(strategy, options)
    elif options.report_location is not None:
        raise OptionError(
            f"option reportLocation = {options.report_location!r} is for the reports of readers, and the planner knows "
            "the event times ahead of them; give indexing = off as well, or leave it out"
        )
    group = None if strategy.alignment is None else strategy.alignment.group
    if options.alignment_scope == "query" and group is None:
        raise OptionError(
            "option alignmentScope = 'query' needs an alignment group, which the sources of the query have in common; "
            "give alignmentGroup and maxDrift, or with_watermark_alignment of the strategy"
        )
    if options.alignment_location is not None and group is None:
        raise OptionError(
            f"option alignmentLocation = {options.alignment_location!r} is for the reports of an alignment group, "
            "and there is none; give alignmentGroup and maxDrift, or with_watermark_alignment of the strategy"
        )
    planning = PlanningRules(
        out_of_orderness_us=bound_us,
        max_drift_us=strategy.alignment.max_drift_us if strategy.alignment else None,
        drains_past_caught_up=options.watermark_rows,
        lateness="none" if by_source else _lateness(options),
        by_source=by_source,
        bounded=bounded,
        times=options.times,
    )
    return ReadRules(
        strategy,
        planning,
        # Event times from `FAR_US` on are reserved for watermark rows.
        FAR_US if options.watermark_rows else None,
        options.max_future_skew_us,
        announces=options.watermark_rows,
        group=group,
        in_one_query=options.alignment_scope == "query",
        late=options.late,
        lateness=options.lateness,
        reports=options.reports,
        allow_unaligned=options.allow_unaligned,
        min_rows=options.min_rows,
        max_delay_us=options.max_delay_us,
        ends_twice=options.watermark_rows and not options.no_data_batches,
        at_once=bounded and options.max_rows is None,
    )


def _lateness(options: FrameOptions) -> Literal["bounded", "none"]:
    is_exact = options.watermark_rows and not options.reports
    return "none" if options.lateness == "none" or (options.lateness is None and is_exact) else "bounded"


def _check_reports(strategy: WatermarkStrategy, options: FrameOptions) -> None:
    if not options.watermark_rows:
        raise OptionError(
            "option indexing = 'off' needs the exact watermark (read_stream, from_source or "
            "with_exact_watermark): with a plain withWatermark drift, which is then known only after reading, "
            "costs records; load with read_stream(spark)"
        )
    if options.lateness == "none":
        raise OptionError(
            "option lateness = 'none' needs event times ahead of reading: not with indexing = 'off'; leave one out"
        )
    if options.late == "route":
        raise OptionError(
            "option late = 'route' needs event times ahead of reading, so that each late record is counted: not with "
            "indexing = 'off'; leave one out"
        )
    if strategy.out_of_orderness_us is None and not strategy.makes_own_watermarks:
        raise OptionError(
            "option indexing = 'off' needs watermarks, and the strategy has none: use "
            "for_bounded_out_of_orderness(...), for_generator(...) or from_source_watermarks()"
        )

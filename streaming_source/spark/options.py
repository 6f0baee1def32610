"""The options that every format takes, and what they mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from alignment.arrow_times import time_zone
from alignment.event_time_range import EventTimeRange
from alignment.exceptions import InvalidArgumentError
from alignment.strategy import AlignmentParameters, WatermarkStrategy
from alignment.time_texts import UTC, iso8601_us
from alignment.timestamps import FieldTimestampAssigner, RecordTimestampAssigner, TimestampAssigner
from streaming_source.api import Option, OptionSet
from streaming_source.api.options import any_text, arguments, choice, duration, optional_duration, text
from streaming_source.coordinator.rules import EMITTED, FrameOptions, ReadRules, RepairRead
from streaming_source.exceptions import OptionError

SECRET_OPTIONS: Final = "secretOptions"
"""The option that has others with secret values: see `secret_options`."""

_SECOND_US: Final = 1_000_000
_OTHER_TIMES: Final = "its watermarks are of other event times, and would make records late that are not"
_IDLE_US: Final = 60 * _SECOND_US


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
            fixed=_OTHER_TIMES,
        ),
        Option(
            "timestampUnit",
            choice("s", "ms", "us", "ns"),
            "Unit of an event-time column of numbers.",
            fixed=_OTHER_TIMES,
        ),
        Option(
            "timePattern",
            any_text,
            "For an event-time column of text: a regular expression whose one group is the time, in ISO-8601, or with "
            r"`timestampUnit` a number, as in `^\[(.*?)\]`. See [Logs of text](logs.md).",
            None,
            "all of it",
            fixed=_OTHER_TIMES,
        ),
        Option(
            "timeZone",
            _time_zone,
            "Zone of times that are written without one, as in `Europe/Berlin` or `+02:00`. `spark.readStream` and "
            "`spark.read` do not know that of the session: give the option there, where times may have no zone.",
            None,
            "that of the session",
            fixed=_OTHER_TIMES,
        ),
        Option(
            "maxOutOfOrderness",
            duration(),
            "How far a record that arrives later may be behind the latest record of its split. With plain "
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
        Option("maxDrift", duration(), "How far any split is read ahead of the slowest one."),
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
        "min_partitions": values.get("minPartitions"),
        "max_records_per_partition": values.get("maxRecordsPerPartition"),
        "indexing": values.get("indexing", "auto"),
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
    us = iso8601_us(written, zone or UTC)
    if zone is None and us != iso8601_us(written, "+01:00"):
        raise OptionError(
            f"option {option} = {written!r} has no zone, and a data source does not know that of the session; "
            "write it with one, as in 2024-01-31T10:00:00Z, or add option timeZone"
        )
    return us


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
    if column is None and values["timePattern"] is not None:
        raise OptionError("option timePattern needs eventTimeColumn: it is of the text in that column; name it")
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
        timestamp_assigner=_assigner(column, unit, values["timePattern"]),
        idle_timeout_us=values["idleTimeout"],
        is_idleness_given=is_idleness_given,
        alignment=None if drift_us is None else AlignmentParameters(group, drift_us, interval_us),
    )


def _assigner(column: str | None, unit: str | None, pattern: str | None) -> TimestampAssigner:
    if column is None:
        return RecordTimestampAssigner()
    try:
        return FieldTimestampAssigner(column, unit, pattern=pattern)
    except InvalidArgumentError as error:
        raise OptionError(f"option {error}") from None


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
    return ReadRules.of(strategy, options, bounded=bounded, by_source=by_source)


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

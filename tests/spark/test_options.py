"""Options: found in any case, refused with the nearest name, and explained when their values are wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from alignment import WatermarkStrategy
from alignment.durations import parse_duration_us
from alignment.watermarks import MAX_WATERMARK
from streaming_source import required_delay
from streaming_source.api.options import OptionSet, arguments, duration_field, durations_as_timedelta, option, text
from streaming_source.connectors.files import FileSource
from streaming_source.coordinator import ReadRules
from streaming_source.coordinator.rules import EMITTED, FrameOptions
from streaming_source.exceptions import OptionError
from streaming_source.spark.datasource import AlignedDataSource
from streaming_source.spark.options import (
    FRAME_OPTIONS,
    STRATEGY_OPTIONS,
    frame_options,
    read_rules,
    strategy_of,
)

ALL = STRATEGY_OPTIONS | FRAME_OPTIONS | FileSource.options()


def test_names_are_found_in_any_case_and_values_are_parsed() -> None:
    values = ALL.parse({"MAXROWSPERTRIGGER": "10", "maxoutoforderness": "INTERVAL 5 SECONDS", "SplitBy": "File"})
    assert values["maxRowsPerTrigger"] == 10
    assert values["maxOutOfOrderness"] == 5_000_000
    assert values["splitBy"] == "file"


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("eventTimeColum", "eventTimeColumn"),
        ("maxRowPerTrigger", "maxRowsPerTrigger"),
        ("splitby_", "splitBy"),
        ("maxOutOfOrder", "maxOutOfOrderness"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_one(name: str, nearest: str) -> None:
    with pytest.raises(OptionError, match=f"unknown option '{name}'; did you mean {nearest}\\?"):
        ALL.parse({name: "1"})


def test_what_one_call_of_the_library_tells_another_is_read_and_offered_to_nobody() -> None:
    private = {option.name for option in ALL if option.is_private}
    assert private == {"watermarkRows", "lateRecordsOf", "lateRecordsFrom", "repairDelay", "repairRead", "textInNames"}
    assert ALL.parse({"laterecordsfrom": "3"})["lateRecordsFrom"] == 3
    for given in (*(name[:-1] for name in private), "zzz"):
        with pytest.raises(OptionError, match="unknown option") as error:
            ALL.parse({given: "1"})
        assert not any(name in str(error.value).replace(repr(given), "") for name in private)


def test_a_name_that_is_near_nothing_is_refused_with_all_of_them() -> None:
    with pytest.raises(OptionError, match=r"unknown option 'zzz'\. Known options: alignmentGroup, .*, bounded"):
        ALL.parse({"zzz": "1"})


def test_an_option_given_twice_with_two_values_is_refused() -> None:
    with pytest.raises(OptionError, match="option splitBy is given twice, as 'file' and as 'directory'"):
        ALL.parse({"splitBy": "file", "SPLITBY": "directory"})
    assert ALL.parse({"splitBy": "file", "SPLITBY": "file"})["splitBy"] == "file"


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("maxOutOfOrderness", "5", "is not a duration; write it as text with a unit"),
        ("maxOutOfOrderness", "-5 seconds", "maxOutOfOrderness"),
        ("maxOutOfOrderness", "1 month", "month"),
        ("idleTimeout", "0 seconds", "idleTimeout"),
        ("maxRowsPerTrigger", "0", "must be at least 1"),
        ("maxRowsPerTrigger", "1e3", "must be a whole number, like 10000"),
        ("numReaders", "-1", "must be at least 1"),
        ("bounded", "yes", "must be true or false"),
        ("splitBy", "partition", "must be one of auto, directory, file"),
        ("late", "ignore", "must be one of keep, drop, fail"),
        ("invalidTimestamp", "skip", "must be one of fail, null, drop"),
        ("timestampUnit", "minutes", "must be one of s, ms, us, ns"),
        ("fileFormat", "xml", "must be one of parquet, arrow, orc, csv, json, text"),
        ("eventTimeColumn", " ", "is empty; give it a value or leave it out"),
    ],
)
def test_a_wrong_value_is_refused_with_the_name_the_value_and_the_rule(name: str, value: str, rule: str) -> None:
    with pytest.raises(OptionError, match=rule) as error:
        ALL.parse({name: value})
    assert f"option {name}" in str(error.value)


def test_options_that_contradict_each_other_are_refused() -> None:
    for given, message in (
        ({"timestampUnit": "ms"}, "timestampUnit needs eventTimeColumn"),
        ({"alignmentGroup": "g"}, "alignmentGroup = 'g' needs maxDrift"),
    ):
        with pytest.raises(OptionError, match=message):
            strategy_of(ALL.parse(given))
    by_reports = FrameOptions(watermark_rows=True, indexing="off")
    with pytest.raises(OptionError, match="indexing = 'off' needs watermarks, and the strategy has none"):
        read_rules(WatermarkStrategy.no_watermarks(), by_reports, bounded=True)


def test_a_path_is_required() -> None:
    with pytest.raises(OptionError, match="option path is missing"):
        AlignedDataSource.of_format("aligned_files", {"eventTimeColumn": "ts"})


@pytest.mark.parametrize(
    ("options", "idle_s", "warn_after_s"),
    [({}, 30, 300), ({}, None, 600), ({"warnAfter": "1 hour"}, 30, 3600), ({"warnAfter": "NONE"}, 30, None)],
)
def test_a_watermark_that_is_held_for_ten_idle_timeouts_is_worth_a_warning_unless_the_user_says_otherwise(
    options: dict[str, str], idle_s: int | None, warn_after_s: int | None
) -> None:
    idle_us = None if idle_s is None else idle_s * 1_000_000
    expected = MAX_WATERMARK if warn_after_s is None else warn_after_s * 1_000_000
    assert frame_options(ALL.parse(options)).warn_after(idle_us) == expected


def test_none_turns_idleness_off_and_a_minute_is_the_default() -> None:
    assert strategy_of(ALL.parse({"idleTimeout": "None"})).idle_timeout_us is None
    assert strategy_of(ALL.parse({})).idle_timeout_us == 60_000_000


@pytest.mark.parametrize(
    ("options", "exact_us", "plain_us"),
    [
        ({}, None, None),
        ({"maxOutOfOrderness": "5 seconds"}, None, 5_000_000),
        ({"maxOutOfOrderness": "0 seconds"}, None, 0),
        ({"maxDrift": "1 minute"}, 60_000_000, 60_000_000),
        ({"maxDrift": "0 seconds", "maxOutOfOrderness": "5 seconds"}, 0, 0),
    ],
)
def test_nothing_is_held_back_unless_the_user_states_a_bound(
    options: dict[str, str], exact_us: int | None, plain_us: int | None
) -> None:
    drifts = []
    for rows in (EMITTED, "false"):
        values = ALL.parse({**options, "watermarkRows": rows})
        drifts.append(read_rules(strategy_of(values), frame_options(values), bounded=False).planning.max_drift_us)
    assert drifts == [exact_us, plain_us]


def test_watermarks_count_a_bound_that_is_not_given_as_none() -> None:
    assert strategy_of(ALL.parse({})).out_of_orderness_us == 0


@pytest.mark.parametrize(
    ("bound", "drift", "windows", "rows"),
    [
        ("5 seconds", None, "5 seconds", "5001 milliseconds"),
        ("5 seconds", "1 minute", "1 minute", "1 minute"),
        ("5 seconds", "5 seconds", "5 seconds", "5001 milliseconds"),
        ("1500 microseconds", None, "2 milliseconds", "2 milliseconds"),
        ("0 seconds", None, "0 seconds", "1 millisecond"),
    ],
)
def test_the_required_delay_is_in_whole_milliseconds(bound: str, drift: str | None, windows: str, rows: str) -> None:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(bound)
    if drift is not None:
        strategy = strategy.with_watermark_alignment("g", drift)
    delays = [parse_duration_us(required_delay(strategy, per_row=per_row), name="delay") for per_row in (False, True)]
    assert delays == [parse_duration_us(expected, name="expected") for expected in (windows, rows)]


def test_no_delay_is_enough_for_a_generator_whose_bound_is_unknown() -> None:
    with pytest.raises(OptionError, match="needs a strategy with a bound on out-of-orderness; use the exact watermark"):
        required_delay(WatermarkStrategy.no_watermarks())
    assert required_delay(WatermarkStrategy.for_bounded_out_of_orderness(timedelta(milliseconds=7))) == "7 milliseconds"


@dataclass(frozen=True)
class Fetches:
    place: str = field(metadata=option("place", text, "Where.", "required"))
    size: float = field(default=1000.0, metadata=option("fetchSize", lambda _, value: float(value), "How much."))
    every: timedelta | str = duration_field("2 seconds", "fetchEvery", 1000, "How often.")
    until: timedelta | str | None = duration_field(None, "fetchUntil", 1, "How long.", optional=True)
    unseen: int = 7

    def __post_init__(self) -> None:
        durations_as_timedelta(self)


def test_options_declared_on_fields_have_their_defaults_and_become_keywords() -> None:
    options = OptionSet.of(Fetches)
    assert [(o.name, o.default, o.default_text) for o in options] == [
        ("place", None, "required"),
        ("fetchSize", 1000.0, "1000"),
        ("fetchEvery", "2 seconds", "2 seconds"),
        ("fetchUntil", None, "none"),
    ]
    given = options.parse({"PLACE": "here", "fetchsize": "2.5", "fetchUntil": "1 minute"})
    assert Fetches(**arguments(Fetches, given)) == Fetches("here", 2.5, timedelta(seconds=2), "60 seconds")
    assert Fetches(**arguments(Fetches, options.parse({"place": "here"}))) == Fetches("here", until=None)
    assert Fetches(**arguments(Fetches, options.parse({"place": "here", "fetchUntil": "none"}))) == Fetches("here")


def test_a_duration_that_is_too_short_is_refused_as_an_option_and_as_an_argument() -> None:
    with pytest.raises(OptionError, match="option fetchEvery = '1 microsecond'"):
        OptionSet.of(Fetches).parse({"fetchEvery": "1 microsecond"})
    with pytest.raises(OptionError, match="every"):
        Fetches("here", every=timedelta(microseconds=1))
    with pytest.raises(OptionError, match="every"):
        Fetches("here", every=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["the splits of this source", "none", "g"])
def test_an_alignment_group_may_have_any_name(name: str) -> None:
    values = ALL.parse({"eventTimeColumn": "ts", "maxDrift": "1 minute", "alignmentGroup": name})
    assert read_rules(strategy_of(values), frame_options(values), bounded=False).group == name


def test_without_a_group_max_drift_is_of_the_splits_of_the_source_alone() -> None:
    values = ALL.parse({"eventTimeColumn": "ts", "maxDrift": "1 minute"})
    rules = read_rules(strategy_of(values), frame_options(values), bounded=False)
    assert (rules.group, rules.planning.max_drift_us) == (None, 60_000_000)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_watermark_alignment(None, "1 minute")
    rules = read_rules(strategy, FrameOptions(watermark_rows=True), bounded=False)
    assert (rules.group, rules.planning.max_drift_us) == (None, 60_000_000)


def test_idleness_that_nobody_decided_is_a_minute_in_a_stream_and_counted_in_runs_elsewhere() -> None:
    frame = frame_options(ALL.parse({"eventTimeColumn": "ts", "watermarkRows": EMITTED}))

    def rules(strategy: WatermarkStrategy) -> ReadRules:
        return read_rules(strategy, frame, bounded=False)

    def given(**options: str) -> ReadRules:
        values = {"eventTimeColumn": "ts", "watermarkRows": EMITTED, **options}
        return rules(strategy_of(ALL.parse(values), values))

    bounded = WatermarkStrategy.for_bounded_out_of_orderness("5 seconds")
    for made in (given(), rules(bounded)):
        assert (made.counts_runs, made.strategy.idle_timeout_us) == (True, 60_000_000)
    for made in (given(idleTimeout="1 minute"), rules(bounded.with_idleness("1 minute"))):
        assert (made.counts_runs, made.strategy.idle_timeout_us) == (False, 60_000_000)
    for made in (given(idleTimeout="none"), rules(bounded.with_idleness("none"))):
        assert (made.counts_runs, made.strategy.idle_timeout_us) == (False, None)

from __future__ import annotations

import math
import pickle
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from alignment.arrow_times import to_microseconds
from alignment.column_paths import column_at
from alignment.exceptions import InvalidArgumentError
from alignment.timestamps import (
    NO_TIMESTAMP,
    CallableTimestampAssigner,
    EventTimes,
    FieldTimestampAssigner,
    RecordTimestampAssigner,
    as_timestamp_assigner,
)
from tests.examples import examples

MIN, MAX = -(2**63), 2**63 - 1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
STEPS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def batch_of(values: Any, data_type: pa.DataType, name: str = "t") -> pa.RecordBatch:
    return pa.record_batch({name: pa.array(values, type=data_type)})


def extracted(batch: pa.RecordBatch, unit: str | None = None, column: str = "t") -> list[int | None]:
    """Event times as a list with None for invalid ones, after a look at the invariant."""
    times = FieldTimestampAssigner(column, unit).extract(batch, None)
    assert times.values.dtype == np.int64
    assert ((times.values == NO_TIMESTAMP) == ~times.valid).all()
    return [value if valid else None for value, valid in zip(times.values.tolist(), times.valid, strict=True)]


def naive_micros(steps: int | None, unit: str) -> int | None:
    if steps is None:
        return None
    micros = steps * 10**6 // STEPS_PER_SECOND[unit]
    return micros if MIN < micros <= MAX else None


def int64_column(low: int = MIN, high: int = MAX) -> st.SearchStrategy[list[int | None]]:
    return st.lists(st.none() | st.integers(low, high) | st.integers(max(low, -2000), min(high, 2000)))


# Event times as a value.


def test_event_times_keep_no_timestamp_where_invalid() -> None:
    times = EventTimes.of(np.array([5, 7, MIN]), np.array([True, False, True]))
    assert times.values.tolist() == [5, MIN, MIN]
    assert times.valid.tolist() == [True, False, False]
    assert times.valid_values.tolist() == [5]
    assert len(times) == 3
    assert (times.min(), times.max()) == (5, 5)


@given(st.lists(st.none() | st.integers(MIN + 1, MAX)))
def test_minimum_and_maximum_are_over_valid_times_only(values: list[int | None]) -> None:
    valid = np.array([value is not None for value in values], dtype=np.bool_)
    times = EventTimes.of(np.array([value or 0 for value in values], dtype=np.int64), valid)
    known = [value for value in values if value is not None]
    assert times.min() == min(known, default=NO_TIMESTAMP)
    assert times.max() == max(known, default=NO_TIMESTAMP)
    assert times.valid_values.tolist() == known


def test_event_times_of_nothing_have_no_extremes() -> None:
    for times in (EventTimes.none(0), EventTimes.none(3)):
        assert times.min() == times.max() == NO_TIMESTAMP


def test_event_times_refuse_other_types_and_lengths() -> None:
    with pytest.raises(InvalidArgumentError, match="int64"):
        EventTimes(np.array([1.5]), np.array([True]))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="one length"):
        EventTimes(np.array([1]), np.array([True, False]))


def test_event_times_survive_pickling() -> None:
    times = pickle.loads(pickle.dumps(EventTimes.of(np.array([5, MIN]))))
    assert times.values.tolist() == [5, MIN]
    assert times.valid.tolist() == [True, False]


# The source record timestamp.


def test_record_timestamps_are_passed_on() -> None:
    times = RecordTimestampAssigner().extract(batch_of(["a", "b"], pa.string()), np.array([17, NO_TIMESTAMP]))
    assert times.values.tolist() == [17, NO_TIMESTAMP]
    assert times.valid.tolist() == [True, False]
    assert RecordTimestampAssigner().columns == ()


def test_without_record_timestamps_no_record_has_an_event_time() -> None:
    times = RecordTimestampAssigner().extract(batch_of(["a", "b"], pa.string()), None)
    assert times.values.tolist() == [NO_TIMESTAMP, NO_TIMESTAMP]
    assert not times.valid.any()


def test_record_timestamps_of_another_length_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="source_timestamps has 1 values for 2 records"):
        RecordTimestampAssigner().extract(batch_of(["a", "b"], pa.string()), np.array([17]))


# A column, against plain Python value by value.


@given(int64_column(), st.sampled_from(["s", "ms", "us", "ns"]), st.sampled_from([None, "UTC", "Europe/Berlin"]))
def test_timestamps_of_every_unit_and_zone_are_utc_microseconds(
    steps: list[int | None], unit: str, zone: str | None
) -> None:
    batch = batch_of(steps, pa.timestamp(unit, zone))
    assert extracted(batch) == [naive_micros(step, unit) for step in steps]


@given(st.data(), st.sampled_from(["s", "ms", "us", "ns"]))
def test_whole_numbers_of_every_width_count_from_the_epoch(data: st.DataObject, unit: str) -> None:
    width = data.draw(st.sampled_from([8, 16, 32, 64]))
    if data.draw(st.booleans()):
        data_type, low, high = getattr(pa, f"int{width}")(), -(2 ** (width - 1)), 2 ** (width - 1) - 1
    else:
        data_type, low, high = getattr(pa, f"uint{width}")(), 0, 2**width - 1
    steps = data.draw(int64_column(low, high))
    assert extracted(batch_of([s if s is None else max(low, min(high, s)) for s in steps], data_type), unit) == [
        naive_micros(s if s is None else max(low, min(high, s)), unit) for s in steps
    ]


@given(st.lists(st.none() | st.floats() | st.floats(-2e9, 2e9)), st.sampled_from([pa.float32(), pa.float64()]))
@example([math.nan, math.inf, -math.inf, -0.0, -0.0000005, 1e300, 9223372036854.775], pa.float64())
def test_float_seconds_are_rounded_down_to_microseconds(seconds: list[float | None], data_type: pa.DataType) -> None:
    with np.errstate(over="ignore"):
        column = pa.array([None if s is None else s for s in seconds], type=pa.float64()).cast(data_type, safe=False)
    stored = column.to_pylist()
    expected = []
    for value in stored:
        micros = value * 1e6 if value is not None else math.nan
        floored = math.floor(micros) if math.isfinite(micros) else None
        expected.append(floored if floored is not None and MIN < floored <= MAX else None)
    assert extracted(pa.record_batch({"t": column}), "s") == expected


@given(st.lists(st.none() | st.dates()))
def test_dates_are_their_midnight(days: list[date | None]) -> None:
    expected = [None if d is None else (d - EPOCH.date()).days * 86_400_000_000 for d in days]
    assert extracted(batch_of(days, pa.date32())) == expected
    assert extracted(batch_of(days, pa.date64())) == expected


def test_dates_beyond_int64_microseconds_are_invalid() -> None:
    column = pa.array([2**31 - 1, 0], pa.int32()).cast(pa.date32())
    assert extracted(pa.record_batch({"t": column})) == [None, 0]


def naive_iso(text: str) -> int:
    moment = datetime.fromisoformat(text)
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (aware - EPOCH) // timedelta(microseconds=1)


@st.composite
def iso_texts(draw: st.DrawFn, zones: st.SearchStrategy[str]) -> str:
    moment = draw(st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31)))
    time = draw(st.sampled_from(["%H:%M", "%H:%M:%S", "%H:%M:%S.%f", "%H"]))
    return (
        f"{moment.year:04d}"
        + moment.strftime("-%m-%d")
        + draw(st.sampled_from("T "))
        + moment.strftime(time)
        + draw(zones)
    )


NO_ZONE = st.just("")
ZONES = st.sampled_from(["Z", "+00:00", "-00:00", "+01:30", "-0800", "+05", "+17:59", "-18:00"])
DAYS = st.dates().map(date.isoformat)
TEXT_TYPES = st.sampled_from([pa.string(), pa.large_string(), pa.string_view()])


@given(
    st.one_of(st.lists(st.none() | iso_texts(zone)) for zone in (NO_ZONE, ZONES, NO_ZONE | ZONES))
    | st.lists(st.none() | DAYS | iso_texts(ZONES)),
    TEXT_TYPES,
)
def test_iso_text_is_read_as_python_reads_it(texts: list[str | None], data_type: pa.DataType) -> None:
    expected = [None if text is None else naive_iso(text) for text in texts]
    assert extracted(batch_of(texts, data_type)) == expected


UNREADABLE = [
    "",
    "soon",
    "2024-02-30",
    "2023-02-29",
    "2024-13-01",
    "2024-00-01",
    "2024-01-00",
    "2024-01-01T24:00",
    "2024-01-01T12:60",
    "2024-01-01T12:00:60",
    "2024-01-01T12:00:00+24:00",
    "2024-01-01T12:00:00+18:01",
    "2024-01-01T12:00:00-19",
    "2024-01-01T12:00:00Z+19:00",
    "2024-01-01T12:00:00 europe/berlin",
    "2024-01-01T12:00:00 XYZ",
    "300000-01-01",
    "10:20",
    "T10:20:30",
    "2024-01-01T12:00:00+01:60",
    "2024-01-01Z",
    "2024-01-01T",
    "20240101",
    "1704067200",
    "2024-01-01\n2024-01-02",
    "٢٠٢٤-٠١-٠١",  # noqa: RUF001 - digits, but not those of ISO-8601
]


@pytest.mark.parametrize("text", UNREADABLE)
def test_unreadable_text_is_invalid_and_spares_its_neighbours(text: str) -> None:
    for neighbour in ("2024-01-01T00:00:00Z", "2024-01-01"):
        times = extracted(batch_of([neighbour, text, None, neighbour], pa.string()))
        assert times == [1704067200000000, None, None, 1704067200000000]
    assert extracted(batch_of([text], pa.string())) == [None]


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("1969-12-31T23:59:59.999999999", -1),
        ("1970-01-01T00:00:00.0000019Z", 1),
        ("1970-01-01T00:00:00.1", 100_000),
        ("1970-01-01T00:00:00,5z", 500_000),
        ("1970-01-01t00:00:01", 1_000_000),
        ("  1970-01-02  ", 86_400_000_000),
        ("0000-01-01", -62167219200000000),
        ("2024-02-29T12:00:00-00:30", 1709209800000000),
        ("2024-1-5 3:07:09", 1704424029000000),
        ("2024", 1704067200000000),
        ("2024-01-01 00:00:00 UTC", 1704067200000000),
        ("2024-01-01 00:00:00 +01:00", 1704063600000000),
        ("2024-01-01 00:00:00GMT+1", 1704063600000000),
        ("2024-01-01T00:00:00.Europe/Berlin", 1704063600000000),
        ("2024-07-01 02:00:00 Europe/Berlin", 1719792000000000),
        ("2024-01-01 00:00:00 PST", 1704096000000000),
        ("2024-01-01T00:00:00+1:3", 1704063420000000),
        ("2024-01-01T00:00:00+010030", 1704063570000000),
        ("-0001-01-01", -62198755200000000),
    ],
)
def test_text_is_read_the_same_whatever_stands_beside_it(text: str, us: int) -> None:
    for others in (
        [],
        ["2024-01-01"],
        ["2024-01-01T00:00:00Z"],
        ["nonsense"],
        ["2024-01-01", "2024-01-01T00:00:00Z"],
    ):
        assert extracted(batch_of([text, *others], pa.string()))[0] == us
        assert extracted(batch_of([*others, text], pa.string()))[-1] == us


@given(st.lists(st.text(alphabet="0123456789-+:.TZ ", max_size=30) | iso_texts(NO_ZONE | ZONES), min_size=1))
def test_a_text_means_the_same_alone_and_in_company(texts: list[str]) -> None:
    assert extracted(batch_of(texts, pa.string())) == [extracted(batch_of([t], pa.string()))[0] for t in texts]


@pytest.mark.parametrize(
    ("values", "data_type", "unit"),
    [
        (["2024-01-01", "soon", None, "2024-01-01"], pa.string(), None),
        ([1, 2, None, 1], pa.int32(), "s"),
        ([datetime(2024, 1, 1), None, datetime(2024, 1, 2)], pa.timestamp("ms"), None),
        ([None, None], pa.string(), None),
        ([], pa.string(), None),
    ],
)
def test_a_dictionary_reads_like_its_plain_column(values: list[Any], data_type: pa.DataType, unit: str | None) -> None:
    plain = pa.array(values, data_type)
    encoded = pa.record_batch({"t": plain.dictionary_encode()})
    assert extracted(encoded, unit) == extracted(pa.record_batch({"t": plain}), unit)
    assert extracted(encoded.slice(1), unit) == extracted(pa.record_batch({"t": plain.slice(1)}), unit)


def test_a_null_in_the_dictionary_itself_is_invalid() -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array(["2024-01-01", None]))
    assert extracted(pa.record_batch({"t": column})) == [1704067200000000, None, None]


def test_a_column_of_nothing_but_null_is_invalid_throughout() -> None:
    assert extracted(batch_of([None, None], pa.null())) == [None, None]


def test_a_slice_of_a_batch_reads_like_those_records_alone() -> None:
    batch = batch_of([1, None, 3, 4], pa.timestamp("us"))
    assert extracted(batch.slice(1, 2)) == [None, 3]


@settings(max_examples=examples(50))
@given(st.lists(st.integers(-(10**6), 10**6), min_size=2))
def test_rounding_never_turns_two_times_round(nanos: list[int]) -> None:
    times = extracted(batch_of(sorted(nanos), pa.timestamp("ns")))
    assert times == sorted(times)  # type: ignore[type-var]


# Where a column is, and what it may be.


def nested() -> pa.RecordBatch:
    inner = pa.struct({"at": pa.int64(), "by": pa.string()})
    rows = [{"meta": {"at": 1, "by": "x"}}, {"meta": None}, None, {"meta": {"at": None, "by": "y"}}]
    return pa.record_batch(
        {"payload": pa.array(rows, pa.struct({"meta": inner})), "event_time": pa.array([9, 9, 9, 9])}
    )


def test_a_dotted_path_leads_into_structs_and_a_null_on_the_way_is_invalid() -> None:
    assert extracted(nested(), "us", "payload.meta.at") == [1, None, None, None]
    assert extracted(nested().slice(1), "us", "payload.meta.at") == [None, None, None]
    assert FieldTimestampAssigner("payload.meta.at").columns == ("payload.meta.at",)


def test_a_column_with_a_dot_in_its_name_goes_before_a_path() -> None:
    batch = pa.record_batch({"a": pa.array([{"b": 1, "c.d": 3}]), "a.b": pa.array([2])})
    assert column_at(batch, "a.b").to_pylist() == [2]
    assert column_at(batch, "a.c.d").to_pylist() == [3]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("evnt_time", "column 'evnt_time' is not in the data; did you mean 'event_time'?"),
        ("Event_Time", "did you mean 'event_time'?"),
        ("payload.meta.att", "did you mean 'payload.meta.at'?"),
        ("payloud.meta.at", "did you mean 'payload'?"),
        ("zzz", "the columns are: 'payload', 'event_time'"),
        ("event_time.at", "'event_time' is int64, not a struct"),
        ("payload.", "is not in the data"),
    ],
)
def test_a_missing_column_is_named_with_the_nearest_one(column: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        FieldTimestampAssigner(column, "us").extract(nested(), None)
    assert message in str(caught.value)


def test_two_columns_of_one_name_are_ambiguous() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["t", "t"])
    with pytest.raises(InvalidArgumentError, match="ambiguous"):
        column_at(batch, "t")


# Of pyarrow 18 only the last two can be made.
DECIMALS = {"decimal32": 9, "decimal64": 18, "decimal128": 38, "decimal256": 76}


@given(st.data())
def test_decimals_are_rounded_down_to_microseconds_whatever_their_precision_scale_and_unit(data: st.DataObject) -> None:
    make, digits = data.draw(
        st.sampled_from([(getattr(pa, name), digits) for name, digits in DECIMALS.items() if hasattr(pa, name)])
    )
    precision = data.draw(st.integers(1, digits))
    scale = data.draw(st.integers(0, min(precision - 1, 70)))
    bound = 10**precision - 1
    unscaled = data.draw(st.lists(st.none() | st.integers(-bound, bound), max_size=5))
    unit = data.draw(st.sampled_from(["s", "ms", "us", "ns"]))
    with localcontext(prec=100):
        array = pa.array([None if n is None else Decimal(n).scaleb(-scale) for n in unscaled], make(precision, scale))
    step = Fraction(10**6, STEPS_PER_SECOND[unit] * 10**scale)
    exact = [None if n is None else n * step for n in unscaled]
    # Next to the ends of int64 a time may be taken for one beyond them.
    end = 2**63 - 2**11
    assume(not any(micros is not None and end < abs(micros) < 2**63 + 2**11 for micros in exact))
    expected = [None if micros is None or abs(micros) > end else math.floor(micros) for micros in exact]
    batch = pa.record_batch({"t": array})
    assert extracted(batch, unit) == expected
    assert extracted(batch.slice(1), unit) == expected[1:]


@pytest.mark.parametrize(
    ("data_type", "unit", "message"),
    [
        (pa.int64(), None, "whole numbers need a timestamp unit"),
        (pa.dictionary(pa.int8(), pa.int64()), None, "whole numbers need a timestamp unit"),
        (pa.float64(), None, "read as seconds only"),
        (pa.float64(), "ms", "read as seconds only"),
        (pa.bool_(), None, "holds no event time"),
        (pa.binary(), None, "holds no event time"),
        (pa.time64("us"), None, "a time of the day without a date, and so no event time; choose"),
        (pa.duration("us"), None, "holds no event time"),
        (pa.decimal128(20, 6), None, "decimals need a timestamp unit"),
        (pa.list_(pa.int64()), "s", "holds no event time"),
        (pa.struct({"a": pa.int64()}), "s", "holds no event time"),
    ],
)
def test_a_column_that_gives_no_time_is_refused_by_name(data_type: pa.DataType, unit: str | None, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        FieldTimestampAssigner("t", unit).extract(batch_of([], data_type), None)
    assert "column 't'" in str(caught.value)


def test_a_field_assigner_checks_its_arguments() -> None:
    with pytest.raises(InvalidArgumentError, match="unit = 'sec' must be one of s, ms, us, ns"):
        FieldTimestampAssigner("t", "sec")
    with pytest.raises(InvalidArgumentError, match="column = ''"):
        FieldTimestampAssigner("")


# Column statistics.


@given(st.lists(st.integers(-(10**17), 10**17), min_size=1), st.sampled_from(["s", "ms", "us", "ns"]))
def test_statistics_of_times_bound_the_event_times(steps: list[int], unit: str) -> None:
    for data_type, given_unit in ((pa.timestamp(unit), None), (pa.int64(), unit)):
        assigner = FieldTimestampAssigner("t", given_unit)
        times = assigner.extract(batch_of(steps, data_type), None)
        low, high = (assigner.from_statistics(data_type, value) for value in (min(steps), max(steps)))
        if times.valid.all():
            assert (low, high) == (times.min(), times.max())


@pytest.mark.parametrize(
    ("data_type", "unit", "value", "expected"),
    [
        (pa.timestamp("ns"), None, datetime(1969, 12, 31, 23, 59, 59, 999_999), -1),
        (pa.timestamp("us", "Europe/Berlin"), None, datetime(1970, 1, 1, tzinfo=UTC), 0),
        (pa.timestamp("s"), None, datetime(1970, 1, 1, 0, 0, 1, 500), 1_000_500),
        (pa.date32(), None, date(1970, 1, 2), 86_400_000_000),
        (pa.date32(), None, 1, 86_400_000_000),
        (pa.int32(), "s", 2, 2_000_000),
        (pa.dictionary(pa.int8(), pa.int32()), "s", 2, 2_000_000),
        (pa.uint64(), "ns", 2**64 - 1, (2**64 - 1) // 1000),
        (pa.int64(), "s", MAX, None),
        (pa.int64(), None, 2, None),
        (pa.int64(), "s", "2", None),
        (pa.int64(), "s", None, None),
        (pa.string(), None, "2024-01-01", None),
        (pa.float64(), "s", 2.0, None),
        (pa.bool_(), None, True, None),
    ],
)
def test_a_statistic_is_converted_like_a_value_or_not_at_all(
    data_type: pa.DataType, unit: str | None, value: object, expected: int | None
) -> None:
    assigner = FieldTimestampAssigner("t", unit)
    assert assigner.statistics_column == "t"
    assert assigner.from_statistics(data_type, value) == expected


def test_assigners_without_a_column_know_nothing_of_statistics() -> None:
    for assigner in (RecordTimestampAssigner(), CallableTimestampAssigner(lambda batch, times: times)):
        assert assigner.statistics_column is None
        assert assigner.from_statistics(pa.int64(), 5) is None


# A function over the batch.


@pytest.mark.parametrize(
    "result",
    [
        [5, None, 7],
        pa.array([5, None, 7]),
        pa.chunked_array([[5], [None, 7]]),
        np.array([5, None, 7], dtype=object),
        np.array([5, NO_TIMESTAMP, 7]),
        np.array([5, "NaT", 7], dtype="datetime64[us]"),
        pa.array([5, None, 7], pa.timestamp("us", "UTC")),
        EventTimes.of(np.array([5, 6, 7]), np.array([True, False, True])),
    ],
)
def test_a_function_may_return_any_array_of_event_times(result: Any) -> None:
    times = as_timestamp_assigner(lambda batch, source: result, "us").extract(batch_of([1, 2, 3], pa.int8()), None)
    assert times.values.tolist() == [5, NO_TIMESTAMP, 7]
    assert times.valid.tolist() == [True, False, True]


def test_a_function_sees_the_batch_and_the_source_timestamps() -> None:
    assigner = CallableTimestampAssigner(lambda batch, source: source + batch.column("t").to_numpy(), unit="us")
    assert assigner.extract(batch_of([1, 2], pa.int64()), np.array([10, 20])).values.tolist() == [11, 22]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([None], "returned 1 event times for a batch of 2 records"),
        ([5.0, 6.0], "type double"),
        (["a", "b"], "type string"),
        (None, "NoneType"),
        ([2**70, 1], "whole numbers and state their unit"),
        (5, "whole numbers and state their unit"),
        (np.array([[1, 2]]), "whole numbers and state their unit"),
        ([5, 6], "has no unit.*or return timestamps"),
        (pa.array([5, 6], pa.int32()).dictionary_encode(), "has no unit.*or return timestamps"),
    ],
)
def test_what_is_not_one_event_time_for_each_record_is_refused(result: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        CallableTimestampAssigner(lambda batch, source: result).extract(batch_of([1, 2], pa.int8()), None)


@pytest.mark.parametrize(("unit", "expected"), [("s", 2_000_000), ("ms", 2_000), ("us", 2), ("ns", 0)])
def test_numbers_of_a_function_are_in_the_unit_that_is_stated(unit: str, expected: int) -> None:
    assigner = as_timestamp_assigner(lambda batch, source: batch["t"], unit)
    assert assigner.extract(batch_of([2], pa.int16()), None).values.tolist() == [expected]


def test_timestamps_of_a_function_need_no_unit_and_ignore_one() -> None:
    times = pa.array([2], pa.timestamp("ms", "Europe/Berlin"))
    for unit in (None, "s"):
        assert as_timestamp_assigner(lambda batch, source: times, unit).extract(
            batch_of([2], pa.int16()), None
        ).values.tolist() == [2_000]


class _Begin:
    def __call__(self, batch: pa.RecordBatch) -> pa.Array:
        return batch["t"]


@pytest.mark.parametrize(
    "function", [lambda batch: batch["t"], lambda: [], lambda batch, source, unit: [], _Begin(), str.upper]
)
def test_a_function_of_another_number_of_arguments_is_refused_at_construction(function: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"must take two arguments.*lambda batch, source_timestamps"):
        as_timestamp_assigner(function)


@pytest.mark.parametrize(
    "function", [lambda batch, *more: batch["t"], partial(lambda unit, batch, source: batch["t"], "s"), max]
)
def test_a_function_that_can_be_called_with_two_arguments_is_taken(function: Any) -> None:
    assert as_timestamp_assigner(function) == CallableTimestampAssigner(function)


def test_a_unit_beside_an_assigner_and_one_that_does_not_exist_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="a FieldTimestampAssigner has its own; leave unit out"):
        as_timestamp_assigner(FieldTimestampAssigner("t", "s"), "ms")
    with pytest.raises(InvalidArgumentError, match="unit = 'minutes' must be one of s, ms, us, ns"):
        as_timestamp_assigner(lambda batch, source: [], "minutes")


def test_a_function_is_taken_to_read_every_column_unless_it_says_which() -> None:
    assert CallableTimestampAssigner(lambda batch, source: source).columns is None
    assert CallableTimestampAssigner(lambda batch, source: source, reads=("a.b",)).columns == ("a.b",)


@pytest.mark.parametrize("kind", [pa.string(), pa.timestamp("us")], ids=str)
def test_a_time_that_was_there_twice_is_the_first_and_one_that_was_left_out_is_later(kind: pa.DataType) -> None:
    texts = pa.array(["2024-10-27 02:30:00", "2024-03-31 02:30:00"])
    found, valid = to_microseconds(texts.cast(kind), None, "Europe/Berlin")
    assert valid.all()
    assert found.tolist() == [1_729_989_000_000_000, 1_711_848_600_000_000]


@pytest.mark.parametrize("kind", [pa.date32(), pa.date64(), pa.string()], ids=str)
def test_a_date_begins_at_midnight_of_the_zone_in_whatever_type_it_is(kind: pa.DataType) -> None:
    found, _ = to_microseconds(pa.array(["2024-01-02"]).cast(kind), None, "Asia/Tokyo")
    assert found.tolist() == [1_704_121_200_000_000]

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignment.durations import format_duration, parse_duration_us
from alignment.exceptions import InvalidArgumentError
from alignment.watermarks import saturating_add

MIN, MAX = -(2**63), 2**63 - 1
INT64 = st.integers(MIN, MAX)


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("5 seconds", 5_000_000),
        ("5 second", 5_000_000),
        (str(timedelta(seconds=5)), 5_000_000),
        (str(timedelta(days=2, hours=3, microseconds=7)), 183_600_000_007),
        ("5s", 5_000_000),
        ("5 SEC", 5_000_000),
        ("INTERVAL 5 SECONDS", 5_000_000),
        ("interval '5' second", 5_000_000),
        ("  1 hour   30 minutes ", 5_400_000_000),
        ("1h30min", 5_400_000_000),
        ("500 ms", 500_000),
        ("1.5 seconds", 1_500_000),
        ("7 microseconds", 7),
        ("7us", 7),
        ("7 µs", 7),
        ("2 days", 172_800_000_000),
        ("1 d", 86_400_000_000),
        ("1 week", 604_800_000_000),
        ("2 w 1 millisecond", 1_209_600_001_000),
        ("0 seconds", 0),
        ("1 minute -30 seconds", 30_000_000),
        ("+1 min", 60_000_000),
    ],
)
def test_text_is_read_as_spark_and_people_write_it(text: str, us: int) -> None:
    assert parse_duration_us(text, name="delay") == us


def test_a_timedelta_is_read_exactly() -> None:
    assert parse_duration_us(str(timedelta(seconds=-1)), name="delay", minimum_us=MIN) == -1_000_000
    assert parse_duration_us(timedelta(days=3, microseconds=1), name="delay") == 3 * 86_400_000_000 + 1


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (5, "bare number has no unit"),
        (5.0, "bare number has no unit"),
        (True, "bare number has no unit"),
        (None, "not a duration"),
        ("5", "not a duration"),
        ("", "is empty"),
        ("interval", "is empty"),
        ("seconds", "not a duration"),
        ("5 seconds and", "not a duration"),
        ("5 parsecs", "unknown unit 'parsecs'"),
        ("5 secnds", "did you mean 'seconds'?"),
        ("5 months", "a month has no fixed length"),
        ("INTERVAL 1 YEAR", "a year has no fixed length"),
        ("5 m", "minutes or months"),
        ("0.1 us", "finer than a microsecond"),
        ("0.0000000000001 seconds", "finer than a microsecond"),
        ("-1 second", "at least 0 seconds"),
        (timedelta(microseconds=-1), "at least 0 seconds"),
        (timedelta.max, "64 bits"),
        ("99999999999999999999 weeks", "64 bits"),
        ("999999999999999999999999 weeks", "not a duration"),
    ],
)
def test_what_is_no_duration_is_refused_with_its_name_value_and_rule(value: Any, reason: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse_duration_us(value, name="max_drift")
    assert str(caught.value).startswith(f"max_drift = {value!r} ")
    assert reason in str(caught.value)


def test_the_minimum_is_allowed_and_below_it_is_not() -> None:
    assert parse_duration_us("1 us", name="timeout", minimum_us=1) == 1
    with pytest.raises(InvalidArgumentError, match="at least 1 microsecond"):
        parse_duration_us("0 us", name="timeout", minimum_us=1)


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "0 seconds"),
        (1, "1 microsecond"),
        (5_000_000, "5 seconds"),
        (5_400_000_000, "1 hour 30 minutes"),
        (-1_500_000, "-1 second -500 milliseconds"),
        (8 * 86_400_000_000, "8 days"),
    ],
)
def test_a_duration_is_written_in_words(us: int, text: str) -> None:
    assert format_duration(us) == text


@given(INT64)
def test_what_is_written_is_read_back_exactly(us: int) -> None:
    assert parse_duration_us(format_duration(us), name="delay", minimum_us=MIN) == us


@given(INT64, INT64)
def test_addition_saturates_at_the_ends_of_int64(a: int, b: int) -> None:
    total = saturating_add(a, b)
    assert total == (MAX if a + b > MAX else MIN if a + b < MIN else a + b)

"""Times and dates as text: what Spark's cast reads, and what it does not although ISO-8601 has it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from alignment.time_texts import offset_seconds, parse_dates, parse_iso8601, parse_times

ZONELESS = "2024-01-01T10:00:00"
ZONED = "2024-01-01T10:00:00Z"
AT_TEN = 1_704_103_200_000_000


def read(texts: list[str | None], zone: str | None = "UTC") -> list[int | None]:
    micros, valid = parse_times(pa.array(texts, pa.string()), zone)
    return [us if is_valid else None for us, is_valid in zip(micros.tolist(), valid.tolist(), strict=True)]


@pytest.mark.parametrize(
    "text",
    [
        "2024-01-01T10:00Z",
        "2024-01-01T10+01:00",
        "2024-01-01T10:00+0100",
        "2024-01-01 10:00:00,5",
        "2024-01-01t10:00:00Z",
        "2024-01-01T10:00:00z",
    ],
)
def test_what_iso_8601_has_and_sparks_cast_has_not_is_no_time_in_a_column_of_times(text: str) -> None:
    for others in ([], [ZONED], [ZONELESS], [None, ZONED, "soon"]):
        assert read([*others, text])[-1] is None
        assert read([text, *others])[0] is None
    _, valid = parse_iso8601(pa.array([text]))
    assert valid.all()


def test_a_time_of_no_zone_has_none() -> None:
    assert read([ZONELESS, ZONED, "2024-01-01 10:00:00 GMT+1", "2024-01-01 10"], None) == [AT_TEN, None, None, AT_TEN]
    assert read([ZONED], None) == [None]


def test_an_offset_of_up_to_18_hours_is_read() -> None:
    texts = ["2024-01-01T10:00:00+18:00", "2024-01-01T10:00:00-18:00", "2024-01-01T10:00:00+18:01"]
    hours = 18 * 3_600_000_000
    assert read(texts) == [AT_TEN - hours, AT_TEN + hours, None]
    for text, expected in zip(texts, read(texts), strict=True):
        assert read([text]) == [expected]
    assert [offset_seconds(t) for t in ("+1", "UTC-01:30", "+01:60", "+18:00:01", "1", "Z")] == [
        3600,
        -5400,
        *[None] * 4,
    ]


def test_a_date_ends_at_a_blank_or_t() -> None:
    texts = ["2024-01-05T23:00:00-05:00", "2024-01-05 x", "2024-1-5", "2024", " +2024-01 ", "2024-01-05x", "soon", None]
    days, valid = parse_dates(pa.array(texts))
    assert valid.tolist() == [True] * 5 + [False] * 3
    assert days[:5].tolist() == [19727, 19727, 19727, 19723, 19723]
    assert parse_dates(pa.array(["2024-01-05", None]))[0].tolist() == [19727, 0]

"""The unit that numbers of an event-time column seem to be of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignment.arrow_times import LikelyUnit, likely_unit
from alignment.timestamps import NO_TIMESTAMP, FieldTimestampAssigner, RecordTimestampAssigner, unit_warning

UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
YEAR_2026 = 1_767_225_600


@pytest.mark.parametrize("read_as", UNITS)
@pytest.mark.parametrize("written_in", UNITS)
def test_a_time_of_our_years_is_known_by_its_size(written_in: str, read_as: str) -> None:
    expected = None if written_in == read_as else LikelyUnit(written_in, YEAR_2026 * 1_000_000)
    assert likely_unit(YEAR_2026 * UNITS[written_in], read_as) == expected


@given(number=st.integers(-(2**63), 2**63 - 1), unit=st.sampled_from([*UNITS]))
def test_no_other_unit_is_proposed_for_a_time_of_our_years_nor_one_that_does_not_help(number: int, unit: str) -> None:
    years = 315_532_800, 4_102_444_800
    likely = likely_unit(number, unit)
    fits = [known for known, steps in UNITS.items() if years[0] * steps <= number < years[1] * steps]
    assert len(fits) <= 1
    assert (None if likely is None else [likely.unit]) == (fits if fits and fits != [unit] else None)


def test_a_warning_needs_numbers_and_evidence() -> None:
    as_us = FieldTimestampAssigner("ts", unit="us")
    warning = unit_warning(as_us, YEAR_2026 * 1000)
    assert warning is not None
    assert warning.startswith(
        "the latest event time in ts is 1970-01-21T10:53:45.6Z with timestampUnit = us, and 2026-01-01T00"
    )
    assert "set timestampUnit = ms" in warning
    for latest_us in (YEAR_2026 * 1_000_000, 7, NO_TIMESTAMP):
        assert unit_warning(as_us, latest_us) is None
    assert unit_warning(FieldTimestampAssigner("ts"), YEAR_2026 * 1000) is None
    assert unit_warning(RecordTimestampAssigner(), YEAR_2026 * 1000) is None

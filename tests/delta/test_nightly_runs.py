"""Scheduled runs over a table, without an idleTimeout: its files are finite, so no run waits for what did not come."""

from __future__ import annotations

from pathlib import Path

import pytest

from alignment import WatermarkStrategy
from tests.delta.tables import SECOND, append, harness, times

HOUR = 3_600 * SECOND


@pytest.mark.parametrize(("bound", "late"), [("1 hour", 2), ("1 day", 0)])
def test_a_night_without_a_partition_ends_and_what_it_brings_later_is_late_unless_the_bound_covers_a_night(
    tmp_path: Path, bound: str, late: int
) -> None:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(bound).with_timestamp_assigner("ts")
    append(tmp_path, [0], airport="JFK")
    done, found, read = harness(tmp_path, strategy=strategy, available_now=True), 0, 1

    def night(**hours: list[int]) -> int:
        """Where the watermark is after a run, in hours less the bound."""
        nonlocal found, read
        for airport, of in hours.items():
            append(tmp_path, [hour * HOUR for hour in of], airport=airport)
            read += len(of)
        done.clock.advance("1 day")
        done.restart()
        announced = done.watermark
        found += sum(one.time_us <= announced for batch in done.run() for one in batch.all_records)
        return (done.watermark + 1) // HOUR + (1 if bound == "1 hour" else 24)

    assert night(JFK=[1, 5], LGA=[1, 4]) == 5
    assert night(JFK=[29]) == 29
    assert night() == 29
    assert night(JFK=[40], LGA=[20, 27, 39]) == 40
    assert found == late
    assert len(times(done)) == read
    done.close()

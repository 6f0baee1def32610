"""The capacity of a query beside a naive run of it, trigger by trigger and record by record."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from alignment.exceptions import InvalidArgumentError
from alignment.simulation import Load, capacity


def settled(load: Load) -> tuple[float, float, float]:
    """Rows of a trigger, what it takes, and the mean latency of its records, after many triggers."""
    rate, now, read_to = load.splits * load.rate, 0.0, 0
    rows = took = latency = 0.0
    for _ in range(400):
        arrived = int(now * rate)
        rows = min(arrived - read_to, load.max_rows or arrived)
        took = load.overhead_s + rows * load.emit_row_us / 1e6 / load.readers
        ends = now + took
        if rows:
            mean_arrival = (read_to + (rows - 1) / 2) / rate
            latency = ends - mean_arrival
        read_to += int(rows)
        now = max(ends, now + load.interval_s)
    return rows, took, latency


BASE = Load(splits=4, rate=5_000, overhead_s=0.2, emit_row_us=10)


@pytest.mark.parametrize(
    "load",
    [
        BASE,
        replace(BASE, rate=20_000),
        replace(BASE, rate=20_000, readers=2),
        replace(BASE, max_rows=6_000),
        replace(BASE, interval_s=1.0),
        replace(BASE, interval_s=0.1, splits=1),
    ],
)
def test_a_run_settles_where_littles_law_says(load: Load) -> None:
    known = capacity(load)
    rows, took, latency = settled(load)
    assert known.rows_per_trigger == pytest.approx(rows, rel=0.02)
    assert known.trigger_s == pytest.approx(took, rel=0.02)
    assert known.latency_s == pytest.approx(latency, rel=0.02)
    assert known.rows_in_system == pytest.approx(load.splits * load.rate * latency, rel=0.02)


def test_more_than_can_be_read_never_settles() -> None:
    load = replace(BASE, max_rows=1_000)
    known = capacity(load)
    assert known.max_rate == pytest.approx(1_000 / 0.21)
    assert known.utilisation > 1
    assert math.isinf(known.latency_s)
    assert settled(load)[2] > 10


def test_a_queue_lets_fetching_and_emitting_overlap_and_more_fetchers_fetch_more() -> None:
    fast = replace(BASE, rate=100.0, fetch_row_us=40)
    assert capacity(fast).max_rate == pytest.approx(1e6 / 40)
    assert capacity(replace(fast, queue_depth=0)).max_rate == pytest.approx(1e6 / 50)
    assert capacity(replace(fast, fetchers=2)).max_rate == pytest.approx(1e6 / 20)
    assert capacity(replace(fast, fetchers=9)).max_rate == pytest.approx(1e6 / 10)


def test_a_window_waits_for_the_bound_for_the_next_record_and_for_two_triggers() -> None:
    known = capacity(replace(BASE, out_of_orderness_s=5.0))
    assert known.window_latency_s == pytest.approx(5 + 1 / 5_000 + known.latency_s + known.trigger_s)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="readers = 0: must be at least 1"):
        replace(BASE, readers=0)

"""Whether watermarks follow from event times, and what else is said where they do not: without Spark and files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import streaming_source
from streaming_source.checkpoint.offset_log import Checkpoint, CommittedBatch, OffsetLog
from streaming_source.tools.auditing.watermark_check import Check, Latest, check_watermarks
from tests.auditing import naive
from tests.auditing.naive import SECOND, T0

HOUR = 3_600
FIVE = frozenset({5 * SECOND})


def check(
    *batches: tuple[Sequence[int | None], int],
    delays_us: frozenset[int] = FIVE,
    purged: bool = False,
    policy: str = "min",
    needs_zone: bool = False,
) -> Check:
    """Check micro-batches, each by the latest time of each source, and the watermark that followed, in seconds."""
    latest, watermark_us = [], 0 if not purged else T0 - 100 * SECOND
    for number, (times, next_s) in enumerate(batches):
        next_us = watermark_us if next_s is None else T0 + next_s * SECOND
        ends = ("{}",) * len(times)
        batch = CommittedBatch(number, watermark_us, watermark_us, next_us, ends, ends)
        latest.append(Latest(batch, [None if s is None else T0 + s * SECOND for s in times]))
        watermark_us = next_us
    names = [str(place) for place in range(len(batches[0][0]))]
    every = [one.batch for one in latest]
    found = Checkpoint("/cp", OffsetLog("/cp"), every, ["{}"] * len(names) if purged else None, names, policy)
    return check_watermarks(found, latest, delays_us, needs_zone=needs_zone)


def test_times_that_lead_to_the_watermarks_confirm_themselves() -> None:
    assert check(([10], 5), ([3], 5), ([None], 5), ([20], 15)) == Check(confirmed=True)


def test_nothing_is_shown_by_a_watermark_that_never_moved() -> None:
    assert check(([None], None)).unchecked == "no micro-batch whose rows are still there has moved the watermark"


def test_a_delay_that_was_changed_is_named_and_confirms_the_times() -> None:
    found = check(([10], 5), ([20], 15), ([30], 15), ([60], 30), ([70], 40))
    assert found.confirmed
    assert found.note == (
        "The delay of withWatermark was changed, from 5 seconds to 30 seconds before micro-batch 2: rows are counted "
        "by the watermarks that the query had."
    )
    found = check(([10], -20), ([20], -10), ([30], 29), ([60], 59), purged=True)
    assert "from 5 seconds to 30 seconds before micro-batch 0 and to 1 second before micro-batch 2" in str(found.note)


@pytest.mark.parametrize(
    "batches",
    [
        [([10], 5), ([20], 12), ([30], 24)],
        # By one micro-batch a filter looks like another delay.
        [([10], 5), ([20], 15), ([60], 30)],
        # The state is of the first run: it has the delay of the first micro-batch.
        [([40], 10), ([50], 20), ([60], 30)],
    ],
)
def test_fewer_rows_than_were_read_may_have_been_filtered(batches: list[tuple[list[int | None], int]]) -> None:
    found = check(*batches)
    assert "do not lead to the watermarks of the query: with a delay of 5 seconds they give" in str(found.refuted)
    assert "the query filters or changes rows before withWatermark, or its event time is another" in str(found.refuted)
    assert found.is_filtered


def test_later_times_than_were_read_are_of_another_column() -> None:
    found = check(([10], 7), ([20], 18))
    assert not found.is_filtered
    assert "from micro-batch 0 on" in str(found.refuted)
    # As if the column were earlier than the watermark.
    assert check(([10], 20), ([20], 30), delays_us=frozenset()).refuted is not None


@pytest.mark.parametrize(("hours", "side"), [(-4, "before"), (-5, "before"), (2, "after")])
@pytest.mark.parametrize("purged", [False, True])
def test_a_wrong_zone_is_named(hours: int, side: str, purged: bool) -> None:
    off = hours * HOUR
    found = check(([10 + off], 5), ([20 + off], 15), ([30 + off], 25), purged=purged, needs_zone=True)
    assert f"they are {abs(hours)} hours {side} those that led to the watermarks" in str(found.refuted)
    assert str(found.refuted).endswith("-o timeZone=Europe/Berlin or the like")


def test_a_zone_needs_a_delay_that_is_known() -> None:
    """Without it any zone explains the watermarks, with some delay."""
    found = check(([10 + HOUR], 5), ([20 + HOUR], 15), delays_us=frozenset(), needs_zone=True)
    assert found.unchecked == "the state does not have the delay of withWatermark"
    assert check(([10], 5), ([20], 15), delays_us=frozenset()).confirmed


def test_rows_without_any_time_are_of_another_column() -> None:
    assert not check(([None], 5), ([None], 15)).has_times


def test_the_smallest_watermark_of_several_sources_counts() -> None:
    steps = [([10, 8], 3), ([20, None], 3), ([None, 30], 15)]
    assert check(*steps) == Check(confirmed=True)
    assert check(([10, 8], 5), ([20, None], 15), policy="max") == Check(confirmed=True)
    # One behind a union, and one of the first source alone.
    assert check(([10, 8], 5), ([None, 20], 15)) == Check(confirmed=True)
    assert check(([10, 80], 5), ([20, 90], 15)) == Check(confirmed=True)
    # Each has its own delay.
    assert check(([10, 8], 0), ([20, 30], 10), delays_us=frozenset({5 * SECOND, 10 * SECOND})).confirmed


def test_different_delays_behind_a_union_are_found_by_the_watermarks() -> None:
    """The state has that of the first source alone."""
    found = check(([10, 8], -52), ([20, 100], 15), ([200, 110], 50), ([210, 120], 60))
    assert found.confirmed
    assert found.note == (
        "The delays of withWatermark differ, as the watermarks show: 5 seconds of source 0 and 1 minute of source 1."
    )


def test_different_delays_that_too_few_micro_batches_show_are_the_reason_why_nothing_is_known() -> None:
    found = check(([10, 8], -52), ([20, 100], 15))
    assert str(found.refuted).startswith("the state keeps one delay of withWatermark, and its 2 sources seem to have")
    assert "(5 seconds of source 0 and 1 minute of source 1), which too few micro-batches show" in str(found.refuted)


def test_the_watermarks_of_several_sources_begin_anew_in_each_run() -> None:
    """After the second micro-batch the query was started again: a source without rows is at 0."""
    assert check(([10, 8], 3), ([20, 9], 4), ([30, None], 4), ([None, 40], 25)) == Check(confirmed=True)


def test_a_filter_between_two_sources_is_seen() -> None:
    found = check(([10, 8], 2), ([20, 18], 11))
    assert "the event times of its 2 sources do not lead to the watermarks that the query had" in str(found.refuted)


def test_what_cannot_be_checked_of_several_sources_is_said() -> None:
    assert "not all micro-batches are there" in str(check(([10, 8], 3), purged=True).unchecked)
    assert "does not have the delays" in str(check(([10, 8], 3), delays_us=frozenset()).unchecked)


def test_in_complete_mode_nothing_is_dropped_whatever_the_query_filters(tmp_path: Path) -> None:
    query = naive.Query(5_000, 60 * SECOND, 60 * SECOND, mode="complete")
    batches = [[(f"{part}.parquet", [T0 + (part * 60 + i) * SECOND for i in range(60)])] for part in range(3)]
    done = naive.run(query, batches)
    naive.write_files(tmp_path / "in", batches)
    done.next_ms = [ms - 1_000 for ms in done.next_ms]
    done.watermarks_ms = [0, *done.next_ms[:-1]]
    naive.write_checkpoint(tmp_path / "checkpoint", tmp_path / "in", query, done)
    found = streaming_source.audit(str(tmp_path / "checkpoint"), window="1 minute", mode="complete")
    assert (found.dropped, found.emitted, found.unknown) == (0, 180, 0)
    assert "No row was dropped of 180 that windowed aggregation read: the output mode, as given, is complete." in str(
        found
    )
    assert streaming_source.audit(str(tmp_path / "checkpoint"), window="1 minute", mode="append").unknown == 180

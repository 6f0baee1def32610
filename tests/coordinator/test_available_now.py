"""AvailableNow runs: what is there is read, run after run, and what is left unread is said."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from alignment.combine import SplitStatus
from alignment.watermarks import LONG_AGO_US, MIN_WATERMARK
from streaming_source.testing import EOF, Pause, SourceHarness, TestingSource
from streaming_source.tools.testing.source import Element
from tests.coordinator.support import STRATEGY

ACTIVE, IDLE = SplitStatus.ACTIVE, SplitStatus.IDLE
MINUTE = STRATEGY.with_idleness("1 minute")


class Nights:
    """A job that is started every night, and reads to the end of what is there."""

    def __init__(self, *, exact: bool, idle: bool = True, **splits: list[Element]) -> None:
        self.source = TestingSource(splits)
        strategy = MINUTE if idle else STRATEGY.with_idleness("none")
        self.reading = SourceHarness(
            self.source, strategy, clock=self.source.clock, exact=exact, available_now=True, readers=1
        )

    def night(self) -> dict[str, list[int]]:
        """One run; event times that were read in it, by split."""
        read: dict[str, list[int]] = {}
        for batch in self.reading.run():
            for record in batch.all_records:
                read.setdefault(record.split_id, []).append(record.time_us)
        self.source.clock.advance("1 day")
        self.reading.restart()
        return read

    def statuses(self) -> dict[str, SplitStatus]:
        table = self.reading.state.table
        return {split: SplitStatus(status) for split, status in zip(table.split_ids, table.statuses, strict=True)}


@pytest.mark.parametrize("idle", [True, False], ids=["", "idleTimeout=none"])
@pytest.mark.parametrize("exact", [True, False], ids=["exact", "plain"])
def test_a_split_that_never_had_a_record_holds_nobody(exact: bool, idle: bool) -> None:
    nights = Nights(exact=exact, idle=idle, a=[10, 20, 30], empty=[])
    assert nights.night() == {"a": [10, 20, 30]}
    assert nights.statuses() == {"a": ACTIVE, "empty": IDLE}
    assert nights.reading.watermark == 29


def test_a_split_that_had_its_first_record_yesterday_counts_today() -> None:
    nights = Nights(exact=True, a=[10, 20, 30], b=[Pause("12 hours"), 40, Pause("24 hours"), 45])
    assert nights.night() == {"a": [10, 20, 30]}
    assert nights.statuses()["b"] is IDLE
    assert nights.night() == {"b": [40]}
    assert nights.statuses() == {"a": IDLE, "b": ACTIVE}


def test_a_split_that_was_silent_since_yesterday_holds_nobody_today(caplog: pytest.LogCaptureFixture) -> None:
    nights = Nights(exact=False, a=[10], b=[5, 20, 30])
    with caplog.at_level(logging.WARNING, "streaming_source"):
        assert nights.night() == {"a": [10], "b": [5]}
    (said,) = [record.getMessage() for record in caplog.records if "unread" in record.getMessage()]
    assert "2 records unread, in 1 splits: {'b': 2}" in said
    assert "split 'a'" in said
    assert "1 minute" in said
    caplog.clear()
    with caplog.at_level(logging.WARNING, "streaming_source"):
        assert nights.night() == {"b": [20, 30]}
    assert nights.statuses() == {"a": IDLE, "b": ACTIVE}
    assert not caplog.records


def test_the_exact_watermark_passes_a_split_that_was_silent_since_yesterday() -> None:
    nights = Nights(exact=True, a=[10], b=[5, 20, 30])
    assert nights.night() == {"a": [10], "b": [5, 20, 30]}
    assert nights.reading.watermark == 9
    nights.night()
    assert nights.reading.watermark == 29


def test_a_run_that_takes_longer_than_the_timeout_makes_nothing_idle() -> None:
    nights = Nights(exact=False, a=[10], b=[5, 20, 30])
    while nights.reading.run_batch():
        nights.source.clock.advance("1 hour")
    assert sum(len(batch.all_records) for batch in nights.reading.batches) == 2
    assert nights.statuses()["a"] is ACTIVE


def test_the_message_about_unread_records_comes_once_and_names_ten_splits(caplog: pytest.LogCaptureFixture) -> None:
    ahead: dict[str, list[Element]] = {f"s{i:02d}": [1000 + k for k in range(i + 1)] for i in range(12)}
    nights = Nights(exact=False, slow=[1], **ahead)
    with caplog.at_level(logging.WARNING, "streaming_source"):
        nights.reading.run()
        nights.reading.run()
    (said,) = [record.getMessage() for record in caplog.records if "unread" in record.getMessage()]
    assert "78 records unread, in 12 splits: {'s11': 12, 's10': 11," in said
    assert "'s02': 3}" in said
    assert "'s01'" not in said
    assert "split 'slow'" in said


def test_since_when_a_split_is_silent_changes_no_state_by_itself() -> None:
    source = TestingSource({"a": [10], "b": [5, Pause("2 minutes"), 20]})
    reading = SourceHarness(source, STRATEGY.with_idleness("1 hour"), clock=source.clock)
    assert reading.run()
    silent_since_us = reading.state.silent_since_us
    assert (silent_since_us != LONG_AGO_US).all()
    source.clock.advance("1 minute")
    before = reading.state
    assert not reading.plan()
    assert reading.state is before
    source.clock.advance("5 minutes")
    assert reading.run()
    assert reading.state.silent_since_us.tolist() == [silent_since_us[0], silent_since_us[1] + 6 * 60_000_000]


def test_a_split_that_is_behind_is_not_said_to_be_silent() -> None:
    source = TestingSource({"a": [10, 20, 30]})
    reading = SourceHarness(source, MINUTE, clock=source.clock, max_rows=2)
    assert reading.plan()
    assert reading.state.silent_since_us.tolist() == [LONG_AGO_US]


@pytest.mark.parametrize(("away", "status"), [("59 seconds", ACTIVE), ("60 seconds", IDLE)])
def test_the_time_that_a_query_was_away_counts_for_what_is_still_silent(away: str, status: SplitStatus) -> None:
    source = TestingSource({"a": [10], "b": [5]})
    reading = SourceHarness(source, MINUTE, clock=source.clock)
    reading.run()
    source.clock.advance(away)
    reading.restart()
    reading.run()
    assert (reading.state.table.statuses == status).all()


def test_an_offset_that_does_not_say_since_when_begins_anew() -> None:
    nights = Nights(exact=False, a=[10], b=[5, 20, 30])
    nights.reading.run()
    state = nights.reading.state
    nights.reading.state = type(state)(
        state.sequence, state.splits, state.table, state.late, np.full(2, LONG_AGO_US), state.checkpoint
    )
    nights.source.clock.advance("1 day")
    nights.reading.restart()
    assert nights.night() == {}
    assert nights.statuses()["a"] is ACTIVE


def test_nothing_is_announced_where_no_split_ever_had_a_record() -> None:
    nights = Nights(exact=True, a=[], b=[])
    assert nights.night() == {}
    assert nights.reading.watermark == MIN_WATERMARK


@pytest.mark.parametrize("by_reports", [False, True], ids=["read ahead", "reported"])
@pytest.mark.parametrize("grows", [False, True])
def test_a_split_that_ends_while_the_run_goes_on_holds_no_watermark_at_its_end(by_reports: bool, grows: bool) -> None:
    late_record = [25] if grows else []
    short: list[Element] = [10, 20, Pause("10 seconds"), *late_record, EOF]
    source = TestingSource({"short": short, "long": list(range(10, 500, 10))})
    reading = SourceHarness(
        source,
        STRATEGY,
        clock=source.clock,
        available_now=True,
        max_rows=20,
        reports=(lambda arrived: arrived) if by_reports else None,
    )
    assert reading.run_batch() is not None
    source.clock.advance("10 seconds")
    reading.run()
    # A record that came since the run began is left for the next run, and so is the end behind it.
    assert len(reading.records()["short"]) == 2
    assert (reading.watermark > 300) != grows
    reading.restart()
    reading.run()
    assert reading.records() == source.expected()
    assert reading.watermark > 300
    reading.close()

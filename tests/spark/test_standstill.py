"""A watermark that is held for long is said once, with who holds it and why."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from alignment.combine import SplitStatus
from alignment.explain import Bounds, Explanation, LastBatch, SplitExplanation, WaitsFor
from alignment.watermarks import MIN_WATERMARK
from streaming_source.spark.planner_log import StandstillWarning

SECOND = 1_000_000
ACTIVE = SplitStatus.ACTIVE


def split(
    split_id: str, watermark_s: int, waits_for: WaitsFor = WaitsFor.RECORDS, since_s: int = 0
) -> SplitExplanation:
    watermark, since_us = watermark_s * SECOND, since_s * SECOND
    return SplitExplanation(split_id, ACTIVE, watermark, watermark, 1, 0, waits_for, since_us)


class Query:
    """Its watermark stands where its slowest split is."""

    def __init__(self) -> None:
        self.now_s = 0
        self.since_s = 0
        self.looks = 0
        self.splits = [split("a", 1), split("b", 5, since_s=2)]
        self.warning = StandstillWarning(60 * SECOND, self.explain)

    def explain(self) -> Explanation:
        self.looks += 1
        lowest = min((split.watermark for split in self.splits), default=0)
        bounds = Bounds(idle_timeout_us=None)
        return Explanation(lowest, self.now_s * SECOND, self.since_s * SECOND, tuple(self.splits), bounds=bounds)

    def let_pass(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now_s += 1
            self.warning.check(self.now_s * SECOND)


def test_a_split_that_holds_the_watermark_for_long_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    query = Query()
    query.let_pass(60)
    assert not caplog.records
    query.let_pass(300)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith("the watermark has been held for 1 min")
    assert "because split 'a' has delivered nothing since" in record.getMessage()
    assert query.looks < 150, "an explanation is not for every poll"


def test_it_is_said_again_when_another_split_or_something_else_holds_it(caplog: pytest.LogCaptureFixture) -> None:
    query = Query()
    query.let_pass(100)
    query.splits = [split("a", 9, since_s=100), split("b", 5, since_s=2)]
    query.since_s = query.now_s
    query.let_pass(50)
    assert len(caplog.records) == 1
    query.let_pass(50)
    assert ["split 'a'" in r.getMessage() for r in caplog.records] == [True, False]
    query.splits[1] = split("b", 5, WaitsFor.TRANSACTION)
    query.let_pass(100)
    assert "split 'b' has an open transaction" in caplog.records[-1].getMessage()


def test_a_watermark_that_moves_or_that_nobody_holds_is_no_matter(caplog: pytest.LogCaptureFixture) -> None:
    query = Query()
    for _ in range(20):
        query.let_pass(10)
        query.since_s = query.now_s
    query.splits = []
    query.let_pass(200)
    assert not caplog.records


def test_a_micro_batch_that_is_not_done_in_time_is_named_once_by_a_thread_that_all_share(
    caplog: pytest.LogCaptureFixture,
) -> None:
    is_explained = threading.Event()

    def explain() -> Explanation:
        is_explained.set()
        return Explanation(5 * SECOND, 90 * SECOND, 0, (split("a", 5),), batch=LastBatch(60 * SECOND, 7))

    warning = StandstillWarning(10_000, explain)
    for _ in range(2):
        warning.end_batch()
    warning.begin_batch()
    assert is_explained.wait(30)
    warning.close()
    assert warning._watcher is not None
    warning._watcher.join(30)
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "The last micro-batch, of 7 records, planned at 1970-01-01 00:01:00 UTC, has "
    )
    is_explained.clear()
    warning = StandstillWarning(3_600 * SECOND, explain)
    before = threading.active_count()
    for _ in range(3):
        warning.end_batch()
        warning.begin_batch()
    assert threading.active_count() == before + 1
    warning.close()
    assert not is_explained.is_set()


def test_a_micro_batch_has_the_time_of_a_trigger_that_comes_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr("streaming_source.spark.planner_log.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    warning = StandstillWarning(60 * SECOND, lambda: None)
    deadlines = []
    for now_s[0] in (0, 3600, 7200, 7201, 7202):
        warning.end_batch()
        warning.begin_batch()
        deadlines.append(warning._done_by_s)
    warning.close()
    assert deadlines == [None, 3600 + 7200, 7200 + 7200, 7201 + 60, 7202 + 60]


def test_a_source_in_which_nothing_is_found_is_said_with_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    now_s, where = [0], "/data/orders"
    nothing = Explanation(MIN_WATERMARK, 0, 0, reads=where)
    warning = StandstillWarning(60 * SECOND, lambda: replace(nothing, at_us=now_s[0] * SECOND))
    for now_s[0] in range(200):
        warning.check(now_s[0] * SECOND)
    (record,) = caplog.records
    assert "There is no watermark yet: no split has been found in /data/orders." in record.getMessage()
    assert "Advice (source): See that /data/orders is the path, pattern or topic that is meant" in record.getMessage()

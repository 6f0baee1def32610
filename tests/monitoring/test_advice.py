"""Advice: what to change, where what a source reported shows that something should be."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from alignment.combine import SplitStatus
from alignment.explain import Cause, Explanation, SplitExplanation, WaitsFor
from alignment.watermarks import MIN_WATERMARK
from streaming_source.monitoring.causes.answer import advice_on
from streaming_source.monitoring.report import WatermarkReport
from tests.monitoring.situations import SECOND, Situation, at, records


def advice(query: Situation) -> dict[str, str]:
    """By option; from the progress and from the checkpoint it is the same."""
    (live,), (stored,) = query.explain().sources, query.explain_checkpoint().sources
    query.close()
    assert live.advice == stored.advice
    return {advice.option: advice.text for advice in live.advice}


def test_a_drift_that_is_less_than_what_a_trigger_brings_is_to_be_raised(tmp_path: Path) -> None:
    query = Situation(tmp_path, {"a": records(range(30)), "b": records(range(20, 50))}, drift="10 seconds")
    for second in range(30, 300, 30):
        query.run()
        query.clock.advance("30 seconds")
        query.source.go_on("a", *records(range(second, second + 30)))
        query.source.go_on("b", *records(range(second + 20, second + 50)))
    found = advice(query.run())
    assert "moves on by 30 s from micro-batch to micro-batch, and maxDrift is 10 seconds" in found["maxDrift"]
    assert set(found) == {"maxDrift"}


def test_a_record_far_behind_the_others_that_is_not_read_yet_is_named_from_the_first_micro_batch_on(
    tmp_path: Path,
) -> None:
    stray = at(-1_000_000)
    query = Situation(tmp_path, {"a": [*records(range(60)), stray], "b": records(range(60))}, max_rows=20)
    for _ in range(6):
        for explained in (query.run(1).explain(), query.explain_checkpoint()):
            text = " ".join(str(explained).split())
            assert "because split 'a' has a record that is not read yet, at position 60, of 2025-12-20" in text
            assert explained.sources[0].report.cause is Cause.EARLIER
            (advice,) = explained.sources[0].advice
            assert advice.option == "lateness"
            assert "To have them earlier set lateness=bounded" in advice.text
    assert "is not read yet" not in str(query.run().explain())
    query.close()


def test_records_of_a_split_that_was_idle_are_not_put_down_to_disorder(tmp_path: Path) -> None:
    query = Situation(tmp_path, {"a": records([0]), "b": records([0])}, idle="10 seconds").run()
    second = iter(range(1, 1000))
    query.let_pass(20, lambda: query.source.go_on("b", at(next(second))))
    query.source.go_on("a", *records([1, 2]))
    query.let_pass(2, lambda: query.source.go_on("b", at(next(second))))
    found = advice(query)
    assert found["idleTimeout"].startswith("2 records of 'a' came late because their split had been idle.")
    assert set(found) == {"idleTimeout"}


def test_late_records_of_a_split_that_joins_are_put_down_to_its_joining(tmp_path: Path) -> None:
    query = Situation(tmp_path, {"a": records(range(20))}).run()
    query.source.go_on("new", *records([1, 2, 30]))
    query.let_pass(40)
    assert "2 records came late, of 'new'." in str(query.explain())
    found = advice(query)
    assert found["late"].startswith("2 records of 'new' came late because the split was found when the watermark was")
    assert "maxOutOfOrderness" not in found


def test_so_are_those_of_all_micro_batches_that_it_takes_to_read_what_was_there(tmp_path: Path) -> None:
    query = Situation(tmp_path, {"a": records(range(20))}, max_rows=4).run()
    query.source.go_on("new", *records(range(10)))
    query.let_pass(40)
    found = advice(query)
    assert found["late"].startswith("10 records of 'new' came late because the split was found when the watermark was")
    assert "maxOutOfOrderness" not in found


def test_late_records_need_no_larger_bound_where_no_report_says_why_they_were_late(tmp_path: Path) -> None:
    query = Situation(tmp_path, {"a": records(range(20))}).run()
    query.source.go_on("new", *records([1, 2, 30]))
    query.let_pass(40)
    query.recentProgress = query.recentProgress[-1:]
    (source,) = query.explain().sources
    query.close()
    found = {advice.option: advice.text for advice in source.advice}
    assert found["late"].startswith("2 records of 'new' came late, and the reports that are kept do not say why")
    assert "maxOutOfOrderness" not in found


def test_a_long_idle_timeout_is_named_where_it_is_waited_for(tmp_path: Path) -> None:
    query = Situation(tmp_path, {"a": records([0]), "b": records(range(90))}, idle="1 hour").run()
    second = iter(range(90, 1000))
    query.let_pass(30, lambda: query.source.go_on("b", at(next(second))))
    assert "holds the watermark until 11:00:00. A shorter one releases it earlier" in advice(query)["idleTimeout"]


def test_a_backlog_that_shrinks_needs_no_larger_read_limit(tmp_path: Path) -> None:
    query = Situation(tmp_path, {"a": records(range(100))}, max_rows=10)
    for _ in range(6):
        query.run(1)
    (source,) = query.explain().sources
    assert source.report.cause == "rows"
    assert "Nothing to do where it shrinks" in advice(query)["maxRowsPerTrigger"]


def test_times_of_1970_may_be_of_another_unit(tmp_path: Path) -> None:
    query = Situation(tmp_path, {"a": [1_767_261_600_000, 1_767_261_601_000]}).run()
    assert advice(query)["timestampUnit"].startswith("The event times of 'a' are of 1970: seconds that are read as mi")
    # With the exact watermark such a time is none.
    query = Situation(tmp_path / "ms", {"a": [1_767_261_600_000 * SECOND]}, exact=False).run()
    assert "'a' are more than 500 years ahead: milliseconds that are read as seconds" in advice(query)["timestampUnit"]


def test_the_advice_on_a_bound_that_is_too_small_names_where_to_find_a_better_one(tmp_path: Path) -> None:
    query = Situation(tmp_path, {"a": records([0, 10])}).run()
    query.source.go_on("a", *records([11, 3]))
    query.let_pass(2)
    found = advice(query)["maxOutOfOrderness"]
    assert found.startswith("1 record of 'a' came late")
    assert "Raise it, to 8 seconds at least: " in found
    assert "streaming_source.advise(frame)" in found


def test_a_record_that_is_far_from_its_neighbours_is_to_be_looked_at(tmp_path: Path) -> None:
    query = Situation(tmp_path, {"a": records([0, 1, 3600, 2]), "b": records(range(4))}, drift="10 seconds", idle=None)
    query.clock.advance("2 hours")
    found = advice(query.run())
    assert "The record at position 2 of split 'a', of 2026-01-01 11:00:00 UTC, lies far ahead" in found["data"]
    assert set(found) == {"data"}


@pytest.mark.parametrize("drift", ["1 second", "1 millisecond"])
@pytest.mark.parametrize(
    "others",
    [
        pytest.param(range(3600, 36_000, 3600), id="regular ones, an hour apart"),
        pytest.param([3600], id="the last one"),
        pytest.param([3600, 3601, 3602], id="behind a gap"),
        pytest.param([5, 3, 4], id="a little out of order"),
        pytest.param([4000, 3000, 5000, 2000], id="out of order as all are"),
    ],
)
def test_a_record_that_is_only_beyond_max_drift_is_not_to_be_removed(
    drift: str, others: Iterable[float], tmp_path: Path
) -> None:
    query = Situation(tmp_path, {"sensor": records([0, *others]), "ended": records([0])}, drift=drift, idle="3 days")
    query.clock.advance("1 day")
    found = advice(query.run())
    assert set(found) == {"maxDrift"}
    assert f"ahead of the slowest split, and maxDrift is {drift}: less than what lies between two" in found["maxDrift"]
    assert "remove" not in found["maxDrift"]


def test_no_shorter_timeout_is_advised_where_the_watermark_would_leap_into_the_future(tmp_path: Path) -> None:
    query = Situation(tmp_path, {"a": records([0]), "b": records([0])}).run()
    query.clock.advance("1 second")
    query.source.go_on("b", at(1), 3_313_526_400 * SECOND, at(2))
    query.run()
    second = iter(range(3, 100))
    query.let_pass(10, lambda: query.source.go_on("b", at(next(second))))
    (source,) = query.explain().sources
    assert (source.report.cause, source.report.explanation.held_by) == ("silent", ("a",))
    assert "Split 'b' is at 2074-12-31" in source.report.sentence
    found = advice(query)
    assert set(found) == {"maxFutureSkew"}
    assert found["maxFutureSkew"].startswith(
        "The record at position 2 of split 'b' is dated 2075-01-01 00:00:00 UTC. The watermark has not followed yet, "
        "since 'a' holds it until 10:01:00, when it is idle, and nothing is late before it does: a shorter idleTimeout "
        "would let it leap at once. Stop the query before that, begin with a new checkpoint, and with maxFutureSkew"
    )


def test_a_backlog_that_is_only_being_found_is_not_said_to_grow_for_ever(tmp_path: Path) -> None:
    query = Situation(tmp_path, {"a": records(range(20))}, max_rows=10)
    for second in range(20, 100, 20):
        query.run(1)
        query.clock.advance("4 seconds")
        query.source.go_on("a", *records(range(second, second + 20)))
    query.run(1)
    (source,) = query.explain().sources
    assert source.report.cause == "rows"
    assert "Nothing to do where it shrinks" in advice(query)["maxRowsPerTrigger"]


def test_late_records_that_are_routed_are_said_to_be_kept() -> None:
    def joined(late: int, routes_late: bool) -> WatermarkReport:
        none, there = MIN_WATERMARK, at(30)
        split = SplitExplanation("new", SplitStatus.ACTIVE, there if late else none, none, 3, 0, WaitsFor.RECORDS)
        explanation = Explanation(at(20), at(40), at(40), (split._replace(late=late),), routes_late=routes_late)
        return WatermarkReport.from_json(WatermarkReport("aligned_files", late, explanation).to_json())

    (routed,) = advice_on([joined(0, True).explanation, joined(2, True).explanation])
    assert "They are kept: late_records(frame, checkpoint) reads them" in routed.text
    assert "late=route" not in routed.text
    (kept,) = advice_on([joined(0, False).explanation, joined(2, False).explanation])
    assert "late=route keeps such records" in kept.text


def test_retention_that_comes_near_is_named_with_the_time_left_in_the_progress_too() -> None:
    def report(left_s: int) -> WatermarkReport:
        explanation = Explanation(at(0), at(1), at(0), metrics=(("retentionSecondsLeft", left_s),))
        written = WatermarkReport("aligned_kafka", 3, explanation).to_json()
        assert written["metrics"]["retentionSecondsLeft"] == str(left_s)
        return WatermarkReport.from_json(written)

    (found,) = [one for one in advice_on([report(7200).explanation]) if "retention" in one.text]
    assert found.option == "source"
    assert "still to be read in 2 h, and the query then fails: raise retention.ms" in found.text
    assert not [one for one in advice_on([report(90_000).explanation]) if "retention" in one.text]

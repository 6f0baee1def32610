"""What a query says of its watermarks is the same in its progress and in its checkpoint alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from alignment.combine import SplitStatus
from alignment.explain import WaitsFor
from alignment.watermarks import MIN_WATERMARK
from streaming_source.exceptions import CheckpointError
from streaming_source.monitoring.checkpoint import Checkpoint
from tests.monitoring.support import Query, report_of
from tests.streaming_source.reading import SECOND, T0

OPTIONS = {"maxOutOfOrderness": "2 seconds", "maxDrift": "5 seconds", "idleTimeout": "1 hour"}


def test_progress_and_checkpoint_give_the_same_report(tmp_path: Path) -> None:
    query = Query(tmp_path, **OPTIONS)
    query.append("slow", 10, 20)
    query.append("fast", *range(10, 60))
    query.append("silent", 15)
    try:
        query.run()
        live, stored = query.live(), query.stored()
    finally:
        query.stop()
    explained = stored.explanation
    assert (stored.source, stored.sequence) == ("aligned_files", 1)
    assert explained.splits == live.explanation.splits
    assert explained.bounds == live.explanation.bounds
    fast = next(split for split in explained.splits if split.split_id == "fast")
    assert (fast.waits_for, fast.behind + fast.position, fast.status) == (WaitsFor.DRIFT, 50, SplitStatus.PAUSED)
    assert explained.held_by == live.explanation.held_by == ("silent",)
    # Only the moment differs at which they were asked.
    at_once = {"at_us": 0, "stands_since_us": 0}
    assert replace(explained, **at_once) == replace(live.explanation, **at_once)


def test_a_query_of_several_sources_lists_those_of_other_libraries_as_none(tmp_path: Path) -> None:
    query = Query(tmp_path)
    query.append("a", 10)
    query.run()
    query.stop()
    assert query.reading is not None
    query.write('{"topic":{"0":17}}', query.reading.offset, "-", "42")
    history = Checkpoint(str(query.checkpoint)).history()
    assert [len(batch.sources) for batch in history] == [1, 4]
    other, ours, dash, number = history[1].sources
    assert (other, dash, number) == (None, None, None)
    assert ours is not None
    assert ours.explanation.splits == report_of(history[0]).explanation.splits


def test_the_history_says_since_when_the_watermark_stands_and_what_is_committed(tmp_path: Path) -> None:
    query = Query(tmp_path, **OPTIONS)
    query.append("a", 10)
    query.append("b", 10)
    query.run()
    first = dict(query.reading.offset) if query.reading else {}
    query.stop()
    moved = {**first, "watermark": T0 + 9 * SECOND}
    query.write({**first, "n": 2}, at_ms=1_700_000_060_000)
    query.write(moved, at_ms=1_700_000_070_000)
    query.write({**moved, "n": 4}, at_ms=1_700_000_080_000, committed=False)
    history = Checkpoint(str(query.checkpoint)).history()
    assert [batch.number for batch in history] == [0, 1, 2, 3]
    assert [batch.is_committed for batch in history] == [True, True, True, False]
    since = [report_of(batch).explanation.stands_since_us for batch in history]
    assert since[0] == since[1]
    assert since[2:] == [1_700_000_070_000_000] * 2


def test_the_state_of_an_offset_is_decoded_without_its_reasons_and_small(tmp_path: Path) -> None:
    query = Query(tmp_path, **OPTIONS)
    for number in range(50):
        query.append(f"split-{number:02}", *range(10, 60))
    query.run(max_rows=100)
    query.stop()
    assert query.reading is not None
    why = query.reading.offset["why"]
    assert why["waitsFor"] == "rows"
    assert set(why) == {"bounds", "limit", "waitsFor", "behind"}
    assert len(json.dumps(why, separators=(",", ":"))) <= 4 * 50 + 200


def test_an_offset_log_of_version_2_is_read_as_well(tmp_path: Path) -> None:
    query = Query(tmp_path)
    query.append("a", 10)
    query.run()
    query.stop()
    log = query.checkpoint / "offsets" / "0"
    _, metadata, offset = log.read_text().split("\n")
    log.write_text("\n".join(["v2", metadata, f"0:{offset}", "orders:-"]))
    (batch,) = Checkpoint(str(query.checkpoint)).history()
    assert [report is None for report in batch.sources] == [False, True]


def test_what_is_no_checkpoint_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="give the checkpointLocation of the query"):
        Checkpoint(str(tmp_path))
    (tmp_path / "offsets").mkdir()
    assert Checkpoint(f"file://{tmp_path}").latest() is None
    (tmp_path / "offsets" / "0").write_text("v3\n{}\n-")
    with pytest.raises(CheckpointError, match="offsets/0 begins with 'v3'"):
        Checkpoint(str(tmp_path)).latest()


def test_a_split_without_a_record_has_no_watermark(tmp_path: Path) -> None:
    query = Query(tmp_path)
    query.append("a", 10)
    query.append("empty")
    query.run()
    query.stop()
    splits = {split.split_id: split.watermark for split in query.stored().explanation.splits}
    assert splits["empty"] == MIN_WATERMARK

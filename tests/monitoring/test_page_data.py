"""What the page has of a history: nothing is lost that it shows, and it stays small however large the query is."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming_source.monitoring.history import History
from streaming_source.tools.pages.html_page import html_report, points_of
from tests.monitoring.pages import batches_of, data_of, four_kinds, page_of, write_page
from tests.monitoring.situations import Situation, finished, nothing_there, records

PARTS = files("streaming_source.tools.pages") / "page"
LETTERS = {"active": "a", "paused": "p", "idle": "i"}
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="needs node, to run the script of the page")


def decoded(source: dict[str, Any], k: int) -> tuple[list[int | None], str]:
    """Watermarks and statuses of a split at its points; the naive opposite of the encoding."""
    total, watermarks = 0, []
    for step in source["watermarks"][k]:
        total += step or 0
        watermarks.append(None if step is None else total)
    letters, number = "", ""
    for char in source["statuses"][k] + "-":
        if char.isdigit():
            number += char
        else:
            letters += (letters[-1] * (int(number) - 1)) if number else ""
            letters, number = letters + char, ""
    return watermarks, letters[:-1]


def test_each_split_is_at_each_point_what_the_history_has(tmp_path: Path) -> None:
    query = four_kinds(tmp_path)
    try:
        page = write_page(query).read_text(encoding="utf-8")
    finally:
        query.close()
    (source,) = data_of(page)["sources"]
    history = History.of_checkpoint(str(tmp_path / "checkpoint"))
    place = {number: i for i, number in enumerate(source["batches"])}
    past = {split: decoded(source, k) for k, split in enumerate(source["splits"]["id"])}
    rows = history.splits().to_pylist()
    times = history.splits()["watermark"].cast(pa.int64()).to_pylist()
    assert len(rows) == 4 * len(place)
    for row, us in zip(rows, times, strict=True):
        watermarks, letters = past[row["split"]]
        i = place[row["batch"]]
        assert watermarks[i] == (None if us is None else us // 1000)
        letter = LETTERS[row["status"]]
        assert letters[i] == (letter.upper() if row["holds"] else letter)
    assert {letters[-1] for _, letters in past.values()} >= {"A", "p", "i"}
    assert source["held"][-1] == [["held"], 1]
    for name in ("drift", "watermark", "limit"):
        column = history.sources()[name].cast(pa.int64()).to_pylist()
        assert source[name] == [None if us is None else us // 1000 for us in column]


def test_who_holds_the_watermark_comes_first_then_the_slowest_and_the_idle_last() -> None:
    (source,) = data_of(page_of(200, 3))["sources"]
    splits = source["splits"]
    assert splits["id"][0] == "split-1"
    idle = splits["status"].index("idle")
    assert set(splits["status"][idle:]) == {"idle"}
    assert splits["watermark"][1:idle] == sorted(splits["watermark"][1:idle])
    assert sum(splits["counts"].values()) == splits["total"] == len(splits["id"]) == 200


@given(count=st.integers(1, 5_000), most=st.integers(1, 300))
def test_points_are_few_and_end_with_the_last_micro_batch(count: int, most: int) -> None:
    step, ends = points_of(count, most)
    assert 1 <= len(ends) <= most
    assert ends[-1] == count - 1
    assert all(after - before == step for before, after in pairwise(ends))
    assert ends[0] < step


def test_of_many_micro_batches_a_point_has_the_largest_drift_and_state_of_its_group() -> None:
    history = History(10_000)
    for batch in batches_of(2, 500):
        history.add(batch)
    (source,) = data_of(page_of(2, 500))["sources"]
    assert source["step"] == 3
    state = history.batches()["state_rows"].to_pylist()
    assert source["batches"][-1] == 499
    assert source["state"] == [max(state[max(end - 2, 0) : end + 1]) for end in source["batches"]]


def test_a_page_of_5000_splits_is_below_two_megabytes_and_has_the_last_state_of_each() -> None:
    page = page_of(5_000, 14)
    assert len(page) < 2_000_000
    (source,) = data_of(page)["sources"]
    assert len(source["splits"]["id"]) == 5_000
    assert len(source["watermarks"]) == len(source["statuses"]) == 5_000
    k = source["splits"]["id"].index("split-4321")
    assert decoded(source, k)[0][-1] == source["splits"]["watermark"][k]
    assert source["coarse"][-1] == len(source["batches"]) - 1


def test_of_a_query_that_has_ended_the_splits_are_finished_and_none_is_none(tmp_path: Path) -> None:
    query = finished(tmp_path)
    try:
        page = write_page(query).read_text(encoding="utf-8")
    finally:
        query.close()
    (source,) = data_of(page)["sources"]
    assert source["ended"][-1]
    assert source["why"] == "The source has ended; all windows are closed."
    assert set(source["splits"]["status"]) <= {"finished"}
    assert None not in source["splits"]["watermark"]


def test_no_name_is_taken_for_markup_and_the_page_is_small(tmp_path: Path) -> None:
    query = Situation(tmp_path, {"</script><img src=x onerror=alert(1)>": records([0]), "b": records([1])}).run()
    try:
        page = write_page(query, "<b>").read_text(encoding="utf-8")
    finally:
        query.close()
    assert "<img" not in page
    assert "<title>&lt;b&gt;</title>" in page
    assert len(page) < 70_000


def test_the_page_loads_nothing_and_allows_its_own_script_and_style_alone() -> None:
    page = page_of(3, 2)
    policy = page.split('Content-Security-Policy" content="')[1].split('"')[0]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "connect-src" not in policy
    for attribute in (" src=", " onclick", " style=", "@import", "url(http"):
        assert attribute not in page, attribute
    # A name space is no address that is loaded.
    assert page.replace("http://www.w3.org/2000/svg", "").count("://") == 0


def test_without_a_script_the_page_has_what_explain_prints(tmp_path: Path) -> None:
    query = four_kinds(tmp_path)
    try:
        page, text = write_page(query).read_text(encoding="utf-8"), str(query.explain_checkpoint())
    finally:
        query.close()
    plain = page.split("<noscript>")[1].split("</noscript>")[0]
    assert text.splitlines()[1].replace("'", "&#x27;") in plain
    assert page.count("</section>") == 1
    for element in ("main", "header", "template", "table", "noscript"):
        assert page.count(f"<{element}") == page.count(f"</{element}>"), element


def test_the_page_of_a_query_without_a_micro_batch_shows_that(tmp_path: Path) -> None:
    from streaming_source.monitoring.explained import ExplainedQuery

    page = html_report(History(), ExplainedQuery(()), "Watermarks: none")
    assert "no source of this library has planned a micro-batch" in data_of(page)["note"]
    query = nothing_there(tmp_path)
    try:
        assert data_of(write_page(query).read_text(encoding="utf-8"))["sources"] == []
    finally:
        query.close()


def run_script(program: str, tmp_path: Path) -> Any:
    script = tmp_path / "ticks.cjs"
    script.write_text(f"{(PARTS / 'ticks.js').read_text(encoding='utf-8')}\nconsole.log(JSON.stringify({program}));")
    return json.loads(subprocess.run(["node", str(script)], capture_output=True, text=True, check=True).stdout)


@needs_node
def test_ticks_are_round_few_and_all_in_one_unit(tmp_path: Path) -> None:
    spans = [3, 40, 900, 4_000, 59_000, 130_000, 600_000, 5_400_000, 9e6, 8e7, 2e8, 2.5e9, 5e9, 3e11]
    durations = run_script(f"{spans}.map((s) => (({{at, text}}) => at.map(text))(durationTicks(s, 5)))", tmp_path)
    for ticks in durations:
        numbers, units = zip(*(tick.split(" ") for tick in ticks), strict=True)
        assert 2 <= len(ticks) <= 6, ticks
        assert len(set(units)) == 1, ticks
        assert all(number.replace(",", "").isdigit() for number in numbers), ticks
    # The ticks of before: 28.9 d and 57.9 d.
    assert durations[11] == ["0 d", "10 d", "20 d"]
    assert durations[12] == ["0 d", "20 d", "40 d"]
    assert durations[5] == ["0 min", "1 min", "2 min"]
    counts = run_script(
        "[1, 7, 145, 1e5, 1.2e6, 3e9].map((n) => (({at, text}) => at.map(text))(countTicks(n, 5)))", tmp_path
    )
    assert counts[0] == ["0", "1"]
    assert counts[2] == ["0", "50", "100"]
    assert counts[4] == ["0", "500 k", "1,000 k"]


@needs_node
def test_ticks_of_event_time_are_of_the_calendar(tmp_path: Path) -> None:
    start = 1_767_261_733_250  # 2026-01-01 10:02:13.25 UTC
    spans = [500, 9_000, 120_000, 7_200_000, 5 * 86_400_000, 40 * 86_400_000, 400 * 86_400_000, 73 * 366 * 86_400_000]
    program = f"{spans}.map((s) => (({{at, text}}) => at.map(text))(timeTicks({start}, {start} + s, 6)))"
    found = run_script(program, tmp_path)
    assert found[1] == ["10:02:14", "10:02:16", "10:02:18", "10:02:20", "10:02:22"]
    assert found[2] == ["10:02:20", "10:02:40", "10:03:00", "10:03:20", "10:03:40", "10:04:00"]
    assert found[3] == ["10:20", "10:40", "11:00", "11:20", "11:40", "12:00"]
    assert found[4] == [f"2026-01-0{day}" for day in range(2, 7)]
    assert found[5] == ["2026-01-05", "2026-01-12", "2026-01-19", "2026-01-26", "2026-02-02", "2026-02-09"]
    assert found[6] == ["2026-04", "2026-07", "2026-10", "2027-01"]
    assert found[7] == ["2040", "2060", "2080"]
    assert all(len({len(text) for text in ticks}) == 1 for ticks in found)


@needs_node
def test_a_split_far_away_does_not_squeeze_the_others(tmp_path: Path) -> None:
    script = (PARTS / "lanes.js").read_text(encoding="utf-8").replace("`", "`")
    (tmp_path / "lanes.js").write_text(script)
    future = 4_070_908_800_000
    program = (
        f"[stretch(0, 60000, [0, 1000, 2000, 3000, {future}]), stretch(0, null, [0, 3600000]), stretch(null, null, [])]"
    )
    source = "".join((PARTS / name).read_text(encoding="utf-8") for name in ("ticks.js", "lanes.js"))
    (tmp_path / "page.cjs").write_text(f"{source}\nconsole.log(JSON.stringify({program}));")
    done = subprocess.run(["node", str(tmp_path / "page.cjs")], capture_output=True, text=True, check=True)
    near, two, nothing = json.loads(done.stdout)
    assert near["high"] < 120_000
    assert two["high"] > 3_600_000
    assert nothing is None

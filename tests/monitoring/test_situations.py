"""Why the watermark stands, in situations that users get into: by the query, from its checkpoint alone, on the page.

`docs/troubleshooting.md` shows the same ones, word for word.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from streaming_source.monitoring.explained import ExplainedQuery
from tests.monitoring.on_call import COURSES
from tests.monitoring.pages import data_of, write_page
from tests.monitoring.situations import SITUATIONS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "troubleshooting.md"

HA, UA = "carrier=HA", "carrier=UA"

EXPECTED: dict[str, tuple[str, list[str], list[str]]] = {
    # situation: cause, held by, advice
    "nothing wrong": ("nothing", [HA], []),
    "silent split": ("silent", [HA], ["idleTimeout"]),
    "one split idle": ("nothing", [UA], []),
    "all splits idle": ("allIdle", [], ["source"]),
    "at the limit": ("slowest", [HA], ["maxDrift"]),
    "sink hangs": ("microBatch", [UA], ["sink"]),
    "query failed": ("failed", [UA], ["query"]),
    "nothing there": ("noSplits", [], ["source"]),
    "finished": ("ended", [], []),
    "new split with nothing": ("empty", ["carrier=YV"], ["idleTimeout"]),
    "empty partition": ("empty", ["orders-2"], ["idleTimeout"]),
    "record from the future": ("future", [HA], ["maxFutureSkew"]),
    "watermark in the future": ("future", [HA], ["maxFutureSkew"]),
    "clock of another zone": ("future", [HA], ["maxFutureSkew"]),
    "split of another unit": ("nothing", [UA], ["data"]),
    "no valid times": ("invalid", [HA], ["eventTimeColumn", "idleTimeout"]),
    "lost reports": ("report", [HA], ["gatewayHost"]),
    "dead group member": ("group", [HA], ["maxDrift"]),
    "read limit too small": ("rows", [HA, UA], ["maxRowsPerTrigger"]),
    "delay too small": ("nothing", [HA, UA], ["maxOutOfOrderness"]),
    "zeros for no time": ("nothing", ["carrier=HA", "carrier=UA"], ["data"]),
    "another unit from one record on": ("nothing", ["carrier=UA"], ["data"]),
    "run without a split": ("silent", ["carrier=HA"], ["idleTimeout"]),
    "split that is two runs late": ("silent", ["carrier=UA"], ["idleTimeout", "idleTimeout"]),
}


def facts(explained: ExplainedQuery) -> dict[str, Any]:
    """All that is known of the one source, but the moment at which it is, and what a checkpoint knows of its batch."""
    (source,) = explained.to_json()["sources"]
    return {name: value for name, value in source.items() if name not in ("at", "standsSince", "batch", "probedAt")}


def without_what_is_reported_later(explained: ExplainedQuery) -> dict[str, Any]:
    """The offset of a micro-batch is written before its readers report, and where nothing is announced none follows."""
    return {name: value for name, value in facts(explained).items() if name != "splits"}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_cause_is_found_in_the_progress_and_in_the_checkpoint_alone(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getpid", lambda: 4711)
    query = SITUATIONS[name](tmp_path)
    live, stored = query.explain(), query.explain_checkpoint()
    drawn = data_of(write_page(query).read_text(encoding="utf-8"))["sources"]
    query.close()
    found = facts(live)
    assert (found["cause"], found["heldBy"], [advice["option"] for advice in found["advice"]]) == EXPECTED[name]
    heading, _, text = str(stored).partition("\n")
    if name != "nothing there":
        of_batch = r"As of micro-batch \d+, planned at .* UTC \(.* ago\), (not )?committed; if the query runs:"
        assert re.fullmatch(of_batch, heading)
    heading, _, shown = str(live).partition("\n")
    assert re.fullmatch(r"The query, testing script, as of 2026-01-0\d .* UTC \(0 s ago\):", heading)
    if name == "nothing there":
        assert stored.sources == ()
    elif name == "query failed":
        # The error is not in a checkpoint: a micro-batch that is not committed is.
        assert facts(stored)["cause"] == "microBatch"
    elif name == "lost reports":
        assert without_what_is_reported_later(stored) == without_what_is_reported_later(live)
    else:
        assert facts(stored) == found
        assert text == shown
    assert examples()[name] == shown
    for source in stored.to_json()["sources"]:
        (page,) = drawn
        advice = [[one["option"], one["text"]] for one in source["advice"]]
        assert (page["why"], page["cause"], page["advice"]) == (source["why"], source["cause"], advice)


def examples() -> dict[str, str]:
    """The page's, by situation: the block behind a comment that names it."""
    found = re.findall(r"<!-- (.*?) -->\n```text\n(.*?)\n```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return dict(found)


def test_each_answer_that_was_once_wrong_is_asked_by_a_test_that_exists() -> None:
    folder = Path(__file__).parent
    text = (folder / "README.md").read_text(encoding="utf-8").partition("once wrong")[2]
    file = ""
    tests = re.findall(r"`([\w./]*)(?:::(\w+))?`", text.partition("| what happened")[2])
    asked = [(file := named or file, test) for named, test in tests if test or named.endswith(".py")]
    assert len(asked) >= 20
    for name, test in asked:
        assert f"def {test}(" in (folder / name).read_text(encoding="utf-8") if test else (folder / name).is_file()
    courses = {situation.name for course in COURSES for situation in course.situations}
    named = re.findall(r"(course )?\*([\w =]+)\*", text.partition("| what happened")[2])
    assert all(name in (courses if course else SITUATIONS) for course, name in named)


def test_the_page_has_an_example_of_each_situation_and_no_other() -> None:
    assert set(examples()) == set(SITUATIONS) == set(EXPECTED)

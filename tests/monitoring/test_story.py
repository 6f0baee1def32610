"""What happened to one split: from the engine's log of events, from reports, and from the checkpoint alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from alignment import events
from alignment.engine import Engine
from alignment.exceptions import UnknownSplitError
from alignment.index import EventTimeIndex
from alignment.plan import PlanningRules
from alignment.recording import EngineStarted, Recorder, last_engine
from alignment.story import story_in
from alignment.watermarks import Int64Array
from streaming_source.tools.cli.main import app
from tests.monitoring.situations import SECOND, Situation, at, records


def whats(story: object) -> list[str]:
    return [event.what for event in story]  # type: ignore[attr-defined]


def driven(record: Recorder) -> None:
    """A split that is read, paused beyond the drift, read on, and idle; and one that does nothing but hold it."""

    def load(_: str, start: int, stop: int) -> Int64Array:
        return np.arange(start, stop) * SECOND + at(0)

    rules, idle_us = PlanningRules(0, max_drift_us=10 * SECOND), 5 * SECOND
    record.start(EngineStarted(rules, idle_us, by_reports=False))
    engine = Engine(rules, EventTimeIndex(record.loading(load)), idle_timeout_us=idle_us, record=record.write)
    engine.apply(events.SplitsAssigned(("fast", "slow"), (0, 0), (0, 0), at(0)))
    for split_id, rows in (("fast", 40), ("slow", 5)):
        block = (np.array([value], np.int64) for value in (rows, at(0), at(rows - 1)))
        engine.apply(events.BlocksIndexed(split_id, *block))
    for second in (1, 2, 9, 10, 20):
        engine.apply(events.Probed(at(second)))
        plan = engine.plan(at(second))
        if engine.has_news(plan):
            engine.commit(plan)


def test_an_event_log_tells_the_story_of_a_split_in_order_with_times(tmp_path: Path) -> None:
    driven(Recorder(tmp_path / "log.jsonl"))
    with (tmp_path / "log.jsonl").open() as lines:
        entries = last_engine(lines)
    assert [str(event) for event in story_in(entries, "fast")] == [
        "2026-01-01 10:00:00  assigned    from position 0 on",
        "2026-01-01 10:00:00  found       40 records, event times up to 2026-01-01 10:00:39 UTC",
        "2026-01-01 10:00:01  read        up to position 14, its watermark is at 2026-01-01 10:00:12 UTC",
        "2026-01-01 10:00:01  paused      is paused: its next record is beyond the limit",
        "2026-01-01 10:00:09  read        from position 14 to 40, its watermark is at 2026-01-01 10:00:38 UTC",
        "2026-01-01 10:00:09  active      is active, and holds the watermark if it is the slowest",
        "2026-01-01 10:00:20  idle        is idle: it has had nothing to read for idleTimeout, and holds nothing back",
    ]
    assert whats(story_in(entries, "slow")) == ["assigned", "found", "read", "idle"]
    assert not whats(story_in(entries, "nobody"))


def paused_and_idle(folder: Path) -> Situation:
    query = Situation(folder, {"a": records([0, 1]), "b": records(range(40))}, drift="10 seconds", idle="5 seconds")
    query.run()
    query.let_pass(7)
    query.source.go_on("a", *records([2]))
    return query.let_pass(2)


def test_reports_and_checkpoint_tell_the_same_story(tmp_path: Path) -> None:
    query = paused_and_idle(tmp_path)
    live, stored = query.explain().story("b"), query.explain_checkpoint().story("b")
    returned = query.explain_checkpoint().story("a")
    query.close()
    assert whats(stored.events) == whats(live.events) == ["read", "paused", "read", "active"]
    assert whats(returned.events) == ["read", "idle", "read", "late", "active"]
    assert str(returned).splitlines()[0] == "Split 'a':"
    with pytest.raises(
        UnknownSplitError, match=r"split 'bb' is in no micro-batch .* give one of its 2, 'b' for example"
    ):
        query.explain_checkpoint().story("bb")


def test_the_command_line_tells_it_of_a_checkpoint_and_of_an_event_log(tmp_path: Path) -> None:
    query = paused_and_idle(tmp_path)
    query.close()
    command = ["explain", str(query.folder / "checkpoint"), "--split", "a"]
    assert "idle        is idle: it has had nothing to read" in CliRunner().invoke(app, command).stdout
    found = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert (found["split"], found["events"][0]["at"]) == ("a", "2026-01-01T10:00:00Z")
    driven(Recorder(tmp_path / "logs" / "log.jsonl"))
    logged = [*command[:-1], "fast", "--event-log", str(tmp_path / "logs")]
    assert "assigned    from position 0 on" in CliRunner().invoke(app, logged).stdout
    refused = CliRunner().invoke(app, [*command[:-1], "c"])
    assert (refused.exit_code, "error: split 'c' is in no micro-batch" in refused.stderr) == (2, True)

"""`streaming-source simulate`, as a user runs it; `docs/simulate.md` shows what it prints, word for word."""

from __future__ import annotations

import json
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from alignment.simulation import Settings
from streaming_source.tools.cli.main import app
from tests.alignment.recorded_orders import record_orders
from tests.alignment.test_recorded import files, run
from tests.docs.pages import ROOT, Block, blocks, code

PAGE = ROOT / "docs" / "simulate.md"


def simulated(*arguments: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(app, ["simulate", *arguments])
    assert result.exit_code == 0, result.output
    rows: list[dict[str, Any]] = json.loads(result.stdout.splitlines()[-1])
    return rows


@pytest.mark.parametrize("planning", ["reactive", "indexed"])
def test_everything_is_read_nothing_is_late_and_without_an_index_alignment_holds_less(planning: str) -> None:
    options = ["--records", "400", "--planning", planning, "--skew", "1 hour", "--first-rows", "10"]
    aligned, free = simulated(*options, "--max-drift", "5 seconds", "--max-drift", "none", "--max-rows", "100")
    assert (aligned["max_drift_us"], free["max_drift_us"]) == (5_000_000, None)
    for row in (aligned, free):
        assert (sum(row["batches"]), row["unread"], row["late"]) == (3200, 0, 0)
        assert max(row["batches"]) <= 100
    assert aligned["most_in_state"] < free["most_in_state"] or planning == "indexed"


def test_the_same_seed_prints_the_same_and_lost_reports_take_more_batches() -> None:
    options = ["--records", "400", "--skew", "0 s", "--max-drift", "30 s"]
    assert simulated(*options, "--seed", "3") == simulated(*options, "--seed", "3")
    (lost,), (none,) = simulated(*options, "--lost", "0.5"), simulated(*options)
    assert len(lost["batches"]) > len(none["batches"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-drift", "5"], "max_drift = '5' is not a duration"),
        (["--max-rows", "0"], "max_rows = '0': must be a number of rows, at least 1"),
        (["no-such-log"], "no-such-log has no event log; give the file"),
        (["no-such-log", "--splits", "3"], "--splits describes a workload, and LOG has one"),
    ],
)
def test_what_cannot_be_played_is_an_error(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["simulate", *arguments])
    assert result.exit_code == 2
    assert message in result.stderr


def test_with_the_data_of_a_query_late_records_are_exact_that_its_log_only_bounds(tmp_path: Path) -> None:
    folder = files(tmp_path / "in")
    run(
        folder,
        Settings(max_drift_us=None, out_of_orderness_us=0, idle_timeout_us=None, max_rows=None),
        tmp_path / "log",
    )
    settings = Settings(max_drift_us=None, out_of_orderness_us=0, idle_timeout_us=None, max_rows=17)
    expected = run(folder, settings)
    _, bound = simulated(str(tmp_path / "log"), "--max-rows", "17")
    assert not bound["late_is_exact"]
    data = ["--source", str(folder), "-o", "eventTimeColumn=ts"]
    _, exact = simulated(str(tmp_path / "log"), "--max-rows", "17", *data)
    assert exact["late_is_exact"]
    assert (exact["late"], exact["batches"]) == (sum(late for _, late in expected), [rows for rows, _ in expected])
    refused = CliRunner().invoke(app, ["simulate", *data])
    assert "--source is of the data of a query: give its LOG, or leave it out" in refused.stderr


def test_the_page_in_python_shows_its_first_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    record_orders(tmp_path / "orders-log" / "orders.jsonl", idle="1 minute", delay="2 seconds")
    scope: dict[str, Any] = {}
    exec(compile(code(PAGE), PAGE.name, "exec"), scope)
    assert capsys.readouterr().out == shown()[0][1].text
    assert [held.max() for held in scope["in_state"]] == [129, 69, 444]


def shown() -> list[tuple[str, Block]]:
    """The commands on the page, each with what it prints."""
    found = blocks(PAGE)
    return [(command.text, output) for command, output in pairwise(found) if output.language == "text"]


@pytest.mark.parametrize(("command", "output"), shown(), ids=lambda value: "")
def test_the_page_shows_what_is_printed(
    command: str, output: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    record_orders(tmp_path / "orders-log" / "orders.jsonl", idle="1 minute", delay="2 seconds")
    program, *arguments = shlex.split(command.replace("\\\n", " "))
    assert program == "streaming-source"
    result = CliRunner().invoke(app, arguments)
    *lines, last = result.stdout.splitlines()
    assert lines == output.text.splitlines()
    assert json.loads(last)

"""`streaming-source simulate`, as a user runs it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from streaming_source.cli.main import app


def simulated(*arguments: str) -> dict[str, int]:
    result = CliRunner().invoke(app, ["simulate", "--records", "400", *arguments])
    assert result.exit_code == 0, result.output
    numbers: dict[str, int] = json.loads(result.stdout.splitlines()[-1])
    return numbers


@pytest.mark.parametrize("planning", ["reactive", "indexed"])
def test_everything_is_read_nothing_is_late_and_without_an_index_alignment_holds_less(planning: str) -> None:
    numbers = simulated("--planning", planning, "--skew", "1 hour", "--first-rows", "10", "--max-drift", "5 seconds")
    assert numbers["ended"]
    assert (numbers["rows"], numbers["late"]) == (3200, 0)
    assert numbers["held_most"] < numbers["held_most_unaligned"] or planning == "indexed"


def test_the_same_seed_prints_the_same_and_lost_reports_take_more_steps() -> None:
    assert simulated("--seed", "3") == simulated("--seed", "3")
    assert simulated("--lost", "0.5", "--skew", "0 s")["steps"] > simulated("--skew", "0 s")["steps"]


def test_the_table_shows_the_last_step_and_who_held_back() -> None:
    result = CliRunner().invoke(app, ["simulate", "--records", "50", "--splits", "2"])
    assert "split-" in result.stdout
    assert "end" in result.stdout
    assert "without maxDrift" in result.stdout


def test_a_duration_without_a_unit_is_refused() -> None:
    result = CliRunner().invoke(app, ["simulate", "--max-drift", "5"])
    assert result.exit_code == 2
    assert "--max-drift = '5' is not a duration" in result.stderr

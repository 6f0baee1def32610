"""What the quick benchmarks report of the figures of the last release."""

from __future__ import annotations

from pathlib import Path

from benchmarks.release import add, compared
from benchmarks.report import Target


def targets(seconds: float, ratio: float, *more: Target) -> list[Target]:
    return [
        Target("first plan", seconds, 0.5, at_most=True, unit=" s"),
        Target("against Spark's own", ratio, 1, at_most=False),
        *more,
    ]


def test_figures_that_are_worse_than_all_runs_of_the_last_release_are_in_a_table(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    assert "--release" in compared(targets(1, 1), path)[0]
    for seconds, ratio in ((0.2, 2.0), (0.3, 1.6)):
        add(targets(seconds, ratio), path, "1.0")
    assert compared(targets(0.32, 1.5), path)[1] == []
    title, lines = compared(targets(0.45, 1.2, Target("a new one", 1, 2, at_most=True)), path)
    assert "2 of 2 figures are worse than in 1.0" in title
    assert "1 are new" in title
    assert lines == [
        ["first plan", "0.2 to 0.3 s", "0.45 s", "1.50 times"],
        ["against Spark's own", "1.6 to 2", "1.2", "1.33 times"],
    ]
    assert compared(targets(0.01, 9), path)[1] == []


def test_seconds_are_compared_on_the_machine_of_the_release_alone(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    add(targets(0.2, 2), path, machine="fast, 2 cores")
    title, lines = compared(targets(9, 1), path, "slow, 4 cores")
    assert "1 of 1 figures are worse" in title
    assert "1 are seconds of another machine, fast, 2 cores, and not compared" in title
    assert [line[0] for line in lines] == ["against Spark's own"]
    add(targets(9, 1), path, machine="slow, 4 cores")
    assert compared(targets(9, 1), path, "slow, 4 cores")[1] == []


def test_figures_of_another_version_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    add(targets(9, 0.1), path, "1.0")
    add(targets(0.2, 2), path, "1.1")
    title, lines = compared(targets(0.4, 2), path)
    assert "1 of 2 figures are worse than in 1.1" in title
    assert lines == [["first plan", "0.2 to 0.2 s", "0.4 s", "2.00 times"]]

"""Every issue that is known of idleness and alignment has a test, or was decided otherwise."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.scenarios.table import DECIDED, TESTS

ROOT = Path(__file__).resolve().parents[2]

# Of Flink, by number.
ISSUES = {
    f"FLINK-{number}"
    for number in (
        *(40504, 22926, 39586, 40094, 39979, 39514, 40503, 38454, 40475, 38477, 35886, 36751, 34252, 28975, 18934),
        *(22881, 23011, 23767, 32828, 26018, 18523, 8001, 7721),
        *(40505, 37399, 37670, 35157, 32414, 32496, 31632, 39073, 40093, 32316, 32362, 32411, 32420, 35088, 39728),
        *(39238, 37410, 33306),
    )
}


def documented(path: Path) -> Iterator[tuple[str, str]]:
    """Tests of a file, whatever class they are in, with what their docstrings say."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node.name, ast.get_docstring(node) or ""


def test_every_issue_has_a_test_or_was_decided_otherwise() -> None:
    assert sorted(ISSUES - TESTS.keys() - DECIDED.keys()) == []
    assert TESTS.keys().isdisjoint(DECIDED)
    assert {name for name in TESTS.keys() | DECIDED.keys() if name.startswith("FLINK-")} <= ISSUES, "a slip?"


def test_every_test_of_the_table_is_there() -> None:
    named = {test for tests in TESTS.values() for test in tests}
    there = {f"{path}::{name}" for path in {t.split("::")[0] for t in named} for name, _ in documented(ROOT / path)}
    assert sorted(named - there) == []


def test_every_scenario_is_in_the_table_under_the_issues_that_it_names() -> None:
    for path in sorted((ROOT / "tests" / "scenarios").glob("test_*.py")):
        for name, text in documented(path):
            test = f"{path.relative_to(ROOT).as_posix()}::{name}"
            under = {issue for issue, tests in TESTS.items() if test in tests}
            assert under, f"{test} is in no row"
            assert set(re.findall(r"FLINK-\d+", text)) <= under, test

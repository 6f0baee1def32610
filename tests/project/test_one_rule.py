"""Each rule is there once: what a query imports is what Flink's cases run against."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.project.rule_calls import RULES

ROOT = Path(__file__).resolve().parents[2]

GROUPS = {
    "WG": {"conclude"},
    "ID": {"IdleClock"},
    "CK": {"IdleClock"},
    "MX": {"combine_watermarks"},
    "VL": {"combine_watermarks"},
    "AL": {"source_limit", "ReactivePlanner", "conclude"},
    "CO": {"source_limit", "conclude"},
    "AG": {"source_limit"},
}
"""Of each group of cases the rules of which every case must call one."""

_CASE = re.compile(r"::test_([a-z]{2})_\d\d_|::Test([A-Z][a-z])\d\d")
_NOT_IN_A_QUERY = re.compile(
    r"streaming_source/(testing|cli)/|alignment/simulation/|^(alignment|streaming_source(/\w+)?)/__init__\.py$"
)


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Modules, and the names that are imported from them."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from ((node.module, alias.name) for alias in node.names)


@cache
def imported_by_queries() -> set[tuple[str, str]]:
    """All that modules of a query import from others of ours."""
    found: set[tuple[str, str]] = set()
    for package in ("alignment", "streaming_source"):
        for path in (ROOT / package).rglob("*.py"):
            if not _NOT_IN_A_QUERY.search(path.relative_to(ROOT).as_posix()):
                found.update(imports(path))
    return found


def group_of(test: str) -> str:
    """The group of cases that a test is named after; empty for none."""
    found = _CASE.search(test)
    return "" if found is None else (found[1] or found[2]).upper()


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Which rules the cases call, by test."""
    noted = tmp_path_factory.mktemp("rules") / "calls"
    cases = " or ".join(f"test_{group.lower()}_ or Test{group.title()}" for group in GROUPS)
    arguments = ["-p", "tests.project.rule_calls", "-q", "-k", cases, "tests/alignment", "tests/coordinator"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "RULE_CALLS": str(noted)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {name: set(called) for name, called in map(json.loads, noted.read_text(encoding="utf-8").splitlines())}


@pytest.mark.parametrize("rule", sorted(RULES))
def test_a_rule_is_imported_by_what_a_query_runs(rule: str) -> None:
    assert (RULES[rule].__module__, rule) in imported_by_queries()


@pytest.mark.parametrize("name", ["SplitWatermarks", "AlignmentGroup"])
def test_a_public_class_that_no_query_imports_is_no_rule(name: str) -> None:
    assert not {module for module, imported in imported_by_queries() if imported == name}
    assert name not in RULES


@pytest.mark.timeout(300)
@pytest.mark.parametrize("group", sorted(GROUPS))
def test_every_case_of_a_group_runs_against_the_rules_of_a_query(calls: dict[str, set[str]], group: str) -> None:
    cases = {name: called for name, called in calls.items() if group_of(name) == group}
    assert cases, f"no case of {group} was run"
    assert {name for name, called in cases.items() if not called & GROUPS[group]} == set()

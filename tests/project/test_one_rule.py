"""Each rule is there once: what a query imports is what Flink's cases run against."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from alignment.combine import combine_watermarks
from tests.project.rule_calls import GROUPS, RULES, group_of, pytest_runtest_call

ROOT = Path(__file__).resolve().parents[2]

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


@pytest.mark.parametrize("rule", sorted(RULES))
def test_a_rule_is_imported_by_what_a_query_runs(rule: str) -> None:
    assert (RULES[rule].__module__, rule) in imported_by_queries()


@pytest.mark.parametrize("name", ["SplitWatermarks", "AlignmentGroup"])
def test_a_public_class_that_no_query_imports_is_no_rule(name: str) -> None:
    assert not {module for module, imported in imported_by_queries() if imported == name}
    assert name not in RULES


@pytest.mark.parametrize("group", sorted(GROUPS))
def test_there_are_cases_of_each_group(group: str) -> None:
    folders = [ROOT / "tests" / name for name in ("alignment", "coordinator")]
    lines = chain.from_iterable(path.read_text().splitlines() for one in folders for path in one.glob("test_*.py"))
    assert any(group_of(line) == group for line in lines if line.startswith(("def ", "class ", "Test")))


def test_a_case_that_calls_no_rule_of_its_group_fails() -> None:
    run_as("test_mx_99_a_minimum", lambda: combine_watermarks(np.zeros(2, np.int64), np.zeros(2, np.int8)))
    with pytest.raises(AssertionError, match="calls no rule, and none of"):
        run_as("test_mx_99_a_minimum", lambda: None)


def run_as(name: str, test: Callable[[], object]) -> None:
    """Run a test as if it had this name."""
    item: Any = SimpleNamespace(nodeid=f"tests/{name}")
    watched = pytest_runtest_call(item)
    next(watched)
    test()
    with pytest.raises(StopIteration):
        watched.send(None)

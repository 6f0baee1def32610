"""The documentation says what the code does."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from pathlib import Path

from tests.parity.test_rules import RULES

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def test_the_page_of_options_is_the_one_that_the_code_gives() -> None:
    made = runpy.run_path(str(DOCS / "make_options.py"))
    assert (DOCS / "options.md").read_text(encoding="utf-8") == made["page"](), "run: python docs/make_options.py"
    keywords = made["KEYWORDS"].read_text(encoding="utf-8")
    assert keywords == made["with_keywords"](keywords), "run: python docs/make_options.py"


_TESTS = re.compile(r"`([\w/]+\.py)(?:::(\w+))?`")


def _rows_of_parity() -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    """Yield the scenario, the verdict and the tests of each row, files with names; `the same` are those above."""
    tests: list[tuple[str, str]] = []
    for line in (DOCS / "parity.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("| ") and not line.startswith("| scenario"):
            row = [cell.strip() for cell in line.strip("|").split(" | ")]
            tests = tests if row[-1] == "the same" else _TESTS.findall(row[-1])
            yield row[0], row[3], tests


def test_each_row_of_parity_is_shown_by_a_test_and_says_why_or_by_how_much() -> None:
    rows = [*_rows_of_parity()]
    assert rows
    for scenario, verdict, tests in rows:
        assert re.match(r"same$|(better|other|worse): .", verdict), scenario
        assert not verdict.startswith("better") or re.search(r"\d|figure", verdict), scenario
        assert tests, f"{scenario}: no test shows it"
        for file, test in tests:
            source = (ROOT / "tests" / file).read_text(encoding="utf-8")
            assert not test or f"def {test}(" in source, f"{scenario}: {file} has no {test}"


def test_each_rule_by_which_the_readers_differ_is_tried_by_its_name() -> None:
    by_name = ("parity/test_rules.py", "test_where_the_two_differ_it_is_by_these_rules")
    assert {scenario for scenario, _, tests in _rows_of_parity() if by_name in tests} == {*RULES}


def test_the_tests_that_the_page_of_reliability_names_are_there() -> None:
    named = re.findall(r"`(?:tests/)?(\w+/\w+\.py)`", (DOCS / "reliability.md").read_text(encoding="utf-8"))
    assert len(named) > 20
    assert [name for name in named if not (ROOT / "tests" / name).exists()] == []


def test_what_the_page_for_contributors_names_is_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:alignment|streaming_source|tests|docs)/[\w/.-]+)`", text))
    assert len(named) > 15
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_the_readme_is_read_in_two_minutes() -> None:
    assert len((ROOT / "README.md").read_bytes()) < 6_000


def test_the_first_screen_has_how_to_run_it_and_how_to_test_it() -> None:
    first_screen = "\n".join((ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:30])
    assert [command for command in ("make demo", "make test") if command not in first_screen] == []

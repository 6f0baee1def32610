"""The documentation says what the code does."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def test_the_page_of_options_is_the_one_that_the_code_gives() -> None:
    made = runpy.run_path(str(DOCS / "make_options.py"))
    assert (DOCS / "options.md").read_text(encoding="utf-8") == made["page"](), "run: python docs/make_options.py"
    keywords = made["KEYWORDS"].read_text(encoding="utf-8")
    assert keywords == made["with_keywords"](keywords), "run: python docs/make_options.py"


def test_each_row_of_parity_is_shown_by_a_test_and_says_why_or_by_how_much() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in (DOCS / "parity.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| ") and not line.startswith("| scenario")
    ]
    assert rows
    for row in rows:
        scenario, verdict, shown = row[0], row[3], row[-1]
        assert re.match(r"same$|(better|other|worse): .", verdict), scenario
        assert not verdict.startswith("better") or re.search(r"\d|figure", verdict), scenario
        for file, test in re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", shown):
            source = (ROOT / "tests" / file).read_text(encoding="utf-8")
            assert not test or f"def {test}(" in source, f"{scenario}: {file} has no {test}"


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

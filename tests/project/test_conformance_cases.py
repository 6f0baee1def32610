"""Every scenario is the name of a test, or in a table of what was decided otherwise."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]

# Flink's unit tests as scenarios: those of even numbers, from the first to the last of each group.
GROUPS = {
    "WG": (2, 10),  # watermark generators
    "ST": (2, 6),  # watermark strategies
    "ID": (4, 14),  # idleness
    "CK": (2, 4),  # the clock of idleness
    "MX": (2, 26),  # watermarks of splits combined
    "VL": (2, 10),  # watermarks of channels combined
    "OT": (2, 18),  # outputs and timestamps
    "SM": (2, 2),  # samples of watermarks
    "AL": (2, 10),  # alignment of readers
    "SP": (2, 14),  # alignment of splits
    "CO": (2, 10),  # alignment of sources
    "AG": (2, 2),  # the smallest of many
    "AT": (2, 6),  # tracking of assignments
    "CD": (2, 26),  # coordinator and context
    "FT": (2, 12),  # fetchers
    "QT": (2, 6),  # the hand-over queue
    "RD": (2, 12),  # the base reader
    "SO": (2, 6),  # life of a source's operator
    "FS": (2, 16),  # enumerators of files
}
CASES = {f"{group}-{number:02d}" for group, (first, last) in GROUPS.items() for number in range(first, last + 1, 2)}

NAME = re.compile(r"^\s*def test_([a-z]{2})_(\d\d)_|^(?:class )?Test([A-Z][a-z])(\d\d)", re.MULTILINE)


def named() -> Iterator[str]:
    """Cases that tests, or classes of tests, are named after."""
    for path in TESTS.rglob("test_*.py"):
        for found in NAME.finditer(path.read_text(encoding="utf-8")):
            group, number = (part for part in found.groups() if part)
            yield f"{group.upper()}-{number}"


def decided(page: str) -> Iterator[str]:
    """Cases in the first column of a page's table of what was decided otherwise."""
    _, _, section = page.partition("## Decided otherwise")
    for line in section.splitlines():
        if line.startswith("|"):
            for group, numbers in re.findall(r"\b([A-Z]{2})-(\d\d(?:, \d\d)*)", line.split("|")[1]):
                yield from (f"{group}-{number}" for number in numbers.split(", "))


def test_every_case_is_a_test_or_was_decided_otherwise() -> None:
    otherwise = {case for path in TESTS.rglob("README.md") for case in decided(path.read_text(encoding="utf-8"))}
    assert sorted(CASES - set(named()) - otherwise) == []
    assert sorted((set(named()) | otherwise) - CASES) == [], "no such case: is the name of a test a slip?"


def test_a_case_is_found_by_its_name_and_in_the_table_alone() -> None:
    page = "| WG-02 | before |\n## Decided otherwise than Flink\n| MX-10, 12 | as FT-02 |\n| pausing (SP-14) | |\n"
    assert sorted(decided(page)) == ["MX-10", "MX-12", "SP-14"]
    assert {"WG-02", "CD-12", "AG-02"} <= set(named())
    assert "SM-02" not in set(named())

"""Coverage by package: `python -m tests.project.covered`, after `coverage combine`; `make coverage` runs both.

It fails where a package has less than CONTRIBUTING.md has of it. So the table there is what is so, and falls by a
decision alone.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

__all__ = ["measured", "on_page"]

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "CONTRIBUTING.md"


def package_of(file: str) -> str:
    """`alignment`, a package of it, of its connectors or tools, or `streaming_source` for its own modules."""
    top, *rest = Path(file).parts
    if top == "alignment" or len(rest) == 1:
        return top
    depth = 2 if rest[0] in ("connectors", "tools") and len(rest) > 2 else 1
    return ".".join([top, *rest[:depth]])


def measured(report: dict[str, dict[str, dict[str, dict[str, int]]]]) -> dict[str, float]:
    """The percentage of statements and branches that were taken, by package, from a report of `coverage json`."""
    taken, there = Counter[str](), Counter[str]()
    for file, found in report["files"].items():
        counts = found["summary"]
        taken[package_of(file)] += counts["covered_lines"] + counts["covered_branches"]
        there[package_of(file)] += counts["num_statements"] + counts["num_branches"]
    return {package: 100 * taken[package] / count for package, count in sorted(there.items()) if count}


def on_page() -> dict[str, float]:
    """The percentages in the table of CONTRIBUTING.md."""
    rows = re.findall(r"^\| `([a-z_.]+)` \| ([\d.]+) % \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {package: float(percent) for package, percent in rows}


def main() -> int:
    """Print the table, and return 1 if a package is not on the page or has less than the page has."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([sys.executable, "-m", "coverage", "json", "--quiet", "-o", file.name], check=True, cwd=ROOT)
        found = measured(json.loads(Path(file.name).read_text(encoding="utf-8")))
    promised, fallen = on_page(), []
    for package, percent in found.items():
        is_less = package not in promised or percent < promised[package]
        print(f"{percent:5.1f} %  {package}" + (f"  (CONTRIBUTING.md: {promised.get(package, 'not there')})" * is_less))
        fallen += [package] * is_less
    if fallen:
        print(f"less covered than CONTRIBUTING.md has: {', '.join(fallen)}; add tests, or change the table")
    return bool(fallen)


if __name__ == "__main__":
    sys.exit(main())

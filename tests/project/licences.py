"""The licences of what the extras bring: `python -m tests.project.licences` lists them, and refuses unknown ones.

The project is under Apache-2.0. What it needs at run time must allow use beside it without conditions on the code of a
user.
"""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path
from typing import Final

__all__ = ["licence_of", "needed", "refused"]

ROOT: Final = Path(__file__).resolve().parents[2]
DISTRIBUTION: Final = "spark-watermark-alignment"

OF_USERS: Final = ("cli", "delta", "fsspec", "iceberg", "kafka", "kafka-schema", "metrics", "pyspark")
"""The extras that a query may need; the others are for those who work on the project, or for the demo."""

_ALLOWED: Final = re.compile(
    r"apache|\bBSD|\bMIT\b|\bISC\b|\bPSF|python software foundation|MPL-2\.0|mozilla public license 2\.0|0BSD|zlib",
    re.IGNORECASE,
)
"""MPL-2.0 has conditions on its own files alone."""


def needed() -> list[importlib.metadata.Distribution]:
    """What the project and the extras of users install, as far as it is here; with what that needs in turn."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    waiting = [*project["dependencies"]]
    for extra in OF_USERS:
        waiting += project["optional-dependencies"][extra]
    found: dict[str, importlib.metadata.Distribution] = {}
    while waiting:
        text = waiting.pop()
        name, extras = re.match(r"([\w.-]+)(?:\[([^\]]*)\])?", text).groups()  # type: ignore[union-attr]
        key = re.sub(r"[-_.]+", "-", name).lower()
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # for another platform or Python
        wanted = {part.strip() for part in (extras or "").split(",") if part}
        if key in found and not wanted:
            continue
        found[key] = distribution
        for requirement in distribution.requires or ():
            condition = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", requirement)
            if condition is None or condition[1] in wanted:
                waiting.append(requirement)
    return [found[key] for key in sorted(found)]


def licence_of(distribution: importlib.metadata.Distribution) -> str:
    """What its metadata have of the licence: an expression, else classifiers, else the first line of the text."""
    metadata = distribution.metadata
    if expression := metadata.get("License-Expression"):
        return expression
    classifiers = [text.rpartition(" :: ")[2] for text in metadata.get_all("Classifier") or () if "License ::" in text]
    return "; ".join(classifiers) or (metadata.get("License") or "unknown").splitlines()[0]


def refused() -> list[str]:
    """Those whose licence is not known to be allowed."""
    return [
        f"{each.metadata['Name']}: {licence_of(each)}" for each in needed() if not _ALLOWED.search(licence_of(each))
    ]


if __name__ == "__main__":
    for each in needed():
        print(f"{each.metadata['Name']:28} {each.version:12} {licence_of(each)}")
    if unknown := refused():
        raise SystemExit(f"licences that are not known to be allowed: {unknown}")

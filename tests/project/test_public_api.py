"""The public names are those that docs/public-api.txt lists: a change of them is seen, and decided."""

from __future__ import annotations

import difflib

from tests.project.public_api import MODULES, PAGE, ROOT, public_api


def test_the_public_names_are_those_that_are_listed() -> None:
    listed, found = PAGE.read_text(encoding="utf-8").splitlines(), public_api().splitlines()
    change = "\n".join(line for line in difflib.unified_diff(listed, found, lineterm="", n=0) if line[0] in "+-")
    assert not change, (
        f"{change}\nthe public API has changed: if that is what you want, and docs/compatibility.md allows it, run "
        "python -m tests.project.public_api, and name the change in CHANGELOG.md"
    )


def test_the_page_of_compatibility_names_each_public_module() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    assert [module for module in MODULES if f"`{module}`" not in page] == []

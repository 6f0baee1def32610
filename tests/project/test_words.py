"""Errors, warnings and the pages for users have a subject that is named and a verb that says what happens."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.project.test_import_rule import ROOT, modules

REFUSED = re.compile(r"\b(nobody|somebody|whoever|told|hears?|heard|last words?|says? something)\b", re.IGNORECASE)
"""Words that hide who does what. `Reports`, `returns`, `assigns`, `waits`, `raises` and a subject take their place."""

PAGES = sorted(page for page in (ROOT / "docs").glob("*.md") if page.name != "architecture.md")


def shown_texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield `(line, text)` of each text in an error that is raised, or in a record of a log."""
    for node in ast.walk(ast.parse(source)):
        is_log = (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and getattr(node.func.value, "id", "") in ("_log", "warnings")
        )
        is_error = isinstance(node, ast.Call) and getattr(node.func, "id", "").endswith("Error")
        if is_log or is_error:
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.lineno, part.value


def test_no_error_or_warning_has_a_refused_word() -> None:
    found = [
        f"{module.name}:{line}: {text}"
        for module in modules(ROOT)
        for line, text in shown_texts(module.source)
        if REFUSED.search(text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_no_page_for_users_has_a_refused_word(page: Path) -> None:
    found = [line for line in page.read_text(encoding="utf-8").splitlines() if REFUSED.search(line)]
    assert not found, "\n".join(found)


def test_a_refused_word_is_found() -> None:
    source = "raise SourceError(f'split {name}: nobody was told')\n_log.warning('%s', 'somebody waits')\n'nobody'"
    assert [line for line, text in shown_texts(source) if REFUSED.search(text)] == [1, 2]

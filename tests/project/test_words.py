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

REFUSED_IN_MESSAGES = re.compile(
    rf"{REFUSED.pattern}|\b(someone|tells?|asks?|asked|says?|said|stands?|meets?)\b", re.IGNORECASE
)
"""In errors, records of a log and the descriptions of options these were verbs of things as well."""

REFUSED_ON_PLAIN_PAGES = re.compile(rf"{REFUSED.pattern}|\b(asks?|asked|tells?|says?|said)\b", re.IGNORECASE)

PLAIN_PAGES = ("README.md", "files.md", "options.md", "write-a-connector.md")
"""Pages that are in plain words as a whole; one that becomes so is added."""

PLAIN_MODULES = (
    "streaming_source/api",
    "streaming_source/tools/auditing",
    "streaming_source/tools/pages",
    "streaming_source/connectors/files",
    "streaming_source/connectors/kafka",
    "streaming_source/coordinator/coordinator.py",
    "streaming_source/coordinator/planner_warnings.py",
    "streaming_source/coordinator/rules.py",
    "streaming_source/data_files",
    "streaming_source/monitoring",
    "streaming_source/exceptions.py",
    "streaming_source/spark/frames.py",
    "streaming_source/spark/option_text.py",
    "streaming_source/spark/options.py",
    "alignment/column_paths.py",
    "alignment/engine.py",
    "alignment/simulation",
    "alignment/strategy.py",
    "alignment/watermarks.py",
    "alignment/exceptions.py",
)
"""Where users read docstrings: those are in plain words as a whole."""

_NAMES = re.compile(r"`[^`]*`|\*\*[^*]*\*\*|\"[^\"]*\"")
"""Code, headwords and output that is quoted."""

_OPTIONS = ("Option", "duration_field", "option", "option_field")

PAGES = sorted(page for page in (ROOT / "docs").glob("*.md") if page.name != "architecture.md")


def shown_texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield `(line, text)` of each text in an error that is raised, in a record of a log, or in an option."""
    for node in ast.walk(ast.parse(source)):
        is_log = (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and getattr(node.func.value, "id", "") in ("_log", "warnings")
        )
        is_error = isinstance(node, ast.Call) and getattr(node.func, "id", "").endswith("Error")
        is_option = isinstance(node, ast.Call) and getattr(node.func, "id", "") in _OPTIONS
        if is_log or is_error or is_option:
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.lineno, part.value


def test_no_error_warning_or_option_has_a_refused_word() -> None:
    found = [
        f"{module.name}:{line}: {text}"
        for module in modules(ROOT)
        for line, text in shown_texts(module.source)
        if REFUSED_IN_MESSAGES.search(_NAMES.sub("", text))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_no_page_for_users_has_a_refused_word(page: Path) -> None:
    found = [line for line in page.read_text(encoding="utf-8").splitlines() if REFUSED.search(line)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", PLAIN_PAGES)
def test_no_page_in_plain_words_has_one_of_the_others(name: str) -> None:
    text = next(page for page in (ROOT / "README.md", *PAGES) if page.name == name).read_text(encoding="utf-8")
    prose = _NAMES.sub("", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    found = [line for line in prose.splitlines() if REFUSED_ON_PLAIN_PAGES.search(line)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", PLAIN_MODULES)
def test_no_docstring_of_a_plain_module_has_one_of_the_others(name: str) -> None:
    parts = [ROOT / name] if name.endswith(".py") else sorted((ROOT / name).glob("*.py"))
    found = []
    for path in parts:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                lines = _NAMES.sub("", node.value.value).splitlines()
                found += [f"{path.name}: {line.strip()}" for line in lines if REFUSED_ON_PLAIN_PAGES.search(line)]
    assert not found, "\n".join(found)


def test_a_refused_word_is_found() -> None:
    source = "raise SourceError(f'split {name}: nobody was told')\n_log.warning('%s', 'somebody waits')\n'nobody'"
    assert [line for line, text in shown_texts(source) if REFUSED.search(text)] == [1, 2]
    texts = [text for _, text in shown_texts("Option('late', text, 'What `late` says.')") if "late" in text]
    assert [text for text in texts if REFUSED_IN_MESSAGES.search(_NAMES.sub("", text))] == ["What `late` says."]

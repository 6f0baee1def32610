"""What the pages have to be pasted is there: commands and their options, targets, modules, extras, options."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from streaming_source.tools.cli.main import app
from tests.docs.pages import ROOT, Block, blocks, pages

COMMANDS: Any = typer.main.get_command(app)
OF_OTHERS = {
    *("aws", "cp", "curl", "docker", "environment/bin/pip", "environment/bin/venv-pack", "make", "pip", "python"),
    *("spark-pipelines", "spark-submit", "uvx", "%pip", ".venv/bin/nox", ".venv/bin/python"),
    "source",
}
OTHER_OPTIONS = {"checkpointLocation", "database", "partitionOverwriteMode"}
"""Of Spark's writer, and of the source that the page on connectors writes."""

COMPARED = {
    "docs/audit.md": "docs/test_printed.py",
    "README.md": "docs/test_examples.py",
    "docs/bound.md": "docs/test_printed.py",
    "docs/first-query.md": "docs/test_examples.py",
    "docs/history.md": "docs/test_printed.py",
    "docs/nightly-runs.md": "spark/test_nightly_runs.py",
    "docs/performance.md": "docs/test_examples.py",
    "docs/quick-start.md": "docs/test_examples.py",
    "docs/simulate.md": "cli/test_simulate.py",
    "docs/state-size.md": "docs/test_examples.py",
    "docs/troubleshooting.md": "monitoring/test_situations.py",
    "docs/write-a-connector.md": "docs/test_write_a_connector.py",
}
"""Pages that show what is printed (`text`, or below a prompt), and the tests that compare it."""

DIAGRAMS = {"docs/architecture.md": 2, "docs/bronze-to-gold.md": 1, "docs/flip-27.md": 1}
"""Blocks that are neither code nor printed: pictures in letters."""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def all_blocks(*languages: str) -> Iterator[tuple[str, Block]]:
    for page in pages():
        for block in blocks(page):
            if block.language in languages:
                yield name_of(page), block


def commands() -> Iterator[tuple[str, str]]:
    """Each command line of a block, and each in the prose."""
    for page, block in all_blocks("bash", "console"):
        lines = block.text.replace("\\\n", " ").splitlines()
        for line in lines:
            if block.language == "bash" or line.startswith("$ "):
                yield from ((page, each) for each in line.removeprefix("$ ").split(" && "))
    for page in pages():
        prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for line in re.findall(r"`((?:streaming-source|make|pip install|python -m) [^`]+)`", prose):
            yield name_of(page), " ".join(line.replace(" ...", "").split())


def is_printed(console: Block) -> bool:
    return any(not line.startswith("$ ") for line in console.text.splitlines())


def words_of(line: str) -> list[str]:
    """Of a command line, without the variables that it sets."""
    found = shlex.split(line)
    while found and re.match(r"[A-Z_]+=", found[0]):
        found = found[1:]
    return found


LINES = sorted({(page, line) for page, line in commands() if "cd " not in line})


def test_each_block_is_of_a_language_that_a_test_looks_at() -> None:
    known = ("python", "py", "bash", "console", "text", "json")
    others = [name_of(page) for page in pages() for block in blocks(page) if block.language not in known]
    assert {page: others.count(page) for page in others} == DIAGRAMS, "give a block its language"
    printed = {page for page, block in all_blocks("text", "console") if block.language == "text" or is_printed(block)}
    assert printed == set(COMPARED), "compare what a page shows in a test"
    for page, test in COMPARED.items():
        assert Path(page).name in (ROOT / "tests" / test).read_text(encoding="utf-8"), page
    indented = [
        f"{page}: {line}"
        for page, text in ((name_of(page), page.read_text(encoding="utf-8")) for page in pages())
        for line in re.findall(r"\n\n( {4}\S.*)", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))
        if not page.startswith("docs/reference/")
    ]
    assert indented == [], "fence it"


@pytest.mark.parametrize(("page", "line"), LINES, ids=lambda text: text)
def test_a_command_is_one_that_there_is_with_these_options(page: str, line: str) -> None:
    program, *words = words_of(line)
    if program == "streaming-source":
        command = COMMANDS.commands[words[0]]
        given = [word for word in words[1:] if word != "[OPTIONS]"]
        needed = [each for each in command.params if each.param_type_name == "argument" and each.required]
        command.make_context(words[0], given if len(words) > 1 else ["X"] * len(needed))
    elif program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert words[0] in targets
    elif program.endswith("python") and words[0] == "-m":
        assert importlib.util.find_spec(words[1]) is not None
    elif program.endswith("python"):
        # The page of pipelines goes into a copy of its example.
        assert (ROOT / words[0]).exists() or (ROOT / "docs" / "pipeline" / words[0]).exists()
    elif program == "pip" and words[0] == "install":
        # In a clone: the project is on no package index.
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        name, _, extras = words[1].partition("[")
        known = project["optional-dependencies"] if name == "." else {"pipelines"}
        assert not name.startswith(project["name"])
        assert {extra for extra in extras.rstrip("]").split(",") if extra} <= set(known)
    else:
        assert program in OF_OTHERS


def options_in(text: str) -> set[str]:
    """The names that calls of `option` and `options` have in a program or a part of one."""
    found = set()
    for call in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)):
        called = getattr(call.func, "attr", getattr(call.func, "id", ""))
        if called == "option" and isinstance(call.args[0], ast.Constant):
            found.add(str(call.args[0].value))
        if called == "options":
            found |= {keyword.arg for keyword in call.keywords if keyword.arg is not None}
    return found


def test_each_option_in_a_program_is_on_the_page_of_options() -> None:
    rows = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    names = set(re.findall(r"^\| `([\w.*]+)` \|", rows, re.MULTILINE))
    prefixes = tuple(name.removesuffix("*") for name in names if name.endswith("*"))
    unknown = {
        (page, name)
        for page, block in all_blocks("python", "py")
        for name in options_in(block.text) - names - OTHER_OPTIONS
        if not name.startswith(prefixes)
    }
    assert unknown == set()


def test_what_is_shown_as_json_is_json() -> None:
    for _, block in all_blocks("json"):
        json.loads(block.text)

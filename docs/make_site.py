"""Hook of MkDocs: the site's pages from outside of docs/, and links that lead to files of the repository.

README.md is the first page of the site, the notebooks are pages with what they print and draw, and the page of the
command line is made of its commands. A link to any other file of the repository leads to its host.
"""

from __future__ import annotations

import base64
import inspect
import os
import posixpath
import re
from html import escape as html_escape
from html import unescape as html_unescape
from pathlib import Path
from typing import Any

import nbformat
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from streaming_source.tools.cli.main import app

ROOT = Path(__file__).resolve().parents[1]

PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    **{f"notebooks/{path.stem}.ipynb": f"notebooks/{path.stem}.md" for path in (ROOT / "notebooks").glob("*.ipynb")},
}
"""File of the repository -> page of the site; a page of docs/ has its own name."""

_BOOSTS = {"files.md": 8, "index.md": 12, "options.md": 4, "troubleshooting.md": 12}
"""Who searches for an option wants its row, for a format its page, and who has trouble the page that has its cause."""

_PLACES = {page: file for file, page in PAGES.items()}
_LINK = re.compile(r"(?<=\]\()(?!https?://|#|mailto:)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?(?=\))")
_TITLED = re.compile(r"^```(\w+) ([\w./-]+)$", re.MULTILINE)
_PICTURE = re.compile(r"^(!\[[^\]]*\]\(([^)\s]+)\))$", re.MULTILINE)
_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_HEADER = re.compile(r"<th[^>]*>(.*?)</th>", re.DOTALL)
_ROW = re.compile(r"<tr>(?:(?!</?tr>).)*?<td.*?</tr>", re.DOTALL)
_CELL = re.compile(r"<td(?P<attributes>[^>]*)>(?P<content>.*?)</td>", re.DOTALL)
_LONG = 45
"""A table that has a longer text behind its first column is read row by row on a phone; one of figures as a table."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    for source, name in PAGES.items():
        if source.endswith(".ipynb"):
            _add_notebook(ROOT / source, name, files, config)
        else:
            files.append(File.generated(config, name, content=(ROOT / source).read_text(encoding="utf-8")))
    files.append(File.generated(config, "reference/command-line.md", content=command_line()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to the site's pages, or to the repository's host; give code that belongs to a file its name."""
    name = page.file.src_uri
    folder = posixpath.dirname(_PLACES.get(name, f"docs/{name}"))

    def target(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, match["path"]))
        if not (ROOT / path).exists():
            return match[0]  # MkDocs reports it
        page_of_it = PAGES.get(path, path.removeprefix("docs/"))
        there = files.get_file_from_path(page_of_it)
        if there is not None and there.inclusion.is_included():
            return os.path.relpath(page_of_it, posixpath.dirname(name) or ".") + (match["anchor"] or "")
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"{config.repo_url}/{kind}/main/{path}"

    if name == "index.md":
        page.meta["hide"] = ["navigation"]  # it has no other page beside it
    if name in _BOOSTS:
        page.meta["search"] = {"boost": _BOOSTS[name]}
    # A picture of a page leads to itself: on a phone it is small.
    return _TITLED.sub(r'```\1 title="\2"', _PICTURE.sub(r"[\1](\2)", _LINK.sub(target, markdown)))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Give each cell of a table of texts the name of its column: on a phone each row is a list (site.css)."""

    def labelled(match: re.Match[str]) -> str:
        table = match[0]
        names = [_text(header) for header in _HEADER.findall(table)]
        rows = [[_text(cell["content"]) for cell in _CELL.finditer(row)] for row in _ROW.findall(table)]
        if all(len(text) < _LONG for row in rows for text in row[1:]):
            return table

        def row(match: re.Match[str]) -> str:
            of_columns = iter(names)

            def cell(match: re.Match[str]) -> str:
                label = html_escape(next(of_columns, ""))
                content = f"<span>{match['content']}</span>" if match["content"].strip() else ""
                return f'<td{match["attributes"]} data-label="{label}">{content}</td>'

            return _CELL.sub(cell, match[0])

        return _ROW.sub(row, table).replace("<table>", "<table data-rows>", 1)

    return _TABLE.sub(labelled, html)


def _text(html: str) -> str:
    return html_unescape(re.sub(r"<[^>]+>", "", html)).strip()


def command_line() -> str:
    """A page of the commands of `streaming-source`, as they describe themselves."""
    extra = "It needs the extra `cli`; in a clone: `pip install '.[cli]'`"
    parts = [f"# Command line\n\n{extra}. `demo` and `advise` need PySpark too.\n"]
    group: Any = typer.main.get_command(app)
    for name, command in group.commands.items():
        arguments = [each for each in command.params if each.param_type_name == "argument"]
        options = [each for each in command.params if each.param_type_name == "option"]
        shown = " ".join(_argument(each) for each in arguments)
        parts.append(f"\n## {name}\n\n```console\n$ streaming-source {name} {shown} [OPTIONS]\n```\n\n")
        parts.append(f"{inspect.cleandoc(command.help or '')}\n\n| argument, option | meaning |\n|---|---|\n")
        rows = [(f"`{_argument(each)}`", each.help) for each in arguments]
        rows += [(", ".join(f"`{text}`" for text in each.opts), each.help) for each in options]
        parts += [f"| {name} | {_cell(text)} |\n" for name, text in rows]
    return "".join(parts)


def _argument(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", r"\|")


def _add_notebook(path: Path, name: str, files: Files, config: MkDocsConfig) -> None:
    """A page of the cells of a notebook, and files of its pictures, which are beside the page."""
    text = [f"[This notebook]({path.name}) can be run as it is.\n\n"]
    pictures = 0
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            # One title a page: it has no number here.
            text.append(re.sub(r"\A# \d+\. ", "# ", cell.source))
            continue
        text.append(f"\n\n```python\n{cell.source}\n```\n\n")
        for output in cell.get("outputs", ()):
            if output.output_type == "stream":
                text.append(f"```text\n{output.text.rstrip()}\n```\n\n")
            elif "image/png" in output.get("data", ()):
                pictures += 1
                picture = f"{path.stem}-{pictures}.png"
                content = base64.b64decode(output.data["image/png"])
                files.append(File.generated(config, f"notebooks/{picture}", content=content))
                text.append(f"![What this cell draws]({picture})\n\n")
    # Below the title.
    text[0], text[1] = text[1] + "\n\n", text[0]
    files.append(File.generated(config, name, content="".join(text)))

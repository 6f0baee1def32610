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
from pathlib import Path
from typing import Any

import nbformat
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from streaming_source.cli.main import app

ROOT = Path(__file__).resolve().parents[1]

PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    **{f"notebooks/{path.stem}.ipynb": f"notebooks/{path.stem}.md" for path in (ROOT / "notebooks").glob("*.ipynb")},
}
"""File of the repository -> page of the site; a page of docs/ has its own name."""

_PLACES = {page: file for file, page in PAGES.items()}
_LINK = re.compile(r"(?<=\]\()(?!https?://|#|mailto:)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?(?=\))")
_TITLED = re.compile(r"^```(\w+) ([\w./-]+)$", re.MULTILINE)


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
    return _TITLED.sub(r'```\1 title="\2"', _LINK.sub(target, markdown))


def command_line() -> str:
    """A page of the commands of `streaming-source`, as they describe themselves."""
    extra = "It needs the extra `cli`: `pip install 'spark-watermark-alignment[cli]'`"
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

"""The site's own parts of the pages: tables that are read row by row on a phone, pictures, names of files."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mkdocs.contrib.search
import pytest
from mkdocs.config.base import load_config
from mkdocs.structure.files import Files

from tests.docs.pages import ROOT

SITE = runpy.run_path(str(ROOT / "docs" / "make_site.py"))
HEAD = "<thead><tr><th>option</th><th>me &amp; you</th></tr></thead>"


def table(*rows: tuple[str, ...]) -> str:
    cells = ("".join(f'<td style="x">{cell}</td>' for cell in row) for row in rows)
    return f"<p>a</p><table>{HEAD}<tbody>" + "".join(f"<tr>{row}</tr>" for row in cells) + "</tbody></table><p>b</p>"


def shown(html: str) -> str:
    return str(SITE["on_page_content"](html, None, None, None))


def test_each_cell_of_a_table_of_texts_has_the_name_of_its_column() -> None:
    html = shown(table(("<code>a</code>", "long " * 10), ("b", "")))
    assert "<table data-rows>" in html
    assert html.startswith("<p>a</p>")
    cells = re.findall(r'<td style="x" data-label="(.*?)">(.*?)</td>', html)
    assert cells == [
        ("option", "<span><code>a</code></span>"),
        ("me &amp; you", f"<span>{'long ' * 10}</span>"),
        ("option", "<span>b</span>"),
        ("me &amp; you", ""),
    ]


def test_a_table_of_figures_stays_a_table() -> None:
    html = table(("what was measured, in many words, more than fit on a line", "1.65"))
    assert shown(html) == html


def test_a_picture_leads_to_itself_and_a_block_has_the_name_of_its_file(monkeypatch: Any) -> None:
    monkeypatch.chdir(ROOT)
    config = load_config(str(ROOT / "mkdocs.yml"))
    page: Any = SimpleNamespace(file=SimpleNamespace(src_uri="why.md"), meta={})
    text = "![a picture](images/flights.png)\n\n```python first.py\nx = 1\n```\n"
    found = SITE["on_page_markdown"](text, page, config, Files([]))
    assert re.match(r"\[!\[a picture\]\((?P<path>\S+)\)\]\((?P=path)\)", found)
    assert '```python title="first.py"' in found
    assert Path(config.theme.custom_dir).name == "theme"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The index of the site that `make docs` builds."""
    site = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "--quiet", "build", "--strict", "--site-dir", str(site)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=600)
    yield site / "search" / "search_index.json"
    shutil.rmtree(site)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("query", "page"),
    [
        ("watermark stuck", "troubleshooting/"),
        ("watermark does not move", "troubleshooting/"),
        ("permission denied", "troubleshooting/#permission-denied-or-access-denied"),
        ("access denied", "troubleshooting/#permission-denied-or-access-denied"),
        ("empty result", "troubleshooting/"),
        ("late records", "troubleshooting/#records-come-late"),
        ("when not to use", "#what-it-costs-and-when-not-to-use-it"),
        ("csv", "files/#csv-json-and-text-lines-and-records"),
        ("nightly", "nightly-runs/"),
    ],
)
def test_a_search_for_what_is_seen_leads_to_its_page(index: Path, query: str, page: str) -> None:
    if shutil.which("node") is None:
        pytest.skip("there is no node to search the site with")
    (lunr,) = Path(mkdocs.contrib.search.__file__).parent.rglob("lunr.js")
    program = ROOT / "tests" / "docs" / "search.js"
    done = subprocess.run(["node", program, lunr, index, query], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[0] == page

"""The page of a query in a browser: no error, no network, the numbers of `explain --json`, hover, zoom and keys."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from streaming_source.cli.main import app
from streaming_source.monitoring.history import History
from streaming_source.monitoring.html_page import html_report
from tests.monitoring.situations import Situation, one_split_idle, records, silent_split

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"no browser to look at the page with: none of {', '.join(BROWSERS)} is installed")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def said() -> list[str]:
    """What the browser complained of."""
    return []


def opened(browser: Any, page: Path, said: list[str], **options: Any) -> Any:
    tab = browser.new_context(offline=True, **options).new_page()
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda request: said.append(request.url) if not request.url.startswith(("file:", "data:")) else 0)
    tab.goto(page.as_uri())
    tab.wait_for_selector("html[data-drawn]")
    return tab


def command(query: Situation, *arguments: str) -> str:
    result = CliRunner().invoke(app, [arguments[0], str(query.folder / "checkpoint"), *arguments[1:]])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_page_has_the_numbers_of_explain_and_no_error(browser: Any, tmp_path: Path, said: list[str]) -> None:
    query, page = one_split_idle(tmp_path), tmp_path / "report.html"
    try:
        assert "report.html is written" in command(query, "report", "-o", str(page))
        (explained,) = json.loads(command(query, "explain", "--json"))["sources"]
    finally:
        query.close()
    tab = opened(browser, page, said, viewport={"width": 1200, "height": 800})
    assert tab.inner_text(".why") == explained["why"]
    rows = [row.inner_text().split("\t") for row in tab.query_selector_all("table.splits tbody tr")]
    assert {row[0]: row[1:] for row in rows} == {
        split: [
            values["status"],
            values["watermark"],
            str(values["position"]),
            str(values["rowsBehind"]),
            str(values.get("rowsLate", 0)),
            values["waitsFor"],
            values["silentSince"],
        ]
        for split, values in explained["splits"].items()
    }
    (source,) = tab.evaluate("data.sources")
    last = [source[name][-1] for name in ("heldBy", "behind", "late")]
    assert last == [explained["heldBy"], explained["rowsBehind"], explained["rowsLate"]]
    drawn = tab.evaluate("data.sources[0].splits.map((s) => [s.id, new Date(s.watermark.at(-1) / 1e3).toISOString()])")
    assert {split: text[:23] for split, text in drawn} == {
        split: values["watermark"][:23] for split, values in explained["splits"].items()
    }
    canvases = tab.evaluate("[...document.querySelectorAll('canvas')].map((c) => c.width * c.height > 1e4)")
    assert canvases == [True] * 5
    assert "the report of an AlignmentListener draws these too" in tab.inner_text("section")
    assert said == []


def test_mouse_and_keys_show_a_micro_batch_and_zoom(browser: Any, tmp_path: Path, said: list[str]) -> None:
    query, page = one_split_idle(tmp_path), tmp_path / "report.html"
    try:
        command(query, "report", "-o", str(page))
    finally:
        query.close()
    tab = opened(browser, page, said, viewport={"width": 1200, "height": 800}, color_scheme="dark")
    number = "document.querySelector('output').innerText.match(/Micro-batch (\\d+)/)[1]"
    last = int(tab.evaluate(number))
    plot = tab.locator("[data-plot=times]")
    plot.focus()
    for key in ("ArrowLeft", "ArrowLeft", "ArrowRight"):
        tab.keyboard.press(key)
    assert int(tab.evaluate(number)) == last - 1
    plot.locator(".u-over").hover(position={"x": 5, "y": 50})
    tab.wait_for_function(f"{number} === '0'")
    labels = plot.locator(".u-value").first
    assert labels.inner_text() == "0"
    before = tab.screenshot()
    tab.get_by_role("button", name="Zoom in").focus()
    tab.keyboard.press("Enter")
    tab.wait_for_timeout(50)
    zoomed = tab.screenshot()
    assert zoomed != before
    tab.emulate_media(color_scheme="light")
    tab.wait_for_timeout(50)
    assert tab.screenshot() != zoomed
    assert said == []


def test_on_a_phone_nothing_is_wider_than_the_screen_and_one_micro_batch_is_enough(
    browser: Any, tmp_path: Path, said: list[str]
) -> None:
    query, page = silent_split(tmp_path), tmp_path / "report.html"
    try:
        command(query, "report", "-o", str(page))
    finally:
        query.close()
    tab = opened(browser, page, said, viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    assert tab.evaluate("document.documentElement.scrollWidth") == 360
    tab.get_by_role("button", name="One micro-batch back").tap()
    assert tab.inner_text("output").startswith("Micro-batch 0,")
    assert said == []


def test_no_name_is_taken_for_markup_and_the_page_is_small(tmp_path: Path) -> None:
    query = Situation(tmp_path, {"</script><img src=x onerror=alert(1)>": records([0]), "b": records([1])}).run()
    try:
        history, explained = History.of_checkpoint(str(tmp_path / "checkpoint")), query.explain_checkpoint()
    finally:
        query.close()
    page = html_report(history, explained, "<b>")
    assert "<img" not in page
    assert "<title>&lt;b&gt;</title>" in page
    assert len(page) < 100_000


def test_the_page_of_a_query_without_a_micro_batch_says_so(tmp_path: Path) -> None:
    (tmp_path / "checkpoint" / "offsets").mkdir(parents=True)
    result = CliRunner().invoke(app, ["report", str(tmp_path / "checkpoint"), "-o", str(tmp_path / "report.html")])
    assert result.exit_code == 0, result.output
    assert "No source of this library has planned a micro-batch" in (tmp_path / "report.html").read_text()


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(tmp_path), "-o", str(tmp_path / "report.html")])
    assert result.exit_code == 2
    assert "is no checkpoint of a streaming query" in result.stderr

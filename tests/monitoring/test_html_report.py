"""The page of a query in a browser, as a stranger would look at it: what is seen, what moves, what keys do."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from streaming_source.tools.cli.main import app
from streaming_source.tools.pages.watch import CheckpointWatch, WatchServer
from tests.monitoring.pages import four_kinds, page_of, write_page
from tests.monitoring.situations import Situation, at, one_split_idle, records, silent_split

pytestmark = pytest.mark.browser
expect = pytest.importorskip("playwright.sync_api").expect

Open = Callable[..., Any]

BOXES = """() => [...document.querySelectorAll("body *:not(.cursor)")].map((e) => {
  const { x, y, width, height } = e.getBoundingClientRect();
  return [e.tagName, x, y, width, height].join(" ");
})"""

CONTRASTS = """() => {
  const channel = (c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const back = (e) => {
    for (; e; e = e.parentElement) {
      const [r, g, b, a] = parse(getComputedStyle(e).backgroundColor);
      if (a !== 0) return [r, g, b];
    }
    return parse(getComputedStyle(document.body).backgroundColor);
  };
  const ratio = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
  const found = [];
  for (const e of document.querySelectorAll("body *")) {
    const style = getComputedStyle(e), box = e.getBoundingClientRect();
    if (!box.width || style.visibility === "hidden" || e.disabled || e.closest("[hidden]")) continue;
    const isText = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (e.closest("svg")) {
      if (e.tagName === "text") found.push([ratio(parse(style.fill), back(e)), 4.5, e.textContent]);
      else if (/\\b(sign|bar|was|line|rule)\\b/.test(e.getAttribute("class") ?? "")) {
        const paints = [style.fill, style.stroke].filter((p) => p.startsWith("rgb"));
        found.push([Math.max(...paints.map((p) => ratio(parse(p), back(e)))), 3, e.getAttribute("class")]);
      }
    } else if (isText) found.push([ratio(parse(style.color), back(e)), 4.5, e.textContent.slice(0, 40)]);
  }
  return found;
}"""


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a query with a split of each kind."""
    query = four_kinds(tmp_path_factory.mktemp("kinds"))
    page = write_page(query)
    query.close()
    return page.as_uri()


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of 5,000 splits."""
    page = tmp_path_factory.mktemp("many") / "report.html"
    page.write_text(page_of(5_000, 14), encoding="utf-8")
    return page.as_uri()


def pixels(element: Any) -> np.ndarray:
    """What is seen of an element: brightness `[height, width]`, 0 to 255."""
    return np.asarray(Image.open(io.BytesIO(element.screenshot())).convert("L"), dtype=int)


def row(tab: Any, split: str) -> Any:
    return tab.locator(f'tr[data-split="{split}"]')


def command(query: Situation, *arguments: str) -> str:
    result = CliRunner().invoke(app, [arguments[0], str(query.folder / "checkpoint"), *arguments[1:]])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_page_has_the_sentence_and_the_numbers_of_explain(open_page: Open, tmp_path: Path) -> None:
    query, page = one_split_idle(tmp_path), tmp_path / "report.html"
    try:
        assert "report.html is written" in command(query, "report", "-o", str(page))
        (explained,) = json.loads(command(query, "explain", "--json"))["sources"]
    finally:
        query.close()
    tab = open_page(page.as_uri(), offline=True)
    assert tab.inner_text("section .why") == explained["why"]
    for split, values in explained["splits"].items():
        cells = row(tab, split).locator("td").all_inner_texts()
        assert cells[0].strip() == values["status"]
        assert cells[3:5] == [f"{values['rowsBehind']:,}", str(values.get("rowsLate", 0))]
        row(tab, split).locator("button").click()
        details = tab.locator("tr.details dd").all_inner_texts()
        assert values["watermark"][:19].replace("T", " ") + " UTC" in details
        assert str(values["position"]) in details
        row(tab, split).locator("button").click()
    assert tab.locator("tr.lane.holds").get_attribute("data-split") == explained["heldBy"][0]


def test_the_state_after_the_last_micro_batch_is_seen(open_page: Open, kinds: str) -> None:
    tab = open_page(kinds, offline=True)
    for split in ("held", "ahead", "idle", "middle"):
        strip = pixels(row(tab, split).locator("td.strip svg"))
        background = strip[0, 0]
        # The last eight pixels show something, in every lane.
        assert (abs(strip[:, -9:-1] - background) > 40).any(axis=0).all(), split
    for plot in tab.locator("figure:visible .plot").all():
        box, cursor = plot.bounding_box(), plot.locator(".cursor").bounding_box()
        assert cursor["width"] >= 10
        assert abs(cursor["x"] + cursor["width"] - box["x"] - box["width"]) < 6
    # The line goes on to the end of the last micro-batch.
    line = tab.locator("[data-part=times] .line.watermark").get_attribute("d")
    cursor = tab.locator("[data-part=times] .cursor")
    end = float(cursor.get_attribute("x")) + float(cursor.get_attribute("width"))
    assert float(re.findall(r"H([\d.]+)", line)[-1]) == pytest.approx(end, abs=0.2)


def test_nothing_moves_where_the_pointer_is(open_page: Open, kinds: str) -> None:
    tab = open_page(kinds, height=2_400, offline=True)
    before = tab.evaluate(BOXES)
    number = tab.inner_text("[data-part=charts-at]")
    for target in (
        "[data-part=times] .plot",
        "[data-part=drift] .plot",
        "[data-part=late] .plot",
        "td.track >> nth=1",
        "button >> nth=0",
    ):
        for share in (0.3, 0.6, 0.95):
            box = tab.locator(target).bounding_box()
            tab.locator(target).hover(position={"x": box["width"] * share, "y": box["height"] / 2})
            assert tab.evaluate(BOXES) == before, target
    box = tab.locator("[data-part=times] .plot").bounding_box()
    tab.locator("[data-part=times] .plot").hover(position={"x": box["width"] * 0.4, "y": 60})
    assert tab.inner_text("[data-part=charts-at]") != number
    tab.mouse.move(1, 1)
    assert tab.inner_text("[data-part=charts-at]") == number


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_contrast_is_that_of_wcag_aa(open_page: Open, kinds: str, scheme: str) -> None:
    tab = open_page(kinds, color_scheme=scheme, offline=True)
    row(tab, "held").locator("button").click()
    tab.locator("[data-part=only-paused]").click()
    tab.locator("[data-part=only-paused]").click()
    found = tab.evaluate(CONTRASTS)
    assert len(found) > 100
    assert [one for one in found if one[0] < one[1]] == []
    back = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (back == "rgb(255, 255, 255)") == (scheme == "light")


def test_active_paused_and_idle_differ_without_their_colours(open_page: Open, kinds: str) -> None:
    tab = open_page(kinds, offline=True)
    filled = {}
    for split, status in {"middle": "active", "ahead": "paused", "idle": "idle"}.items():
        assert row(tab, split).locator("td.status").inner_text().strip() == status
        bar = row(tab, split).locator(f"rect.bar.{status}").first.bounding_box()
        image = np.asarray(Image.open(io.BytesIO(tab.screenshot())).convert("L"), dtype=int)
        # Within the bar, away from its edges and from the lines through all lanes.
        top, left = round(bar["y"]) + 3, round(bar["x"]) + 3
        part = image[top : top + 6, left : left + 24]
        filled[status] = float((part < 170).mean())
    assert filled["active"] > 0.95
    assert 0.25 < filled["paused"] < 0.75
    assert filled["idle"] < 0.1
    shapes = {tab.locator(f"[data-part=only-{status}] .sign").evaluate("(e) => e.outerHTML") for status in filled}
    assert len(shapes) == 3
    assert tab.locator("tr.holds .badge").inner_text() == "holds"


def test_all_distances_have_as_many_digits(open_page: Open, kinds: str, tmp_path: Path) -> None:
    tab = open_page(kinds, offline=True)
    assert all(re.fullmatch(r"[+\u2212]?\d+ s", text) for text in tab.locator("td.ahead").all_inner_texts())
    query = silent_split(tmp_path)
    page = write_page(query)
    query.close()
    tab = open_page(page.as_uri(), offline=True)
    assert tab.locator("td.ahead").all_inner_texts() == ["0.0 s", *["+7.0 s"] * 4]


def test_the_watermark_and_the_limit_go_through_all_lanes(open_page: Open, kinds: str) -> None:
    tab = open_page(kinds, offline=True)
    for kind in ("watermark", "limit"):
        places = {round(line.bounding_box()["x"], 1) for line in tab.locator(f"td.track .rule.{kind}").all()}
        assert len(places) == 1
        expect(tab.locator(f"td.track .rule.{kind}")).to_have_count(4)
        assert kind in tab.locator(f".flag.{kind}").text_content()
    rule = tab.locator("td.track .rule.watermark").first.bounding_box()
    end = row(tab, "held").locator(".end").bounding_box()
    assert abs(end["x"] + end["width"] / 2 - rule["x"]) < 3


def test_keys_reach_splits_micro_batches_and_the_search(open_page: Open, kinds: str) -> None:
    tab = open_page(kinds, offline=True)
    focused = "document.activeElement.closest('[data-split]')?.dataset.split"
    for _ in range(20):
        tab.keyboard.press("Tab")
        if tab.evaluate(focused):
            break
    assert tab.evaluate(focused) == "held"
    assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    tab.keyboard.press("ArrowDown")
    second = tab.evaluate(focused)
    assert second not in (None, "held")
    tab.keyboard.press("Enter")
    expect(tab.locator("tr.details")).to_have_count(1)
    assert tab.evaluate(focused) == second, "the focus is kept"
    assert tab.locator(f'tr[data-split="{second}"] button').get_attribute("aria-expanded") == "true"
    assert tab.locator("[data-part=key-chosen]").inner_text().strip() == f"split {second}"
    tab.keyboard.press("End")
    assert tab.evaluate(focused) == "idle"
    tab.locator("[data-part=slider]").focus()
    before = tab.inner_text("[data-part=when]")
    tab.keyboard.press("ArrowLeft")
    after = tab.inner_text("[data-part=when]")
    assert "the last one" in before
    assert "the last one" not in after
    assert tab.locator("[data-part=slider]").get_attribute("aria-valuetext") == after
    tab.keyboard.press("Home")
    assert tab.inner_text("[data-part=when]").startswith("Micro-batch 0, planned 2026-01-01 10:00:00 UTC")
    assert {text.strip() for text in tab.locator("td.status").all_inner_texts()} == {"active"}
    tab.keyboard.press("/")
    assert tab.evaluate("document.activeElement.type") == "search"


def test_each_chart_has_a_text_and_all_are_a_table(open_page: Open, kinds: str) -> None:
    tab = open_page(kinds, offline=True)
    labels = [picture.get_attribute("aria-label") for picture in tab.locator("figure:visible svg[role=img]").all()]
    assert len(labels) == 4
    assert all(re.search(r"by micro-batch: .*\d", label) for label in labels)
    tab.locator("summary").click()
    rows = tab.locator("[data-part=rows-table] tbody tr")
    expect(rows).to_have_count(tab.evaluate("data.sources[0].batches.length"))
    assert rows.first.locator("td").nth(3).inner_text() == "held"
    tree = tab.locator("table.lanes").aria_snapshot()
    assert re.search(r'row "held: details holds active watermark 2026-01-01 10:\d\d:\d\d UTC 0 s', tree), tree


def test_of_5000_splits_20_are_shown_and_a_search_finds_any(open_page: Open, many: str) -> None:
    tab = open_page(many, offline=True)
    lanes = tab.locator("tr.lane")
    expect(lanes).to_have_count(20)
    assert lanes.first.get_attribute("data-split") == "split-1"
    assert tab.inner_text("[data-part=found]") == "20 of 5,000 splits shown."
    tab.locator("[data-part=search]").fill("split-4321")
    assert [lane.get_attribute("data-split") for lane in lanes.all()] == ["split-4321"]
    assert tab.inner_text("[data-part=found]").startswith("1 of 5,000 splits found")
    expect(lanes.locator("td.track .bar")).not_to_have_count(0)
    expect(lanes.locator("td.strip .was")).not_to_have_count(0)
    tab.locator("[data-part=search]").fill("4321 is not there")
    expect(lanes).to_have_count(0)
    tab.locator("[data-part=search]").fill("")
    tab.locator("[data-part=only-idle]").click()
    assert {text.strip() for text in tab.locator("td.status").all_inner_texts()} == {"idle"}
    tab.locator("[data-part=only-idle]").click()
    tab.locator("[data-part=more]").click()
    expect(lanes).to_have_count(120)
    tab.locator("[data-part=order]").select_option("behind")
    assert tab.locator("td.behind").first.inner_text() == "12"


def test_a_page_of_5000_splits_is_drawn_at_once(open_page: Open, many: str) -> None:
    tab = open_page(many, offline=True)
    took_ms = tab.evaluate("performance.getEntriesByType('navigation')[0].domComplete")
    # 0.2 s on a quiet machine.
    assert took_ms < 5_000


def test_of_a_query_that_has_ended_nothing_is_none(open_page: Open, tmp_path: Path) -> None:
    splits = {f"day={day:02}": records(range(3 * day, 3 * day + 60, 3)) for day in range(1, 19)}
    query = Situation(tmp_path, splits, bounded=True, drift="20 seconds", max_rows=30).run()
    page = write_page(query)
    query.close()
    tab = open_page(page.as_uri(), offline=True)
    assert tab.inner_text("section .why") == "The source has ended; all windows are closed."
    assert [text.strip() for text in tab.locator("td.status").all_inner_texts()] == ["finished"] * 18
    assert "none" not in tab.inner_text("table.lanes")
    assert tab.inner_text("[data-part=times] .value") == "at the end"
    assert tab.inner_text("[data-part=found]") == "No split is in work: all 18 that were have been read to the end."
    tab.locator("[data-part=slider]").focus()
    tab.keyboard.press("Home")
    assert "active" in tab.locator("td.status").first.inner_text()
    assert "none" not in tab.inner_text("body").replace("none yet", "")


def test_ticks_are_round(open_page: Open, kinds: str) -> None:
    tab = open_page(kinds, offline=True)

    def ticks(part: str) -> list[str]:
        return [text.text_content() for text in tab.locator(f"[data-part={part}] .tick[text-anchor=end]").all()]

    assert ticks("drift") == ["0 s", "5 s", "10 s", "15 s", "20 s"]
    assert all(re.fullmatch(r"10:\d\d:[0-5][05](2026-01-01)?", text) for text in ticks("times"))
    assert any("2026" in text for text in ticks("times"))
    assert ticks("late") == ["0", "1"]
    assert any("2026-01-01" in text for text in tab.locator("th.track .tick").all_text_contents())


@pytest.mark.parametrize("width", [390, 320])
def test_on_a_phone_nothing_is_wider_than_the_screen_and_all_can_be_tapped(
    open_page: Open, tmp_path: Path, width: int
) -> None:
    query = silent_split(tmp_path)
    page = write_page(query, "Watermarks: s3://bucket/" + "a-long-name-without-a-break" * 4)
    query.close()
    tab = open_page(page.as_uri(), width, 844, is_mobile=True, has_touch=True, offline=True)
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    for control in tab.locator("button:visible, input:visible, select:visible").all():
        box = control.bounding_box()
        assert min(box["width"], box["height"]) >= 24, control
        assert box["x"] + box["width"] <= width
    row(tab, "carrier=HA").locator("button").tap()
    assert "Rows behind" in tab.inner_text("tr.details")
    assert tab.locator("td.track svg").first.bounding_box()["width"] > 0.85 * width


def test_on_paper_there_are_no_controls(open_page: Open, kinds: str) -> None:
    tab = open_page(kinds, color_scheme="dark", offline=True)
    tab.emulate_media(media="print")
    assert tab.locator("[data-part=slider]").is_hidden()
    assert tab.locator("[data-part=search]").is_hidden()
    assert tab.locator("tr.lane").first.is_visible()
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert len(tab.pdf()) > 10_000


def test_names_are_shown_as_they_are_and_never_run(open_page: Open, tmp_path: Path) -> None:
    name = "</script><img src=x onerror=alert(1)>"
    query = Situation(tmp_path, {name: records([0]), '"]&amp;': records([1])}).run()
    page = write_page(query, "<b>bold</b>")
    query.close()
    tab = open_page(page.as_uri(), offline=True)
    assert tab.inner_text("h1") == "<b>bold</b>"
    expect(tab.locator("img")).to_have_count(0)
    titles = {button.get_attribute("title") for button in tab.locator("tbody th button").all()}
    assert titles == {name, '"]&amp;'}
    tab.locator("tbody th button").first.click()
    assert tab.locator("tr.details dd").first.inner_text() in titles


FEW = {("hosts", 1920), ("directories", 1000), ("words", 390)}
LONG_NAMES = {
    "hosts": "log=host-{0:04}.rack07.dc0.example.com",
    "directories": "region=eu-west-1/service=checkout/host=ip-10-0-{0}.internal",
    "their middle": "{0:0>60}/logs-of-a-service-with-a-name-that-is-long-and-common-to-all",
    "words": "one-name-" + "that-is-very-long-" * 5 + "{0}",
}


NAMES_AND_WIDTHS = [
    pytest.param(name, width, id=f"{kind}-{width}", marks=[] if (kind, width) in FEW else pytest.mark.soak)
    for kind, name in LONG_NAMES.items()
    for width in (1920, 1440, 1000, 390)
]


@pytest.mark.parametrize(("name", "width"), NAMES_AND_WIDTHS)
def test_long_names_are_cut_once_and_told_apart(open_page: Open, tmp_path: Path, name: str, width: int) -> None:
    (tmp_path / "page.html").write_text(page_of(2000, 3, name))
    tab = open_page((tmp_path / "page.html").as_uri(), width, offline=True)
    names = tab.locator("tr.lane th button")
    labels = names.all_text_contents()
    assert len(set(labels)) == len(labels) == 20
    # Nothing is cut again, or pushed out of its cell or on to another line.
    assert (
        names.evaluate_all("all => all.filter((e) => e.scrollWidth > e.clientWidth || e.clientHeight > 40).length") == 0
    )
    cells = "all => all.filter((e) => e.scrollWidth > e.clientWidth).length"
    assert tab.locator("tr.lane th").evaluate_all(cells) == 0
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    for most in (8, 16, 30):
        found = tab.evaluate(f"[...labelsOf(data.sources[0].splits.id, {most}).values()]")
        assert len(set(found)) == 2000


# ---- live ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def live(tmp_path: Path) -> Iterator[tuple[Situation, WatchServer]]:
    query = Situation(tmp_path, {"a": records([0]), "b": records([10])}, idle=None)
    server = WatchServer(CheckpointWatch(str(tmp_path / "checkpoint"), interval_s=0.05))
    server.start()
    yield query, server
    server.close()
    query.close()


def test_a_live_page_follows_the_query_and_keeps_what_its_reader_has_typed(
    open_page: Open, live: tuple[Situation, WatchServer]
) -> None:
    query, server = live
    tab = open_page(server.url)
    assert tab.inner_text("#note").startswith("Nothing is known yet")
    query.run()
    tab.wait_for_selector("tr.lane")
    assert tab.inner_text("#live") == "Live"
    tab.locator("[data-part=search]").fill("b")
    expect(tab.locator("tr.lane")).to_have_count(1)
    for second in range(20, 23):
        query.clock.advance("1 second")
        for split in ("a", "b"):
            query.source.go_on(split, at(second))
        query.run()
    tab.wait_for_selector("[data-part=when]:has-text('Micro-batch 3,')")
    assert tab.evaluate("data.sources[0].batches") == [0, 1, 2, 3]
    assert tab.locator("[data-part=search]").input_value() == "b"
    assert tab.evaluate("document.activeElement.type") == "search"
    assert tab.locator("tr.lane").get_attribute("data-split") == "b"
    shutil.rmtree(query.folder / "checkpoint")
    tab.wait_for_selector("#note:has-text('is not there any more')")
    expect(tab.locator("section")).to_have_count(0)


def test_a_live_page_is_not_called_live_over_a_query_that_does_not_run(open_page: Open, tmp_path: Path) -> None:
    query = silent_split(tmp_path)  # months ago: its idle split would have been announced
    server = WatchServer(CheckpointWatch(str(tmp_path / "checkpoint"), interval_s=0.05))
    server.start()
    try:
        tab = open_page(server.url)
        expect(tab.locator("#live[data-state=over]")).to_have_text("The query does not run")
    finally:
        server.close()
        query.close()


def test_a_live_page_shows_that_its_server_has_ended(chromium: Any, live: tuple[Situation, WatchServer]) -> None:
    query, server = live
    query.run()
    tab = chromium.new_page()
    tab.goto(server.url)
    tab.wait_for_selector("#live[data-state=live]")
    server.close()
    tab.wait_for_selector("#live[data-state=lost]")
    assert tab.inner_text("#live") == "Not connected: what is shown is of then"
    again = WatchServer(CheckpointWatch(str(query.folder / "checkpoint")), urlsplit(server.url).port or 0)
    again.start()
    try:
        tab.wait_for_selector("#live:has-text('open the address that watch printed last')")
    finally:
        again.close()
    tab.context.close()

"""What an audit ends with: the lines that lose nothing, and a page."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import streaming_source
from streaming_source.tools.auditing.html_page import html_page
from streaming_source.tools.auditing.report import fixes
from streaming_source.tools.cli.main import app
from tests.auditing import naive
from tests.auditing.naive import SECOND, Query, Time

MINUTE = 60 * SECOND
QUERY = Query(5_000, MINUTE, MINUTE)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A slow and a fast directory in turn; three seconds out of order in the slow one. One name is markup."""
    batches: list[list[tuple[str, list[Time]]]] = []
    for part in range(8):
        name, step = ("<b>fast", 8) if part % 2 else ("slow", 1)
        begin = naive.T0 + part // 2 * 60 * step * SECOND
        times: list[Time] = [begin + i * step * SECOND for i in range(60)]
        if name == "slow":
            times[10], times[13] = times[13], times[10]
        batches.append([(f"{name}/{part}.parquet", times)])
    naive.write_files(tmp_path / "in", batches)
    naive.write_checkpoint(tmp_path / "checkpoint", tmp_path / "in", QUERY, naive.run(QUERY, batches))
    return tmp_path / "checkpoint"


def test_the_text_ends_with_lines_of_read_stream_and_the_bound_of_the_data(checkpoint: Path) -> None:
    done = CliRunner().invoke(app, ["audit", str(checkpoint), "--window", "1 minute", "--mode", "append"])
    text = done.stdout
    assert "With maxOutOfOrderness = 3 seconds, 480 of the 480 records there are on time:" in text
    code = text[text.index("from streaming_source import") :]
    compile(code, "printed", "exec")
    assert '.option("eventTimeColumn", "ts")' in code
    assert f'.load("{checkpoint.parent}/in")' in code
    as_json = json.loads(
        CliRunner().invoke(app, ["audit", str(checkpoint), "--window", "1 minute", "--mode", "append", "--json"]).stdout
    )
    assert as_json["fixes"][0]["options"]["maxOutOfOrderness"] == "3 seconds"
    assert (as_json["fixes"][0]["records"], as_json["fixes"][0]["late"]) == (480, 0)


def test_the_bound_is_left_to_the_user_where_no_advice_is_wanted(checkpoint: Path) -> None:
    done = CliRunner().invoke(
        app, ["audit", str(checkpoint), "--window", "1 minute", "--mode", "append", "--no-advise"]
    )
    assert "the bound maxOutOfOrderness is found by --advise" in done.stdout
    assert 'maxOutOfOrderness"' not in done.stdout


def test_options_of_the_audit_alone_are_not_in_the_lines(checkpoint: Path) -> None:
    found = streaming_source.audit(str(checkpoint), window="1 minute", mode="append")
    (fix,) = fixes(found, {"sourceArchiveDir": "/archive", "fileFormat": "parquet"})
    assert dict(fix.options) == {"eventTimeColumn": "ts", "fileFormat": "parquet"}


def test_the_lines_for_logs_of_text_read_the_part_that_is_the_time(tmp_path: Path) -> None:
    written = [[f"[2024-01-01 00:{minute:02}:00] line"] for minute in (0, 30, 50, 2, 3)]
    batches = []
    for number, lines in enumerate(written):
        path = tmp_path / "in" / f"{number}.log"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(lines), encoding="utf-8")
        times = [1_704_067_200 * SECOND + int(line[15:17]) * MINUTE for line in lines]
        batches.append([(f"{number}.log", times)])
    naive.write_checkpoint(tmp_path / "checkpoint", tmp_path / "in", QUERY, naive.run(QUERY, batches))
    options = ["-o", "timePattern=^\\[(.*?)\\]", "-o", "timeZone=UTC", "--time", "value"]
    arguments = ["audit", str(tmp_path / "checkpoint"), "--window", "1 minute", "--mode", "append", *options]
    text = CliRunner().invoke(app, arguments).stdout
    assert "5 of the 5 records there are on time" in text
    code = text[text.index("from streaming_source import") :]
    assert '.option("timePattern", "^\\\\[(.*?)\\\\]")' in code


def test_the_page_has_the_sentences_the_counts_and_nothing_unescaped(checkpoint: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = CliRunner().invoke(
        app, ["audit", str(checkpoint), "--window", "1 minute", "--mode", "append", "--html", str(page), "--json"]
    )
    assert done.exit_code == 0
    html = page.read_text()
    assert "<b>fast" not in html
    data = json.loads(re.search(r'id="data">(.*?)</script>', html, re.DOTALL)[1])  # type: ignore[index]
    found = json.loads(done.stdout)
    assert sum(data["dropped"]) == found["dropped"] > 0
    assert {split["id"] for split in data["splits"]} == {"<b>fast", "slow"}
    assert f"{found['dropped']:,} of 480 rows were dropped" in html
    assert "With maxOutOfOrderness = 3 seconds, 480 of the 480 records there are on time:" in html
    assert ".option(&quot;maxOutOfOrderness&quot;, &quot;3 seconds&quot;)" in html


@pytest.mark.browser
def test_the_page_draws_what_was_lost_and_nothing_moves_where_the_pointer_is(
    checkpoint: Path, tmp_path: Path, open_page: Callable[..., Any]
) -> None:
    page = tmp_path / "page.html"
    found = streaming_source.audit(str(checkpoint), window="1 minute", mode="append")
    page.write_text(html_page(found, "Audit"), encoding="utf-8")
    phone = open_page(page.as_uri(), 390, 844, offline=True)
    assert phone.evaluate("document.documentElement.scrollWidth") == 390
    tab = open_page(page.as_uri(), height=2_400, offline=True)
    marks = "(e) => (e.getAttribute('d').match(/M/g) ?? []).length"
    read, lost = (sum(line.evaluate(marks) for line in tab.locator(f".line.{kind}").all()) for kind in ("read", "lost"))
    latest = [us for us in found.reads["latest"].to_pylist() if us is not None]
    assert read + lost == len(latest)
    assert lost > 0
    elements = "[...document.querySelectorAll('body *:not(.cursor)')]"
    boxes = f"{elements}.map((e) => JSON.stringify(e.getBoundingClientRect()))"
    caption = [tab.locator(f"[data-part=reach] .{part}").bounding_box() for part in ("value", "keys")]
    assert caption[0]["x"] + caption[0]["width"] <= caption[1]["x"] or caption[0]["y"] + 20 <= caption[1]["y"]
    middles = "[...document.querySelectorAll('[data-part=reach] .keys > *')].map((e) => e.getBoundingClientRect())"
    legend = tab.evaluate(f"{middles}.map((box) => Math.round(box.y + box.height / 2))")
    assert max(legend) - min(legend) <= 1
    assert "Directories" in tab.locator("h2").all_inner_texts()
    before = tab.evaluate(boxes)
    for part in ("reach", "read", "dropped"):
        tab.locator(f"[data-part={part}] .plot").hover(position={"x": 300, "y": 60})
        assert tab.evaluate(boxes) == before
    assert tab.locator("[data-part=split] option").all_inner_texts() == ["none", "<b>fast", "slow"]
    tab.locator("[data-part=split]").select_option("<b>fast")
    pytest.importorskip("playwright.sync_api").expect(tab.locator(".line.picked")).to_have_count(1)
    assert tab.evaluate("document.documentElement.scrollWidth") == 1_440


@pytest.mark.parametrize("command", ["audit", "explain"])
def test_where_nobody_reads_the_output_a_command_ends_without_a_word(checkpoint: Path, command: str) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    settings = ["--window", "1 minute", "--mode", "append"] if command == "audit" else []
    program = "from streaming_source.tools.cli import main; main()"
    with os.fdopen(theirs, "w") as closed:
        done = subprocess.run(
            [sys.executable, "-c", program, command, str(checkpoint), *settings],
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "")


def test_on_a_terminal_there_is_a_progress_bar_and_it_is_not_in_the_output(checkpoint: Path) -> None:
    ours, theirs = os.openpty()
    program = "from streaming_source.tools.cli import main; main()"
    arguments = ["audit", str(checkpoint), "--window", "1 minute", "--mode", "append", "--no-advise"]
    with os.fdopen(ours, "rb") as terminal:
        with os.fdopen(theirs, "wb") as stderr:
            done = subprocess.run(
                [sys.executable, "-c", program, *arguments],
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, "TERM": "xterm"},
                check=True,
            )
        shown = os.read(terminal.fileno(), 65_536)
    assert b"reading event times" in shown
    assert b"8/8" in shown
    assert b"reading event times" not in done.stdout


def test_for_a_program_an_error_is_one_line_however_long(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["audit", f"{tmp_path}/{'y' * 100}"])
    assert done.exit_code == 2
    assert done.stderr.endswith("anew with it\n")
    assert len(done.stderr.splitlines()) == 1

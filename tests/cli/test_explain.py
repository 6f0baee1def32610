"""`streaming-source explain`, as a user runs it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from click.testing import Result
from deltalake import CommitProperties, Transaction, write_deltalake
from typer.testing import CliRunner

import streaming_source
from alignment import WatermarkStrategy
from streaming_source.connectors.delta import DeltaSource
from streaming_source.spark.offsets import OffsetCodec
from streaming_source.testing import SourceHarness
from streaming_source.tools.cli.main import app
from tests.checkpoint.written import WrittenCheckpoint
from tests.monitoring.situations import Situation, at, records, silent_split


@pytest.fixture
def query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Situation]:
    made = silent_split(tmp_path)
    monkeypatch.setattr("streaming_source.monitoring.explained._clock_us", made.clock.now_us)
    yield made
    made.close()


def explained(query: Situation, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["explain", str(query.folder / "checkpoint"), *arguments])


def test_one_sentence_comes_first_and_then_the_splits(query: Situation) -> None:
    result = explained(query)
    heading, first, *lines = result.stdout.splitlines()
    assert (result.exit_code, heading.partition(",")[0]) == (0, "As of micro-batch 0")
    assert first.startswith("The watermark stands at 2026-01-01 09:59:57 UTC because split 'carrier=HA' has delivered")
    assert [line.split()[0] for line in lines[-5:]] == [f"carrier={code}" for code in ("HA", "AA", "B6", "DL", "UA")]


def test_a_micro_batch_that_is_missing_shows_that_the_query_does_not_run(query: Situation) -> None:
    query.clock.advance("90 seconds")
    assert json.loads(explained(query, "--json").stdout)["sources"][0]["cause"] == "silent"
    query.clock.advance("90 seconds")
    (source,) = json.loads(explained(query, "--json").stdout)["sources"]
    assert (source["cause"], [advice["option"] for advice in source["advice"]]) == ("stopped", ["query"])
    assert "no micro-batch announces that split 'carrier=HA' has become idle" in source["why"]


def test_json_is_for_programs(query: Situation) -> None:
    found = json.loads(explained(query, "--json").stdout)
    assert (found["batch"], found["committed"]) == (0, True)
    (source,) = found["sources"]
    assert (source["watermark"], source["heldBy"]) == ("2026-01-01T09:59:57.999999Z", ["carrier=HA"])
    assert source["bounds"] == {
        "maxOutOfOrderness": "2 seconds",
        "maxDrift": "10 seconds",
        "idleTimeout": "1 minute",
    }


def test_the_history_has_a_line_for_each_micro_batch(query: Situation) -> None:
    query.source.go_on("carrier=HA", *records([5]))
    query.let_pass(1)
    *_, first, second = [line for line in explained(query, "--history").stdout.splitlines() if line.strip()]
    assert first.split()[:6] == ["0", "2026-01-01", "10:00:00", "2026-01-01", "09:59:57", "slowest"]
    assert second.split()[:5] == ["1", "2026-01-01", "10:00:20", "2026-01-01", "10:00:02"]
    batches = json.loads(explained(query, "--history", "--json").stdout)["batches"]
    assert [batch["sources"][0]["rowsBehind"] for batch in batches] == [208, 188]


def test_watch_says_it_again_when_it_changes(query: Situation, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[Any] = []

    def sleep(_: float) -> None:
        steps.append(None)
        if len(steps) == 2:
            query.source.go_on("carrier=HA", *records([5]))
            query.let_pass(1)
        if len(steps) == 4:
            raise KeyboardInterrupt

    # Not of the module itself: other threads of the process sleep, too.
    monkeypatch.setattr("streaming_source.tools.cli.main.time", SimpleNamespace(sleep=sleep))
    result = explained(query, "--history", "--json", "--watch")
    assert result.exit_code == 0
    assert [len(json.loads(line)["batches"]) for line in result.stdout.splitlines()] == [1, 2]


def test_what_is_no_checkpoint_and_the_version(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["explain", str(tmp_path)])
    assert result.exit_code == 2
    assert f"error: {tmp_path} is no checkpoint of a streaming query" in result.stderr
    assert CliRunner().invoke(app, ["--version"]).stdout == f"{streaming_source.__version__}\n"


def test_it_goes_through_to_the_writer_upstream(query: Situation, tmp_path: Path) -> None:
    """A query reads what this one has written: its watermark is held by this one's silent split."""
    upstream = query.folder / "checkpoint"
    (upstream / "metadata").write_text('{"id":"7e3f"}')
    last = max(int(file.name) for file in (upstream / "offsets").iterdir())
    rows = pa.table({"event_time": pa.array([at(0)], pa.timestamp("us", "UTC"))})
    properties = CommitProperties(app_transactions=[Transaction("7e3f", last)])
    write_deltalake(tmp_path / "table", rows, commit_properties=properties)
    source = DeltaSource(str(tmp_path / "table"), watermark_from=str(upstream))
    strategy = WatermarkStrategy.from_source_watermarks().with_timestamp_assigner("event_time")
    hop = SourceHarness(source, strategy)
    hop.run()
    written = WrittenCheckpoint(tmp_path / "hop")
    written.plan(0, 0, json.dumps(OffsetCodec(source).encode(hop.state, hop.coordinator.explain())))
    written.commit(0)
    hop.close()

    first, second = CliRunner().invoke(app, ["explain", str(written), "--through"]).stdout.split(f"\n\n{upstream}\n")
    assert f"the writer of what is read here, {upstream}, has claimed" in " ".join(first.split())
    assert "because split 'carrier=HA' has delivered nothing" in " ".join(second.split())
    hops = json.loads(CliRunner().invoke(app, ["explain", str(written), "--through", "--json"]).stdout)["hops"]
    assert [one["sources"][0]["cause"] for one in hops] == ["upstream", "silent"]
    assert hops[0]["sources"][0]["upstream"] == str(upstream)


def test_a_query_over_sources_of_sparks_own_is_explained_by_what_spark_does(tmp_path: Path) -> None:
    stock = WrittenCheckpoint(tmp_path / "stock")
    stock.plan(0)
    assert "None of its sources is of this library" in CliRunner().invoke(app, ["explain", str(stock)]).stdout


@pytest.mark.parametrize(
    "arguments", [(), ("--history",), ("--through",), ("--split", "carrier=HA\x1b[2J\nERROR forged")]
)
def test_a_name_in_a_checkpoint_neither_moves_the_cursor_nor_begins_a_line(
    query: Situation, arguments: tuple[str, ...]
) -> None:
    for path in (query.folder / "checkpoint").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes().replace(b"carrier=HA", b"carrier=HA\\u001b[2J\\nERROR forged"))
    printed = explained(query, *arguments)
    assert printed.exit_code == 0, printed.output
    assert "\x1b" not in printed.stdout
    assert not [line for line in printed.stdout.splitlines() if line.startswith("ERROR")]


def test_a_page_shows_names_without_characters_that_turn_or_move_text(query: Situation, tmp_path: Path) -> None:
    for path in (query.folder / "checkpoint").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes().replace(b"carrier=HA", b"carrier=HA\\u001b[2J\\u202egpj.exe"))
    page = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["report", str(query.folder / "checkpoint"), "--output", str(page)])
    assert done.exit_code == 0, done.output
    written = page.read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', written, re.DOTALL)[1])  # type: ignore[index]
    shown = written + json.dumps(data, ensure_ascii=False)
    assert r"carrier=HA\\x1b[2J\\u202egpj.exe" in shown
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "\\u001b" not in shown

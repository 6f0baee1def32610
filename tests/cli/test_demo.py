"""The demo, as a user runs it, on two months of the flights; and what it is made of."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from streaming_source.cli.demo import picture
from streaming_source.cli.demo.flights import load_flights, out_of_orderness_us, whole_hours, write_logs
from streaming_source.cli.demo.history import AlignedBatch, SparkBatch, SplitState, aligned_history, spark_history
from streaming_source.cli.demo.picture import save_picture
from streaming_source.cli.demo.report import Verdict
from streaming_source.cli.demo.runs import Plan
from streaming_source.cli.main import app

SCRIPT = Path(sys.executable).parent / "streaming-source"


def as_time(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.fixture(scope="module")
def flights() -> pa.Table:
    return load_flights()


def test_all_flights_of_the_year_are_there(flights: pa.Table) -> None:
    assert flights.num_rows == 336_776
    assert len(flights["carrier"].unique()) == 16


def test_a_departure_is_the_scheduled_one_in_utc_plus_the_delay(flights: pa.Table) -> None:
    # UA 1545 on 1 January: scheduled at 5:15 in New York (winter), two minutes late.
    rows = flights.filter((pc.field("carrier") == "UA") & (pc.field("flight") == 1545)).to_pylist()
    first = min(rows, key=lambda row: row["scheduled"])
    assert first["scheduled"] == as_time("2013-01-01T10:15")
    assert first["departure"] == as_time("2013-01-01T10:17")


def test_a_cancelled_flight_counts_when_it_was_scheduled(flights: pa.Table) -> None:
    # EV 4308 on 1 January, scheduled at 16:30 in New York, was cancelled.
    rows = flights.filter((pc.field("carrier") == "EV") & (pc.field("flight") == 4308)).to_pylist()
    day = [row for row in rows if row["scheduled"].date().isoformat() == "2013-01-01"]
    assert [(row["scheduled"], row["departure"]) for row in day] == [(as_time("2013-01-01T21:30"),) * 2]


def test_the_bound_on_out_of_orderness_is_exact(flights: pa.Table) -> None:
    bounds = out_of_orderness_us(flights)
    for carrier in ("MQ", "HA", "OO"):
        latest, naive = None, 0
        for departure in flights.filter(pc.field("carrier") == carrier)["departure"].to_pylist():
            latest = departure if latest is None else max(latest, departure)
            naive = max(naive, round((latest - departure).total_seconds() * 1_000_000))
        assert bounds[carrier] == naive
    assert max(bounds.values()) > 18 * 3_600_000_000, "delays put flights far out of order"
    assert whole_hours(max(bounds.values())) == "19 hours"


def test_logs_hold_each_flight_once_and_roll_by_rows(flights: pa.Table, tmp_path: Path) -> None:
    few = flights.filter(pc.field("carrier").isin(["HA", "VX"]))
    files = write_logs(few, tmp_path, rows_per_file=2000)
    assert [(file.path, file.rows) for file in files] == [
        ("HA/part-00000.parquet", 342),
        ("VX/part-00000.parquet", 2000),
        ("VX/part-00001.parquet", 2000),
        ("VX/part-00002.parquet", 1162),
    ]
    assert [(tmp_path / file.path).stat().st_mtime_ns for file in files] == [file.written_ns for file in files]
    written = [pq.ParquetFile(tmp_path / file.path).read() for file in files]
    assert pa.concat_tables(written).equals(few)


def test_the_state_of_every_split_is_read_from_the_offsets() -> None:
    begun = {"source": "aligned_files", "n": 0, "splits": [], "watermark": None}
    splits = [[["AA", 9, "f", 1], 5, "active"], [["HA", 3, "f", 3], 8, "paused"], [["OO", 2, "f", 2], 9, "finished"]]
    ended = {**begun, "splits": splits, "watermark": 5}
    progress = [
        {"sources": [{"startOffset": json.dumps(begun), "endOffset": json.dumps(ended), "numInputRows": 14}]},
        {"sources": [{"startOffset": json.dumps(ended), "endOffset": json.dumps(ended), "numInputRows": 0}]},
    ]
    (batch,) = aligned_history(progress)
    assert (batch.rows, batch.watermark_us, batch.ended) == (14, 5, False)
    assert {name: (split.watermark_us, split.is_at_limit) for name, split in batch.splits.items()} == {
        "AA": (5, False),
        "HA": (8, True),
    }


def test_sparks_batches_are_compared_with_the_watermark_of_the_batch_before() -> None:
    def batch(watermark: str, **times: str) -> dict[str, object]:
        return {"sources": [{"numInputRows": 4}], "eventTime": {**times, "watermark": f"1970-01-01T00:00:{watermark}Z"}}

    seen = {"min": "1970-01-01T00:00:01.000Z", "max": "1970-01-01T00:00:09.500Z"}
    history = spark_history(
        [batch("00.000", **seen), batch("05.000", **seen), batch("06.000"), batch("07.000", **seen)]
    )
    assert [(b.rows, b.earliest_us, b.latest_us) for b in history] == [(4, 1_000_000, 9_500_000)] * 3
    assert [b.watermark_us for b in history] == [0, 0, 6_000_000]
    assert [b.closing_us for b in history] == [0, 5_000_000, 7_000_000]


def test_a_window_with_another_count_is_not_complete_even_if_the_sums_agree() -> None:
    batch = {("AA", 0): 2, ("AA", 3600): 3}
    assert Verdict(batch, {}, dict(batch)).is_complete
    swapped = Verdict(batch, {("AA", 0): 2}, {("AA", 0): 3, ("AA", 3600): 2})
    assert not swapped.is_complete
    assert swapped.numbers() == {
        "batch_rows": 5,
        "spark_rows": 2,
        "aligned_rows": 5,
        "lost": 0,
        "windows": 2,
        "windows_expected": 2,
    }


def test_one_history_gives_one_picture_and_its_smallest_text_is_readable_in_a_readme(tmp_path: Path) -> None:
    counts = {("AA", 0): 2, ("HA", 0): 3}
    day = 86_400_000_000
    spark = [SparkBatch(5, day, 9 * day, 0, 9 * day), SparkBatch(5, 2 * day, 9 * day, 9 * day, 9 * day)]
    aligned = [AlignedBatch(5, day, False, {"AA": SplitState(day, False), "HA": SplitState(2 * day, True)})] * 2
    plan = Plan(tmp_path, [], tmp_path, "19 hours", "28 days")
    for name in ("one", "other"):
        save_picture(tmp_path / f"{name}.png", spark, aligned, Verdict(counts, {}, counts), plan)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "other.png").read_bytes()
    # A README is about 830 pixels wide; 72 points are an inch.
    assert picture._SMALL * 830 / picture._INCHES[0] / 72 >= 10


@pytest.mark.spark
@pytest.mark.slow
def test_the_demo_loses_nothing_where_sparks_own_stream_does(tmp_path: Path) -> None:
    output = tmp_path / "out"
    arguments = ["demo", "--months", "2", "--rows-per-file", "1000", "--master", "local[2]", "--output", str(output)]
    run = subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    assert list(found) == ["batch_rows", "spark_rows", "aligned_rows", "lost", "windows", "windows_expected"]
    assert found["batch_rows"] == found["aligned_rows"] == load_flights(2).num_rows
    assert found["lost"] == 0
    assert found["windows"] == found["windows_expected"] > 5_000
    assert found["spark_rows"] < found["batch_rows"] // 2
    assert (output / "watermarks.png").read_bytes().startswith(b"\x89PNG")
    assert "WARN" not in run.stdout + run.stderr, "Spark's log goes to its file"
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "nothing is left behind"


@pytest.mark.parametrize("master", ["spark://127.0.0.1:1", "k8s://https://127.0.0.1:1", "locl[*]", "spark://here"])
def test_a_master_that_is_not_there_is_named_before_spark_is_started(master: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["demo", "--master", master, "--output", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert f"error: --master {master}: " in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_demo_that_cannot_run_does_not_say_that_rows_were_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streaming_source.cli.demo.command.load_flights", lambda _: 1 / 0)
    result = CliRunner().invoke(app, ["demo", "--output", str(tmp_path)])
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (2, "error: division by zero")


def test_the_command_line_needs_neither_spark_nor_the_demos_packages() -> None:
    code = "import sys, streaming_source.cli.main; print({'pyspark', 'matplotlib', 'pandas'} & sys.modules.keys())"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"


def test_a_missing_extra_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
    # A module that fails to import stands for one that is not installed.
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError(\"No module named 'typer'\", name='typer')")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from streaming_source.cli import main; main()"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert run.stderr == "error: the command line needs typer: pip install 'spark-watermark-alignment[cli]'\n"

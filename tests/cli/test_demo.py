"""The demo, as a user runs it, on a month of the flights; and its data."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from alignment.durations import format_duration
from streaming_source.tools.cli.demo import load_flights, out_of_orderness_us, write_logs
from streaming_source.tools.cli.main import app
from tests.spark.answers import Windows, micros
from tests.spark.twin import Twin, frame

HOUR = 3_600_000_000
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
    for carrier in ("MQ", "HA", "OO"):
        latest, naive = None, 0
        log = flights.filter(pc.field("carrier") == carrier)
        for departure in log["departure"].to_pylist():
            latest = departure if latest is None else max(latest, departure)
            naive = max(naive, round((latest - departure).total_seconds() * 1_000_000))
        assert out_of_orderness_us(log) == naive
    assert out_of_orderness_us(flights) > 18 * 3_600_000_000, "delays put flights far out of order"


def test_logs_hold_each_flight_once_and_roll_by_rows(flights: pa.Table, tmp_path: Path) -> None:
    few = flights.filter(pc.field("carrier").isin(["HA", "VX"]))
    write_logs(few, tmp_path, rows_per_file=2000)
    # In the order in which they were closed.
    files = sorted(tmp_path.glob("*/*"), key=lambda file: (file.stat().st_mtime_ns, file))
    written = {str(file.relative_to(tmp_path)): pq.ParquetFile(file).read() for file in files}
    assert [(name, table.num_rows) for name, table in written.items()] == [
        ("HA/part-00000.parquet", 342),
        ("VX/part-00000.parquet", 2000),
        ("VX/part-00001.parquet", 2000),
        ("VX/part-00002.parquet", 1162),
    ]
    assert pa.concat_tables(written.values()).equals(few)


@pytest.mark.spark
@pytest.mark.soak
def test_the_demo_loses_nothing_where_sparks_own_stream_does(tmp_path: Path) -> None:
    output = tmp_path / "out"
    arguments = ["demo", "--months", "1", "--output", str(output)]
    run = subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    assert list(found) == ["batch_rows", "spark_rows", "aligned_rows", "lost", "windows", "windows_expected"]
    assert found["batch_rows"] == found["aligned_rows"] == load_flights(1).num_rows
    assert found["lost"] == 0
    assert found["windows"] == found["windows_expected"] > 2_500
    assert found["spark_rows"] < found["batch_rows"] // 2
    # How it goes on depends on whether Spark has reported since all was read.
    assert re.search(r"explain\(query\) said: The watermark .* 2013-01-29 22:21:59 UTC.* split 'OO' ", run.stdout)
    assert (output / "watermarks.png").read_bytes().startswith(b"\x89PNG")
    assert "aligned_files" in (output / "watermarks.html").read_text()
    assert "WARN" not in run.stdout + run.stderr, "Spark's log goes to its file"
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "nothing is left behind"


def test_no_flight_of_a_month_is_lost_by_the_bound_of_the_demo(tmp_path: Path) -> None:
    january = load_flights(1)
    write_logs(january, tmp_path / "in", rows_per_file=2000)
    bound = format_duration(out_of_orderness_us(january))
    options = {"eventTimeColumn": "departure", "maxOutOfOrderness": bound, "maxDrift": "28 days", "bounded": "true"}
    twin = Twin(
        tmp_path / "cp",
        frame(tmp_path / "in", maxRowsPerTrigger=9000, **options),
        answer=Windows(HOUR, "carrier"),
    ).run()
    assert len(twin.batches) > 3
    hours = Counter((t // HOUR * HOUR, carrier) for t, carrier in zip(*departures(january), strict=True))
    assert twin.rows == sorted((start, start + HOUR, carrier, count) for (start, carrier), count in hours.items())


def departures(flights: pa.Table) -> tuple[list[int], list[str]]:
    return micros(flights["departure"]), flights["carrier"].to_pylist()


@pytest.mark.parametrize("master", ["spark://127.0.0.1:1", "k8s://https://127.0.0.1:1", "locl[*]", "spark://here"])
def test_a_master_that_is_not_there_is_named_before_spark_is_started(master: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["demo", "--master", master, "--output", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert f"error: --master {master}: " in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_demo_that_cannot_run_does_not_say_that_rows_were_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streaming_source.tools.cli.demo.load_flights", lambda _: 1 / 0)
    result = CliRunner().invoke(app, ["demo", "--output", str(tmp_path)])
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (2, "error: division by zero")


def test_the_command_line_needs_neither_spark_nor_the_demos_packages() -> None:
    code = "import sys, streaming_source.tools.cli.main; print({'pyspark', 'matplotlib', 'pandas'} & {*sys.modules})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"


def test_a_missing_extra_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
    # A module that fails to import stands for one that is not installed.
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError(\"No module named 'typer'\", name='typer')")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from streaming_source.tools.cli import main; main()"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert run.stderr == "error: the command line needs typer: pip install 'spark-watermark-alignment[cli]'\n"

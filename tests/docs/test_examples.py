"""The examples in the documentation run, and print what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.request import urlopen
from zipfile import ZipFile
from zipimport import zipimporter

import prometheus_client
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
from pyspark.sql import SparkSession, functions
from typer.testing import CliRunner

import alignment
import streaming_source
from streaming_source.api.credentials import Credentials
from streaming_source.tools.cli.main import app
from tests.docs.pages import ROOT, blocks, code, pages, printed
from tests.iceberg.tables import append, catalog_options, create
from tests.spark.support import SECOND, T0, UTC_US, eventually, write_table
from tests.tables.claimed_table import DeltaWriter

RUN_BY_TESTS = {
    "README.md",
    "docs/bronze-to-gold.md",
    "docs/cluster.md",
    "docs/files.md",
    "docs/first-query.md",
    "docs/from-spark-kafka.md",
    "docs/history.md",
    "docs/kafka.md",
    "docs/late-records.md",
    "docs/logs.md",
    "docs/monitoring.md",
    "docs/performance.md",
    "docs/quick-start.md",
    "docs/semantics.md",
    "docs/state-size.md",
    "docs/simulate.md",
    "docs/tables.md",
    "docs/write-a-connector.md",
}


def modules(package: ModuleType) -> Iterator[str]:
    yield package.__name__
    yield from (module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."))


@pytest.mark.parametrize("name", [*modules(alignment), *modules(streaming_source)])
def test_the_examples_in_docstrings_give_what_they_say(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(name)
    # Its debugger, which nobody uses, asks of each file that was ever read whether it has changed.
    monkeypatch.setattr("linecache.checkcache", lambda *_: None)
    assert doctest.testmod(module).failed == 0


def test_every_page_with_code_is_run_by_a_test() -> None:
    with_code = {
        str(page.relative_to(ROOT)) for page in pages() if any(block.language == "python" for block in blocks(page))
    }
    assert with_code == RUN_BY_TESTS, "run the code of a new page in tests/docs, and add the page here"


def test_code_is_fenced_so_that_it_is_run() -> None:
    unfenced = re.compile(r"^    (?:from \w+(?:\.\w+)* import |\w+ = |\w+(?:\.\w+)*\()")
    found = []
    for page in pages():
        prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        found += [f"{page.name}: {line}" for line in prose.splitlines() if unfenced.match(line)]
    # A block of `py` is a fragment: there a line stands for what is around it, or for what Spark shows of a plan.
    assert not found, found


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_files_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?://)([^)#\s]+)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_page_on_performance_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    page = ROOT / "docs" / "performance.md"
    exec(compile(code(page), "performance.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == printed(page)


def test_pyspark_is_imported_compiled_after_the_script_on_the_page_on_performance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "python" / "lib" / "pyspark.zip"
    archive.parent.mkdir(parents=True)
    # A few of its modules: all of them take seconds.
    with ZipFile(Path(pyspark.__file__).parent / "python/lib/pyspark.zip") as all_of_it, ZipFile(archive, "w") as few:
        for name in ("pyspark/daemon.py", "pyspark/worker.py"):
            few.writestr(name, all_of_it.read(name))
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    script = compile(code(ROOT / "docs" / "performance.md", "compile_pyspark.py"), "compile_pyspark.py", "exec")
    for _ in range(2):  # again, and nothing changes
        exec(script, {})
    found = zipimporter(f"{archive}/pyspark")
    assert found.get_filename("daemon") == f"{archive}/pyspark/daemon.pyc"
    assert "def manager" in (found.get_source("daemon") or "")
    assert list(archive.parent.iterdir()) == [archive]


def test_the_function_on_the_page_on_clusters_gives_credentials() -> None:
    scope: dict[str, Any] = {}
    exec(compile(code(ROOT / "docs" / "cluster.md"), "cluster.md", "exec"), scope)
    assert set(Credentials(scope["login"]).current(("storage.",))) == {
        *("storage.access_key", "storage.secret_key", "storage.session_token")
    }


@pytest.mark.spark
def test_the_first_lines_of_the_readme_make_a_frame_with_a_watermark(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "HA").mkdir()
    departures = {"departure": pa.array([1_357_000_000_000_000], pa.timestamp("us", "UTC")), "carrier": ["HA"]}
    pq.write_table(pa.table(departures), tmp_path / "HA" / "1.parquet")
    scope: dict[str, Any] = {"spark": spark}
    exec(code(ROOT / "README.md").replace("/data/flights", str(tmp_path)), scope)
    assert scope["by_hour"].isStreaming
    assert scope["by_hour"].columns == ["window", "carrier", "count"]


def test_the_readme_shows_lines_of_the_audit_of_the_quick_start() -> None:
    short, whole = (
        next(block.text for block in blocks(ROOT / page) if block.language == "console").splitlines()
        for page in ("README.md", "docs/quick-start.md")
    )
    assert [line for line in short if line not in whole] == ["..."]


@pytest.mark.spark
def test_the_quick_start_prints_what_it_says_and_so_does_the_audit(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    page = ROOT / "docs" / "quick-start.md"
    scope = {"__name__": "quick_start"}
    exec(compile(code(page), "quick-start.md", "exec"), scope)
    root = str(scope["root"])
    shown = [line.replace(root, "/tmp/quick-start") for line in capsys.readouterr().out.splitlines() if line]
    assert shown == [line for line in printed(page) if line]
    assert {"|fast|    240|   3600|", "|slow|     60|   3600|"} <= {*shown}

    outcome = CliRunner().invoke(app, ["audit", f"{root}/sparks_own.checkpoint"])
    (on_page,) = [block.text for block in blocks(page) if block.language == "console"]
    assert outcome.stdout.replace(f"{root}/logs", "/data/logs").strip() == on_page.partition("\n")[2].strip()


@pytest.mark.spark
@pytest.mark.soak
def test_the_page_on_the_first_query_prints_what_it_says(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = ROOT / "docs" / "first-query.md"
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {"__name__": "first_query"}
    exec(compile(code(page), "first-query.md", "exec"), scope)
    shown = capsys.readouterr().out
    assert [line for line in shown.splitlines() if line.startswith(("[Row", "['ts'"))] == printed(page)
    text = " ".join(page.read_text(encoding="utf-8").split())
    explained = "The watermark is at 2026-01-01 00:07:52 UTC: all that is there has been read, "
    assert f"{explained}nothing has come since" in text
    assert explained in " ".join(shown.split())
    # Who reads between the steps may take longer than the default, and the cellar would then be late.
    assert re.search("split 'cellar' is the slowest; it becomes idle in 5. min", " ".join(shown.split()))
    assert scope["events"].isStreaming
    for command in ("advise", "explain", "report"):
        commands = page.read_text(encoding="utf-8").replace("\\\n", " ")
        (line,) = re.findall(rf"^streaming-source ({command} .*)$", commands, re.M)
        outcome = CliRunner().invoke(app, line.split())
        assert outcome.exit_code == 0, outcome.stderr
    assert (tmp_path / "first-query" / "report.html").exists()


@pytest.mark.spark
def test_the_page_on_files_reads_the_same_by_both_doors(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "readings" / "cellar"
    folder.mkdir(parents=True)
    (folder / "1.csv").write_text("ts,sensor,value\n2026-01-01 00:00:00,cellar,20.5\n", encoding="utf-8")
    scope = {"__name__": "files", "spark": spark}
    text = code(ROOT / "docs" / "files.md").replace("/data/readings", str(tmp_path / "readings"))
    exec(compile(text, "files.md", "exec"), scope)
    assert scope["readings"].isStreaming
    assert scope["same"].columns == scope["readings"].columns == ["ts", "sensor", "value"]


@pytest.mark.soak
@pytest.mark.spark
def test_the_page_on_semantics_reads_a_day(spark: SparkSession, tmp_path: Path) -> None:
    day_us = 86_400_000_000
    first_us = 1_706_659_200_000_000  # 2024-01-31
    for name, times in {"31": [first_us, first_us + 1, first_us + day_us - 1], "30": [first_us - 1]}.items():
        (tmp_path / "readings" / f"day=2024-01-{name}").mkdir(parents=True)
        table = pa.table({"ts": pa.array(times, pa.timestamp("us", "UTC"))})
        pq.write_table(table, tmp_path / "readings" / f"day=2024-01-{name}" / "1.parquet")
    scope: dict[str, Any] = {"__name__": "semantics", "spark": spark}
    text = code(ROOT / "docs" / "semantics.md")
    exec(compile(text.replace("/data/", f"{tmp_path}/"), "semantics.md", "exec"), scope)
    assert scope["one_day"].count() == 3


@pytest.mark.soak
@pytest.mark.spark
def test_the_page_on_late_records_repairs_a_window(spark: SparkSession, tmp_path: Path) -> None:
    def put(log: str, *seconds: int) -> None:
        times = pa.array([T0 + second * SECOND for second in seconds], UTC_US)
        table = pa.table({"ts": times, "sensor": ["s"] * len(seconds)})
        write_table(tmp_path / "readings" / log / "1.parquet", table)

    put("a", 0, 1, 100, 200)
    page, scope = ROOT / "docs" / "late-records.md", {"__name__": "late_records", "spark": spark}
    text = code(page).replace("/data/", f"{tmp_path}/").replace("/checkpoints/", f"{tmp_path}/")
    query, repairs = text.split("corrections =")
    query = query.replace('"eventTimeColumn", "ts")', '"eventTimeColumn", "ts").option("idleTimeout", "1 ms")')
    try:
        exec(compile(query, "late-records.md", "exec"), scope)
        put("b", 2, 3)
        put("far", 1000)
        eventually(lambda: len(windows(tmp_path)) == 3, "windows up to the far one", scope["counts"])
        assert windows(tmp_path) == [(0, 2), (60, 1), (180, 1)]
        exec(compile(f"corrections ={repairs}", "late-records.md", "exec"), scope)
        assert windows(tmp_path) == [(0, 4), (60, 1), (180, 1)]
    finally:
        for each in spark.streams.active:
            each.stop()


def windows(folder: Path) -> list[tuple[int, int]]:
    """Start, in seconds, and count of the windows in the database of the page."""
    with sqlite3.connect(folder / "windows.db") as db:
        rows = db.execute("SELECT start, n FROM windows ORDER BY start").fetchall()
    return [((start - T0) // SECOND, n) for start, n in rows]


@pytest.mark.spark
def test_the_page_on_tables_reads_tables(spark: SparkSession, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tests" / "delta" / "by_spark" / "clustered", tmp_path / "clicks")
    append(create(tmp_path / "iceberg"), [0, 1_000_000])
    properties = catalog_options(tmp_path / "iceberg")
    text = code(ROOT / "docs" / "tables.md").replace("/data/", f"{tmp_path}/")
    text = text.replace('"rest"', '"sql"').replace("https://catalog.example", properties["uri"])
    # The catalog of the tests has a name, under which SQLite has its tables.
    text = text.replace("db.clicks", "db.t").replace('.load("db', '.option("catalog.name", "tests").load("db')
    scope: dict[str, Any] = {"__name__": "tables", "spark": spark}
    delta, iceberg = text.split("\n\n\n")
    for part, columns in ((delta, ["ts", "n"]), (iceberg, None)):
        exec(compile(part, "tables.md", "exec"), scope)
        assert scope["rows"].isStreaming
        assert columns is None or scope["rows"].columns == columns


@pytest.mark.spark
def test_the_page_on_hops_closes_the_windows_that_the_writer_has_completed(spark: SparkSession, tmp_path: Path) -> None:
    minute = 60_000_000
    bronze = DeltaWriter.of(tmp_path, "bronze", "bronze")
    bronze.commit(minute, [3 * minute, minute + 1])
    bronze.commit(2 * minute, [2 * minute + 1, 5 * minute])
    text = code(ROOT / "docs" / "bronze-to-gold.md").replace("/tables/", f"{tmp_path}/")
    text = text.replace("/checkpoints/bronze", str(bronze.checkpoint))
    scope: dict[str, Any] = {"spark": spark, "read_stream": streaming_source.read_stream}
    exec(compile(text, "bronze-to-gold.md", "exec"), scope)
    counted = scope["silver"].groupBy(functions.window("ts", "1 minute")).count()
    writer = counted.writeStream.format("memory").queryName("hop").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    assert query.awaitTermination(120)
    ends = [row[0].timestamp() for row in spark.table("hop").select("window.end").collect()]
    assert ends == [120], "the minute that the claim has passed, and no other"


@pytest.mark.spark
def test_the_pages_on_kafka_make_frames_without_asking_a_broker(spark: SparkSession) -> None:
    for page in ("kafka.md", "from-spark-kafka.md"):
        scope = {"__name__": "kafka", "spark": spark}
        exec(compile(code(ROOT / "docs" / page), page, "exec"), scope)
        assert scope["counted"].isStreaming
        assert scope["counted"].columns == ["window", "count"]
        assert scope["frame"].columns[-2:] == ["timestamp", "timestampType"]


@pytest.mark.soak
@pytest.mark.spark
def test_the_examples_in_docstrings_that_need_spark_run(spark: SparkSession, tmp_path: Path) -> None:
    """One after another, as one program: what they give is of the moment, and is not compared."""
    times = pa.array([1_767_225_600_000_000], pa.timestamp("us", "UTC"))
    for log in ("slow", "fast"):
        (tmp_path / "logs" / log).mkdir(parents=True)
        pq.write_table(pa.table({"ts": times}), tmp_path / "logs" / log / "1.parquet")
    scope: dict[str, Any] = {"spark": spark, "path": str(tmp_path / "logs")}
    exec("from streaming_source import *; import prometheus_client", scope)

    def run(name: str) -> None:
        for example in doctest.DocTestParser().get_examples(getattr(streaming_source, name).__doc__):
            exec(example.source.replace('"/', f'"{tmp_path}/').replace("/data", ""), scope)

    for name in ("read_stream", "from_source", "with_exact_watermark", "register"):
        run(name)
    routed = spark.readStream.format("aligned_files").options(eventTimeColumn="ts", late="route")
    routed = routed.option("lateLocation", str(tmp_path / "late_log"))
    scope["events"] = streaming_source.with_exact_watermark(routed.load(scope["path"]))
    writer = scope["events"].writeStream.format("noop").queryName("windows")
    scope["query"] = writer.option("checkpointLocation", str(tmp_path / "checkpoints" / "windows")).start()
    scope["query"].processAllAvailable()
    try:
        for name in ("explain", "advise", "AlignmentListener", "late_records"):
            run(name)
    finally:
        for query in spark.streams.active:
            query.stop()
        spark.streams.removeListener(scope["listener"])
        prometheus_client.REGISTRY.unregister(scope["listener"])


@pytest.mark.soak
@pytest.mark.spark
def test_the_page_on_state_keeps_as_many_rows_as_it_says(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = ROOT / "docs" / "state-size.md"
    exec(compile(code(page).replace("/data/", f"{tmp_path}/"), "state-size.md", "exec"), {"spark": spark})
    assert capsys.readouterr().out.splitlines() == printed(page)


@pytest.mark.spark
def test_the_page_on_monitoring_keeps_a_history_and_serves_metrics(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "readings" / "cellar").mkdir(parents=True)
    times = pa.array([1_767_225_600_000_000], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"ts": times}), tmp_path / "readings" / "cellar" / "1.parquet")
    scope: dict[str, Any] = {"__name__": "monitoring", "spark": spark}
    # Any free port.
    text = code(ROOT / "docs" / "monitoring.md").replace("/data/", f"{tmp_path}/").replace("9400", "0")
    try:
        exec(compile(text, "monitoring.md", "exec"), scope)
        served = f"http://127.0.0.1:{scope['server'].server_port}/metrics"
        held = 'source="0:aligned_files",split="cellar"} 1.0'
        eventually(lambda: held in urlopen(served).read().decode(), "metrics of the split", scope["query"])
    finally:
        scope["query"].stop()
        spark.streams.removeListener(scope["listener"])
        scope["prometheus_client"].REGISTRY.unregister(scope["listener"])
        scope["server"].shutdown()
        scope["server"].server_close()
    assert (tmp_path / "report.html").exists()

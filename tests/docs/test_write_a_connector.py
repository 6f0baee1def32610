"""The connector of docs/write-a-connector.md, as it stands there."""

from __future__ import annotations

import importlib
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from alignment import WatermarkStrategy
from alignment.watermarks import MAX_WATERMARK
from streaming_source import from_source
from streaming_source.api import InputStatus, RecordSplit, SourceReaderContext
from streaming_source.api.clients import KEPT_CLIENTS
from streaming_source.exceptions import MalformedDataError, NoDataError, SchemaError
from streaming_source.reader import create_reader
from streaming_source.spark.datasource import FORMATS
from streaming_source.testing import CollectingOutput, SourceHarness
from tests.docs.pages import ROOT, code, printed
from tests.examples import each_once
from tests.spark.support import Run, eventually, fails_with

PAGE = ROOT / "docs" / "write-a-connector.md"
START = datetime(2026, 1, 1, tzinfo=UTC)
STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness("5 seconds").with_timestamp_assigner("ts")

_IN_MEMORY = Path("/dev/shm")

Rows = dict[str, list[tuple[int, int]]]
"""Rowid and event time in microseconds by table."""


class Database:
    """Tables of readings, and the naive answers over them."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._connection = sqlite3.connect(path)

    def execute(self, statement: str, *values: Any) -> list[Any]:
        with self._connection:
            return self._connection.execute(statement, values).fetchall()

    def insert(self, table: str, seconds: Iterable[int], gap: int = 3) -> None:
        """Rows with these event times, `gap` rowids apart."""
        self.execute(
            f"CREATE TABLE IF NOT EXISTS {table} (id INTEGER PRIMARY KEY AUTOINCREMENT, ts TEXT, degrees REAL)"
        )
        (last,) = self.execute(f"SELECT coalesce(max(id), 0) FROM {table}")[0]
        rows = [(last + gap * (i + 1), iso(second), i / 2) for i, second in enumerate(seconds)]
        with self._connection:
            self._connection.executemany(f"INSERT INTO {table} VALUES (?, ?, ?)", rows)

    def rows(self) -> Rows:
        tables = [name for (name,) in self.execute("SELECT name FROM sqlite_schema WHERE name NOT LIKE 'sqlite%'")]
        return {t: [(i, us(ts)) for i, ts in self.execute(f"SELECT id, ts FROM {t} ORDER BY id")] for t in tables}

    def windows(self, minute_before: int | None = None) -> list[tuple[int, str, int]]:
        """Minute since the start, table, rows: counted one by one."""
        counts = Counter((minute(time), table) for table, rows in self.rows().items() for _, time in rows)
        return sorted((*key, n) for key, n in counts.items() if minute_before is None or key[0] < minute_before)

    def close(self) -> None:
        self._connection.close()


def iso(second: int) -> str:
    return (START + timedelta(seconds=second)).isoformat()


def us(text: str) -> int:
    return (datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def minute(time_us: int) -> int:
    return (time_us - us(iso(0))) // 60_000_000


@pytest.fixture(scope="module")
def connector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The page's module. It travels with the query: Spark's workers may have been started before it was written."""
    directory = tmp_path_factory.mktemp("connector")
    (directory / "sqlite_source.py").write_text(code(PAGE, "sqlite_source.py"), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(directory))
        module = importlib.import_module("sqlite_source")
        cloudpickle.register_pickle_by_value(module)
        yield module
        cloudpickle.unregister_pickle_by_value(module)
        KEPT_CLIENTS.close()
        del sys.modules["sqlite_source"]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / "sensors of the house.db")
    yield database
    database.close()


@pytest.fixture
def skewed(database: Database) -> Database:
    """Three tables: one far ahead, one slow, one of a single row."""
    database.insert("ahead", [1800 + 2 * i - 5 * (i % 3 == 2) for i in range(400)])
    database.insert("slow", [i - 4 * (i % 4 == 3) for i in range(300)], gap=1)
    database.insert("single", [77])
    return database


# ---- on the harness ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("max_rows", "bounded"), each_once([23, None], [False, True]))
def test_every_row_is_read_once_whatever_the_limit_the_restarts_and_the_number_of_readers(
    connector: ModuleType, skewed: Database, bounded: bool, max_rows: int | None
) -> None:
    harness = SourceHarness(connector.SqliteSource(skewed.path, bounded), STRATEGY, max_rows=max_rows, min_rows=10)
    for readers in range(1, 6):
        harness.run_batch()
        harness.plan()
        harness.restart(readers=readers)
    harness.run()
    assert harness.records() == skewed.rows()
    assert (harness.watermark == MAX_WATERMARK) == bounded
    harness.close()


def test_a_bounded_source_ends_with_the_rows_that_were_there_even_after_a_restart(
    connector: ModuleType, skewed: Database
) -> None:
    before = skewed.rows()
    harness = SourceHarness(connector.SqliteSource(skewed.path, bounded=True), STRATEGY, max_rows=100)
    harness.run_batch()
    skewed.insert("slow", range(1000, 1100))
    skewed.insert("new", range(10))
    harness.restart()
    harness.run()
    assert harness.records() == before
    harness.close()


def test_a_row_that_is_deleted_before_it_was_planned_is_not_read_and_the_others_are(
    connector: ModuleType, skewed: Database
) -> None:
    harness = SourceHarness(connector.SqliteSource(skewed.path), STRATEGY, max_rows=100)
    harness.run_batch()
    harness.restart()
    positions = {split.split_id: split.position for split in harness.state.splits}
    expected = skewed.rows()
    for table, rows in expected.items():
        skewed.execute(f"DELETE FROM {table} WHERE id % 2 = 0")
        expected[table] = [(i, time) for i, time in rows if i % 2 or i < positions.get(table, 0)]
    skewed.insert("slow", [400])
    harness.run()
    expected["slow"].append(skewed.rows()["slow"][-1])
    assert harness.records() == expected
    harness.close()


def test_a_planned_range_comes_without_the_rows_that_were_deleted_meanwhile_and_ends(
    connector: ModuleType, skewed: Database
) -> None:
    source = connector.SqliteSource(skewed.path)
    skewed.execute("DELETE FROM slow WHERE id > 5")
    reader = create_reader(source, SourceReaderContext(source.schema()))
    output = CollectingOutput(STRATEGY.timestamp_assigner)
    reader.add_splits([RecordSplit("slow", 3).until(200), RecordSplit("ahead").until(1000)])
    reader.notify_no_more_splits()
    reader.start()
    while reader.poll_next(output) is not InputStatus.END_OF_INPUT:
        reader.is_available().result(10)
    reader.close()
    assert [r.position for r in output.records if r.split_id == "slow"] == [3, 4, 5]
    assert len([r for r in output.records if r.split_id == "ahead"]) == 333


def test_readers_share_no_connection_and_keep_it_for_the_next_one(connector: ModuleType, skewed: Database) -> None:
    source = connector.SqliteSource(skewed.path)
    context = SourceReaderContext(source.schema())
    one, other = source.create_split_reader(context), source.create_split_reader(context)
    assert one._db is not other._db
    one.close()
    again = source.create_split_reader(context)
    assert again._db is one._db
    for reader in (other, again):
        reader.close()


@pytest.mark.parametrize(
    ("statements", "error", "words"),
    [
        ((), NoDataError, "has no table"),
        (("CREATE TABLE t (ts TIMESTAMP)",), SchemaError, "type of ts TIMESTAMP: must be one of INTEGER, REAL"),
        (("CREATE TABLE t (ts TEXT)", "INSERT INTO t VALUES (x'00ff')"), MalformedDataError, "table t, rowids 1 to 1"),
    ],
)
def test_what_cannot_be_read_is_an_error_that_says_what_it_is(
    connector: ModuleType, database: Database, statements: tuple[str, ...], error: type[Exception], words: str
) -> None:
    database.execute("VACUUM") if not statements else [database.execute(statement) for statement in statements]
    with pytest.raises(error, match=words):
        SourceHarness(connector.SqliteSource(database.path, bounded=True), STRATEGY).run()


@pytest.mark.soak
def test_it_passes_the_suite_for_connectors(connector: ModuleType, tmp_path: Path) -> None:
    test = tmp_path / "test_sqlite_source.py"
    test.write_text(code(PAGE, test.name), encoding="utf-8")
    options = ["-q", "-W", "error", "-p", "no:cacheprovider"]
    with tempfile.TemporaryDirectory(dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None) as databases:
        # SQLite writes each row through to the disk: that takes longer than the suite.
        outcome = run_python(tmp_path, connector, "-m", "pytest", *options, f"--basetemp={databases}/of", test.name)
    assert outcome.returncode == 0, outcome.stdout
    summary = outcome.stdout.splitlines()[-1]
    assert int(summary.split(" passed")[0]) > 50


# ---- on Spark ----------------------------------------------------------------------------------------------------


def windows(frame: DataFrame) -> DataFrame:
    counted = frame.groupBy(F.window("event_time", "1 minute"), "_split").count()
    minutes = ((F.unix_micros("window.start") - us(iso(0))) / 60_000_000).cast("int")
    return counted.select(minutes.alias("minute"), "_split", "count")


@pytest.fixture
def _stopped(spark: SparkSession) -> Iterator[None]:
    yield
    for query in spark.streams.active:
        query.stop()


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.usefixtures("_stopped")
def test_rows_and_tables_that_come_while_a_query_runs_or_rests_are_each_read_once(
    spark: SparkSession, connector: ModuleType, skewed: Database, tmp_path: Path
) -> None:
    skewed.execute("DROP TABLE single")

    rows: dict[int, list[tuple[Any, ...]]] = {}
    counts: dict[int, list[tuple[Any, ...]]] = {}

    def start(frame: DataFrame, batches: dict[int, list[tuple[Any, ...]]], name: str) -> StreamingQuery:
        def keep(batch: DataFrame, number: int) -> None:
            batches[number] = [tuple(row) for row in batch.collect()]

        return frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / name)).start()

    def start_both() -> tuple[StreamingQuery, StreamingQuery]:
        source = connector.SqliteSource(skewed.path)
        frame = from_source(spark, source, STRATEGY, "live", includeMetadata=True, maxRowsPerTrigger=200)
        read = frame.select("_split", "_position")
        return start(read, rows, "rows"), start(windows(frame), counts, "counts")

    def come(batches: dict[int, list[tuple[Any, ...]]], expected: list[tuple[Any, ...]], query: StreamingQuery) -> None:
        """Wait for as many rows as are expected; they are these, each once."""

        def so_far() -> list[tuple[Any, ...]]:
            return sorted(row for number in sorted(batches) for row in batches[number])

        eventually(lambda: len(so_far()) >= len(expected), f"{len(expected)} rows", query)
        assert so_far() == expected

    def all_rows() -> list[tuple[str, int]]:
        return sorted((table, i) for table, of_table in skewed.rows().items() for i, _ in of_table)

    reading, counting = start_both()
    come(rows, all_rows(), reading)
    skewed.insert("slow", range(300, 400), gap=2)
    # Nothing of the new table is late: the slow one holds the watermark.
    skewed.insert("joins", range(400, 500))
    come(rows, all_rows(), reading)
    skewed.execute("DELETE FROM ahead WHERE id = 3")  # it was read, and that changes nothing
    reading.stop()
    counting.stop()

    skewed.execute("INSERT INTO ahead VALUES (3, ?, 0)", iso(1800))  # behind the position: not read again
    skewed.insert("slow", range(400, 460))
    reading, counting = start_both()
    come(rows, all_rows(), reading)
    for table in ("ahead", "slow", "joins"):
        skewed.insert(table, [7200])
    come(rows, all_rows(), reading)
    come(counts, skewed.windows(minute_before=120), counting)


@pytest.mark.spark
@pytest.mark.parametrize("bounded", [False, True])
def test_a_batch_read_has_every_row_with_every_type(
    spark: SparkSession, connector: ModuleType, database: Database, bounded: bool
) -> None:
    database.execute("CREATE TABLE t (ts TEXT, n INTEGER, x REAL, b BLOB)")
    values = [(iso(0), 1, 0.5, b"a"), (iso(1), None, None, None), (iso(2), 2**62, -1.0, b"")]
    for row in values:
        database.execute("INSERT INTO t VALUES (?, ?, ?, ?)", *row)
    from_source(spark, connector.SqliteSource(database.path, bounded), STRATEGY, "types")
    frame = spark.read.format("aligned_source_types").load()
    assert dict(frame.dtypes) == {
        "ts": "string", "n": "bigint", "x": "double", "b": "binary", "event_time": "timestamp",
    }  # fmt: skip
    assert sorted((r.ts, r.n, r.x, None if r.b is None else bytes(r.b)) for r in frame.collect()) == values


@pytest.mark.spark
@pytest.mark.usefixtures("_stopped")
@pytest.mark.soak
def test_a_table_that_is_dropped_while_it_is_in_work_fails_the_query_and_is_named(
    spark: SparkSession, connector: ModuleType, skewed: Database, tmp_path: Path
) -> None:
    run = Run(spark, from_source(spark, connector.SqliteSource(skewed.path), STRATEGY, "dropped"), tmp_path / "cp")
    eventually(lambda: len(run.rows) == 701, "all rows", run.query)
    skewed.execute("DROP TABLE single")
    with fails_with("no such table: single", "while the planner read split 'single' ahead"):
        run.query.awaitTermination(60)


@pytest.mark.spark
def test_a_module_that_workers_do_not_have_is_named_with_the_ways_to_give_it_to_them(
    spark: SparkSession, connector: ModuleType, database: Database
) -> None:
    cloudpickle.unregister_pickle_by_value(connector)
    try:
        with fails_with("needs the module 'sqlite_source'", "PYTHONPATH", "register_pickle_by_value(sqlite_source)"):
            from_source(spark, connector.SqliteSource(database.path), STRATEGY, "nowhere")
    finally:
        cloudpickle.register_pickle_by_value(connector)


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.usefixtures("_stopped")
def test_the_page_as_a_script_prints_what_it_says(
    connector: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Its files are in a folder that all processes of Spark know by the same path.
    script = re.sub(r'"(sensors\.db|counts\.checkpoint|windows|windows\.checkpoint)"', rf'"{tmp_path}/\1"', code(PAGE))
    # Which the page registers, and which is gone afterwards.
    monkeypatch.setitem(FORMATS, connector.SqliteSource.name, connector.SqliteSource)
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(script, "write-a-connector.md", "exec"), scope)
    scope["database"].close()
    assert [line for line in capsys.readouterr().out.splitlines() if line.strip()] == printed(PAGE)


def run_python(directory: Path, connector: ModuleType, *arguments: str) -> subprocess.CompletedProcess[str]:
    """As a reader of the page would: with the module on the path of every process."""
    assert connector.__file__ is not None
    path = [str(Path(connector.__file__).parent), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=240, check=False
    )

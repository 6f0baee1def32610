"""Audits of queries that Spark 3.5, 4.0 and 4.1 ran: `make older` runs each with a PySpark of that release."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

import deltalake
import pyarrow as pa
import pytest

import streaming_source
from streaming_source.auditing import Audit
from streaming_source.exceptions import OptionError
from tests.auditing import naive
from tests.auditing.naive import SECOND, Query, Time
from tests.auditing.test_on_spark import logged_batches, write
from tests.kafka.artifacts import ArtifactsMissingError, of_older_spark

if TYPE_CHECKING:
    from tests.kafka.broker import KafkaBroker

MINUTE = 60 * SECOND
QUERY = Query(10_000, MINUTE, MINUTE)
RECORDED = Path(__file__).with_name("spark-3.5.zip")
"""The checkpoint of the first query here, as PySpark 3.5.8 wrote it over files in `/data/in`."""

PYTHON = os.environ.get("OLDER_PYTHON")
"""The interpreter of an older PySpark."""


def by_older(test: Any) -> Any:
    """A test that runs a query with the older PySpark."""
    has_older = pytest.mark.skipif(PYTHON is None, reason="make older runs it")
    return pytest.mark.spark(pytest.mark.soak(has_older(test)))


def release() -> str:
    """That of the older PySpark, such as `3.5`."""
    assert PYTHON is not None
    command = [PYTHON, "-c", "import pyspark; print(pyspark.__version__)"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.rpartition(".")[0]


def jars(source: str) -> str:
    try:
        return ",".join(map(str, of_older_spark(release(), source).jars()))
    except ArtifactsMissingError as error:
        pytest.skip(str(error))


def run_older(
    folder: Path,
    source: str,
    path: str | None,
    options: Mapping[str, Any],
    operator: str = "aggregation",
) -> int:
    """Run the query; how many rows its sink has."""
    conf = {} if source == "parquet" else {"spark.jars": jars(source)}
    if source == "delta":
        conf["spark.sql.extensions"] = "io.delta.sql.DeltaSparkSessionExtension"
        conf["spark.sql.catalog.spark_catalog"] = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        conf["spark.databricks.delta.snapshotPartitions"] = "1"
    given = {"format": source, "path": path, "options": options, "operator": operator, "conf": conf}
    given |= {"sink": str(folder / "sink"), "checkpoint": str(folder / "checkpoint")}
    assert PYTHON is not None
    own = {"PYSPARK_PYTHON": PYTHON, "PYSPARK_DRIVER_PYTHON": PYTHON, "PYTHONPATH": "", "SPARK_HOME": ""}
    environment = {name: value for name, value in {**os.environ, **own}.items() if value}
    command = [PYTHON, str(Path(__file__).with_name("older_query.py")), json.dumps(given)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return int(done.stdout.split()[-1])


def audit(folder: Path, operator: str = "aggregation", **more: Any) -> Audit:
    named = {"operator": operator} if release() == "3.5" else {}
    return streaming_source.audit(str(folder / "checkpoint"), mode="append", **named, **more)


def skewed_files() -> dict[str, Sequence[Time]]:
    """Of two logs one is ahead of the other; two files of each. No time is in both."""
    return {
        f"log={log}/{part}": [naive.T0 + (part * 60 + i) * step * SECOND + step for i in range(60)]
        for part in range(2)
        for log, step in (("fast", 8), ("slow", 1))
    }


def assert_to_the_row(found: Audit, done: naive.Run, emitted: int) -> None:
    assert {row["split"]: row["dropped"] for row in found.splits().to_pylist()} == {
        name: counts["dropped"] for name, counts in done.counts.items()
    }
    for name in ("read", "dropped", "emitted", "open"):
        assert found.count(name) == sum(counts[name] for counts in done.counts.values()), name
    assert found.emitted == emitted
    assert (found.unknown, found.notes) == (0, ())
    assert found.dropped > 0


def test_a_recorded_checkpoint_of_spark_3_5_is_counted_to_the_row(tmp_path: Path) -> None:
    with ZipFile(RECORDED) as recorded:
        recorded.extractall(tmp_path / "checkpoint")
    files = skewed_files()
    write(tmp_path / "in", files, "parquet")
    given: dict[str, Any] = {"source": str(tmp_path / "in")}

    found = streaming_source.audit(str(tmp_path / "checkpoint"), operator="aggregation", mode="append", **given)

    done = naive.run(QUERY, logged_batches(tmp_path / "checkpoint", Path("/data/in"), files))
    assert_to_the_row(found, done, sum(done.emitted.values()))
    assert "Its operators are as given" in str(found)
    with pytest.raises(OptionError, match="state is that of aggregation; give --operator aggregation"):
        streaming_source.audit(str(tmp_path / "checkpoint"), operator="join", **given)
    with pytest.raises(OptionError, match="operator is given 2 times, and the query has 1 stateful operators"):
        streaming_source.audit(str(tmp_path / "checkpoint"), operator=["aggregation", "join"], **given)
    with pytest.raises(OptionError, match="operator = 'group by': must be one of aggregation"):
        streaming_source.audit(str(tmp_path / "checkpoint"), operator="group by", **given)


@by_older
def test_a_query_over_files_is_counted_to_the_row(tmp_path: Path) -> None:
    files = skewed_files()
    write(tmp_path / "in", files, "parquet")
    emitted = run_older(
        tmp_path, "parquet", str(tmp_path / "in"), {"maxFilesPerTrigger": 1, "recursiveFileLookup": "true"}
    )
    done = naive.run(QUERY, logged_batches(tmp_path / "checkpoint", tmp_path / "in", files))
    assert_to_the_row(audit(tmp_path), done, emitted)


@by_older
@pytest.mark.kafka
def test_a_query_over_a_topic_is_counted_to_the_row(broker: KafkaBroker, tmp_path: Path) -> None:
    from tests.kafka.test_audit import logged
    from tests.kafka.topics import Topic

    topic = Topic(broker)
    topic.create(2)
    logs = {part: [naive.T0 + i * step * SECOND for i in range(120)] for part, step in ((0, 8), (1, 1))}
    topic.write_logs(logs)
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic.name}
    options |= {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "60"}
    emitted = run_older(tmp_path, "kafka", None, options)
    found = audit(tmp_path, options={"kafka.bootstrap.servers": broker.bootstrap})
    done = naive.run(QUERY, logged(tmp_path / "checkpoint", topic, logs))
    topic.close()
    assert_to_the_row(found, done, emitted)


@by_older
def test_a_query_over_a_delta_table_is_counted_to_the_row(tmp_path: Path) -> None:
    table, parts = tmp_path / "table", list(skewed_files().values())
    for times in parts:
        rows = pa.table({"ts": pa.array(times, pa.timestamp("us", "UTC"))})
        deltalake.write_deltalake(str(table), rows, mode="append")
    emitted = run_older(tmp_path, "delta", str(table), {"maxFilesPerTrigger": 1, "startingVersion": "0"})
    found = audit(tmp_path, source=str(table), options={"startingVersion": "0"})
    done = naive.run(QUERY, [*([(str(number), times)] for number, times in enumerate(parts)), []])
    for name in ("read", "dropped", "emitted", "open"):
        assert found.count(name) == sum(counts[name] for counts in done.counts.values()), name
    assert found.emitted == emitted
    assert found.dropped > 0
    assert (found.unknown, found.notes) == (0, ())


@by_older
@pytest.mark.parametrize("operator", ["sessionWindow", "dropDuplicates", "dropDuplicatesWithinWatermark", "join"])
def test_what_other_operators_drop_is_counted(tmp_path: Path, operator: str) -> None:
    files = skewed_files()
    write(tmp_path / "in", files, "parquet")
    options = {"maxFilesPerTrigger": 1, "recursiveFileLookup": "true"}
    emitted = run_older(tmp_path, "parquet", str(tmp_path / "in"), options, operator)
    more: dict[str, Any] = {"window": "1 minute"} if operator == "sessionWindow" else {}
    found = audit(tmp_path, operator, **more)
    assert found.dropped > 0
    if operator == "join":
        # A row joins itself, and is read by both sides, which drop it in the same micro-batch.
        assert found.read == 2 * sum(map(len, files.values()))
        assert found.emitted == 2 * emitted
    elif operator == "sessionWindow":
        assert found.read == found.dropped + found.emitted + found.open + found.unknown
        assert found.emitted <= emitted <= found.emitted + found.unknown
    else:
        assert found.emitted == emitted
    if release() == "3.5":
        others = {"aggregation", "dropDuplicates", "join"} - {operator}
        for other in others:
            with pytest.raises(OptionError, match=f"give --operator {operator}"):
                audit(tmp_path, other, **more)

"""Spark's own Delta, on PySpark 4.0 to 4.2, as a process that runs SQL: it writes and reads a test's tables."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.kafka.artifacts import Artifacts, ArtifactsMissingError, of_older_spark
from tests.spark_home import RELEASE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["DELTA_SPARK", "SparkDelta", "jars_of_delta", "session_with_delta"]

DELTA_SPARK = Artifacts(Path(__file__).with_name("delta-spark.xml"))


def jars_of_delta() -> str:
    """The JARs, separated by commas.

    Raises
    ------
    ArtifactsMissingError
        If this PySpark is one that they are not for, or they cannot be had.
    """
    if RELEASE in ("4.0", "4.1"):
        return ",".join(map(str, of_older_spark(RELEASE, "delta").jars()))
    if RELEASE != "4.2":
        raise ArtifactsMissingError(f"Delta for Spark is for PySpark 4.0 to 4.2, and this is {RELEASE}")
    return ",".join(map(str, DELTA_SPARK.jars()))


def session_with_delta(jars: str) -> SparkSession:
    """Start a small session of Spark with Delta's JARs, in this process."""
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", jars)
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.databricks.delta.snapshotPartitions", "1")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )


class SparkDelta:
    """A session of Spark with Delta's JARs, whose messages go to `log`; a context manager, which ends it."""

    def __init__(self, jars: str, log: Path) -> None:
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.delta.spark_delta", jars],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def __enter__(self) -> SparkDelta:
        return self

    def __exit__(self, *_: object) -> None:
        # Without more statements it ends.
        self._process.communicate(timeout=60)

    def sql(self, statement: str, path: Path | str) -> list[dict[str, Any]]:
        """Run a statement, in which `{table}` is the table in this folder; return its rows, times as text."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(statement.format(table=f"delta.`{path}`")), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f"Spark's Delta has ended: {self._log.read_text()[-3000:]}")
        found = json.loads(line)
        assert isinstance(found, list), f"{statement}: {found}"
        return found


def main(jars: str) -> None:
    """Run one statement a line, and answer with its rows, or with the text of its error."""
    answers, sys.stdout = sys.stdout, sys.stderr
    session = session_with_delta(jars)
    for line in sys.stdin:
        try:
            found: Any = [row.asDict() for row in session.sql(json.loads(line)).collect()]
        except Exception as error:
            found = str(error)[:2000]
        print(json.dumps(found, default=str), file=answers, flush=True)
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

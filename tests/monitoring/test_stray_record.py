"""A record of 1970 at the end of the largest file of a backlog: a real query, and the command line, name it at once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

from streaming_source import explain, read_stream
from streaming_source.tools.cli.main import app
from tests.spark.support import SECOND, T0, write_file

pytestmark = pytest.mark.spark

ROWS, STRAY = 400, 10 * SECOND


@pytest.mark.parametrize("split_by", ["file", pytest.param("directory", marks=pytest.mark.soak)])
def test_it_is_named_from_the_first_micro_batch_on_until_it_is_read(
    spark: SparkSession, tmp_path: Path, split_by: str
) -> None:
    largest = tmp_path / "in" / "b" / "largest.parquet"
    write_file(largest, np.append(T0 + np.arange(ROWS - 1) * SECOND, STRAY))
    for name in "ac":
        write_file(tmp_path / "in" / name / "small.parquet", T0 + np.arange(100) * SECOND)
    reader = read_stream(spark).format("aligned_files").option("eventTimeColumn", "ts").option("splitBy", split_by)
    frame = reader.option("maxRowsPerTrigger", 150).load(str(tmp_path / "in"))
    said: list[dict[str, Any]] = []
    started = threading.Event()

    def look(_: DataFrame, number: int) -> None:
        """Of the micro-batch before, by the query; of this one, by its checkpoint."""
        started.wait(60)
        live = "" if not number else " ".join(str(explain(query)).split())
        stored = CliRunner().invoke(app, ["explain", str(tmp_path / "checkpoint")]).stdout
        said.append({"live": live, "stored": " ".join(stored.split())})

    writer = frame.writeStream.foreachBatch(look).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    started.set()
    assert query.awaitTermination(120)

    until = 1 + max(number for number, one in enumerate(said) if "is not read yet" in one["stored"])
    assert 3 <= until < len(said)
    texts = [one["stored"] for one in said[:until]] + [one["live"] for one in said[1:until]]
    # What takes 10 seconds, as the first one where Spark has just started, is said before anything else.
    asked = [text for text in texts if "has not been committed for" not in text]
    assert len(asked) >= 3
    for text in asked:
        assert (
            f"has a record that is not read yet, at row {ROWS - 1} of b/largest.parquet, of 1970-01-01 00:00:10" in text
        )
        assert "Advice (lateness)" in text
        assert "To have them earlier set lateness=bounded" in text
        assert "eventTimeFrom leaves out what lies before a time" in text

"""Each row once over AvailableNow runs; tests/faults has crashes."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.conftest import Loader
from tests.spark.support import SECOND, skewed_logs, write_file, write_logs

pytestmark = pytest.mark.spark

LOGS = skewed_logs(21, rows=(120, 80), starts=(0, 300 * SECOND), steps=(SECOND, 2 * SECOND))
Rows = list[tuple[str, int]]


def batches_of(frame: DataFrame, checkpoint: Path) -> dict[int, Rows]:
    """Run to the end of what is there; the `(_split, _position)` that each micro-batch read."""
    read: dict[int, Rows] = {}

    def keep(batch: DataFrame, number: int) -> None:
        read[number] = sorted(map(tuple, batch.select("_split", "_position").collect()))

    writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
    assert writer.trigger(availableNow=True).start().awaitTermination(120)
    return read


@pytest.mark.parametrize("split_by", ["directory", pytest.param("file", marks=pytest.mark.soak)])
def test_available_now_run_again_with_new_files_between_gives_each_row_once(
    spark: SparkSession, exact: Loader, tmp_path: Path, split_by: str
) -> None:
    later = {split: times + 1000 * SECOND for split, times in LOGS.items()}

    def run() -> dict[int, Rows]:
        options = {"splitBy": split_by, "availableNowCheckpoint": tmp_path / "cp"}  # the second for Spark before 4.2
        frame = exact(tmp_path / "in", includeMetadata="true", maxRowsPerTrigger=90, **options)
        return batches_of(frame, tmp_path / "cp")

    write_logs(tmp_path / "in", LOGS, files=2)
    first = run()
    for split, times in later.items():
        write_file(tmp_path / "in" / split / "part-900.parquet", times, split)
    write_file(tmp_path / "in" / "new" / "part-000.parquet", later["split-0"])
    second = run()
    third = run()
    seen = [row for read in (first, second, third) for rows in read.values() for row in rows]
    assert len(seen) == len(set(seen)) == 200 + 200 + 120
    assert not any(third.values())
    assert min(second) == max(first) + 1

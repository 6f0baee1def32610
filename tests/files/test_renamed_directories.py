"""A directory that is renamed under a query is no new split: its records were read."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from alignment import WatermarkStrategy
from streaming_source.connectors.files import FileSource
from streaming_source.exceptions import DataLossError
from streaming_source.testing import SourceHarness
from tests.spark.support import SECOND, T0, write_file

STRATEGY = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("ts")


def query(root: Path) -> SourceHarness:
    for number, log in enumerate("ab"):
        write_file(root / f"log={log}" / "1.parquet", T0 + np.arange(5 + number) * SECOND)
    reading = SourceHarness(FileSource(str(root), split_by="directory"), STRATEGY)
    reading.run()
    return reading


@pytest.mark.parametrize("restarts", [False, True], ids=["while it runs", "while it is down"])
@pytest.mark.parametrize("also", ["nothing else", "a later file"])
def test_the_query_ends_before_a_row_of_a_renamed_directory_is_out(tmp_path: Path, restarts: bool, also: str) -> None:
    reading = query(tmp_path)
    (tmp_path / "log=b").rename(tmp_path / "log=bb")
    if also == "a later file":
        write_file(tmp_path / "log=bb" / "2.parquet", T0 + np.arange(50, 60) * SECOND)
    if restarts:
        reading.restart()
    reading.clock.advance("1 hour")
    with pytest.raises(DataLossError, match=r"log=b is gone, and log=bb has the same files, 1\.parquet.*renamed"):
        reading.run()
    assert sum(len(batch.all_records) for batch in reading.batches) == 11
    (tmp_path / "log=bb").rename(tmp_path / "log=b")
    reading.restart()
    reading.run()
    assert sum(len(batch.all_records) for batch in reading.batches) == 11 + 10 * (also == "a later file")
    reading.close()


def test_a_copy_of_a_directory_that_is_still_there_is_another_split(tmp_path: Path) -> None:
    reading = query(tmp_path)
    shutil.copytree(tmp_path / "log=b", tmp_path / "log=c")
    reading.clock.advance("1 hour")
    reading.run()
    assert sum(len(batch.all_records) for batch in reading.batches) == 17
    reading.close()

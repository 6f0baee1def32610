"""Every connector, and a source of a user's own, as a batch and as streams. Kafka's is with its broker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from alignment import WatermarkStrategy
from streaming_source.api import Source
from streaming_source.connectors import DataGeneratorSource, FileSource
from tests.spark.one_source import check_that_all_ways_read_the_same
from tests.spark.reading import SECOND, T0, put, stamps
from tests.spark.unindexed import UnindexedLogs, append_log

STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness("2 seconds").with_timestamp_assigner("ts")
SPLITS, ROWS = ("a", "b", "c"), 20


def files(folder: Path, split_by: str) -> Callable[[bool], Source[Any, Any]]:
    for number, split in enumerate(SPLITS):
        table = {"ts": stamps(*(5 * number + i - 2 * (i % 4 == 3) for i in range(ROWS))), "k": list(range(ROWS))}
        put(folder / split / "f.parquet", table, row_group_size=6)
    return lambda bounded: FileSource(str(folder), bounded=bounded, split_by=split_by)


def datagen(folder: Path) -> Callable[[bool], Source[Any, Any]]:
    # All of them arrived long ago.
    return lambda bounded: DataGeneratorSource(splits=3, rows_per_split=ROWS, bounded=bounded, rows_per_second=1e8)


def own(folder: Path) -> Callable[[bool], Source[Any, Any]]:
    for number, split in enumerate(SPLITS):
        append_log(folder, split, T0 + SECOND * (5 * number + np.arange(ROWS)))
    return lambda bounded: UnindexedLogs(str(folder), bounded)


SOURCES: dict[str, Callable[[Path], Callable[[bool], Source[Any, Any]]]] = {
    "files": lambda folder: files(folder, "directory"),
    "files, each a split": lambda folder: files(folder, "file"),
    "datagen": datagen,
    "of a user's own": own,
}


@pytest.mark.parametrize("kind", SOURCES)
def test_a_source_gives_the_same_records_to_a_batch_and_to_streams_that_end_or_not(tmp_path: Path, kind: str) -> None:
    records = check_that_all_ways_read_the_same(SOURCES[kind](tmp_path), STRATEGY, len(SPLITS) * ROWS)
    assert [row["_position"] for row in records] == [*range(ROWS)] * len(SPLITS)

"""A range of event times over a table: files that are wholly before it are not opened, and commits bring the others."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from streaming_source.spark.datasource import AlignedDataSource
from tests.delta import tables as delta
from tests.examples import each_once
from tests.iceberg import tables as iceberg
from tests.spark.reading import Reading, rows_emitted
from tests.tables.reading import SECOND

Part = list[int | None]
"""The event times of one file."""


def _delta(folder: Path, parts: list[Part], **options: str) -> tuple[AlignedDataSource, Callable[[Part], object]]:
    for part in parts:
        delta.append(folder, part)
    source = AlignedDataSource.of_format("aligned_delta", rows_emitted({"path": str(folder), **OPTIONS, **options}))
    return source, partial(delta.append, folder)


def _iceberg(folder: Path, parts: list[Part], **options: str) -> tuple[AlignedDataSource, Callable[[Part], object]]:
    table = iceberg.create(folder)
    for part in parts:
        iceberg.append(table, part)
    catalog = {f"catalog.{name}": value for name, value in iceberg.catalog_options(folder).items()}
    given = {"path": "db.t", "catalog.name": "tests", **catalog, **OPTIONS, **options}
    return AlignedDataSource.of_format("aligned_iceberg", rows_emitted(given)), partial(iceberg.append, table)


_FROM, _UNTIL = 50 * SECOND, 95 * SECOND
OPTIONS = {
    "eventTimeColumn": "ts",
    "eventTimeFrom": "1970-01-01T00:00:50Z",
    "eventTimeUntil": "1970-01-01T00:01:35Z",
    "invalidTimestamp": "null",
    "timeZone": "UTC",
}


@pytest.mark.parametrize("written", [_delta, _iceberg])
def test_files_before_the_range_are_not_opened_where_each_record_has_a_time(
    written: Callable[[Path, list[Part]], tuple[AlignedDataSource, object]], tmp_path: Path
) -> None:
    before, with_null, across, behind = [1, 2], [3, None], [4, 60], [90, 95]
    parts = [[None if at is None else at * SECOND for at in part] for part in (before, with_null, across, behind)]
    source, _ = written(tmp_path, parts)
    oldest = min(tmp_path.rglob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    # Whether a file is opened shows where it is gone.
    oldest.unlink()

    reader = source.times_reader()

    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    read = [time for batch in batches for time in batch.column(2).cast(pa.int64()).to_pylist()]
    assert sorted(read, key=str) == [60 * SECOND, 90 * SECOND, None]


@pytest.mark.parametrize(("overlap", "written"), each_once(["drop", "keep"], [_delta, _iceberg]))
def test_a_stream_has_the_records_of_the_range_over_a_commit_and_counts_the_others(
    written: Callable[..., tuple[AlignedDataSource, Callable[[Part], object]]], overlap: str, tmp_path: Path
) -> None:
    """Of the snapshot and of a commit: what is within, before, across both ends, and behind; in small micro-batches."""
    snapshot = [[40, 49], [48, 50, 51], [60, 94], [70, None], [93, 95, 96], [200, 300]]
    later = [[30, 31], [45, 90, 110], [94, 94], [400, 500]]
    first, second = ([[None if at is None else at * SECOND for at in part] for part in of] for of in (snapshot, later))
    options = {"overlap": overlap, "maxOutOfOrderness": "1 hour", "maxRowsPerTrigger": "4", "watermarkRows": "true"}
    source, append = written(tmp_path, first, **options, includeMetadata="true")
    begun, found = Reading(source.stream_reader(source.schema())), list[int | None]()

    def read(rows: int) -> None:
        until = time.monotonic() + 20
        while len(found) < rows:
            if (table := begun.next()) is not None:
                found.extend(table.filter(table["_split"].is_valid())["ts"].cast(pa.int64()).to_pylist())
            assert time.monotonic() < until, found

    def wanted(parts: list[Part]) -> Part:
        return [at for part in parts for at in part if overlap == "keep" or at is None or _FROM <= at < _UNTIL]

    read(len(wanted(first)))
    for part in second:
        append(part)
    read(len(wanted(first + second)))
    # What is left lies behind the range.
    for _ in range(3):
        begun.next()
    begun.reader.stop()
    assert sorted(found, key=str) == sorted(wanted(first + second), key=str)
    outside = [[at for at in part if at is not None and not _FROM <= at < _UNTIL] for part in first + second]
    # Files that are before the range as a whole are not begun, and so not counted, unless they are kept.
    counted = [part for part in outside if overlap == "keep" or part not in ([40 * SECOND, 49 * SECOND], second[0])]
    assert begun.offset["out_of_range"] == sum(map(len, counted))

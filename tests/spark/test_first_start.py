"""The first start of a query decides where it begins, also where it finds nothing to read: over all ways to begin."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from streaming_source.spark.datasource import AlignedDataSource
from tests.delta import tables as delta
from tests.examples import each_once
from tests.iceberg import tables as iceberg
from tests.spark.reading import SECOND, Reading, put
from tests.tables.reading import rows


class Way(NamedTuple):
    """A way to begin: a format, its options at each start, and what adds a record of an event time."""

    name: str
    options: Callable[[], dict[str, str]]
    add: Callable[[int], object]


def now() -> str:
    return datetime.now(UTC).isoformat()


def of_delta(folder: Path, **options: str) -> Way:
    delta.append(folder, [0])
    return Way("aligned_delta", lambda: {"path": str(folder), **options}, lambda us: delta.append(folder, [us]))


def of_iceberg(folder: Path) -> Way:
    table = iceberg.create(folder)
    iceberg.append(table, [0])
    catalog = {f"catalog.{name}": value for name, value in iceberg.catalog_options(folder).items()}
    given = {"path": "db.t", "catalog.name": "tests", **catalog}
    return Way("aligned_iceberg", lambda: {**given, "stream-from-timestamp": now()}, lambda us: append(table, us))


def append(table: Any, us: int) -> None:
    # Of a time in milliseconds that is not before that of a start: a commit of the same one is before it.
    time.sleep(0.002)
    iceberg.append(table, [us])
    time.sleep(0.002)


def of_files(folder: Path, **options: str) -> Way:
    def add(us: int) -> None:
        time.sleep(0.002)
        put(folder / "a" / f"{us}.parquet", rows([us]))
        time.sleep(0.002)

    add(0)
    given = {"path": str(folder), "dataSchema": "ts timestamp", "discoveryInterval": "1 ms", **options}
    return Way("aligned_files", lambda: {**given, "modifiedAfter": now()}, add)


WAYS = {
    "latest version": lambda folder: of_delta(folder, startingVersion="latest"),
    "version that is still to come": lambda folder: of_delta(folder, startingVersion="1"),
    "snapshots from now on": of_iceberg,
    "files from now on, as splits": lambda folder: of_files(folder, splitBy="file"),
    "files from now on, by directory": lambda folder: of_files(folder, splitBy="directory"),
}


def read(way: Way, start: dict[str, Any] | None, *, runs_to_end: bool) -> tuple[list[int], dict[str, Any]]:
    """The event times of one run that begins after an offset, and the offset that Spark keeps of it."""
    given = {"eventTimeColumn": "ts", "timeZone": "UTC", **way.options()}
    source = AlignedDataSource.of_format(way.name, given)
    reading, found = Reading(source.stream_reader(source.schema())), list[int]()
    if start is not None:
        # As the log of offsets has it.
        reading.offset = json.loads(json.dumps(start))
    if runs_to_end:
        reading.reader.prepareForTriggerAvailableNow()
    for _ in range(4):
        if (batch := reading.next()) is not None:
            found += batch["ts"].cast(pa.int64()).to_pylist()
    reading.reader.stop()
    return found, reading.offset


@pytest.mark.parametrize(("runs_to_end", "kind"), each_once([True, False], [*WAYS]))
def test_a_first_start_that_finds_nothing_decides(tmp_path: Path, kind: str, runs_to_end: bool) -> None:
    way = WAYS[kind](tmp_path)

    begun, offset = read(way, None, runs_to_end=runs_to_end)
    way.add(100 * SECOND)
    second, offset = read(way, offset, runs_to_end=runs_to_end)
    way.add(200 * SECOND)
    third, _ = read(way, offset, runs_to_end=True)

    assert (begun, second + third) == ([], [100 * SECOND, 200 * SECOND])
    assert second == [100 * SECOND] or not runs_to_end


@pytest.mark.parametrize("kind", WAYS)
def test_a_first_start_that_finds_nothing_is_no_micro_batch_more_than_one(tmp_path: Path, kind: str) -> None:
    """Spark commits the first one in any case; nothing follows it until there is something to read."""
    way = WAYS[kind](tmp_path)
    source = AlignedDataSource.of_format(way.name, {"eventTimeColumn": "ts", "timeZone": "UTC", **way.options()})
    reading = Reading(source.stream_reader(source.schema()))

    batches = [reading.next() for _ in range(3)]
    reading.reader.stop()

    assert [None if batch is None else batch.num_rows for batch in batches] == [0, None, None]

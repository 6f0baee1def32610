"""Tables of many small files: a limit of rows is met exactly, and an offset has no line for a file that was read."""

from __future__ import annotations

import json
import logging
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streaming_source.data_files import queued
from streaming_source.exceptions import DataLossError
from streaming_source.spark.datasource import AlignedDataSource
from tests.delta.tables import append
from tests.spark.reading import EMITTED, Reading

SECOND = 1_000_000
START_US = 1_700_000_000 * SECOND
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("n", pa.int64())])
FILES, ROWS, LIMIT = 1_000, 4, 1_600


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A minute a file, each of which overlaps the next; in one commit, in no order."""
    path = tmp_path_factory.mktemp("small") / "table"
    write_table(path, FILES)
    return path


def write_table(path: Path, files: int) -> None:
    deltalake.DeltaTable.create(str(path), SCHEMA)
    with (path / "_delta_log" / f"{1:020}.json").open("w") as log:
        for number in np.random.default_rng(1).permutation(files).tolist():
            name = f"part-00000-{uuid.UUID(int=number * 7919 + 1)}-c000.snappy.parquet"
            times = START_US + number * 60 * SECOND + np.linspace(0, 90 * SECOND, ROWS).astype(np.int64)
            columns = [pa.array(times, SCHEMA.field(0).type), pa.array([number] * ROWS)]
            pq.write_table(pa.Table.from_arrays(columns, schema=SCHEMA), path / name)
            low, high = (f"{np.datetime64(int(times[at]) // 1000, 'ms')}Z" for at in (0, -1))
            stats = {"numRecords": ROWS, "minValues": {"ts": low}, "maxValues": {"ts": high}, "nullCount": {"ts": 0}}
            size = (path / name).stat().st_size
            entry = {"path": name, "partitionValues": {}, "size": size, "modificationTime": 0, "dataChange": True}
            log.write(json.dumps({"add": {**entry, "stats": json.dumps(stats)}}) + "\n")


def reading(path: Path, **options: Any) -> Reading:
    given = {"path": str(path), "eventTimeColumn": "ts", "timeZone": "UTC", "watermarkRows": EMITTED, "bounded": "true"}
    source = AlignedDataSource.of_format("aligned_delta", {**given, **{name: str(of) for name, of in options.items()}})
    return Reading(source.stream_reader(source.schema()))


def numbers(rows: pa.Table) -> Counter[int]:
    """Without the row of the watermark."""
    return Counter(number for number in rows["n"].to_pylist() if number is not None)


def test_each_micro_batch_has_as_many_rows_as_its_limit_and_a_small_offset(table: Path) -> None:
    query, offsets, found = reading(table), list[dict[str, Any]](), list[Counter[int]]()
    offsets.append(query.offset)
    while (rows := query.next(LIMIT)) is not None:
        offsets.append(query.offset)
        found.append(numbers(rows))

    assert [batch.total() for batch in found if batch] == [LIMIT, LIMIT, FILES * ROWS - 2 * LIMIT]
    assert sum(found, Counter()) == Counter(dict.fromkeys(range(FILES), ROWS))
    written = [len(json.dumps({**offset, "why": None})) for offset in offsets]
    assert max(written) < 16_000
    assert [offset.get("finished", (0, 0))[0] > 195 for offset in offsets[1:4]] == [True] * 3
    # Each micro-batch again, by the two offsets alone, as after a restart.
    for start, end, expected in zip(offsets, offsets[1:], found, strict=False):
        start, end = (json.loads(json.dumps(offset)) for offset in (start, end))
        assert numbers(reading(table).between(start, end)) == expected


def test_without_a_limit_files_begin_as_many_as_an_offset_has_room_for(table: Path) -> None:
    query = reading(table)
    first = query.next()
    assert first is not None
    assert 250 * ROWS < first.num_rows < 500 * ROWS
    assert len(query.offset["splits"]) < 10


def test_commits_that_overlap_are_read_again_as_they_were(tmp_path: Path) -> None:
    """The snapshot is not begun to its end when commits bring earlier and later files, and these are compacted."""
    path = tmp_path / "table"
    write_table(path, 200)
    query, found = reading(path, bounded="false", discoveryInterval="1 ms"), []
    offsets = [query.offset]

    def take(limit: int) -> None:
        rows = query.next(limit)
        assert rows is not None
        offsets.append(query.offset)
        found.append(numbers(rows))

    take(330)
    for number in range(200, 212):
        minutes = (7 * number) % 100
        append(path, [START_US + minutes * 60 * SECOND + number], n=number)
    take(101)
    deltalake.DeltaTable(str(path)).optimize.compact()
    append(path, [START_US], n=999)
    take(17)
    take(170)
    while len(offsets) < 12 and sum(map(Counter.total, found)) < 200 * ROWS + 13:
        take(90)

    expected = Counter(dict.fromkeys(range(200), ROWS)) + Counter([*range(200, 212), 999])
    assert sum(found, Counter()) == expected
    for place, (start, end, batch) in enumerate(zip(offsets, offsets[1:], found, strict=False)):
        assert numbers(reading(path, bounded=("true", "false")[place % 2]).between(start, end)) == batch


def test_a_file_that_is_gone_when_a_micro_batch_is_read_again_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "table"
    write_table(path, 60)
    query = reading(path)
    start = query.offset
    assert query.next(100) is not None
    finished = query.offset["finished"][0]
    for file in sorted(path.glob("*.parquet")):
        file.unlink()
    with pytest.raises(DataLossError, match="was deleted before it was read"):
        reading(path).between(start, query.offset)
    with pytest.raises(DataLossError, match=rf"of {finished} splits to their ends, .* 0 of 0: .* checkpointLocation"):
        reading(path, ignoreMissingFiles="true").between(start, query.offset)


@pytest.mark.soak
def test_more_files_than_a_planner_takes_at_once_are_said(
    table: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(queued, "MOST_FILES", 300)
    query = reading(table)
    with caplog.at_level(logging.WARNING):
        rows = query.next(LIMIT)
    assert rows is not None
    assert 290 * ROWS < rows.num_rows <= 300 * ROWS + 1
    assert "a micro-batch reads 300 files at most, and maxRowsPerTrigger would allow more" in caplog.text

"""Parquet whose footer has other extremes of the event time than its rows: no row is left out without an error."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from alignment.timestamps import FieldTimestampAssigner
from streaming_source.exceptions import DataLossError
from tests.examples import each_once
from tests.spark.reading import SECOND, T0, Reading, micros, put, read_all, read_batch, stamps, stream_reader

HOUR = 3_600 * SECOND
ROWS = 60
SHIFTS = {
    "both later": (8, 8),
    "both earlier": (-8, -8),
    "minimum too late": (0.005, 0),
    "maximum too early": (0, -0.005),
}


def write_wrong(path: Path, shift: tuple[float, float], *, nested: bool = False) -> None:
    """60 rows, a second apart, in one row group, whose extremes in the footer are shifted by some hours."""
    times = stamps(*range(ROWS), zone="UTC")
    column = pa.StructArray.from_arrays([times], ["at"]) if nested else times
    put(path, {"t": column, "n": range(ROWS)}, compression="none")
    content = path.read_bytes()
    begin = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    footer = content[begin:]
    for value, hours in zip((T0, T0 + (ROWS - 1) * SECOND), shift, strict=True):
        was, new = (struct.pack("<q", one) for one in (value, value + int(hours * HOUR)))
        assert was in footer
        footer = footer.replace(was, new)
    path.write_bytes(content[:begin] + footer)
    statistics = pq.ParquetFile(path).metadata.row_group(0).column(0).statistics
    assert (statistics.min_raw, statistics.max_raw) == (
        T0 + int(shift[0] * HOUR),
        T0 + (ROWS - 1) * SECOND + int(shift[1] * HOUR),
    )


def read(path: Path, **options: Any) -> list[int | None]:
    return micros(read_all(path, **{"eventTimeColumn": "t", "maxOutOfOrderness": "0 seconds", **options}))


@pytest.mark.parametrize(
    ("shift", "limit", "split_by"), each_once([*SHIFTS], [{}, {"maxRowsPerTrigger": 10}], ["directory", "file"])
)
def test_wrong_extremes_are_an_error_that_names_the_file_and_the_fix(
    tmp_path: Path, shift: str, limit: dict[str, Any], split_by: str
) -> None:
    write_wrong(tmp_path / "a" / "wrong.parquet", SHIFTS[shift])
    put(tmp_path / "b" / "right.parquet", {"t": stamps(*range(ROWS), zone="UTC"), "n": range(ROWS)})
    with pytest.raises(DataLossError, match=r"wrong\.parquet: rows .* Set indexing = scan"):
        read(tmp_path, splitBy=split_by, **limit)
    assert len(read(tmp_path, splitBy=split_by, indexing="scan", **limit)) == 2 * ROWS


@pytest.mark.parametrize("options", [{}, {"eventTimeFrom": "2023-11-14T22:14:10Z"}, {"ignoreCorruptFiles": "true"}])
def test_so_they_are_in_a_batch_in_a_struct_and_with_options_that_leave_out(
    tmp_path: Path, options: dict[str, str]
) -> None:
    write_wrong(tmp_path / "wrong.parquet", SHIFTS["minimum too late"], nested=True)
    for reads in (read_all, read_batch):
        with pytest.raises(DataLossError, match="indexing = scan"):
            reads(tmp_path, eventTimeColumn="t.at", **options)


def test_rows_that_a_restart_reads_are_compared_too(tmp_path: Path) -> None:
    put(tmp_path / "a.parquet", {"t": stamps(-5, zone="UTC"), "n": [0]})
    options = {"eventTimeColumn": "t", "splitBy": "file", "discoveryInterval": "1 ms"}
    first = Reading(stream_reader(tmp_path, **options))
    assert first.next() is not None
    first.reader.stop()
    write_wrong(tmp_path / "wrong.parquet", SHIFTS["both later"])
    again = Reading(stream_reader(tmp_path, **options))
    again.offset = first.offset
    with pytest.raises(DataLossError, match=r"wrong\.parquet"):
        rows_until_error(again)
    again.reader.stop()


def rows_until_error(reading: Reading) -> None:
    while True:
        reading.next()


def test_extremes_that_are_right_are_no_error(tmp_path: Path) -> None:
    for number, unit in enumerate(["s", "ms", "us", "ns"]):
        put(tmp_path / f"{number}.parquet", {"t": stamps(0, number, 2.5, unit=unit)}, row_group_size=2)
    put(tmp_path / "null.parquet", {"t": pa.nulls(3, pa.timestamp("us"))})
    options = {"eventTimeColumn": "t", "dataSchema": "t timestamp_ntz", "invalidTimestamp": "null"}
    assert len(read_all(tmp_path, **options)) == len(read_batch(tmp_path, **options)) == 15


@pytest.mark.parametrize("kind", ["timestamp", "decimal", "dictionary"])
def test_the_event_times_of_rows_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    rows = 1000
    times, options = stamps(*range(rows), zone="UTC"), {"eventTimeColumn": "t"}
    if kind == "decimal":
        times, options["timestampUnit"] = times.cast(pa.int64()).cast(pa.decimal128(20, 0)), "us"
    put(tmp_path / "a.parquet", {"t": times.dictionary_encode() if kind == "dictionary" else times})
    made: list[int] = []
    extract = FieldTimestampAssigner.extract

    def counted(assigner: FieldTimestampAssigner, batch: pa.RecordBatch, stamps: Any) -> Any:
        made.append(batch.num_rows)
        return extract(assigner, batch, stamps)

    monkeypatch.setattr(FieldTimestampAssigner, "extract", counted)
    assert read_batch(tmp_path, **options).num_rows == rows
    # With the two extremes, which are compared with those in the footer.
    assert sum(made) == rows + 2


@pytest.mark.parametrize("reads", [read_all, read_batch])
def test_a_range_passes_over_what_extremes_put_outside_of_it(tmp_path: Path, reads: Any) -> None:
    write_wrong(tmp_path / "wrong.parquet", SHIFTS["both later"])
    options = {"eventTimeColumn": "t", "eventTimeUntil": "2023-11-15T00:00:00Z"}
    assert reads(tmp_path, **options).num_rows == 0
    assert reads(tmp_path, indexing="scan", **options).num_rows == ROWS
    # What is read is compared with its extremes.
    with pytest.raises(DataLossError, match="indexing = scan"):
        reads(tmp_path, eventTimeColumn="t", eventTimeFrom="2023-11-15T00:00:00Z")

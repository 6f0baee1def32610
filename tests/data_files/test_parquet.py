"""Parquet as Spark reads it: times in INT96, and types that are Spark's under other names."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.spark.reading import T0, micros, read_all, read_batch

US_PER_DAY = 86_400_000_000
FAR = [-62_135_596_800_000_000, -16_728_000_000_000_000, 19_894_000_000_000_000, 253_402_214_400_000_000]
"""0001-01-01, in 1439, in 2600, 9999-12-31: outside of the nanoseconds of 64 bits."""


def write_int96(path: Path, columns: dict[str, list[Any]], schema: pa.Schema) -> None:
    """Write times as INT96: nanoseconds of a day, and its Julian number. Arrow's writer would wrap far ones.

    So those that it writes have a mark of 2000-01-01 and their number, which is replaced in the file.
    """
    marks: list[int] = []

    def marked(value: Any) -> Any:
        if isinstance(value, int):
            marks.append(value)
            return 946_684_800_000_000 + len(marks)
        if isinstance(value, dict):
            return {name: marked(inner) for name, inner in value.items()}
        return [marked(inner) for inner in value] if isinstance(value, list) else value

    rows = {name: marked(values) for name, values in columns.items()}
    table = pa.table([pa.array(rows[field.name], field.type) for field in schema], schema=schema)
    pq.write_table(
        table, path, use_deprecated_int96_timestamps=True, compression="none", use_dictionary=False, store_schema=False
    )
    content = path.read_bytes()
    for number, value in enumerate(marks, 1):
        days, micros = divmod(value, US_PER_DAY)
        mark = struct.pack("<qi", number * 1000, 2_451_545)
        assert content.count(mark) == 1
        content = content.replace(mark, struct.pack("<qi", micros * 1000, 2_440_588 + days))
    path.write_bytes(content)


@pytest.mark.parametrize("read", [read_all, read_batch])
def test_int96_has_all_times_of_spark(tmp_path: Path, read: Any) -> None:
    time = pa.timestamp("us")
    schema = pa.schema([("t", time), ("v", time), ("l", pa.list_(time)), ("s", pa.struct([("l", pa.list_(time))]))])
    times = [T0 + number for number in range(len(FAR))]
    nested = [[value, None] for value in FAR]
    columns = {"t": times, "v": FAR, "l": nested, "s": [{"l": inner} for inner in nested]}
    write_int96(tmp_path / "f.parquet", columns, schema)
    table = read(tmp_path, eventTimeColumn="t")
    moment = pa.timestamp("us", "UTC")
    assert table.schema.types == [moment, moment, pa.list_(moment), pa.struct([("l", pa.list_(moment))])]
    assert table.column("v").cast(pa.int64()).to_pylist() == FAR
    assert table.column("l").cast(pa.list_(pa.int64())).to_pylist() == nested


def test_event_times_in_int96_are_not_wrapped(tmp_path: Path) -> None:
    write_int96(tmp_path / "f.parquet", {"t": [T0, *FAR]}, pa.schema([("t", pa.timestamp("us"))]))
    assert sorted(micros(read_all(tmp_path, eventTimeColumn="t", maxRowsPerTrigger=2))) == sorted([T0, *FAR])

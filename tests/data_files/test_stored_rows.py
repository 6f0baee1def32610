"""Files of tables: rows that are deleted, and columns that are stored under other names."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs

from alignment.timestamps import FieldTimestampAssigner
from streaming_source.data_files.file import DataFile, DeletedRows, FileRows, SeekPoint, StoredColumn, StoredFile
from streaming_source.data_files.formats import ParquetFormat
from streaming_source.data_files.stored_names import StoredNames
from tests.examples import examples

ASSIGNER = FieldTimestampAssigner("t", unit="us")
SCHEMA = pa.schema([("t", pa.int64()), ("n", pa.int64())])


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(1, 9), st.data())
def test_rows_that_are_deleted_are_seen_nowhere(kept: list[bool], group: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(len(kept))
    times = rng.integers(0, 100, len(kept))
    live = [(int(time), number) for number, (time, keep) in enumerate(zip(times, kept, strict=True)) if keep]
    deleted = DeletedRows.of_rows(np.flatnonzero(~np.array(kept)))
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "f.parquet")
        table = pa.table({"t": times, "n": np.arange(len(kept))}, schema=SCHEMA)
        pq.write_table(table, path, row_group_size=group)
        file, reading = StoredFile(fs.LocalFileSystem(), DataFile(path, deleted=deleted)), ParquetFormat()

        blocks = reading.describe(file, SCHEMA, ASSIGNER, data.draw(st.sampled_from(["auto", "statistics", "scan"])))

        assert int(blocks.rows.sum()) == len(live)
        first = 0
        for rows, low, high, at in zip(blocks.rows, blocks.min_us, blocks.max_us, blocks.offsets or (), strict=True):
            of_block = [time for time, _ in live[first : first + rows]]
            assert (min(of_block), max(of_block)) == (low, high)
            start = data.draw(st.integers(first, first + int(rows)))
            stop = data.draw(st.integers(start, len(live)))
            part = FileRows(file, start, stop, SeekPoint(first, at))
            assert reading.event_times(part, SCHEMA, ASSIGNER).tolist() == [time for time, _ in live[start:stop]]
            found = list(reading.read_rows(part, SCHEMA))
            assert [n for block in found for n in block.batch["n"].to_pylist()] == [n for _, n in live[start:stop]]
            assert [block.positions for block in found] == [
                start + sum(b.batch.num_rows for b in found[:i]) for i in range(len(found))
            ]
            first += int(rows)


def test_columns_are_found_by_the_ids_of_their_fields(tmp_path: Path) -> None:
    def field(name: str, kind: pa.DataType, number: int) -> pa.Field:
        return pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})

    inner = pa.struct([field("p", pa.int64(), 4), field("gone", pa.int64(), 5)])
    stored = pa.schema([field("x", pa.int64(), 1), field("y", pa.list_(field("element", inner, 3)), 2)])
    lists = [[{"p": 1, "gone": 9}], None, [], [{"p": 2, "gone": 9}, None]]
    pq.write_table(pa.table([[1, 2, 3, 4], lists], schema=stored), tmp_path / "f.parquet")
    element = StoredColumn("element", 3, {"q": StoredColumn("other", 4)})
    columns = {"n": StoredColumn("", 1), "l": StoredColumn("", 2, {"element": element}), "new": StoredColumn("", 7)}
    wanted = pa.schema(
        [("new", pa.string()), ("l", pa.list_(pa.field("element", pa.struct([("q", pa.int64())])))), ("n", pa.int64())]
    )
    file = StoredFile(fs.LocalFileSystem(), DataFile(str(tmp_path / "f.parquet"), stored=columns))

    (block,) = ParquetFormat().read_rows(FileRows(file, 1, 4), wanted)

    assert block.batch.schema == wanted
    assert block.batch.to_pylist() == [
        {"new": None, "l": None, "n": 2},
        {"new": None, "l": [], "n": 3},
        {"new": None, "l": [{"q": 2}, None], "n": 4},
    ]


@pytest.mark.parametrize("skip", [0, 1, 3])
def test_names_change_inside_of_structs_lists_and_maps_and_no_value_does(skip: int) -> None:
    struct = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.struct([("c", pa.string())])))])
    rows = [{"a": 1, "b": [{"c": "x"}, None]}, None, {"a": None, "b": None}, {"a": 4, "b": [{"c": None}]}]
    pairs = [[("k", {"a": 1, "b": []})], None, [], [("k", None), ("l", {"a": 2, "b": None})]]
    batch = pa.record_batch({"s": pa.array(rows, struct), "m": pa.array(pairs, pa.map_(pa.string(), struct))})
    renamed = {
        "A": StoredColumn("a"),
        "B": StoredColumn("b", inner={"element": StoredColumn("", inner={"C": StoredColumn("c")})}),
    }
    names = StoredNames(
        {
            "M": StoredColumn("m", inner={"value": StoredColumn("", inner=renamed)}),
            "S": StoredColumn("s", inner=renamed),
        }
    )

    found = names.renamed(batch.slice(skip))

    found.validate(full=True)
    text = str(batch.slice(skip).select(["m", "s"]).to_pylist())
    for name in "abcms":
        text = text.replace(f"'{name}'", f"'{name.upper()}'")
    assert str(found.to_pylist()) == text
    assert names.path_in(batch.schema, "S.A") == "s.a"
    assert names.path_in(batch.schema, "S.other") == "S.other"

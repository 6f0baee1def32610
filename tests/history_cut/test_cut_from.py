"""`cut_from`: the next offset of each partition, missing ones, gaps and repetitions, as a list of offsets has them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from streaming_source import cut_from
from streaming_source.exceptions import OptionError, SchemaError
from streaming_source.tools.history_cut import HistoryCut
from tests.delta.deletion_vectors import delete_rows as delete_rows_of_delta
from tests.docs.pages import ROOT, code, printed
from tests.examples import examples
from tests.iceberg.commits import delete_rows as delete_rows_of_iceberg
from tests.iceberg.commits import files_of_table

Rows = list[tuple[str, int, int]]
"""Topic, partition and offset of each record."""

ROWS = st.lists(st.tuples(st.sampled_from(["orders", "payments"]), st.integers(0, 3), st.integers(0, 30)), min_size=1)


def table(rows: Rows) -> pa.Table:
    topics, partitions, offsets = (list(column) for column in zip(*rows, strict=True))
    columns = {"topic": topics, "partition": pa.array(partitions, pa.int32()), "offset": pa.array(offsets, pa.int64())}
    return pa.table({**columns, "value": [b"v"] * len(rows)})


def check(cut: HistoryCut, rows: Rows) -> None:
    """Against the offsets themselves."""
    by_partition: dict[tuple[str, int], Counter[int]] = {}
    for topic, partition, offset in rows:
        by_partition.setdefault((topic, partition), Counter())[offset] += 1
    found = {(t, p): offset for t, of_topic in cut.next_offsets.items() for p, offset in of_topic.items()}
    assert found == {key: max(offsets) + 1 for key, offsets in by_partition.items()}
    lacking = {
        (topic, partition, offset)
        for (topic, partition), offsets in by_partition.items()
        for offset in range(min(offsets), max(offsets))
        if offset not in offsets
    }
    assert lacking == {(gap.topic, gap.partition, at) for gap in cut.gaps for at in range(gap.first, gap.until)}
    repeated = {(t, p): count for t, of_topic in cut.repeated.items() for p, count in of_topic.items()}
    more = {key: offsets.total() - len(offsets) for key, offsets in by_partition.items()}
    assert repeated == {key: count for key, count in more.items() if count}
    assert cut.rows == len(rows)
    last = {topic: max(p for t, p in by_partition if t == topic) for topic, _ in by_partition}
    assert cut.missing == {
        topic: tuple(p for p in range(last[topic]) if (topic, p) not in by_partition)
        for topic in last
        if any((topic, p) not in by_partition for p in range(last[topic]))
    }
    start = json.loads(cut.starting_offsets)
    assert {(t, int(p)) for t in start for p in start[t]} == {(t, p) for t in last for p in range(last[t] + 1)}
    assert all(offset == found.get((t, int(p)), -2) for t in start for p, offset in start[t].items())


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(files=st.lists(ROWS, min_size=1, max_size=4), group=st.integers(1, 7), statistics=st.booleans())
def test_parquet_files_give_what_their_offsets_give(
    tmp_path_factory: pytest.TempPathFactory, files: list[Rows], group: int, statistics: bool
) -> None:
    root = tmp_path_factory.mktemp("history")
    # Offsets of a file are as Kafka gives them: in order, each once.
    files = [sorted({*rows}) for rows in files]
    for number, rows in enumerate(files):
        pq.write_table(table(rows), root / f"{number}.parquet", row_group_size=group, write_statistics=statistics)
    cut = cut_from(root)
    check(cut, [row for rows in files for row in rows])
    assert statistics or cut.pieces_read == cut.pieces


def test_statistics_alone_are_read_where_they_show_each_offset(tmp_path: Path) -> None:
    for number, partition in enumerate((0, 1)):
        rows = [("orders", partition, offset) for offset in range(100, 200)]
        pq.write_table(table(rows), tmp_path / f"{number}.parquet", row_group_size=10)
    cut = cut_from(str(tmp_path), partitions={"orders": 3})
    assert (cut.pieces, cut.pieces_read, cut.rows) == (20, 0, 200)
    assert cut.starting_offsets == '{"orders": {"0": 200, "1": 200, "2": -2}}'
    assert str(cut).splitlines() == [
        "200 records of 2 partitions, in 20 pieces, 0 of them read.",
        'startingOffsets = {"orders": {"0": 200, "1": 200, "2": -2}}',
        "Not in the history, and read from the earliest record on: orders, partitions 2.",
    ]


def written_as_parquet(root: Path, rows: pa.Table) -> object:
    root.mkdir()
    pq.write_table(rows, root / "f.parquet")
    return root


def written_as_delta(root: Path, rows: pa.Table) -> object:
    deltalake.write_deltalake(str(root), rows)
    return root


def written_as_iceberg(root: Path, rows: pa.Table) -> object:
    root.mkdir()
    catalog = SqlCatalog("of_test", uri=f"sqlite:///{root}/catalog.db", warehouse=f"file://{root}/warehouse")
    catalog.create_namespace("db")
    made = catalog.create_table("db.history", rows.schema)
    made.append(rows)
    return made


@pytest.mark.parametrize("column", ["topic", "partition", "offset"])
@pytest.mark.parametrize("written", [written_as_parquet, written_as_delta, written_as_iceberg])
def test_a_null_hides_no_gap_and_is_counted(
    written: Callable[[Path, pa.Table], object], column: str, tmp_path: Path
) -> None:
    """There are as many rows as offsets between the bounds, which statistics alone take for one record each."""
    rows = table([("orders", 0, offset) for offset in (5, 6, 8, 9, 9)])
    lacks_it = pc.equal(pa.array(range(5)), 3)
    place = rows.schema.get_field_index(column)
    rows = rows.set_column(place, rows.schema.field(place), pc.if_else(lacks_it, None, rows[column]))
    cut = cut_from(written(tmp_path / "history", rows))  # type: ignore[arg-type]
    assert cut.next_offsets == {"orders": {0: 10}}
    assert [str(gap) for gap in cut.gaps] == ["orders-0: 7 to 7"]
    assert (cut.nulls, cut.rows, cut.pieces_read) == (1, 4, 1)
    assert "1 records have no topic, partition or offset, and count for nothing here." in str(cut)


@pytest.mark.parametrize("topic", ["orders", "007"])
def test_directories_that_name_topic_and_partition_are_columns(topic: str, tmp_path: Path) -> None:
    for partition in (0, 2):
        path = tmp_path / f"topic={topic}" / f"partition={partition}"
        path.mkdir(parents=True)
        pq.write_table(pa.table({"offset": range(5, 9), "value": [b"v"] * 4}), path / "f.parquet")
    cut = cut_from(tmp_path)
    check(cut, [(topic, partition, offset) for partition in (0, 2) for offset in range(5, 9)])
    assert cut.pieces_read == 0


def test_files_that_the_sink_of_spark_has_not_committed_are_no_history(tmp_path: Path) -> None:
    for number in range(2):
        pq.write_table(
            table([("orders", 0, offset) for offset in range(5 * number, 5 * number + 5)]),
            tmp_path / f"{number}.parquet",
        )
    log = tmp_path / "_spark_metadata"
    log.mkdir()
    (log / "0").write_text("v1\n" + json.dumps({"path": f"file://{tmp_path}/0.parquet", "size": 1, "action": "add"}))
    assert cut_from(tmp_path).next_offsets == {"orders": {0: 5}}


def test_a_folder_of_another_table_is_refused(tmp_path: Path) -> None:
    catalog = SqlCatalog("of_test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("db")
    made = catalog.create_table("db.history", table(ROWS_OF_A_TABLE[0]).schema)
    made.append(table(ROWS_OF_A_TABLE[0]))
    with pytest.raises(OptionError, match="Iceberg"):
        cut_from(made.location().removeprefix("file://"))


ROWS_OF_A_TABLE: list[Rows] = [
    [("orders", 0, offset) for offset in range(10)],
    [("orders", 1, offset) for offset in range(4, 8)],
    [("orders", 0, offset) for offset in range(12, 20)],
    [("orders", 0, 20), ("orders", 1, 8), ("payments", 0, 3), ("orders", 0, 22)],
]


@pytest.mark.parametrize("partition_by", [[], ["topic", "partition"]], ids=["plain", "partitioned"])
def test_a_delta_table_is_cut_by_its_log(tmp_path: Path, partition_by: list[str]) -> None:
    for rows in ROWS_OF_A_TABLE:
        deltalake.write_deltalake(str(tmp_path), table(rows), mode="append", partition_by=partition_by or None)
    cut = cut_from(tmp_path)
    check(cut, [row for rows in ROWS_OF_A_TABLE for row in rows])
    # The last commit: one file of several partitions, or one file with a gap.
    assert cut.pieces_read == 1


def test_an_iceberg_table_is_cut_by_its_manifests(tmp_path: Path) -> None:
    catalog = SqlCatalog("of_test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("db")
    made = catalog.create_table("db.history", table(ROWS_OF_A_TABLE[0]).schema)
    for rows in ROWS_OF_A_TABLE:
        made.append(table(rows))
    cut = cut_from(made)
    check(cut, [row for rows in ROWS_OF_A_TABLE for row in rows])
    assert cut.pieces_read == 1
    assert cut_from(made.metadata_location) == cut


TEN_ROWS: Rows = [("orders", 0, offset) for offset in range(10)]


def iceberg_table(root: Path, rows: pa.Table) -> Table:
    made = written_as_iceberg(root, rows)
    assert isinstance(made, Table)
    return made


def test_rows_that_a_delta_table_has_deleted_are_no_history(tmp_path: Path) -> None:
    written_as_delta(tmp_path, table(TEN_ROWS))
    delete_rows_of_delta(tmp_path, [4, 8, 9])
    cut = cut_from(tmp_path)
    check(cut, [TEN_ROWS[row] for row in (0, 1, 2, 3, 5, 6, 7)])
    assert cut.pieces_read == 1


def test_rows_that_an_iceberg_table_has_deleted_are_no_history(tmp_path: Path) -> None:
    made = iceberg_table(tmp_path / "history", table(TEN_ROWS))
    delete_rows_of_iceberg(made, {files_of_table(made)[0].file_path: [4, 8, 9]})
    cut = cut_from(made.refresh())
    check(cut, [TEN_ROWS[row] for row in (0, 1, 2, 3, 5, 6, 7)])
    assert cut.pieces_read == 1


@pytest.mark.parametrize("rows", [TEN_ROWS, TEN_ROWS[::3]], ids=["by statistics", "read"])
def test_columns_under_other_names_are_found(tmp_path: Path, rows: Rows) -> None:
    made = iceberg_table(tmp_path / "iceberg", table(rows).rename_columns(["topic", "partition", "at", "value"]))
    with made.update_schema() as change:
        change.rename_column("at", "offset")
    mapped = {"delta.columnMapping.mode": "name"}
    deltalake.write_deltalake(str(tmp_path / "delta"), table(rows), configuration=mapped)
    stored = {name for file in (tmp_path / "delta").glob("*.parquet") for name in pq.read_schema(file).names}
    assert stored.isdisjoint({"topic", "partition", "offset"})
    for history in (tmp_path / "delta", made.refresh()):
        cut = cut_from(history)
        check(cut, rows)
        assert cut.pieces_read == (rows is not TEN_ROWS)


def test_files_from_before_their_columns_were_added_have_no_offsets(tmp_path: Path) -> None:
    before, later = table(TEN_ROWS[:4]).select(["value"]), table(TEN_ROWS[4:])
    made = iceberg_table(tmp_path / "iceberg", before)
    with made.update_schema() as change:
        change.union_by_name(later.schema)
    made.append(later)
    deltalake.write_deltalake(str(tmp_path / "delta"), before)
    deltalake.write_deltalake(str(tmp_path / "delta"), later, mode="append", schema_mode="merge")
    for history in (tmp_path / "delta", made):
        cut = cut_from(history)
        assert (cut.next_offsets, cut.rows, cut.nulls) == ({"orders": {0: 10}}, 6, 4)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"offset_column": "at"}, SchemaError, "has no column 'at'; name the columns .* or cut by event time"),
        ({"partitions": {"orders": 1}}, OptionError, "the history has partition 1 of 'orders'; give the number"),
    ],
)
def test_wrong_use_is_refused(tmp_path: Path, wrong: dict[str, object], error: type[Exception], message: str) -> None:
    pq.write_table(table([("orders", 1, 5)]), tmp_path / "f.parquet")
    with pytest.raises(error, match=message):
        cut_from(tmp_path, **wrong)  # type: ignore[arg-type]


def test_a_history_without_offsets_is_refused(tmp_path: Path) -> None:
    pq.write_table(table([("orders", 1, 5)]).slice(0, 0), tmp_path / "f.parquet")
    with pytest.raises(OptionError, match="no record with an offset; start the topic with startingOffsets = earliest"):
        cut_from(tmp_path)
    with pytest.raises(OptionError, match="give a directory of Parquet files, a Delta table, or an Iceberg table"):
        cut_from(tmp_path / "nothing")


def test_the_page_on_history_prints_what_it_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = ROOT / "docs" / "history.md"
    for partition in range(5):
        rows = pa.table({"topic": ["flights"] * 600_000, "partition": [partition] * 600_000, "offset": range(600_000)})
        pq.write_table(rows, tmp_path / f"{partition}.parquet", row_group_size=12_500)
    scope: dict[str, Any] = {}
    exec(code(page, "by_offset.py").replace("/data/bronze/flights", str(tmp_path)), scope)
    assert capsys.readouterr().out.splitlines() == printed(page)
    assert json.loads(scope["live_options"]["startingOffsets"])["flights"]["5"] == -2

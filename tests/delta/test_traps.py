"""What a Delta table can have beside plain rows: each read as a batch of the table has it."""

from __future__ import annotations

import json
import re
from datetime import date
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from alignment import WatermarkStrategy
from alignment.timestamps import FieldTimestampAssigner
from alignment.watermarks import MIN_WATERMARK
from streaming_source.connectors.delta import DeltaSource
from streaming_source.data_files import queued
from streaming_source.exceptions import (
    DataLossError,
    FileGoneError,
    MalformedDataError,
    OptionError,
    SchemaError,
    UnsupportedOperationError,
)
from tests.delta.deletion_vectors import delete_rows
from tests.delta.tables import SECOND, append, harness, read_all, rows, times
from tests.examples import each_once


def test_partition_columns_are_typed_and_may_be_the_event_time(tmp_path: Path) -> None:
    days = pa.array([date(2024, 1, 3), date(2024, 1, 1), None, date(2024, 1, 2)])
    names = pa.array(["a b/c", "é%20", "x=y", None])
    table = pa.table({"day": days, "name": names, "n": [3, 1, 0, 2]})
    deltalake.write_deltalake(str(tmp_path), table, partition_by=["day", "name"])
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("0 seconds").with_timestamp_assigner("day")

    read = read_all(DeltaSource(str(tmp_path)), strategy)

    assert sorted(read.to_pylist(), key=lambda row: row["n"]) == sorted(table.to_pylist(), key=lambda row: row["n"])
    # The value is that of all rows: no column is read for it.
    done = harness(tmp_path, {"indexing": "statistics"}, strategy=strategy, max_rows=1)
    done.run()
    order = [batch.all_records[0].time_us for batch in done.batches if batch.all_records]
    assert [time // (86_400 * SECOND) - 19_723 for time in order[1:]] == [0, 1, 2]


BY_DAYS = WatermarkStrategy.for_bounded_out_of_orderness("0 seconds").with_timestamp_assigner("ts")


def in_zones(path: Path, *texts: str | None) -> None:
    """A table of a row each, which is partitioned by its moment, as this text in the log."""
    for number, text in enumerate(texts):
        at = pa.array([None if text is None else 1_700_000_000 * SECOND + number], pa.timestamp("us", "UTC"))
        table = pa.table({"ts": at, "n": [number]})
        deltalake.write_deltalake(str(path), table, mode="append", partition_by=["ts"])
        log = path / "_delta_log" / f"{number:020}.json"
        actions = [json.loads(line) for line in log.read_text().splitlines()]
        for action in actions:
            if "add" in action:
                action["add"]["partitionValues"]["ts"] = text
        log.write_text("\n".join(map(json.dumps, actions)))


NEW_YORK = "America/New_York"
NOON = 1_700_049_600


@pytest.mark.parametrize(("is_snapshot", "has_checkpoint"), each_once([True, False], [False, True]))
def test_moments_of_partitions_without_a_zone_are_in_that_of_the_session(
    tmp_path: Path, is_snapshot: bool, has_checkpoint: bool
) -> None:
    """Spark writes them so in the zone of its session, before it writes them in UTC with a Z."""
    texts = ("2023-11-15 07:00:00.000001", "2023-11-15T12:00:00.000002Z", "2023-11-15 07:00:00", None)
    in_zones(tmp_path, *texts)
    if has_checkpoint:
        deltalake.DeltaTable(str(tmp_path)).create_checkpoint()
    options: dict[str, object] = {} if is_snapshot else {"starting_version": 0}

    done = harness(tmp_path, {"time_zone": NEW_YORK, **options}, strategy=BY_DAYS)
    done.run()
    done.restart()

    assert times(done)[1:] == [NOON * SECOND, NOON * SECOND + 1, NOON * SECOND + 2]
    in_utc = harness(tmp_path, {"time_zone": "UTC", **options}, strategy=BY_DAYS)
    in_utc.run()
    assert times(in_utc)[1:] == [(NOON - 5 * 3600) * SECOND, (NOON - 5 * 3600) * SECOND + 1, NOON * SECOND + 2]
    unknown = harness(tmp_path, options, strategy=BY_DAYS)
    with pytest.raises(OptionError, match=r"option timeZone is missing: .* 'ts' has times without a zone, as '2023"):
        unknown.run()
    # Whoever does not read them needs no zone.
    without = harness(tmp_path, {"columns": ("n",), **options}, strategy=WatermarkStrategy.no_watermarks())
    without.run()
    assert len(times(without)) == 4


def test_a_moment_of_partitions_with_a_zone_and_without_is_refused_but_in_utc(tmp_path: Path) -> None:
    in_zones(tmp_path, "2023-11-15 12:00:00", "2023-11-15T12:00:00.000000Z")
    done = harness(tmp_path, {"time_zone": NEW_YORK}, strategy=BY_DAYS)
    with pytest.raises(UnsupportedOperationError, match=r"'ts' has both '2023-11-15.*' and '2023.* Set timeZone = UTC"):
        done.run()
    done = harness(tmp_path, {"time_zone": "UTC"}, strategy=BY_DAYS)
    done.run()
    assert times(done) == [NOON * SECOND] * 2


def test_columns_under_other_names_are_found(tmp_path: Path) -> None:
    table = rows([5 * SECOND, 3 * SECOND], n=[5, 3]).append_column(
        "s", pa.array([{"a.b": 1, "l": [{"x": 7}]}, {"a.b": None, "l": []}])
    )
    options = {"configuration": {"delta.columnMapping.mode": "name"}, "partition_by": "n"}
    deltalake.write_deltalake(str(tmp_path), table, **options)
    done = harness(tmp_path)
    done.run()
    deltalake.write_deltalake(str(tmp_path), table.slice(0, 1), mode="append")
    done.clock.advance("2 seconds")

    done.run()

    assert times(done) == [3 * SECOND, 5 * SECOND, 5 * SECOND]
    expected = [*table.to_pylist(), table.to_pylist()[0]]
    assert sorted(map(str, read_all(DeltaSource(str(tmp_path))).to_pylist())) == sorted(map(str, expected))
    fresh = harness(tmp_path)
    fresh.plan()
    assert sorted(split.file.low_us for split in fresh.state.splits) == [3 * SECOND, 5 * SECOND, 5 * SECOND]


def test_a_column_in_a_struct_may_be_the_event_time(tmp_path: Path) -> None:
    at = pa.array([{"ts": 9}, {"ts": 4}], pa.struct([("ts", pa.timestamp("us", "UTC"))]))
    deltalake.write_deltalake(str(tmp_path), pa.table({"event": at}))
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("0 seconds").with_timestamp_assigner("event.ts")

    done = harness(tmp_path, strategy=strategy)
    done.run()

    assert times(done) == [4, 9]


def test_times_without_a_zone_are_in_that_of_the_strategy(tmp_path: Path) -> None:
    local = pa.table({"ts": pa.array([1_700_000_000 * SECOND, 86_400 * SECOND], pa.timestamp("us"))})
    deltalake.write_deltalake(str(tmp_path), local)
    assigner = FieldTimestampAssigner("ts", zone="Europe/Berlin")
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("0 seconds").with_timestamp_assigner(assigner)

    done = harness(tmp_path, strategy=strategy)
    done.run()

    assert times(done) == [(86_400 - 3_600) * SECOND, (1_700_000_000 - 3_600) * SECOND]


def test_numbers_are_bounded_by_the_statistics_of_numbers(tmp_path: Path) -> None:
    for second in (7, 3):
        deltalake.write_deltalake(str(tmp_path), pa.table({"at": [second]}), mode="append")
    assigner = FieldTimestampAssigner("at", unit="s")
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("0 seconds").with_timestamp_assigner(assigner)

    done = harness(tmp_path, strategy=strategy, max_rows=1)
    done.run()

    assert [b.all_records[0].time_us for b in done.batches if b.all_records] == [3 * SECOND, 7 * SECOND]


def test_files_without_event_times_hold_nothing_back(tmp_path: Path) -> None:
    append(tmp_path, [5 * SECOND])
    append(tmp_path, [None, None])
    append(tmp_path, [None, 7 * SECOND])
    done = harness(tmp_path)

    done.run()

    assert len(times(done)) == 5
    assert done.watermark > MIN_WATERMARK


def test_a_file_from_before_all_columns_that_are_read_has_nulls(tmp_path: Path) -> None:
    deltalake.write_deltalake(str(tmp_path), pa.table({"v": [1, 2]}))
    append(tmp_path, [5 * SECOND], options={"schema_mode": "merge"}, v=[3])
    found = read_all(DeltaSource(str(tmp_path), columns=("ts",)))
    assert sorted(found["ts"].cast(pa.int64()).to_pylist(), key=str) == [5 * SECOND, None, None]


def test_new_columns_are_named_and_ignored_or_end_the_query(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    append(tmp_path, [1 * SECOND])
    ignoring, failing = harness(tmp_path), harness(tmp_path, {"schema_evolution": "fail"})
    for done in (ignoring, failing):
        done.run()
    append(tmp_path, [2 * SECOND], more="x", options={"schema_mode": "merge"})
    for done in (ignoring, failing):
        done.clock.advance("2 seconds")

    ignoring.run()

    assert times(ignoring) == [1 * SECOND, 2 * SECOND]
    assert "version 1, has new columns that the query does not read: more" in caplog.text
    with pytest.raises(
        SchemaError, match=r"version 1, has new columns that the query does not read: more\. schemaEvolution"
    ):
        failing.run()
    assert read_all(DeltaSource(str(tmp_path)))["more"].to_pylist() in (["x", None], [None, "x"])


def test_a_column_that_goes_or_changes_its_type_ends_the_query(tmp_path: Path) -> None:
    append(tmp_path, [1 * SECOND], n=1, other="a")
    done, unconcerned = harness(tmp_path), harness(tmp_path, {"columns": ("ts",)})
    for one in (done, unconcerned):
        one.run()
    options = {"mode": "overwrite", "schema_mode": "overwrite"}
    deltalake.write_deltalake(str(tmp_path), rows([2 * SECOND], n="text"), **options)
    for one in (done, unconcerned):
        one.clock.advance("2 seconds")

    with pytest.raises(SchemaError, match=r"version 1, has column 'n' as string, and the query reads it as int64"):
        done.run()
    with pytest.raises(MalformedDataError, match=r"version 1 \(WRITE\), changes rows"):
        unconcerned.run()


def test_rows_that_vectors_delete_before_the_start_are_not_there(tmp_path: Path) -> None:
    table, options = tmp_path / "é b", {"partition_by": ["part"]}
    append(table, [n * SECOND for n in range(10)], n=list(range(10)), part="a b/c%é", options=options)
    append(table, [n * SECOND for n in range(4, 14)], n=list(range(10, 20)), part="d")
    delete_rows(table, [0, 8, 9])
    delete_rows(table, [9], number=1)
    done = harness(table, max_rows=3)
    for _ in range(12):
        done.run_batch()
        done.restart()
    done.run()

    left = [n for n in range(20) if n not in (0, 8, 9, 19)]
    assert sorted(read_all(DeltaSource(str(table)))["n"].to_pylist()) == left
    assert times(done) == sorted((n if n < 10 else n - 6) * SECOND for n in left)


def test_a_vector_after_the_start_is_a_change(tmp_path: Path) -> None:
    append(tmp_path, [n * SECOND for n in range(10)])
    done, skipping = harness(tmp_path), harness(tmp_path, {"skip_change_commits": True})
    for one in (done, skipping):
        one.run()
    delete_rows(tmp_path, [3])
    for one in (done, skipping):
        one.clock.advance("2 seconds")
    skipping.run()

    with pytest.raises(MalformedDataError, match=r"version 1 \(DELETE\), changes rows .* Set skipChangeCommits = true"):
        done.run()
    assert len(times(skipping)) == 10


def test_a_batch_reads_the_version_or_the_moment_that_it_is_given(tmp_path: Path) -> None:
    for second in (1, 2, 3):
        append(tmp_path, [second * SECOND])
    table = deltalake.DeltaTable(str(tmp_path))
    at_ms = {entry["version"]: entry["timestamp"] for entry in table.history()}

    def read(**options: object) -> int:
        return read_all(DeltaSource(str(tmp_path), **options)).num_rows  # type: ignore[arg-type]

    assert [read(version_as_of=version) for version in range(3)] == [1, 2, 3]
    moment = str(pa.scalar(at_ms[1], pa.timestamp("ms")).as_py().isoformat())
    assert read(timestamp_as_of=f"{moment}Z") == 2
    with pytest.raises(OptionError, match=r"versionAsOf = 9: .* has the versions up to 2"):
        read(version_as_of=9)
    with pytest.raises(OptionError, match="has no version as old as that"):
        read(timestamp_as_of="2001-01-01")
    with pytest.raises(OptionError, match="give versionAsOf"):
        read(starting_version=1)
    started = harness(tmp_path, {"starting_timestamp": f"{moment}Z"})
    started.run()
    assert times(started) == [2 * SECOND, 3 * SECOND]


def test_a_stream_that_ends_reads_the_version_that_it_is_given_and_any_other_is_refused(tmp_path: Path) -> None:
    for number in range(3):
        append(tmp_path, [number * SECOND])
    for given in ({"version_as_of": 1}, {"timestamp_as_of": "2100-01-01"}):
        with pytest.raises(OptionError, match=r"AsOf = .* a stream that goes on begins with .* now: leave it out"):
            harness(tmp_path, given)
    done = harness(tmp_path, {"version_as_of": 1, "bounded": True})
    done.run()
    assert times(done) == [0, SECOND]


def test_a_batch_of_an_older_version_is_read_by_the_columns_of_that_version(tmp_path: Path) -> None:
    append(tmp_path, [1 * SECOND, 2 * SECOND], part=1, day=7, options={"partition_by": "part"})
    append(tmp_path, [3 * SECOND], part=2, day=8)
    expected = deltalake.DeltaTable(str(tmp_path)).to_pyarrow_table().sort_by("ts")
    options = {"mode": "overwrite", "schema_mode": "overwrite", "partition_by": ["day"]}
    deltalake.write_deltalake(str(tmp_path), rows([4 * SECOND], part="five", day=9), **options)

    read = read_all(DeltaSource(str(tmp_path), version_as_of=1)).sort_by("ts")

    assert read.to_pylist() == expected.select(read.schema.names).to_pylist()
    assert read["part"].to_pylist() == [1, 1, 2]


def test_a_file_that_was_vacuumed_is_named_with_the_fix(tmp_path: Path) -> None:
    append(tmp_path, [1 * SECOND])
    append(tmp_path, [900 * SECOND])
    done = harness(tmp_path, max_rows=1)
    done.run_batch()
    for path in tmp_path.glob("*.parquet"):
        path.unlink()

    with pytest.raises(
        FileGoneError, match=r"of Delta table .*, version 1, was deleted before .* or use a new checkpointLocation"
    ):
        done.run()


@pytest.mark.parametrize("names_checkpoint", [True, False])
def test_a_log_that_was_cleaned_up_under_a_stream_is_named(tmp_path: Path, names_checkpoint: bool) -> None:
    for second in range(3):
        append(tmp_path, [second * SECOND])
    done = harness(tmp_path)
    done.run()
    for second in range(3, 6):
        append(tmp_path, [second * SECOND])
    deltalake.DeltaTable(str(tmp_path)).create_checkpoint()
    for version in range(4):
        (tmp_path / "_delta_log" / f"{version:020}.json").unlink()
    if not names_checkpoint:
        (tmp_path / "_delta_log" / "_last_checkpoint").unlink()
    done.restart()

    with pytest.raises(DataLossError, match=r"version 3 is not in its log any more.*new checkpointLocation"):
        done.run()
    with pytest.raises(OptionError, match=r"starts with version 4, of 20[^ ]*Z, and .*; give a later time, or leave"):
        harness(tmp_path, {"starting_timestamp": "2001-01-01"}).run()


def test_a_feature_that_is_not_understood_is_refused_by_its_name(tmp_path: Path) -> None:
    append(tmp_path, [1 * SECOND])
    done = harness(tmp_path)
    done.run()
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["catalogManaged"],
        "writerFeatures": [],
    }
    (tmp_path / "_delta_log" / f"{1:020}.json").write_text(json.dumps({"protocol": protocol}))
    done.clock.advance("2 seconds")

    with pytest.raises(NotImplementedError, match="version 1, needs a reader that understands catalogManaged: its"):
        done.run()


def test_a_slow_reader_is_warned_before_its_files_are_vacuumed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queued, "FILES_OPEN", 2)
    configuration = {"delta.deletedFileRetentionDuration": "interval 2 hours"}
    for part in range(6):
        append(tmp_path, [1_000 * part * SECOND], options={"configuration": configuration})
    done = harness(tmp_path, max_rows=1)
    done.run_batch()
    deltalake.DeltaTable(str(tmp_path)).optimize.compact()
    done.clock.advance("2 seconds")

    done.run()

    warned = re.findall(r"(\d) of the (\d) files that wait to be read are not in the table any more", caplog.text)
    assert warned in ([("4", "4")], [("3", "3")])
    assert "(1 hour 59 minutes left)" in caplog.text
    assert len(times(done)) == 6


def test_a_table_is_the_same_however_its_path_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    same = {DeltaSource(path).identity for path in (str(tmp_path), f"{tmp_path}/", ".", f"{tmp_path}/x/..")}
    assert same == {str(tmp_path)}
    assert DeltaSource("s3://b/t/").identity == DeltaSource("s3://b/t").identity == "s3://b/t"
    with pytest.raises(OptionError, match="must be the folder of a Delta table"):
        DeltaSource(" ")


def test_a_place_without_a_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no Delta table in .*nothing; correct it"):
        DeltaSource(str(tmp_path / "nothing")).schema()
    (tmp_path / "broken" / "_delta_log").mkdir(parents=True)
    (tmp_path / "broken" / "_delta_log" / f"{0:020}.json").write_text("{")
    with pytest.raises(MalformedDataError, match=r"cannot be read as a Delta table: [^\n]*; restore its log, or give"):
        DeltaSource(str(tmp_path / "broken")).schema()


def test_a_checkpoint_without_statistics_leaves_the_order_of_files_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `delta.checkpoint.writeStatsAsJson` = false; `deltalake` writes them always."""
    monkeypatch.setattr(queued, "FILES_OPEN", 2)
    written = [second * SECOND + 1_111 * part for second in range(6) for part in (1, 5)]
    for pair in zip(written[::2], written[1::2], strict=True):
        append(tmp_path, pair)
    done = harness(tmp_path, max_rows=3)
    done.run_batch()
    deltalake.DeltaTable(str(tmp_path)).create_checkpoint()
    log = tmp_path / "_delta_log"
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    actions = pq.read_table(checkpoint)
    adds = [None if add is None else {**add, "stats": None} for add in actions["add"].to_pylist()]
    place = actions.schema.get_field_index("add")
    without = actions.set_column(place, "add", pa.array(adds, actions.schema.field(place).type))
    pq.write_table(without, checkpoint)
    for version in range(5):
        (log / f"{version:020}.json").unlink()

    done.restart()
    done.run()

    assert done.state.checkpoint.progress.steps == ()
    assert times(done) == written


def test_a_version_of_the_snapshot_that_is_gone_is_named(tmp_path: Path) -> None:
    for second in range(3):
        append(tmp_path, [1_000 * second * SECOND])
    done = harness(tmp_path, max_rows=1)
    done.run_batch()
    for second in range(3, 6):
        append(tmp_path, [1_000 * second * SECOND])
    deltalake.DeltaTable(str(tmp_path)).create_checkpoint()
    for version in range(5):
        (tmp_path / "_delta_log" / f"{version:020}.json").unlink()
    done.restart()

    with pytest.raises(DataLossError, match=r"has no version 2 any more|version 3 is not in its log any more"):
        done.run()


BARE = [
    ("x", pa.array([b"abc"]), pa.string(), "abc"),
    ("x", pa.array([5], pa.int32()), pa.int16(), 5),
    ("x", pa.array([-6], pa.int32()), pa.int8(), -6),
    ("x", pa.array([[b"abc"]]), pa.list_(pa.string()), ["abc"]),
]


@pytest.mark.parametrize(("name", "stored", "kind", "value"), BARE, ids=lambda one: str(one)[:20])
def test_types_of_parquet_without_annotations_are_read_as_the_table_has_them(
    tmp_path: Path, name: str, stored: pa.Array, kind: pa.DataType, value: object
) -> None:
    """Also moments without the flag of UTC, as the event time: whatever the zone of the session."""
    in_table = rows([1 * SECOND]).append_column(name, stored.cast(kind))
    deltalake.write_deltalake(str(tmp_path), in_table)
    (path,) = tmp_path.glob("*.parquet")
    bare = pa.table({"ts": in_table["ts"].cast(pa.timestamp("us")), name: stored})
    pq.write_table(bare, path, store_schema=False)
    options = {"time_zone": NEW_YORK}
    done = harness(tmp_path, options)

    done.run()

    assert times(done) == [1 * SECOND]
    (row,) = read_all(DeltaSource(str(tmp_path), **options)).to_pylist()
    assert (row[name], row["ts"]) == (value, in_table["ts"][0].as_py())


def test_a_type_that_does_not_widen_names_no_option_of_files(tmp_path: Path) -> None:
    append(tmp_path, [1 * SECOND], n=1)
    (path,) = tmp_path.glob("*.parquet")
    pq.write_table(rows([1 * SECOND], n="a"), path)

    with pytest.raises(SchemaError, match=r"reads it as int64, .* or leave the column out with option columns$"):
        read_all(DeltaSource(str(tmp_path)))

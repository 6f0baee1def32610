"""Deletes that a table had before a stream began: position deletes are applied, others are refused by name."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.table.snapshots import Operation

from streaming_source.exceptions import DataLossError, MalformedDataError, UnsupportedOperationError
from tests.iceberg.commits import commit_deletes, compact, delete_rows, files_of_table
from tests.iceberg.tables import SECOND, append, batch_times, create, harness, later, rows, times
from tests.tables.changing import read_with_restarts


@pytest.mark.parametrize("bounds", [True, pytest.param(False, marks=pytest.mark.soak)])
@pytest.mark.parametrize("is_partitioned", [pytest.param(False, marks=pytest.mark.soak), True])
def test_rows_that_were_deleted_before_the_snapshot_are_not_read(
    tmp_path: Path, bounds: bool, is_partitioned: bool
) -> None:
    table = create(tmp_path, rows([0], part=0).schema)
    if is_partitioned:
        with table.update_spec() as spec:
            spec.add_identity("part")
    for part in (1, 2):
        append(table, [(10 * i + part) * SECOND for i in range(50)], part=part)
    first, last = (file.file_path for file in files_of_table(table))
    delete_rows(table, {first: range(7, 30)}, bounds=bounds)
    if is_partitioned:
        delete_rows(table, {last: [0, 49]}, bounds=bounds)
    else:
        delete_rows(table, {first: [0], last: [0, 49]}, bounds=bounds)
    append(table, [777 * SECOND], part=1)
    done = harness(tmp_path, max_rows=8)
    read_with_restarts(done, lambda: None, loses_plan=False)

    expected = batch_times(table)
    assert times(done) == expected
    assert len(expected) == 101 - 23 - (2 if is_partitioned else 3)


def test_a_file_that_is_read_is_read_on_when_rows_of_it_are_deleted_after_the_snapshot(tmp_path: Path) -> None:
    table = create(tmp_path)
    append(table, [second * SECOND for second in range(20)])
    done, skips = harness(tmp_path, max_rows=5), harness(tmp_path, {"skip_delete_snapshots": True}, max_rows=5)
    for one in (done, skips):
        one.run_batch()
    gone = delete_rows(table, {files_of_table(table)[0].file_path: [3]})

    with pytest.raises(MalformedDataError, match=rf"snapshot {gone} \(delete, .*streaming-skip-delete-snapshots"):
        later(done)
    assert times(later(skips)) == [second * SECOND for second in range(20)]


def test_equality_deletes_are_refused(tmp_path: Path) -> None:
    table = create(tmp_path)
    append(table, [1 * SECOND, 2 * SECOND])
    location = f"{table.location()}/data/eq.parquet"
    with table.io.new_output(location).create() as stream:
        pq.write_table(rows([1 * SECOND]), stream)
    file = files_of_table(table)[0]
    gone = commit_deletes(table, location, file.partition, 0, 1, content=DataFileContent.EQUALITY_DELETES)

    with pytest.raises(UnsupportedOperationError, match=rf"snapshot {gone}, has equality deletes .*eq.parquet. Rewr"):
        harness(tmp_path).run()


def test_deletion_vectors_are_refused(tmp_path: Path) -> None:
    table = create(tmp_path)
    append(table, [1 * SECOND, 2 * SECOND])
    location = f"{table.location()}/data/dv.puffin"
    with table.io.new_output(location).create() as stream:
        stream.write(b"PFA1")
    gone = commit_deletes(table, location, files_of_table(table)[0].partition, 0, 1, file_format=FileFormat.PUFFIN)

    with pytest.raises(UnsupportedOperationError, match=rf"snapshot {gone}, has deletion vectors .*dv.puffin"):
        harness(tmp_path).run()


@pytest.mark.parametrize("file_format", [FileFormat.AVRO, FileFormat.ORC])
def test_position_deletes_in_other_formats_are_refused(tmp_path: Path, file_format: FileFormat) -> None:
    table = create(tmp_path)
    append(table, [1 * SECOND, 2 * SECOND])
    location = f"{table.location()}/data/deletes"
    with table.io.new_output(location).create() as stream:
        stream.write(b"0")
    gone = commit_deletes(table, location, files_of_table(table)[0].partition, 0, 1, file_format=file_format)

    with pytest.raises(
        UnsupportedOperationError, match=rf"snapshot {gone}, has position deletes in {file_format.value}"
    ):
        harness(tmp_path).run()


def test_an_append_that_deletes_as_well_is_refused(tmp_path: Path) -> None:
    table = create(tmp_path)
    append(table, [1 * SECOND, 2 * SECOND])
    done = harness(tmp_path)
    done.run()
    location = f"{table.location()}/data/deletes.parquet"
    with table.io.new_output(location).create() as stream:
        stream.write(b"0")
    partition = files_of_table(table)[0].partition
    gone = commit_deletes(table, location, partition, 0, 1, operation=Operation.APPEND)

    with pytest.raises(UnsupportedOperationError, match=rf"snapshot {gone} \(append\), adds delete files as well: "):
        later(done)


def test_a_delete_file_that_is_gone_is_named(tmp_path: Path) -> None:
    table = create(tmp_path)
    append(table, [1 * SECOND, 2 * SECOND])
    delete_rows(table, {files_of_table(table)[0].file_path: [0]})
    next(tmp_path.glob("warehouse/db/t/data/*-deletes.parquet")).unlink()

    with pytest.raises(DataLossError, match=r"the delete file .* was deleted: the snapshot has expired. Start with a"):
        harness(tmp_path).run()


def test_compaction_is_no_data(tmp_path: Path) -> None:
    table = create(tmp_path)
    for second in range(1, 6):
        append(table, [second * SECOND])
    done = harness(tmp_path, max_rows=1)
    done.run_batch()
    compact(table)
    append(table, [9 * SECOND])
    assert len(files_of_table(table)) == 2

    assert times(later(done)) == batch_times(table)
    assert times(later(harness(tmp_path))) == batch_times(table)

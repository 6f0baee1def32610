"""A data file as it travels to the tasks that read it."""

from __future__ import annotations

import pickle

import pyarrow as pa

from streaming_source.data_files.file import DataFile, DeletedRows

METADATA = pa.struct([("file_path", pa.string()), ("file_size", pa.int64()), ("modified", pa.timestamp("us", "UTC"))])


def data_file(number: int, given: dict[str, pa.Scalar]) -> DataFile:
    return DataFile(f"/data/{number:05}.parquet", given, DeletedRows(b"\x80"), origin="table")


def metadata(number: int) -> pa.Scalar:
    modified = None if number % 2 else 1_700_000_000_000_000 + number
    return pa.scalar({"file_path": f"/data/{number:05}", "file_size": number, "modified": modified}, METADATA)


def test_a_file_comes_as_it_was_with_the_values_and_types_of_its_given_columns() -> None:
    day = pa.scalar("2024-01-31").cast(pa.date32())
    nothing = pa.scalar(None, METADATA)
    for given in ({}, {"day": day}, {"day": day, "_metadata": metadata(3)}, {"m": metadata(4), "_metadata": nothing}):
        sent = data_file(3, given)
        read = pickle.loads(pickle.dumps(sent))
        # Not all of it counts in a comparison.
        names = DataFile.__slots__
        assert [getattr(read, name) for name in names] == [getattr(sent, name) for name in names]
        assert [value.type for value in read.given.values()] == [value.type for value in given.values()]


def test_the_types_of_given_columns_are_written_once_for_all_files_of_a_task() -> None:
    files = [data_file(number, {"_metadata": metadata(number)}) for number in range(100)]
    values = [(file.path, file.given["_metadata"].as_py()) for file in files]
    assert len(pickle.dumps(files)) < len(pickle.dumps(values)) + 300
    assert len(pickle.dumps(files)) < 100 * len(pickle.dumps(files[:1])) / 4


def test_columns_that_all_files_of_a_directory_share_are_written_once() -> None:
    day = {"day": pa.scalar("2024-01-31").cast(pa.date32())}
    files = [data_file(number, day) for number in range(100)]
    without = [data_file(number, {}) for number in range(100)]
    assert len(pickle.dumps(files)) < len(pickle.dumps(without)) + 300

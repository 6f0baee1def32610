"""What ours is held against on Spark's channel: sources in Python that do nothing but what they must."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

__all__ = ["register"]

_BATCH_ROWS = 65_536


def register(spark: Any) -> None:
    """Make the formats `plainest` (Parquet files), `prebuilt` (one batch over and over) and `empty` known."""
    for source in (Plainest, Prebuilt, Empty):
        spark.dataSource.register(source)


class _OneBatchReader(DataSourceStreamReader):
    """All there is in one micro-batch."""

    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"at": 1}


class Plainest(DataSource):
    """The least that any Python source must do: each file's batches, as pyarrow gives them."""

    @classmethod
    def name(cls) -> str:
        return "plainest"

    def schema(self) -> str:
        return str(self.options["schema"])

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return _PlainestReader(self.options["path"], self.options.get("columns"))


class _PlainestReader(_OneBatchReader):
    def __init__(self, path: str, columns: str | None) -> None:
        self._path, self._columns = path, columns and columns.split(",")

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        filesystem, root = fs.FileSystem.from_uri(self._path)
        infos = filesystem.get_file_info(fs.FileSelector(root, recursive=True))
        files = sorted(info.path for info in infos if info.extension == "parquet")
        readers = os.cpu_count() or 1
        return [InputPartition(files[reader::readers]) for reader in range(readers)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        filesystem, _ = fs.FileSystem.from_uri(self._path)
        for path in partition.value:
            file = pq.ParquetFile(path, filesystem=filesystem)
            yield from file.iter_batches(_BATCH_ROWS, use_threads=False, columns=self._columns)


class Prebuilt(DataSource):
    """One Arrow batch over and over: no source written in Python can be faster than Spark's channel to it."""

    @classmethod
    def name(cls) -> str:
        return "prebuilt"

    def schema(self) -> str:
        return str(self.options["schema"])

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return _PrebuiltReader(self.options["path"], int(self.options["rows"]), self.options.get("columns"))


class _PrebuiltReader(_OneBatchReader):
    def __init__(self, path: str, rows: int, columns: str | None) -> None:
        self._path, self._rows, self._columns = path, rows, columns and columns.split(",")

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        readers = os.cpu_count() or 1
        return [InputPartition(reader) for reader in range(readers)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        file = next(Path(self._path).rglob("*.parquet"))
        batch = next(pq.ParquetFile(file).iter_batches(_BATCH_ROWS, use_threads=False, columns=self._columns))
        left = self._rows // (os.cpu_count() or 1)
        while left > 0:
            yield batch.slice(0, left)
            left -= batch.num_rows


class Empty(DataSource):
    """One row: what a query costs that reads nothing."""

    @classmethod
    def name(cls) -> str:
        return "empty"

    def schema(self) -> str:
        return "ts timestamp"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return _EmptyReader()


class _EmptyReader(_OneBatchReader):
    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"ts": pa.array([0], pa.timestamp("us", "UTC"))})

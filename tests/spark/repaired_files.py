"""Files of records of a windowed query, and of its repairs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from streaming_source.spark.datasource import AlignedDataSource
from tests.spark.reading import data_source, put
from tests.spark.repaired import Record


class Files:
    """A directory a split, or a file."""

    def __init__(self, root: Path, **options: Any) -> None:
        self._root, self._options = root, {"eventTimeColumn": "t", **options}
        self.written: list[Record] = []
        self._count = 0

    def source(self, **options: Any) -> AlignedDataSource:
        return data_source(self._root, **self._options, **options)

    def put(self, split: str, records: list[Record]) -> None:
        times, keys, values = zip(*records, strict=True)
        table = {"t": pa.array(times, pa.timestamp("us", "UTC")), "k": list(keys), "v": list(values)}
        put(self._root / split / f"f{self._count:03}.parquet", table, row_group_size=4)
        self._count += 1
        self.written += records

    def records(self, batch: pa.RecordBatch) -> list[Record]:
        columns = [batch["t"].cast(pa.int64()), batch["k"], batch["v"]]
        # The watermark row has a time alone.
        return [row for row in zip(*(column.to_pylist() for column in columns), strict=True) if row[1] is not None]

    def known_at(self, offset: Mapping[str, Any], read: list[Record]) -> list[Record]:
        return read

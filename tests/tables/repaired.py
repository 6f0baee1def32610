"""A table of a windowed query, and of its repairs, by either format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from streaming_source.spark.datasource import AlignedDataSource
from streaming_source.spark.offsets import OffsetCodec
from tests.spark.reading import rows_emitted
from tests.spark.repaired import Record


class RepairedTable:
    """A commit for each call of `put`, whichever split it is for; `append` writes it and returns its version."""

    def __init__(self, format_name: str, options: Mapping[str, Any], append: Callable[[pa.Table], int]) -> None:
        self._format, self._options, self._append = format_name, options, append
        self.written: list[Record] = []
        # By version: how many records there were.
        self._count: dict[int, int] = {}

    def source(self, **options: Any) -> AlignedDataSource:
        given = {"eventTimeColumn": "t", **self._options, **options}
        text = rows_emitted({name: str(value) for name, value in given.items()})
        return AlignedDataSource.of_format(self._format, text)

    def put(self, split: str, records: list[Record]) -> None:
        times, keys, values = zip(*records, strict=True)
        rows = pa.table({"t": pa.array(times, pa.timestamp("us", "UTC")), "k": list(keys), "v": list(values)})
        self.written += records
        self._count[self._append(rows)] = len(self.written)

    def records(self, batch: pa.RecordBatch) -> list[Record]:
        columns = [batch["t"].cast(pa.int64()), batch["k"], batch["v"]]
        # The watermark row has a time alone.
        return [row for row in zip(*(column.to_pylist() for column in columns), strict=True) if row[1] is not None]

    def known_at(self, offset: Mapping[str, Any], read: list[Record]) -> list[Record]:
        """All of the last version that was listed: compaction may have put together what was read and what was not."""
        progress = OffsetCodec(self.source().source).decode(offset).checkpoint.progress
        return self.written[: self._count[progress.last]]

"""Reading a path through the data source's own reader objects, as Spark does, without Spark."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from streaming_source.coordinator.rules import EMITTED
from streaming_source.spark.before_4_2 import ReaderBefore42, ReadLimit, ReadMaxRows
from streaming_source.spark.datasource import AlignedDataSource
from streaming_source.spark.readers import AlignedStreamReader

T0 = 1_700_000_040_000_000
SECOND = 1_000_000


def put(path: Path, table: pa.Table | dict[str, Any], modified_s: int | None = None, **options: Any) -> Path:
    """Write a file under a hidden name and rename it when it is complete: a running query sees all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f"_{path.name}")
    pq.write_table(pa.table(table), hidden, **options)
    if modified_s is not None:
        os.utime(hidden, (modified_s, modified_s))
    return hidden.rename(path)


def stamps(*seconds: float, unit: str = "us", zone: str | None = None) -> pa.Array:
    """Timestamps some seconds after T0."""
    micros = [T0 + round(s * SECOND) for s in seconds]
    return pa.array(micros, pa.int64()).cast(pa.timestamp("us", zone)).cast(pa.timestamp(unit, zone), safe=False)


def rows_emitted(options: dict[str, str]) -> dict[str, str]:
    """With watermark rows, as `with_exact_watermark` loads them, where a test writes what users write."""
    return {**options, "watermarkRows": EMITTED} if options.get("watermarkRows") == "true" else options


def data_source(path: Path | str, **options: Any) -> AlignedDataSource:
    given = rows_emitted({name: str(value) for name, value in options.items()})
    return AlignedDataSource.of_format("aligned_files", {"path": str(path), **given})


def stream_reader(path: Path | str, schema: StructType | None = None, **options: Any) -> AlignedStreamReader:
    source = data_source(path, **options)
    made = source.stream_reader(schema or source.schema())
    reader = made.reader if isinstance(made, ReaderBefore42) else made
    assert isinstance(reader, AlignedStreamReader)
    return reader


class Reading:
    """What one query reads, micro-batch by micro-batch."""

    def __init__(self, reader: AlignedStreamReader) -> None:
        self.reader = reader
        self.offset: dict[str, Any] = reader.initialOffset()

    def next(self, max_rows: int | None = None) -> pa.Table | None:
        """The rows of the next micro-batch; None where there is nothing to do."""
        limit: ReadLimit = self.reader.getDefaultReadLimit()
        if max_rows is not None:
            limit = ReadMaxRows(max_rows)
        start, self.offset = self.offset, self.reader.latestOffset(self.offset, limit)
        return None if self.offset is start else self.between(start, self.offset)

    def await_unread(self, rows: int) -> None:
        """Wait until discovery, which runs beside, has found so many records that are in no micro-batch."""
        coordinator = self.reader._planning._coordinator

        if coordinator.explain() is None:
            coordinator.start()

        def is_found() -> bool:
            # It takes in what was found.
            coordinator.explain()
            return int(coordinator.runtime.engine.unread().sum()) >= rows

        coordinator.host.run_until(is_found, 30.0)

    def between(self, start: dict[str, Any], end: dict[str, Any]) -> pa.Table:
        batches = [b for part in self.reader.partitions(start, end) for b in self.reader.read(part)]
        assert all(b.schema == self.reader.shaper.schema for b in batches)
        return pa.Table.from_batches(batches, self.reader.shaper.schema)


def read_all(path: Path | str, schema: StructType | None = None, **options: Any) -> pa.Table:
    """Everything there is, through the stream reader of a bounded source."""
    reading = Reading(stream_reader(path, schema, bounded="true", **options))
    try:
        tables = []
        while (table := reading.next()) is not None:
            tables.append(table)
        return pa.concat_tables(tables)
    finally:
        reading.reader.stop()


def read_batch(path: Path | str, schema: StructType | None = None, **options: Any) -> pa.Table:
    """Everything there is, through the batch reader."""
    source = data_source(path, **options)
    reader = source.batch_reader(schema or source.schema())
    return pa.Table.from_batches(
        [b for part in reader.partitions() for b in reader.read(part)],  # type: ignore[arg-type]
        reader.shaper.schema,
    )


def micros(table: pa.Table, column: str = "") -> list[int | None]:
    """The event times: of a column that was added for them, or of `t` itself."""
    column = column or ("event_time" if "event_time" in table.schema.names else "t")
    return table.column(column).cast(pa.int64()).to_pylist()

"""A Delta table, and its writers as streaming queries would leave them: commits with transactions, and checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import deltalake
import pyarrow as pa
from deltalake import CommitProperties, Transaction, write_deltalake

from alignment import WatermarkStrategy
from streaming_source.connectors.delta import DeltaSource
from streaming_source.testing import SourceHarness
from tests.checkpoint.written import WrittenCheckpoint, ours

__all__ = ["SCHEMA", "STRATEGY", "DeltaWriter", "reading"]

SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("writer", pa.string())])
STRATEGY = WatermarkStrategy.from_source_watermarks().with_timestamp_assigner("ts")


@dataclass
class DeltaWriter:
    """A query over a source of this library that writes a Delta table: micro-batch after micro-batch."""

    table: Path
    name: str
    checkpoint: WrittenCheckpoint
    batch: int = -1

    @classmethod
    def of(cls, root: Path, name: str, table: str = "table", **settings: int) -> DeltaWriter:
        return cls(root / table, name, WrittenCheckpoint(root / f"cp-{name}", id=f"id-{name}", **settings))

    def plan(self, watermark_us: int | None) -> None:
        """Write the offsets of the next micro-batch, as Spark does before its data."""
        self.batch += 1
        self.checkpoint.plan(self.batch, 0, ours(watermark_us))

    def write(self, times_us: Sequence[int], mode: str = "append") -> None:
        """Commit the rows of the micro-batch that was planned; as Spark's sink, not a second time."""
        exists = (self.table / "_delta_log").exists()
        if exists and deltalake.DeltaTable(self.table).transaction_version(self.checkpoint.id) == self.batch:
            return
        rows = pa.table([times_us, [self.name] * len(times_us)], SCHEMA)
        properties = CommitProperties(app_transactions=[Transaction(self.checkpoint.id, self.batch)])
        if times_us or not exists:
            write_deltalake(self.table, rows, mode=mode, commit_properties=properties)  # type: ignore[call-overload]
            return
        table = deltalake.DeltaTable(self.table)
        table.create_write_transaction([], "append", table.schema(), commit_properties=properties)

    def done(self) -> None:
        """Write the commit log."""
        self.checkpoint.commit(self.batch)

    def commit(self, watermark_us: int | None, times_us: Sequence[int] = ()) -> None:
        """One micro-batch, from its plan to its end."""
        self.plan(watermark_us)
        self.write(times_us)
        self.done()


def reading(table: Path, watermark_from: object, max_rows: int | None = None, **options: object) -> SourceHarness:
    """A query over the table by the claims of its writers."""
    source = DeltaSource(str(table), watermark_from=str(watermark_from), **options)  # type: ignore[arg-type]
    return SourceHarness(source, STRATEGY, max_rows=max_rows)

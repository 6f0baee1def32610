"""Real Delta tables for tests, written by `deltalake`, and what a batch read of them gives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa

from streaming_source.connectors.delta import DeltaSource
from streaming_source.testing import SourceHarness
from tests.tables.reading import STRATEGY, read_all

__all__ = ["SECOND", "STRATEGY", "append", "harness", "read_all", "rows", "times"]

SECOND = 1_000_000


def rows(times_us: Sequence[int | None], **columns: Any) -> pa.Table:
    """A column `ts`, and others: a list, or one value for all."""
    given = {name: value if isinstance(value, list) else [value] * len(times_us) for name, value in columns.items()}
    return pa.table({"ts": pa.array(times_us, pa.timestamp("us", "UTC")), **given})


def append(path: Path, times_us: Sequence[int | None], *, options: dict[str, Any] | None = None, **columns: Any) -> int:
    """Write one commit, and return its version."""
    deltalake.write_deltalake(str(path), rows(times_us, **columns), mode="append", **(options or {}))
    return deltalake.DeltaTable(str(path)).version()


def harness(path: Path, options: dict[str, Any] | None = None, **settings: Any) -> SourceHarness:
    """A query over a table."""
    return SourceHarness(DeltaSource(str(path), **(options or {})), settings.pop("strategy", STRATEGY), **settings)


def times(done: SourceHarness) -> list[int]:
    """Event times of all records that a query has read, sorted."""
    return sorted(time for records in done.records().values() for _, time in records)

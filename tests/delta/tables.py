"""Real Delta tables for tests, written by `deltalake`, and what a batch read of them gives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import deltalake

from streaming_source.connectors.delta import DeltaSource
from streaming_source.testing import SourceHarness
from tests.tables.reading import SECOND, STRATEGY, read_all, rows, times

__all__ = ["SECOND", "STRATEGY", "append", "harness", "read_all", "rows", "times"]


def append(path: Path, times_us: Sequence[int | None], *, options: dict[str, Any] | None = None, **columns: Any) -> int:
    """Write one commit, and return its version."""
    deltalake.write_deltalake(str(path), rows(times_us, **columns), mode="append", **(options or {}))
    return deltalake.DeltaTable(str(path)).version()


def harness(path: Path, options: dict[str, Any] | None = None, **settings: Any) -> SourceHarness:
    """A query over a table."""
    return SourceHarness(DeltaSource(str(path), **(options or {})), settings.pop("strategy", STRATEGY), **settings)

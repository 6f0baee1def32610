"""Data as users have it: narrow numbers, and wide rows with texts and nulls; in disorder, in several splits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["DDL", "FILES", "SPLITS", "narrow", "wide", "write_parquet"]

SPLITS, FILES = 8, 4
"""Directories, and files of each."""

DISORDER_US = 2_000_000
START_US = 1_700_000_000_000_000
KEYS = 100

DDL = {
    "narrow": "ts timestamp, key bigint, value double, n bigint",
    "wide": "ts timestamp, key bigint, "
    + ", ".join(
        [f"s{i} string" for i in range(6)] + [f"d{i} double" for i in range(6)] + [f"n{i} bigint" for i in range(6)]
    ),
}
"""The columns, as Spark's own sources are given them."""


def narrow(rows: int, rng: np.random.Generator) -> pa.Table:
    """Four columns of numbers without nulls."""
    columns = {
        "ts": _times(rows, rng),
        "key": pa.array(rng.integers(0, KEYS, rows)),
        "value": pa.array(rng.random(rows)),
        "n": pa.array(rng.integers(0, 1 << 62, rows)),
    }
    return pa.table(columns)


def wide(rows: int, rng: np.random.Generator) -> pa.Table:
    """Twenty columns: texts of few and of many values, numbers, each tenth value null."""
    columns = {"ts": _times(rows, rng), "key": pa.array(rng.integers(0, KEYS, rows))}
    for number in range(6):
        words = pa.array([f"{number}-{word:08d}" for word in range(50 if number < 3 else 50_000)])
        columns[f"s{number}"] = words.take(pa.array(rng.integers(0, len(words), rows), mask=rng.random(rows) < 0.1))
    for number in range(6):
        columns[f"d{number}"] = pa.array(rng.random(rows), mask=rng.random(rows) < 0.1)
    for number in range(6):
        columns[f"n{number}"] = pa.array(rng.integers(0, 1 << 40, rows), mask=rng.random(rows) < 0.1)
    return pa.table(columns)


def write_parquet(folder: Path, rows: int, kind: str, files: int = FILES) -> None:
    """So many rows in all, in `SPLITS` directories of so many files each, snappy, with pyarrow's row groups."""
    make = {"narrow": narrow, "wide": wide}[kind]
    for split in range(SPLITS):
        (folder / f"split-{split}").mkdir(parents=True)
        whole = make(rows // SPLITS, np.random.default_rng([7, split]))
        for part in range(files):
            piece = whole.slice(part * len(whole) // files, len(whole) // files)
            pq.write_table(piece, folder / f"split-{split}" / f"part-{part:03d}.parquet", compression="snappy")


def _times(rows: int, rng: np.random.Generator) -> pa.Array:
    return pa.array(START_US + np.arange(rows) * 1_000 + rng.integers(0, DISORDER_US, rows), pa.timestamp("us", "UTC"))

"""Backlogs of skewed splits as CSV, part by part as they would have come, and what numpy counts in them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv

from benchmarks import flink
from benchmarks.data import START_US, narrow

__all__ = ["DISORDER_MS", "PARTS", "START_MS", "Backlog", "Times", "write_join", "write_windows"]

PARTS = 8
"""Files of a split."""

DISORDER_MS = 2_000
START_MS = START_US // 1000
PAYMENT_MS = 20_000
"""How long after an order its payment comes, at most."""

Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Backlog:
    """The sources of one job, each a folder with a directory a split.

    `times` are event times in ms, by source, split and part; `expected` is what numpy counts. Spark is to read it in so
    many `micro_batches`.
    """

    folder: Path
    times: Mapping[str, Sequence[Sequence[Times]]]
    expected: flink.Windows
    micro_batches: int

    @property
    def rows(self) -> int:
        return sum(part.size for splits in self.times.values() for split in splits for part in split)

    def sources(self) -> list[Path]:
        return [self.folder / name for name in self.times]


def write_windows(folder: Path, rows: int, micro_batches: int, splits: int = 12) -> Backlog:
    """Write one source. All splits begin at the same time, with as many rows; the last spans three times the first."""
    tables = [_split(rows // splits, _span_ms(split, splits), [11, split]) for split in range(splits)]
    expected = flink.counted(pa.concat_tables(tables))
    return Backlog(folder, {"rows": _write(folder / "rows", tables)}, expected, micro_batches)


def write_join(folder: Path, rows: int, micro_batches: int, splits: int = 6) -> Backlog:
    """Write orders and their payments: in other splits, some seconds later. `expected` are pairs within a minute."""
    n = max(rows // splits // 2, 1)
    orders, payments = [], []
    for split in range(splits):
        rng = np.random.default_rng([13, split])
        order = _split(n, _span_ms(split, splits), [12, split])
        order = order.set_column(1, "key", pa.array(split * n + np.arange(n)))
        paid = order["ts"].cast(pa.int64()).to_numpy() + rng.integers(0, PAYMENT_MS, n)
        by_time = np.argsort(paid)
        times = paid[by_time] + rng.integers(0, DISORDER_MS, n)
        payment = order.set_column(0, "ts", pa.array(times, pa.timestamp("ms")))
        orders.append(order)
        payments.append(payment.set_column(1, "key", order["key"].combine_chunks().take(pa.array(by_time))))
    # The split with the longest span has the payments of the shortest one: neither source is the slower one.
    tables = {"orders": orders, "payments": payments[::-1]}
    return Backlog(
        folder,
        {name: _write(folder / name, found) for name, found in tables.items()},
        _pairs(pa.concat_tables(orders), pa.concat_tables(payments)),
        micro_batches,
    )


def _span_ms(split: int, splits: int) -> int:
    return (60 + 110 * split // max(splits - 1, 1)) * 60_000


def _split(n: int, span_ms: int, seed: Sequence[int]) -> pa.Table:
    rng = np.random.default_rng(seed)
    in_order = START_MS + np.linspace(0, span_ms, n).astype(np.int64)
    times = pa.array(in_order + rng.integers(0, DISORDER_MS, n), pa.timestamp("ms"))
    return narrow(n, rng).set_column(0, "ts", times)


def _pairs(orders: pa.Table, payments: pa.Table) -> flink.Windows:
    """By minute, how many orders were paid in it; as windows of the key 0."""
    ms = [table["ts"].cast(pa.int64()).to_numpy()[np.argsort(table["key"].to_numpy())] for table in (orders, payments)]
    minutes = [times - times % flink.WINDOW_MS for times in ms]
    starts, counts = np.unique(minutes[0][minutes[0] == minutes[1]], return_counts=True)
    return np.column_stack([starts, np.zeros_like(starts), counts])


def _write(folder: Path, tables: Sequence[pa.Table]) -> list[list[Times]]:
    found: list[list[Times]] = [[] for _ in tables]
    for split in range(len(tables)):
        (folder / f"split-{split:02}").mkdir(parents=True)
    for part in range(PARTS):
        for split, table in enumerate(tables):
            begin, end = part * len(table) // PARTS, (part + 1) * len(table) // PARTS
            if begin == end:
                continue
            path = folder / f"split-{split:02}" / f"part-{len(found[split])}.csv"
            piece = table.slice(begin, end - begin)
            csv.write_csv(piece, path, csv.WriteOptions(include_header=False))
            # Spark's own source reads files in the order in which they were written, by milliseconds.
            at = time.time() - 3600 + part * 60 + split
            os.utime(path, (at, at))
            found[split].append(piece["ts"].cast(pa.int64()).to_numpy())
    return found

"""Random Iceberg tables that change while queries on Spark read them, which are killed: against `pyiceberg`'s read."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from tests.iceberg.random_table import RandomTable
from tests.iceberg.tables import catalog_options
from tests.tables.killing import KilledQuery, Kills

pytestmark = [pytest.mark.spark, pytest.mark.soak]

INSIDE, BEHIND = 11, 6
SEEDS = range(2)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_killed_query_brings_what_a_batch_has(seed: int, killed: list[Kills], tmp_path: Path) -> None:
    table = RandomTable(tmp_path, seed, appends=40)
    for _ in range(8):
        table.change()
    table.started = True
    catalog = {f"catalog.{name}": value for name, value in {"name": "tests", **catalog_options(tmp_path)}.items()}
    options = {"format": "aligned_iceberg", "eventTimeColumn": "ts", "columns": "ts,id", "invalidTimestamp": "null"}
    limit = max(table.expected().total() // (8 * INSIDE), 1)
    query = KilledQuery(tmp_path, {**options, **catalog, "maxRowsPerTrigger": str(limit)}, "db.t")

    kills = query.run_and_kill(table.random, table.change, inside=INSIDE, behind=BEHIND)

    read = query.drain()
    killed.append(kills)
    print(f"seed {seed}: {kills}; {read.total()} rows")
    theirs = table.table.refresh().scan().to_arrow()
    ids, times = theirs["id"].to_pylist(), theirs["ts"].cast(pa.int64()).to_pylist()
    assert read == Counter(zip(ids, times, strict=True))
    assert kills.total == INSIDE + BEHIND
    assert 2 * kills.in_snapshot >= kills.total

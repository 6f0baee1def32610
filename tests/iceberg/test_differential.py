"""Random tables, read while they change, killed and restarted: against a batch read of the table by `pyiceberg`."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pytest

from streaming_source.connectors.iceberg import IcebergSource
from streaming_source.testing import SourceHarness
from tests.examples import one_in
from tests.iceberg.random_table import RandomTable
from tests.iceberg.tables import STRATEGY, properties_in
from tests.tables.changing import read_with_kills
from tests.tables.reading import read_all


@pytest.mark.parametrize("seed", one_in(20, range(40)))
def test_a_stream_with_kills_brings_what_a_batch_has(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = RandomTable(Path(folder), seed)
        chance = table.random
        for _ in range(chance.randint(0, 4)):
            table.change()
        table.started = True
        source = IcebergSource("db.t", catalog=properties_in(Path(folder)), columns=("ts", "id"))
        done = SourceHarness(source, STRATEGY, max_rows=chance.choice([None, 7, 40]), readers=chance.choice([1, 3]))
        done.run_batch()
        read_with_kills(done, chance, table.change, changes=6)

        read = Counter(time for records in done.records().values() for _, time in records)
        assert read == table.expected(), f"seed {seed}"
        assert done.state.checkpoint.progress.steps == (), f"seed {seed}"
        batch = read_all(source)
        theirs = table.table.scan().to_arrow().select(["ts", "id"])
        assert batch.sort_by("id").to_pylist() == theirs.sort_by("id").to_pylist(), f"seed {seed}"

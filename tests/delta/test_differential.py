"""Random tables, read while they change, killed and restarted: against a batch read of the same rows."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pytest

from alignment.timestamps import NO_TIMESTAMP
from streaming_source.connectors.delta import DeltaSource
from streaming_source.testing import SourceHarness
from tests.delta.random_table import RandomTable
from tests.delta.tables import STRATEGY, read_all
from tests.examples import one_in
from tests.tables.changing import read_with_kills


def _times(done: SourceHarness) -> Counter[int | None]:
    return Counter(time for records in done.records().values() for _, time in records)


@pytest.mark.parametrize("seed", one_in(10, range(50)))
def test_a_stream_with_kills_brings_what_a_batch_has(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = RandomTable(Path(folder), seed)
        chance = table.random
        for _ in range(chance.randint(0, 4)):
            table.change()
        table.started = True
        done = SourceHarness(
            DeltaSource(table.path), STRATEGY, max_rows=chance.choice([None, 7, 40]), readers=chance.choice([1, 3])
        )
        read_with_kills(done, chance, table.change, changes=8)

        expected = Counter(NO_TIMESTAMP if time is None else time for time in table.expected.values())
        assert _times(done) == expected, f"seed {seed}"
        assert done.state.checkpoint.progress.steps == (), f"seed {seed}"
        # A batch of the table now has the same rows: nothing was removed after the start.
        batch = read_all(DeltaSource(table.path))
        assert Counter(batch["id"].to_pylist()) == Counter(table.expected.keys()), f"seed {seed}"
        assert table.by_deltalake() in (None, Counter(table.expected.keys())), f"seed {seed}"
        done.close()

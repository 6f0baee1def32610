"""An audit counts what a naive model of Spark did, row by row, of each micro-batch and split."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import streaming_source
from tests.auditing import naive
from tests.examples import one_in

COUNTS = ("read", "dropped", "emitted", "open", "unknown", "without_time")
PAIRS = ("windows_read", "windows_dropped", "windows_emitted", "windows_open")


@pytest.mark.parametrize("seed", one_in(3, range(200)))
def test_a_query_drawn_by_seed_is_counted_as_the_naive_model_ran_it(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    query, batches = naive.drawn_query(draw), naive.drawn_batches(draw)
    if not any(batches):
        pytest.skip("no file was drawn")
    done = naive.run(query, batches)
    naive.write_files(tmp_path / "in", batches, group=draw.choice([7, 50]))
    naive.write_checkpoint(tmp_path / "checkpoint", tmp_path / "in", query, done)

    found = streaming_source.audit(str(tmp_path / "checkpoint"), time="ts", window=query.window, mode=query.mode)

    assert found.notes == ()
    for split in found.reads.to_pylist():
        expected = done.counts[_full_name(done, split["split"])]
        assert {name: split[name] for name in COUNTS} == {name: expected[name] for name in COUNTS}, split
        assert split["read"] == sum(split[name] for name in COUNTS[1:])
        if split["windows_read"] is not None:
            assert {name: split[name] for name in PAIRS} == {name: expected[name] for name in PAIRS}, split
    assert found.reads.num_rows == len(done.counts)
    assert found.batches["batch"].to_pylist() == list(range(len(batches)))
    for row, batch in zip(found.batches.to_pylist(), batches, strict=True):
        assert row["dropped"] == sum(done.counts[name]["dropped"] for name, _ in batch)
    assert found.dropped == sum(row["dropped"] for row in found.to_json()["splits"])


def _full_name(done: naive.Run, name: str) -> str:
    """Where all files are in one directory, they are named without it."""
    return next(full for full in done.counts if f"/{full}".endswith(f"/{name}"))

"""A planner that goes on for thousands of micro-batches holds no more than after the first ones."""

from __future__ import annotations

import gc
import os
import random
import resource
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from streaming_source.connectors import FileSource
from streaming_source.spark.before_4_2 import ReadMaxRows
from tests.faults.inputs import Growing, event_time_of, place_of, source_of
from tests.faults.test_read_again import reader_of

WARM, BATCHES = 3_000, 6_000
BYTES_A_TIME = 40
"""What `Growing.times` keeps of each record: an integer, and its place in a list."""


def holds() -> tuple[float, int, int]:
    """MiB of memory, file handles and threads of this process."""
    gc.collect()
    with open("/proc/self/statm") as file:
        memory = int(file.read().split()[1]) * resource.getpagesize()
    return memory / 2**20, len(os.listdir("/proc/self/fd")), threading.active_count()


# `datagen` makes its records by the clock, and `own, off` plans with what tasks report.
@pytest.mark.soak
@pytest.mark.parametrize("connector", ["files", "kafka", "own"])
def test_a_planner_does_not_grow(request: pytest.FixtureRequest, tmp_path: Path, connector: str) -> None:
    place = place_of(connector, tmp_path, lambda: request.getfixturevalue("broker").bootstrap, generated=0)
    growing = Growing(connector, place, random.Random(1))
    source = source_of(connector, place, bounded=False)
    if isinstance(source, FileSource):
        # Listing 20,000 files again and again would be most of the work.
        source = replace(source, clean_source="delete")
    reader = reader_of(source, event_time_of(connector))
    offset, done = reader.initialOffset(), 0
    try:
        while done < BATCHES:
            growing.grow()
            end = reader.latestOffset(offset, ReadMaxRows(5_000))
            if end is offset:
                time.sleep(0.01)
                continue
            reader.partitions(offset, end)
            reader.commit(end)
            offset, done = end, done + 1
            if done == WARM:
                warm, known = holds(), sum(map(len, growing.times.values()))
        memory, files, threads = holds()
        of_test = (sum(map(len, growing.times.values())) - known) * BYTES_A_TIME / 2**20
        print(f"{connector}: {warm} after {WARM} micro-batches, {memory - of_test, files, threads} after {BATCHES}")
        assert memory - of_test < warm[0] + 3
        assert files <= warm[1] + 8
        assert threads <= warm[2] + 1
    finally:
        reader.stop()

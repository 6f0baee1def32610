"""The driver of a query that routes late records, and of the one that reads them, is killed again and again."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.spark.support import SECOND, T0, write_file

pytestmark = [pytest.mark.spark, pytest.mark.soak]

KILLS = 8
START_S, LIFE_S = 60.0, 6.0


@contextmanager
def driver(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A driver in a process group of its own, which is killed at the end with all that it started."""
    command = [sys.executable, "-m", "tests.faults.late_driver", str(folder), *arguments]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


class Writer:
    """Writes files of a log each; of their records a third are late, once the first file was read."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.keys: list[str] = []

    def write(self) -> None:
        number = len(self.keys)
        seconds = number + np.arange(20) - (np.arange(20) % 3 == 2) * 50
        path = self._root / f"log-{number % 3}" / f"f{number:06}.parquet"
        write_file(path, T0 + seconds * SECOND)
        self.keys += [f"{path.stem}/{i}" for i in range(20)]


def committed(folder: Path, name: str) -> int:
    names = [path.name for path in (folder / "checkpoints" / name / "commits").glob("*")]
    return max((int(each) for each in names if each.isdigit()), default=-1)


@pytest.mark.parametrize("seed", [1, 2])
def test_kept_and_late_records_are_the_input_whatever_is_killed(tmp_path: Path, seed: int) -> None:
    chance, writer, kills = random.Random(seed), Writer(tmp_path / "in"), 0
    for _ in range(3):
        writer.write()
    for _ in range(KILLS):
        with driver(tmp_path) as process:
            begun, before = time.monotonic(), {name: committed(tmp_path, name) for name in ("kept", "late")}
            while any(committed(tmp_path, name) == number for name, number in before.items()):
                assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
                assert time.monotonic() < begun + START_S, (tmp_path / "log").read_text()[-3000:]
                writer.write()
                time.sleep(0.1)
            until = time.monotonic() + chance.uniform(0, LIFE_S)
            while time.monotonic() < until:
                writer.write()
                time.sleep(0.05)
            assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
            kills += 1
    batches = committed(tmp_path, "kept")
    with driver(tmp_path, "finish") as process:
        assert process.wait(400) == 0, (tmp_path / "log").read_text()[-3000:]
    kept, late = (pq_keys(tmp_path, name) for name in ("kept", "late"))
    assert Counter(kept + late) == Counter(writer.keys), f"seed {seed}"
    assert len(late) > 30
    print(f"{kills} kills, {batches} micro-batches, {len(kept)} kept, {len(late)} late records")
    # Spark itself does not keep so many offsets: without the late log they could not have been found.
    assert len(list((tmp_path / "checkpoints" / "kept" / "offsets").glob("[0-9]*"))) < 10


def pq_keys(folder: Path, name: str) -> list[str]:
    """The keys that a query wrote, by the log of Spark's file sink: what an attempt left that failed does not count."""
    log = folder / "out" / name / "_spark_metadata"
    found: dict[str, None] = {}
    for path in sorted(log.glob("*"), key=lambda path: path.name):
        if path.name.startswith("."):
            continue
        for line in path.read_text().splitlines()[1:]:
            found[json.loads(line)["path"].removeprefix("file://")] = None
    return [key for path in found for key in pq.read_table(path).column("k").to_pylist()]

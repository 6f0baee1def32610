"""A query that runs as a process, and is killed by SIGKILL in the middle of its records."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from tests.auditing.test_on_spark import Sink

__all__ = ["killed_and_restarted", "sink_of"]

LIMIT_S = 120.0


def killed_and_restarted(module: str, arguments: Sequence[object], checkpoint: Path, log: Path) -> int:
    """Run it, kill it after its fourth micro-batch, and run it to the end; the last micro-batch before the kill."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    with log.open("wb") as written:
        first = subprocess.Popen(command, stdout=written, stderr=written, start_new_session=True)
        try:
            until = time.monotonic() + LIMIT_S
            while not (checkpoint / "commits/3").exists():
                assert first.poll() is None, log.read_text()[-3000:]
                assert time.monotonic() < until, "no fourth micro-batch"
                time.sleep(0.01)
        finally:
            # The process group: Python and the JVM at once.
            os.killpg(first.pid, signal.SIGKILL)
            first.wait()
    killed_at = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    second = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert second.returncode == 0, second.stderr[-3000:]
    return killed_at


def sink_of(out: Path) -> Sink:
    """What the Parquet sink has by Spark's log of it: files of a micro-batch that was killed are not in that."""
    log = (path for path in (out / "_spark_metadata").iterdir() if not path.name.startswith("."))
    lines = (line for path in log for line in path.read_text().splitlines()[1:])
    names = {json.loads(line)["path"].rpartition("/")[2] for line in lines}
    sink = Sink("append")
    sink.batches[0] = Counter()
    for name in names:
        for row in pq.read_table(out / name).to_pylist():
            sink.batches[0][row["end"]] += row["count"]
    return sink

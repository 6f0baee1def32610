"""Three hops with Spark's own sinks, killed while others change the tables: gold equals a batch over the raw input.

`HOPS_SEEDS=20` runs so many seeds, `HOPS_FIRST=100` from this one on.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake.exceptions import CommitFailedError

from alignment.watermarks import MAX_WATERMARK
from streaming_source import complete_until
from tests.delta.spark_delta import jars_of_delta
from tests.faults.checks import batches_of_sink
from tests.faults.killed_process import KilledProcess, KilledQueryLog
from tests.kafka.artifacts import ArtifactsMissingError
from tests.spark.three_hops import HOPS

pytestmark = [pytest.mark.spark, pytest.mark.soak]

SECOND = 1_000_000
T0 = 1_767_225_600 * SECOND
DAY = 86_400 * SECOND
MINUTE, WINDOW = 60 * SECOND, 600 * SECOND
SPLITS, FILES, ROWS = 12, 4, 60
FIRST, SEEDS = int(os.environ.get("HOPS_FIRST", "0")), int(os.environ.get("HOPS_SEEDS", "1"))

Rows = list[tuple[int, int]]


def write_raw(folder: Path, chance: random.Random) -> Rows:
    """12 splits, each with files whose rows are disordered, and each further than the one before."""
    written: Rows = []
    for split in range(SPLITS):
        for number in range(FILES):
            start = T0 + (number * 600 + chance.randrange(300)) * SECOND + split * 97 * SECOND
            rows = [(start + chance.randrange(900 * SECOND), chance.randrange(100)) for _ in range(ROWS)]
            path = folder / f"split={split:02}" / f"part-{number}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(_table(rows), path)
            written += rows
    return written


def _table(rows: Rows) -> pa.Table:
    times, amounts = zip(*rows, strict=True)
    return pa.table({"ts": pa.array(times, pa.timestamp("us", "UTC")), "amount": pa.array(amounts, pa.int64())})


def expected(rows: Rows) -> dict[int, tuple[int, int]]:
    """A batch over all rows: count and sum, by the start of the window in which the minute of a row ends."""
    counts, totals = Counter[int](), Counter[int]()
    for us, amount in rows:
        minute_end = us // MINUTE * MINUTE + MINUTE
        counts[minute_end // WINDOW * WINDOW] += 1
        totals[minute_end // WINDOW * WINDOW] += amount
    return {start: (counts[start], totals[start]) for start in counts}


class Beside:
    """What others do to the tables meanwhile: compaction, and rows of a writer that nobody names."""

    def __init__(self, root: Path, chance: random.Random, silver: KilledQueryLog) -> None:
        self._root, self._chance, self._silver = root, chance, silver
        self.on_time: Rows = []
        self.late = 0

    def change(self) -> None:
        """Any of these, of a Delta table that is there: what is beside the log of the file sink is not read."""
        for name in ("bronze", "silver"):
            if (self._root / name / "_delta_log").exists() and self._chance.random() < 0.6:
                self._try(lambda name=name: deltalake.DeltaTable(self._root / name).optimize.compact())  # type: ignore[misc]
        if (self._root / "bronze/_delta_log").exists():
            self._append()

    def _append(self) -> None:
        """Rows far ahead are on time; those from the day before are late, once a watermark was announced."""
        ahead = [(T0 + DAY + self._chance.randrange(3600) * SECOND, 1) for _ in range(self._chance.randrange(1, 4))]
        announced = [one.get("watermark") for one in self._silver.offsets(self._silver.last("offsets"))]
        behind = [(T0 - DAY, 1)] * self._chance.randrange(3) if announced and announced[0] else []
        if announced and announced[0] == MAX_WATERMARK:
            return
        if self._try(lambda: deltalake.write_deltalake(self._root / "bronze", _table(ahead + behind), mode="append")):
            self.on_time += ahead
            self.late += len(behind)

    @staticmethod
    def _try(change: Callable[[], object]) -> bool:
        """Spark's commits go on meanwhile: a change that comes between them is given up."""
        try:
            change()
        except (CommitFailedError, FileNotFoundError, OSError):
            return False
        return True


def run_and_kill(process: KilledProcess, chance: random.Random, logs: dict[str, KilledQueryLog], beside: Beside) -> int:
    """Kill all three queries at any moment of one of them; return how many were inside a micro-batch."""
    name = chance.choice(HOPS)
    before, deadline = logs[name].last("offsets"), time.monotonic() + 90
    with process.life() as wait_until:
        wait_until(lambda: logs[name].last("offsets") > before or time.monotonic() > deadline)
        beside.change()
        time.sleep(chance.random() * 2)
    return sum(log.is_inside for log in logs.values())


def emitted(gold: Path) -> Iterator[tuple[int, Path]]:
    """Each file of gold, with the micro-batch that wrote it."""
    for log in sorted((gold / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in log.read_text().splitlines()]
        batch = next((action["txn"]["version"] for action in actions if "txn" in action), -1)
        yield from ((batch, gold / unquote(action["add"]["path"])) for action in actions if "add" in action)
    if not (gold / "_delta_log").exists():
        yield from ((batch, file) for file, batch in batches_of_sink(gold).items())


def check_gold(root: Path, rows: Rows, late: int) -> None:
    """Each window comes once, is that of the batch, and comes in the first trigger after its completion was claimed.

    Spark drops late rows from the next micro-batch on: those that come in the one that announces it are in a window.
    """
    found: dict[int, tuple[int, int]] = {}
    batches: dict[int, int] = {}
    for batch, file in emitted(root / "gold"):
        for row in pq.ParquetFile(file).read().to_pylist():
            start = int(row["window"]["start"].timestamp()) * SECOND
            assert start not in found, f"the window {start} came twice"
            found[start], batches[start] = (row["n"], row["total"]), batch
    of_late = (T0 - DAY) // WINDOW * WINDOW
    assert found.get(of_late, (0, 0))[0] <= late
    assert {start: values for start, values in found.items() if start != of_late} == expected(rows)
    log = KilledQueryLog(root / "cp/gold")
    claimed: list[int] = []
    for number in range(log.last("offsets") + 1):
        (offset,) = log.offsets(number)
        claims = offset["enumerator"][1].get("claims", [])
        claimed.append(min((claim[2] for claim in claims), default=-1))
        if claims and claimed[-1] > 0:
            assert offset["watermark"] == claimed[-1], f"micro-batch {number} of gold is behind what silver claims"
    for start, batch in batches.items():
        first = next(number for number, us in enumerate(claimed) if us >= start + WINDOW)
        assert batch <= first + 1, f"{start} was complete in micro-batch {first}, and came in {batch}"


def run_seed(root: Path, format_name: str, jars: str, seed: int) -> str:
    chance = random.Random(seed)
    raw = write_raw(root / "raw", chance)
    logs = {name: KilledQueryLog(root / "cp" / name) for name in HOPS}
    beside = Beside(root, chance, logs["silver"])
    process = KilledProcess(root / "log", "tests.spark.three_hops", [format_name, str(root), jars])
    inside = sum(run_and_kill(process, chance, logs, beside) for _ in range(2))
    process.finish()

    check_gold(root, raw + beside.on_time, beside.late)
    (offset,) = logs["silver"].offsets(logs["silver"].last("offsets"))
    late = offset["enumerator"][1].get("lateBy", {})
    assert sum(late.values()) == beside.late, "what is late at silver is what another writer had brought behind a claim"
    for name in HOPS[1:]:
        assert complete_until(str(root / name), str(root / "cp" / name)).until_us == MAX_WATERMARK
    return f"{format_name} seed {seed}: {len(beside.on_time)} foreign rows, {beside.late} late, {inside} killed inside"


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
@pytest.mark.parametrize("format_name", ["parquet", "delta"])
def test_gold_is_a_batch_over_the_raw_input(tmp_path: Path, format_name: str, seed: int) -> None:
    jars = ""
    if format_name == "delta":
        try:
            jars = jars_of_delta()
        except ArtifactsMissingError as error:
            pytest.skip(str(error))
    print(run_seed(tmp_path, format_name, jars, seed))

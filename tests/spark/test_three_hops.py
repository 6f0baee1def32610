"""Three hops with Spark's own sinks, killed while others change the tables: gold equals a batch over the raw input.

Several pipelines, each of a seed, share the lives of a program: a kill hits all of them, each somewhere else. In every
other group of seeds each hop has a program of its own, which is killed while the other two go on; in the others one
program has all three. `HOPS_SEEDS=50` runs so many seeds, `HOPS_FIRST=100` from this one on, `HOPS_TOGETHER=10` so many
in a group.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from itertools import count
from pathlib import Path
from urllib.parse import unquote

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake.exceptions import CommitFailedError, TableNotFoundError

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
SPLITS, FILES, ROWS = 12, 3, 40
FIRST, SEEDS = int(os.environ.get("HOPS_FIRST", "0")), int(os.environ.get("HOPS_SEEDS", "2"))
TOGETHER = int(os.environ.get("HOPS_TOGETHER", "1"))

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


class Pipeline:
    """The three hops of a seed, and what others do to its tables meanwhile: they compact them, and append rows."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.seed = root, seed
        self.logs = {name: KilledQueryLog(root / "cp" / name) for name in HOPS}
        self._chance = random.Random(seed)
        self._raw = write_raw(root / "raw", self._chance)
        self.on_time: Rows = []
        self.late = 0
        self._skipped = set[int]()

    def note_skipped(self) -> None:
        """Note a micro-batch of gold that is in the table and not in the commit log, when gold was killed.

        Spark's sinks pass it over when it is run again, and Spark learns the watermark in it from the next one.
        """
        gold, log = self.root / "gold", self.logs["gold"]
        if log.is_inside and any([*gold.glob("_spark_metadata/[0-9]*"), *gold.glob("_delta_log/*.json")]):
            written = complete_until(str(gold), str(log.checkpoint)).writers[0].batch
            self._skipped |= {log.last("offsets")} & {written}

    def change(self) -> None:
        """Any of these, of a Delta table that is there. Of a file sink the log says what is in it: a stray file is not.

        That log is compacted by the sink itself.
        """
        if not (self.root / "bronze/_delta_log").exists():
            if (self.root / "bronze").exists():
                pq.write_table(_table([(T0, 1)]), self.root / "bronze" / f"stray-{self._chance.random()}.parquet")
            return
        for name in ("bronze", "silver"):
            if (self.root / name / "_delta_log").exists() and self._chance.random() < 0.6:
                self._try(lambda name=name: deltalake.DeltaTable(self.root / name).optimize.compact())  # type: ignore[misc]
        self._append()

    def _append(self) -> None:
        """Rows far ahead are on time; those from the day before are late, once a watermark was announced."""
        ahead = [(T0 + DAY + self._chance.randrange(3600) * SECOND, 1) for _ in range(self._chance.randrange(1, 4))]
        announced = self._watermark("silver")
        behind = [(T0 - DAY, 1)] * self._chance.randrange(3) if announced is not None else []
        if MAX_WATERMARK in (announced, self._watermark("bronze")):
            return
        if self._try(lambda: deltalake.write_deltalake(self.root / "bronze", _table(ahead + behind), mode="append")):
            self.on_time += ahead
            self.late += len(behind)

    def _watermark(self, name: str) -> int | None:
        log = self.logs[name]
        return next((one.get("watermark") for one in log.offsets(log.last("offsets"))), None)

    def is_done(self, name: str) -> bool:
        """Whether a hop has read all that there will be, and has committed it."""
        return self._watermark(name) == MAX_WATERMARK and not self.logs[name].is_inside

    @staticmethod
    def _try(change: Callable[[], object]) -> bool:
        """Spark's commits go on meanwhile: a change that comes between them, or before the first, is given up."""
        try:
            change()
        except (CommitFailedError, TableNotFoundError, FileNotFoundError, OSError):
            return False
        return True

    # ---- at the end --------------------------------------------------------------------------------------------------

    def check(self) -> None:
        check_gold(self.root, self._raw + self.on_time, self.late, self._skipped)
        (offset,) = self.logs["silver"].offsets(self.logs["silver"].last("offsets"))
        late = offset["enumerator"][1].get("lateBy", {})
        assert sum(late.values()) == self.late, "late at silver is what others brought behind a claim"
        for name in HOPS:
            assert complete_until(str(self.root / name), str(self.root / "cp" / name)).until_us == MAX_WATERMARK
        for name in HOPS[1:]:
            conf = [json.loads(path.read_text().splitlines()[1])["conf"] for path in self._offsets(name)]
            assert len({one["spark.sql.shuffle.partitions"] for one in conf}) == 1, "Spark keeps the first"

    def _offsets(self, name: str) -> Iterator[Path]:
        return (path for path in (self.root / "cp" / name / "offsets").iterdir() if path.name.isdigit())


def emitted(gold: Path) -> Iterator[tuple[int, Path]]:
    """Each file of gold, with the micro-batch that wrote it."""
    for log in sorted((gold / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in log.read_text().splitlines()]
        batch = next((action["txn"]["version"] for action in actions if "txn" in action), -1)
        yield from ((batch, gold / unquote(action["add"]["path"])) for action in actions if "add" in action)
    if not (gold / "_delta_log").exists():
        yield from ((batch, file) for file, batch in batches_of_sink(gold).items())


def check_gold(root: Path, rows: Rows, late: int, skipped: Set[int]) -> None:
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
        # Before the table was listed for the first time there is no enumerator's state.
        claims = offset["enumerator"][1].get("claims", []) if offset["enumerator"] else []
        claimed.append(min((claim[2] for claim in claims), default=-1))
        if claims and claimed[-1] > 0:
            assert offset["watermark"] == claimed[-1], f"micro-batch {number} of gold is behind what silver claims"
    for start, batch in batches.items():
        first = next(number for number, us in enumerate(claimed) if us >= start + WINDOW)
        told = next(number for number in count(first) if number not in skipped)
        assert batch <= told + 1, f"{start} was complete in micro-batch {first}, and came in {batch}"


# ---- lives -----------------------------------------------------------------------------------------------------------


class Group:
    """The pipelines of some seeds, and the programs that run them: one, or one for each hop.

    `inside` counts the queries that were killed inside a micro-batch, by hop; `outside` the others.
    """

    def __init__(self, root: Path, format_name: str, jars: str, seeds: Sequence[int], *, apart: bool) -> None:
        self.pipelines = [Pipeline(root / f"{seed:04}", seed) for seed in seeds]
        self._chance = random.Random(seeds[0])
        self._arguments = [format_name, str(root), jars]
        self._root = root
        self._programs = {names: self._program(names) for names in ([(one,) for one in HOPS] if apart else [HOPS])}
        self.inside, self.outside = Counter[str](), Counter[str]()

    def _program(self, names: Sequence[str]) -> KilledProcess:
        return KilledProcess(
            self._root / f"{'-'.join(names)}.log", "tests.spark.three_hops", [*self._arguments, ",".join(names)]
        )

    def run(self) -> None:
        """Kill each hop once and two at random once more, each at any moment; then let them read what is left."""
        kills = [*self._programs, *self._chance.choices(list(self._programs), k=2)]
        try:
            for program in self._programs.values():
                program.start()
            for names, is_last in zip(kills, [False] * (len(kills) - 1) + [True], strict=True):
                self._kill(names)
                if not is_last:
                    self._programs[names].start()
        finally:
            for program in self._programs.values():
                program.kill()
        self._note_skipped()
        self._program(HOPS).finish()

    def _kill(self, names: tuple[str, ...]) -> None:
        """Kill a program somewhere among its next micro-batches, unless it has no more."""
        program = self._programs[names]
        goal = self._planned(names) + self._chance.randrange(1, 2 * len(names) * len(self.pipelines) + 1)
        until = time.monotonic() + 120
        program.wait_until(lambda: self._planned(names) >= goal or self._is_done(names) or time.monotonic() > until)
        for pipeline in self.pipelines:
            pipeline.change()
        time.sleep(self._chance.random())
        program.kill()
        self._note_skipped()
        for log in (pipeline.logs[name] for pipeline in self.pipelines for name in names):
            if log.last("offsets") < 0:
                # Spark 4.2 does not start where the first offsets were only half written.
                shutil.rmtree(log.checkpoint / "offsets", ignore_errors=True)
        for name in names:
            inside = sum(pipeline.logs[name].is_inside for pipeline in self.pipelines)
            self.inside[name] += inside
            self.outside[name] += len(self.pipelines) - inside

    def _note_skipped(self) -> None:
        for pipeline in self.pipelines:
            pipeline.note_skipped()

    def _planned(self, names: Sequence[str]) -> int:
        return sum(pipeline.logs[name].last("offsets") + 1 for pipeline in self.pipelines for name in names)

    def _is_done(self, names: Sequence[str]) -> bool:
        return all(pipeline.is_done(name) for pipeline in self.pipelines for name in names)


@pytest.fixture
def jars(format_name: str) -> str:
    if format_name != "delta":
        return ""
    try:
        return jars_of_delta()
    except ArtifactsMissingError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, TOGETHER))
@pytest.mark.parametrize("format_name", ["parquet", "delta"])
def test_gold_is_a_batch_over_the_raw_input(tmp_path: Path, format_name: str, jars: str, first: int) -> None:
    seeds = range(first, min(first + TOGETHER, FIRST + SEEDS))
    apart = (first - FIRST) // TOGETHER % 2 == 1
    began = time.monotonic()
    group = Group(tmp_path, format_name, jars, seeds, apart=apart)
    group.run()
    wrong = dict[int, str]()
    for pipeline in group.pipelines:
        try:
            pipeline.check()
        except AssertionError as error:
            wrong[pipeline.seed] = str(error)
        else:
            shutil.rmtree(pipeline.root)
    foreign, late = (sum(counts) for counts in zip(*((len(p.on_time), p.late) for p in group.pipelines), strict=True))
    print(
        f"{format_name}, seeds {seeds.start} to {seeds[-1]}, {'a program for each hop' if apart else 'one program'}: "
        f"{foreign} foreign rows, {late} late; killed inside a micro-batch {dict(group.inside)}, between two "
        f"{dict(group.outside)}; {time.monotonic() - began:.0f} s"
    )
    assert not wrong, wrong

"""A Delta table of a million files: its first plan, further ones, an empty look, the offset, and memory."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import deltalake
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from alignment.plan import PlanningRules
from alignment.strategy import WatermarkStrategy
from alignment.timestamps import FieldTimestampAssigner
from benchmarks.report import Report
from streaming_source.connectors.delta import DeltaSource
from streaming_source.connectors.tables.source import TableSource
from streaming_source.coordinator import ReadRules, SourceCoordinator
from streaming_source.coordinator.rules import FrameOptions
from streaming_source.spark.offsets import OffsetCodec
from streaming_source.tools.completeness import Completeness, WatchedTable, complete_until
from tests.checkpoint.written import WrittenCheckpoint, ours

FILES, QUICK_FILES = 1_000_000, 50_000
SECOND = 1_000_000
START_US = 1_700_000_000 * SECOND
EVERY_S, SPAN_S, ROWS = 10, 1_000, 11
"""A file begins every ten seconds and spans a hundred others, so that a hundred are open at any time."""

PLANS = 25
WRITTEN = 4_000
"""So many files there are, the first ones by event time: the others are in the log alone."""

MICRO_BATCHES = 1_500
"""So many the query has committed that is asked for: more than are looked at."""

_SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("n", pa.int64())])


def run(report: Report, folder: Path, *, quick: bool) -> None:
    files = QUICK_FILES if quick else FILES
    table = folder / "table"
    write_table(table, files)
    code = f"from benchmarks.tables import measure; measure({str(table)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    report_plans(report, "tables", f"A Delta table of {files:,} files, read through a checkpoint of its log", done)
    one_ms, further_ms = ask_complete(table, folder / "writer")
    report.table(
        f"Up to when that table is complete, asked after each of {len(one_ms)} commits of a writer that has "
        f"{MICRO_BATCHES:,}",
        ["", "median", "slowest"],
        [
            [name, f"{statistics.median(ms):.0f} ms", f"{max(ms):.0f} ms"]
            for name, ms in (("one look", one_ms), ("a further look", further_ms))
        ],
    )
    report.at_most("tables: complete, median", statistics.median(one_ms), 200, " ms")
    report.at_most("tables: complete, a further look", max(further_ms), 200, " ms")


def report_plans(report: Report, name: str, title: str, measured: str) -> None:
    """Report what `measure_plans` printed, and hold it against the limits of a table of a million files."""
    found = json.loads(measured.splitlines()[-1])
    report.table(
        title,
        ["first plan", "further plans", "empty look", "files open", "offset", "memory grown"],
        [
            [
                f"{found['first_s']:.1f} s ({found['first_processor_s']:.1f} of a processor)",
                f"{found['further_s'] * 1e3:.0f} ms (at most {found['slowest_s'] * 1e3:.0f})",
                f"{found['look_ms']:.2f} ms",
                str(found["open"]),
                f"{found['offset_bytes']:,} bytes",
                f"{found['rss_mib']:.0f} MiB",
            ]
        ],
    )
    report.at_most(f"{name}: first plan", found["first_s"], 30, " s")
    report.at_most(f"{name}: memory", found["rss_mib"], 1536, " MiB")
    report.at_most(f"{name}: a further plan", found["slowest_s"], 1, " s")
    report.at_most(f"{name}: an empty look", found["look_ms"], 5, " ms")
    report.at_most(f"{name}: offset", found["offset_bytes"], 64 * 1024, " bytes")


def write_table(path: Path, files: int) -> None:
    """Write the log of so many files, with a checkpoint, and the first files by event time."""
    deltalake.DeltaTable.create(str(path), _SCHEMA)
    order = np.random.default_rng(7).permutation(files)
    for first in range(0, files, 50_000):
        version = first // 50_000 + 1
        with (path / "_delta_log" / f"{version:020}.json").open("w") as log:
            for number in order[first : first + 50_000].tolist():
                log.write(_add(path, number) + "\n")
    table = deltalake.DeltaTable(str(path))
    table.create_checkpoint()


def times_of(number: int) -> npt.NDArray[np.int64]:
    """Return the event times of a file, by its place in event time."""
    return START_US + number * EVERY_S * SECOND + np.arange(ROWS) * (SPAN_S * SECOND // (ROWS - 1))


def _add(path: Path, number: int) -> str:
    name = f"part-{number % 200:05}-{uuid.UUID(int=number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128)}-c000.parquet"
    times = times_of(number)
    if number < WRITTEN:
        columns = [pa.array(times, pa.timestamp("us", "UTC")), pa.array(np.full(ROWS, number))]
        pq.write_table(pa.table(columns, schema=_SCHEMA), path / name)
    low, high = (f"{np.datetime64(int(time), 'us').astype('datetime64[ms]')}Z" for time in (times[0], times[-1]))
    stats = {"numRecords": ROWS, "minValues": {"ts": low}, "maxValues": {"ts": high}, "nullCount": {"ts": 0}}
    add = {"path": name, "partitionValues": {}, "size": 1_000, "modificationTime": 1, "dataChange": True}
    return json.dumps({"add": {**add, "stats": json.dumps(stats)}})


def measure(path: str) -> None:
    """Measure a source over the table."""
    measure_plans(DeltaSource(path))


def measure_plans(source: TableSource) -> None:
    """Plan micro-batches of a table, and print what it took as JSON."""
    before_mib = peak_mib()
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("20 seconds")
    strategy = strategy.with_timestamp_assigner(FieldTimestampAssigner("ts"))
    rules = ReadRules(strategy, PlanningRules(out_of_orderness_us=20 * SECOND), FrameOptions(watermark_rows=True))
    began, processor = time.perf_counter(), time.process_time()
    planner = SourceCoordinator(source, rules, source.schema(), lambda: time.monotonic_ns() // 1000, readers=2)
    codec, state = OffsetCodec(source), planner.state
    planner.restore(state)
    planner.start()
    taken: list[float] = []
    sizes: list[tuple[int, int]] = []
    while len(taken) <= PLANS:
        after = planner.advance(1_000)
        offset = json.dumps(codec.encode(after, planner.explain()), separators=(",", ":"))
        taken.append(time.perf_counter() - began)
        if len(taken) == 1:
            processor = time.process_time() - processor
        planner.ranges(state, after, 2, 32_768)
        planner.notify_committed(state.sequence)
        sizes.append((len(offset), len(after.splits)))
        state, began = after, time.perf_counter()
    lister = source.open_lister(source.schema(), strategy.timestamp_assigner)
    newest = lister.start().version
    looks = []
    for _ in range(50):
        began = time.perf_counter()
        assert not lister.commits(newest).whole()
        looks.append(time.perf_counter() - began)
    planner.close()
    size, n_open = max(sizes)
    print([round(seconds * 1e3) for seconds in taken], file=sys.stderr)
    found = {
        "first_s": taken[0],
        "first_processor_s": processor,
        "further_s": statistics.median(taken[1:]),
        "slowest_s": max(taken[1:]),
    }
    found |= {"look_ms": statistics.median(looks) * 1e3, "offset_bytes": size, "open": n_open}
    print(json.dumps({**found, "rss_mib": peak_mib() - before_mib}))


def ask_complete(table: Path, checkpoint: Path) -> tuple[list[float], list[float]]:
    """Return how long `complete_until` takes after each of some commits of a query, and a further look, in ms."""
    written, one_ms, further_ms = WrittenCheckpoint(checkpoint), list[float](), list[float]()
    first = deltalake.DeltaTable(str(table)).version() + 1
    watched = WatchedTable(str(table), str(checkpoint))

    def commit(batch: int) -> None:
        written.plan(batch, 0, ours(START_US + batch * SECOND))
        txn = {"txn": {"appId": written.id, "version": batch, "lastUpdated": 1}}
        entry = f"{json.dumps(txn)}\n{_add(table, WRITTEN + FILES + batch)}\n"
        (table / "_delta_log" / f"{first + batch:020}.json").write_text(entry)
        written.commit(batch)

    def ask(look: Callable[[], Completeness], batch: int) -> float:
        began = time.perf_counter()
        found = look()
        taken_ms = (time.perf_counter() - began) * 1e3
        assert found.until_us == START_US + batch * SECOND
        return taken_ms

    for batch in range(MICRO_BATCHES):
        commit(batch)
    # As Spark's writers do, every ten commits.
    (table / "_delta_log" / "_last_checkpoint").write_text(json.dumps({"version": first + MICRO_BATCHES - 5}))
    # The first look imports what the others use, and reads what a further one does not.
    watched.look()
    for batch in range(MICRO_BATCHES, MICRO_BATCHES + 20):
        commit(batch)
        one_ms.append(ask(lambda: complete_until(str(table), str(checkpoint)), batch))
        further_ms.append(ask(watched.look, batch))
    return one_ms, further_ms


def peak_mib() -> float:
    """Return the peak of this program's memory: that of `getrusage` is inherited from what started it."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024

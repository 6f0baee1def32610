"""Queries over growing input, struck now and then, rescaled between runs: `python -m tests.faults.soak --minutes 30`.

Prints of each planner that lived long enough how its memory, file handles, threads and planning time went. Killed are
workers and tasks of all queries, and drivers between the runs; planners of `files` alone, so that the others grow old.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from tests.faults.crashes import queries_of
from tests.faults.inputs import CONNECTORS
from tests.faults.steps import READ_STEPS
from tests.faults.supervisor import AT_RANDOM, Fault, Supervisor
from tests.kafka.broker import KafkaBroker

__all__ = ["figures_of", "soak"]

RUNS = 3
PAUSE_S = 20.0
STRIKES = (
    *(Fault(step, what) for step in READ_STEPS for what in ("kill", "fail")),
    Fault(AT_RANDOM, "kill worker"),
)
WARM = 0.34
"""Share of a planner's life that is left out: what it imports and first allocates is no leak."""


def soak(folder: Path, minutes: float, seed: int, brokers: str) -> dict[str, int]:
    """Run for so long, and judge what came out; the figures stay in `folder/figures`."""
    rng = random.Random(seed)
    queries = queries_of(folder, CONNECTORS, rng, brokers, generated=int(minutes * 60 * 50 * 2))
    supervisor = Supervisor(folder, queries, rng)
    (folder / "figures").mkdir()
    try:
        for number in range(RUNS):
            for query in queries:
                query.readers, query.max_rows = 1 + number, 5_000
            faults = {query.name: rng.choices(STRIKES, k=1000) for query in queries}
            faults["files"][2::3] = [Fault("committed", "kill")] * len(faults["files"][2::3])
            supervisor.start(f"local[{1 + number % 2},4]")
            last = number == RUNS - 1
            supervisor.live(
                faults,
                None if last else ("datagen", Fault(AT_RANDOM, "kill driver")),
                pause_s=PAUSE_S,
                seconds=minutes * 60 / RUNS,
            )
        supervisor.finish()
        return supervisor.check()
    finally:
        supervisor.close()


def figures_of(folder: Path, at_least_s: float) -> list[str]:
    """A line for each planner that lived so long, as a table."""
    lines = [
        "| query | minutes | memory MiB | MiB an hour | file handles | threads | planning ms, then and at last |",
        "|---|---|---|---|---|---|---|",
    ]
    for file in sorted(folder.glob("*.jsonl")):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        at = np.array([row[1] for row in rows]) - rows[0][1]
        if at[-1] < at_least_s:
            continue
        warm = at >= WARM * at[-1]
        memory, handles, threads = (np.array([row[i] for row in rows], float)[warm] for i in (3, 4, 5))
        slope, error = _slope(at[warm] / 3600, memory / 2**20)
        took = np.array([row[2] if row[0] == "plan" else np.nan for row in rows])[warm]
        quarter = len(took) // 4
        lines.append(
            f"| {file.name.rpartition('-')[0]} | {at[-1] / 60:.1f} "
            f"| {memory[0] / 2**20:.0f} to {memory[-1] / 2**20:.0f} | {slope:+.1f} ± {error:.1f} "
            f"| {handles.min():.0f} to {handles.max():.0f} | {threads.min():.0f} to {threads.max():.0f} "
            f"| {np.nanmedian(took[:quarter]):.2f}, {np.nanmedian(took[-quarter:]):.2f} |"
        )
    return lines


def _slope(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Of a straight line through the means of 10 s, and its standard error: samples right behind another are alike."""
    group = np.floor(x * 360)
    x, y = (np.array([values[group == number].mean() for number in np.unique(group)]) for values in (x, y))
    if len(x) < 3:
        return float("nan"), float("nan")
    fit, cov = np.polyfit(x, y, 1, cov="unscaled")
    rest = y - np.polyval(fit, x)
    return float(fit[0]), float(np.sqrt(cov[0, 0] * (rest @ rest) / (len(x) - 2)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True)))
        broker = KafkaBroker.from_cache(folder / "kafka")
        broker.start()
        stack.callback(broker.stop)
        try:
            report = soak(folder / "run", arguments.minutes, arguments.seed, broker.bootstrap)
        finally:
            print("\n".join(figures_of(folder / "run" / "figures", arguments.minutes * 60 / RUNS / 2)), flush=True)
    print(report)


if __name__ == "__main__":
    sys.exit(main())

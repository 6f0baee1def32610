"""Chains of crashes by seed: `python -m tests.faults.crashes 1 2 3` runs three, and prints what came of each."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.faults.inputs import CONNECTORS, TRANSACTIONS, place_of
from tests.faults.steps import PLANNER_STEPS, READ_STEPS
from tests.faults.supervisor import AT_RANDOM, Fault, Query, Supervisor
from tests.spark.cluster import Cluster

__all__ = ["Report", "chain", "driver_kills", "queries_of"]

GENERATED = 30_000
"""Records in each split of the generator, ten minutes' worth: what is left is read at the end."""

SMALL = (
    *(Fault(step, "kill") for step in (*PLANNER_STEPS, *READ_STEPS)),
    *(Fault(step, "fail") for step in (*PLANNER_STEPS, *READ_STEPS, *READ_STEPS)),
    *(Fault(AT_RANDOM, what) for what in ("kill worker", "kill worker", "kill daemon", "kill planner")),
)
"""Faults that a driver survives."""

STOPS = (
    *(Fault(step, "stop", seconds=12) for step in ("planned", "read")),
    Fault(AT_RANDOM, "stop driver", seconds=12),
)
"""Longer than any timeout of a gateway, a lease or a client."""

ON_CLUSTER = (*SMALL, *[Fault(AT_RANDOM, "kill executor")] * len(SMALL))

ENDS = (
    *(Fault(step, "kill driver") for step in (*PLANNER_STEPS, *READ_STEPS, *PLANNER_STEPS, *READ_STEPS)),
    *(Fault(step, "kill driver", while_starting=True) for step in (*PLANNER_STEPS[:4], *READ_STEPS)),
    *(Fault(step, "kill driver") for step in ("written", "written", AT_RANDOM, AT_RANDOM, AT_RANDOM)),
)
"""Faults that it does not."""

ON_CLUSTER_SETTINGS = {
    "spark.cores.max": "2",
    "spark.driver.memory": "1g",
    "spark.executor.memory": "512m",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    # A task that is stopped is run once more on the other executor, and the first to end counts.
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "1s",
}

Report = dict[str, int]


def queries_of(
    folder: Path, connectors: Sequence[str], rng: random.Random, brokers: str = "", generated: int = GENERATED
) -> list[Query]:
    """A query over each connector, with rows or windows into one of the two sinks."""
    queries = []
    for number, connector in enumerate(connectors):
        name = connector.replace(", ", "_")
        place = place_of(connector, folder / "in", lambda: brokers, generated=generated)
        # With five connectors each shape meets each sink.
        shape, sink = ("rows", "windows")[number % 2], ("files", "batches")[number // 2 % 2]
        if rng.random() < 0.3:
            shape, sink = rng.choice(("rows", "windows")), rng.choice(("files", "batches"))
        queries.append(Query(name, connector, place, shape, sink, group="own" if "own" in connector else ""))
    return queries


def chain(
    seed: int,
    folder: Path,
    connectors: Sequence[str],
    *,
    lives: int = 3,
    faults: int = 3,
    stops: bool = False,
    brokers: str = "",
    master: str = "",
) -> Report:
    """Run queries through `lives` drivers, all but the last of which are killed; in each `faults` strike each query.

    With `stops` one query more is stopped, and goes on later. `master` is that of a cluster, `brokers` those of Kafka.

    Raises
    ------
    AssertionError
        If something is not as it must be; with the command that does it again.
    """
    begun, rng = time.monotonic(), random.Random(seed)
    queries = queries_of(folder, connectors, rng, brokers)
    # All at once: what is drawn while it runs depends on the machine.
    plan = [_life(queries, faults, rng, ON_CLUSTER if master else SMALL, stops=stops) for _ in range(lives)]
    supervisor = Supervisor(folder, queries, rng, ON_CLUSTER_SETTINGS if master else {})
    try:
        for number, life in enumerate(plan, 1):
            for query in queries:
                query.readers, query.max_rows = life.rescaled[query.name]
            supervisor.start(master or life.master)
            supervisor.live(life.faults, life.end if number < lives else None, commits=1)
        supervisor.finish()
        return {**supervisor.check(), "seconds": round(time.monotonic() - begun)}
    except AssertionError as error:
        what = " ".join([f"--connectors '{';'.join(connectors)}'", f"--lives {lives} --faults {faults}"])
        what += " --stops" * stops + " --cluster" * bool(master)
        again = f"again: python -m tests.faults.crashes {seed} {what}"
        raise AssertionError(
            f"{again}\n{error}\nstruck: {supervisor.struck}\nfailures: {supervisor.failures()}"
        ) from error
    finally:
        supervisor.close()


def driver_kills(seed: int, folder: Path, brokers: str, *, kills: int = 20) -> Report:
    """Kill the driver again and again, each time after its third commit, over live topics of transactions.

    Two queries, rows and windows, go on from their checkpoints in the next driver.

    Raises
    ------
    AssertionError
        If something is not as it must be.
    """
    begun, rng = time.monotonic(), random.Random(seed)
    queries = []
    for shape, sink in (("rows", "batches"), ("windows", "files")):
        place = place_of(TRANSACTIONS, folder / "in", lambda: brokers, generated=0)
        queries.append(Query(shape, TRANSACTIONS, place, shape, sink))
    supervisor = Supervisor(folder, queries, rng)
    try:
        for life in range(kills + 1):
            for query in queries:
                query.readers = rng.randint(1, 3)
                # The last one reads what is left.
                query.max_rows = rng.choice((50, 500, 10_000)) if life < kills else 20_000
            supervisor.start(f"local[{rng.randint(1, 3)},4]")
            end = (rng.choice(queries).name, Fault(AT_RANDOM, "kill driver")) if life < kills else None
            supervisor.live({}, end, commits=3)
        supervisor.finish()
        return {**supervisor.check(), "seconds": round(time.monotonic() - begun)}
    finally:
        supervisor.close()


@dataclass(frozen=True)
class _Life:
    """Of one driver: its master, of each query readers and rows a batch, and what strikes it; what ends it."""

    master: str
    rescaled: dict[str, tuple[int, int]]
    faults: dict[str, list[Fault]]
    end: tuple[str, Fault]


def _life(queries: Sequence[Query], number: int, rng: random.Random, faults: Sequence[Fault], *, stops: bool) -> _Life:
    strikes = {query.name: rng.choices(faults, k=number) for query in queries}
    if stops:
        strikes[rng.choice(queries).name].append(rng.choice(STOPS))
    return _Life(
        f"local[{rng.randint(1, 3)},4]",
        {query.name: (rng.randint(1, 3), rng.choice((500, 2000, 10_000))) for query in queries},
        strikes,
        _end(queries, rng),
    )


def _end(queries: Sequence[Query], rng: random.Random) -> tuple[str, Fault]:
    query, fault = rng.choice(queries), rng.choice(ENDS)
    while fault.step == "written" and query.sink != "batches":
        fault = rng.choice(ENDS)
    return query.name, fault


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", type=int, nargs="+")
    parser.add_argument("--connectors", default=";".join(CONNECTORS))
    parser.add_argument("--lives", type=int, default=3)
    parser.add_argument("--faults", type=int, default=3)
    parser.add_argument("--stops", action="store_true")
    parser.add_argument("--cluster", action="store_true", help="a master and two workers in place of local[n]")
    parser.add_argument("--folder", help="where all that is written stays")
    arguments = parser.parse_args()
    connectors, failed, total = arguments.connectors.split(";"), [], dict[str, int]()
    with ExitStack() as stack:
        kept = arguments.folder or stack.enter_context(
            tempfile.TemporaryDirectory(prefix="crashes-", ignore_cleanup_errors=True)
        )
        folder = Path(kept)
        brokers = ""
        if "kafka" in connectors:
            from tests.kafka.broker import KafkaBroker

            broker = KafkaBroker.from_cache(folder / "kafka")
            broker.start()
            stack.callback(broker.stop)
            brokers = broker.bootstrap
        master = ""
        if arguments.cluster:
            (folder / "cluster").mkdir(parents=True)
            cluster = Cluster(folder / "cluster")
            stack.callback(cluster.close)
            master = cluster.url
        for seed in arguments.seeds:
            try:
                report = chain(
                    seed,
                    folder / str(seed),
                    connectors,
                    lives=arguments.lives,
                    faults=arguments.faults,
                    stops=arguments.stops,
                    brokers=brokers,
                    master=master,
                )
            except Exception:
                traceback.print_exc()
                failed.append(seed)
            else:
                print(f"seed {seed}: {report}", flush=True)
                total = {name: total.get(name, 0) + number for name, number in report.items()}
    print(f"all: {total}; failed seeds: {failed or 'none'}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()

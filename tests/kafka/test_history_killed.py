"""The query of the page on history and live data in a process of Spark that is killed by SIGKILL, again and again."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.faults.checks import check_watermarks
from tests.faults.killed_process import KilledProcess, KilledQueryLog
from tests.kafka import flights as data
from tests.kafka.flights import CUT, Flights
from tests.kafka.history_query import expected, shown
from tests.kafka.topics import Topic

pytestmark = [pytest.mark.spark, pytest.mark.soak]

SEEDS, AT_THE_CUT, BEHIND, QUERIES = range(2), 9, 11, 5
CARRIERS = ({"AA", "B6", "DL", "EV", "MQ", "OO", "UA", "US", "VX", "YV"}, {"AS", "F9", "HA"}, {"9E", "FL", "WN"})
"""The second partition has its first record eleven hours behind the cut, so that it crosses later than the others."""


@dataclass
class Kills:
    """How many queries were killed; between the plan of a micro-batch and its commit; in one that crosses the cut."""

    total: int = 0
    inside: int = 0
    crossing: int = 0

    def __add__(self, other: Kills) -> Kills:
        return Kills(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(Kills)))

    def __str__(self) -> str:
        return f"{self.total} kills of a query, {self.inside} inside a micro-batch, {self.crossing} in one that crosses"


class FlightsQuery:
    """One query of the page: its topic, which grows, its options, and which of its micro-batches cross the cut."""

    def __init__(self, name: str, folder: Path, topic: Topic, root: Path, rng: random.Random) -> None:
        self.topic, self._rng = topic.create(partitions=len(CARRIERS)), rng
        self.flights = Flights.around_the_cut(topic, root, days=2)
        self._pending = self.flights.to_send("carrier", CARRIERS)
        # So that a micro-batch can cross: an hour of what is behind the cut.
        hour_ms = int((CUT.timestamp() + 3600) * 1000)
        self._send(next(i for i, record in enumerate(self._pending) if record.time_ms >= hour_ms))
        self.log, self.sink = KilledQueryLog(folder / name / "checkpoint"), folder / name / "sink"
        # Sources that plan one event time together, and such that follow each other within the drift.
        self.both = {"maxRowsPerTrigger": str(rng.choice([1500, 3000])), "idleTimeout": "2 seconds"}
        self.both["alignmentGroup"] = name
        if rng.random() < 0.5:
            self.both |= {"alignmentScope": "application", "maxDrift": "3 days"}
        self._is_before: dict[str, list[bool]] = {}
        for file in sorted(root.glob("*/*.parquet")):
            times = pq.read_table(file, columns=["time"])["time"].to_pylist()
            self._is_before.setdefault(file.parent.name, []).extend(time < CUT for time in times)

    def send_some(self, lives_left: int) -> None:
        self._send(self._rng.randint(0, 2 * len(self._pending) // lives_left))

    def send_the_rest(self) -> None:
        self._send(len(self._pending))
        self.flights.close_windows()

    def _send(self, count: int) -> None:
        self.topic.write(self._pending[:count])
        self._pending = self._pending[count:]

    def crosses(self, micro_batch: int) -> bool:
        """Whether it has records of the history from before the cut, and some of the topic."""
        before, after = self._read_to(micro_batch - 1), self._read_to(micro_batch)
        of_history = any(
            any(is_before[before.get(name, 0) : after.get(name, len(is_before) if name in before else 0)])
            for name, is_before in self._is_before.items()
        )
        return of_history and bool(self._partitions_in(micro_batch))

    @property
    def is_inside_a_crossing(self) -> bool:
        return self.log.is_inside and self.crosses(self.log.last("offsets"))

    def crossings(self) -> dict[str, int]:
        """By partition the first micro-batch with records of it."""
        found: dict[str, int] = {}
        for number in range(self.log.last("offsets") + 1):
            for name in self._partitions_in(number):
                found.setdefault(name, number)
        return found

    def _partitions_in(self, micro_batch: int) -> set[str]:
        before, after = self._read_to(micro_batch - 1), self._read_to(micro_batch)
        return {name for name, at in after.items() if at > before.get(name, at) and name not in self._is_before}

    def _read_to(self, micro_batch: int) -> dict[str, int]:
        found = {}
        for source in self.log.offsets(micro_batch):
            for (name, *rest), *_ in source["splits"]:
                is_partition = source["source"] == "aligned_kafka"
                found[f"{name}-{rest[0]}" if is_partition else name] = rest[1] if is_partition else rest[0]
        return found


def is_at_the_cut(query: FlightsQuery) -> bool:
    """Whether the last micro-batch that it has planned crosses, or one before did."""
    return query.is_inside_a_crossing or bool(query.crossings())


def kill_at_the_cut(process: KilledProcess, started: Path, queries: Sequence[FlightsQuery], rng: random.Random) -> None:
    """Kill it when all have planned a micro-batch that crosses, or within seconds where they have."""
    are_there = all(map(is_at_the_cut, queries))
    started.unlink(missing_ok=True)
    with process.life() as wait_until:
        wait_until(started.exists)
        until = time.monotonic() + (rng.uniform(0.1, 4.0) if are_there else 90.0)
        wait_until(lambda: time.monotonic() > until or (not are_there and all(map(is_at_the_cut, queries))))


def kill_behind_it(process: KilledProcess, started: Path, target: FlightsQuery, rng: random.Random) -> None:
    """Kill it at any moment, when the target has planned up to three micro-batches more."""
    before, more = target.log.last("offsets"), rng.randint(1, 3)
    started.unlink(missing_ok=True)
    with process.life() as wait_until:
        wait_until(started.exists)
        until = time.monotonic() + rng.uniform(5.0, 20.0)
        wait_until(lambda: time.monotonic() > until or target.log.last("offsets") >= before + more)
        time.sleep(rng.uniform(0.0, 1.0))


@pytest.mark.parametrize("seed", SEEDS)
def test_killed_queries_over_the_cut_bring_what_a_batch_has(
    spark: SparkSession, topic: Topic, tmp_path: Path, seed: int, killed: list[Kills]
) -> None:
    """Windows, a join with weather and a deduplication, while the topics grow; several queries in each process."""
    rng, kills = random.Random(seed), Kills()
    topics = [topic, *(Topic(topic.broker) for _ in range(QUERIES - 1))]
    queries = {f"q{i}": FlightsQuery(f"q{i}", tmp_path, one, tmp_path / "history", rng) for i, one in enumerate(topics)}
    data.weather().to_parquet(tmp_path / "weather.parquet")
    given = {"folder": str(tmp_path), "weather": str(tmp_path / "weather.parquet")}
    of_each = {name: {"place": query.flights.place, "both": query.both} for name, query in queries.items()}
    process = KilledProcess(tmp_path / "log", "tests.kafka.history_query", [json.dumps({**given, "queries": of_each})])

    started, of_all = tmp_path / "started", list(queries.values())
    for life in range(AT_THE_CUT + BEHIND):
        for query in of_all:
            query.send_some(AT_THE_CUT + BEHIND - life)
        if life < AT_THE_CUT:
            kill_at_the_cut(process, started, of_all, rng)
        else:
            kill_behind_it(process, started, rng.choice(of_all), rng)
        for query in of_all:
            kills += Kills(1, int(query.log.is_inside), int(query.is_inside_a_crossing))
        print(f"seed {seed}, life {life}: {kills}", flush=True)

    for query in of_all:
        query.send_the_rest()
    process.finish()
    print(f"\nseed {seed}: {AT_THE_CUT + BEHIND} SIGKILLs of a process, {kills}")
    killed.append(kills)
    weather = spark.createDataFrame(data.weather())
    wanted = expected(spark, queries["q0"].flights.everything, weather)
    for name, query in queries.items():
        crossings = query.crossings()
        print(f"{name}: {query.both}, partitions cross in {crossings}, {query.log.last('commits') + 1} micro-batches")
        check_watermarks(query.log.checkpoint)
        assert shown(spark.read.parquet(str(query.sink)).collect()) == wanted
        assert len({*crossings.values()}) > 1
    assert sum(row[2] for row in wanted) == len(queries["q0"].flights.everything)
    for other in topics[1:]:
        other.close()

"""No partition is read past `T`: from positions and timestamps, under disorder, over gaps, and past far-future records.

Each micro-batch is held against the topic as a plain client reads it. What is checked knows nothing of how a planner
comes to its bound.
"""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from streaming_source.connectors.kafka.time_index import TimeIndex
from tests.coordinator.support import available
from tests.examples import each_once, one_in
from tests.kafka.support import SKEWS, Logs, reading, records
from tests.kafka.topics import MS, Record, Topic, wait_until
from tests.spark.reading import Reading
from tests.spark.support import SECOND, T0, skewed_logs

Log = list[Record]


INDEXING = ("asked", "few", "scan")
"""Whether the brokers are asked, or few records that are new are read at once, or all are read ahead."""


@pytest.fixture
def indexing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "asked":
        monkeypatch.setattr(TimeIndex, "FEW", 0)
    return "scan" if request.param == "scan" else "auto"


class Checked:
    """A reading whose micro-batches are checked one by one."""

    def __init__(self, begun: Reading, logs: dict[int, Log], drift_us: int | None) -> None:
        self._reading = begun
        self._logs = logs
        self._drift_us = drift_us
        self._at = dict.fromkeys(logs, 0)  # offsets
        self.read: list[Record] = []
        self.bounds: list[int] = []
        begun.reader.prepareForTriggerAvailableNow()

    def run(self) -> Checked:
        """To the end of what is there."""
        while (table := self._reading.next()) is not None:
            self._check(table)
        return self

    def _check(self, table: pa.Table) -> None:
        planning = self._reading.reader._made
        assert planning is not None
        coordinator = planning._coordinator
        assert coordinator.runtime.engine.last_plan is not None
        bound_us = coordinator.runtime.engine.last_plan.bound_us
        ends = {**{p: self._end(p) for p in self._logs}, **self._offsets()}
        known = available(coordinator)
        for partition, log in self._logs.items():
            begin, end = self._at[partition], ends[partition]
            assert end >= begin
            planned = [record for record in log if begin <= record.offset < end]
            assert [r for r in records(table) if r.partition == partition] == planned
            late = [record for record in planned if record.time_us > bound_us]
            assert not late, f"partition {partition} was read past T = {bound_us}"
            behind = next((record for record in log if record.offset >= end), None)
            if behind is not None and any(s.endswith(f"-{partition}") and at < e for s, (at, e) in known.items()):
                # It could have gone on, so it was cut: at the first record later than T, or at the rows' limit.
                assert behind.time_us >= bound_us, f"partition {partition} was cut before T = {bound_us}"
        self._check_drift(bound_us)
        self._at = ends
        self.read += records(table)
        self.bounds.append(bound_us)

    def _check_drift(self, bound_us: int) -> None:
        unread = [[r.time_us for r in log if r.offset >= self._at[p]] for p, log in self._logs.items()]
        unread = [times for times in unread if times]
        if self._drift_us is None or not unread:  # the watermark row alone
            return
        logs = self._logs.items()
        reach = min(max(r.time_us for r in log) for p, log in logs if log and log[-1].offset >= self._at[p])
        # The nearest goes on where all lie beyond.
        assert bound_us <= max(reach + self._drift_us, min(times[0] for times in unread))

    def _offsets(self) -> dict[int, int]:
        return {entry[0][1]: entry[0][2] for entry in self._reading.offset["splits"]}

    def _end(self, partition: int) -> int:
        """Where a split ends that is in no offset any more."""
        log = self._logs[partition]
        return max(log[-1].offset + 1 if log else 0, self._at[partition])


def run(topic: Topic, indexing: str, drift_us: int | None = None, **options: Any) -> Checked:
    logs = topic.read()
    if drift_us is not None:
        options["maxDrift"] = f"{drift_us // MS} ms"
    given = {
        "watermarkRows": "true",
        "startingOffsets": "earliest",
        "maxOutOfOrderness": "5 seconds",
        "indexing": indexing,
        **options,
    }
    with reading(topic, **given) as begun:
        checked = Checked(begun, logs, drift_us).run()
    assert sorted(checked.read, key=place) == [record for log in logs.values() for record in log]
    return checked


def place(record: Record) -> tuple[int, int]:
    return record.partition, record.offset


LIMITS: dict[str, dict[str, Any]] = {"drift": {"drift_us": 10 * SECOND}, "rows": {"maxRowsPerTrigger": 150}}


@pytest.mark.parametrize(
    ("indexing", "skew", "limit"), each_once(INDEXING, list(SKEWS), list(LIMITS)), indirect=["indexing"]
)
def test_under_disorder_and_skew(topic: Topic, indexing: str, skew: str, limit: str) -> None:
    topic.create(partitions=3).write_logs(SKEWS[skew])
    checked = run(topic, indexing, **LIMITS[limit])
    assert len(set(checked.bounds)) >= 3


# One waits for the compaction of its topic.
@pytest.mark.parametrize("indexing", one_in(3, INDEXING), indirect=True)
def test_over_gaps_of_compaction_and_transactions(topic: Topic, indexing: str) -> None:
    topic.create(partitions=2, cleanup_policy="compact", segment_ms=10, min_cleanable_dirty_ratio=0.001)
    for i in range(10):
        written = [Record((T0 + i * 60 * SECOND) // MS + k, b"%d" % i, b"%d" % (k % 2 + 2 * (i % 3))) for k in range(5)]
        topic.transaction(written, end="abort" if i % 3 == 0 else "commit")
        topic.write([Record((T0 + i * 7 * SECOND) // MS + k, b"x", b"%d-%d" % (i, k), partition=1) for k in range(8)])
    topic.await_compaction(0, 9)
    left = topic.read()
    assert any(b.offset - a.offset > 3 for a, b in zip(left[0], left[0][1:], strict=False))
    # How much the cleaner has left is its own affair.
    checked = run(topic, indexing, drift_us=20 * SECOND)
    assert len(checked.bounds) >= 2
    run(topic, indexing, maxRowsPerTrigger=4)


AHEAD_S = {"an hour": 3600, "forty years": 40 * 365 * 86_400}


@pytest.mark.parametrize(("indexing", "ahead"), each_once(INDEXING, list(AHEAD_S)), indirect=["indexing"])
def test_behind_a_far_future_record_that_was_read(topic: Topic, indexing: str, ahead: str) -> None:
    # A broker that is asked for the first record later than the rest answers with that one, for ever.
    steady = T0 + np.arange(300, dtype=np.int64) * SECOND
    jumping = steady.copy()
    jumping[3] += AHEAD_S[ahead] * SECOND
    topic.create(partitions=2).write_logs({0: jumping, 1: steady})
    checked = run(topic, indexing, drift_us=30 * SECOND)
    # What lies behind it came with its kind, and not all at the end.
    assert len(checked.bounds) >= 2


@pytest.mark.parametrize("indexing", one_in(3, INDEXING), indirect=True)
def test_a_query_goes_on_behind_a_far_future_record_and_waits_before_one_that_is_too_far(
    topic: Topic, indexing: str
) -> None:
    def steady(turn: int) -> Logs:
        times = T0 + (20 * turn + np.arange(20)) * SECOND
        return {0: times, 1: times}

    def far(hours: float) -> Record:
        return Record(int(T0 + hours * 3600 * SECOND) // MS)

    topic.create(partitions=2).write_logs(steady(0))
    topic.write([far(2)])
    options = {"maxOutOfOrderness": "5 seconds", "maxDrift": "3 hours", "indexing": indexing}
    with reading(topic, watermarkRows="true", **options) as begun:
        assert read_on(begun, 41) == {0: 21, 1: 20}
        topic.write_logs(steady(1))
        assert read_on(begun, 40) == {0: 20, 1: 20}
        topic.write([far(4)])
        topic.write_logs(steady(2))
        assert read_on(begun, 20) == {1: 20}
        topic.write([far(1.5), Record(far(1.5).time_ms, partition=1)])
        # From there four hours are in reach again.
        assert read_on(begun, 1 + 1 + 20 + 1) == {0: 22, 1: 1}


def read_on(begun: Reading, wanted: int) -> dict[int, int]:
    """Micro-batches until they have brought so many records; how many of which partition."""
    counts: Counter[int] = Counter()

    def step() -> bool:
        table = begun.next()
        counts.update(record.partition for record in (records(table) if table is not None else ()))
        return counts.total() >= wanted

    wait_until(step, f"{wanted} records")
    return dict(sorted(counts.items()))


@pytest.mark.parametrize(("indexing", "seed"), one_in(13, product(INDEXING, range(12))), indirect=["indexing"])
def test_under_anything_at_random(topic: Topic, indexing: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    partitions = int(rng.integers(1, 5))
    bound = int(rng.integers(0, 20)) * SECOND
    logs = skewed_logs(
        seed,
        rows=tuple(rng.integers(5, 200, partitions).tolist()),
        starts=tuple((rng.integers(0, 600, partitions) * SECOND).tolist()),
        steps=tuple((rng.integers(1, 5000, partitions) * MS).tolist()),
        bound=bound,
    )
    topic.create(partitions=partitions)
    parts = {number: np.array_split(times // MS * MS, 4) for number, times in enumerate(logs.values())}
    for turn in range(4):
        for partition, times in parts.items():
            batch = [Record(int(t) // MS, b"%d" % turn, partition=partition) for t in times[turn]]
            how = rng.choice(["plain", "commit", "abort"], p=[0.5, 0.3, 0.2])
            if how == "plain":
                topic.write(batch)
            else:
                topic.transaction(batch, end=str(how))
    given: dict[str, Any] = {"maxOutOfOrderness": f"{bound // SECOND} seconds"}
    if rng.random() < 0.5:
        given["maxRowsPerTrigger"] = int(rng.integers(1, 200))
    if rng.random() < 0.7:
        given["drift_us"] = int(rng.integers(0, 120)) * SECOND
    run(topic, indexing, **given)

"""Queries in situations that a user may find them in: without Spark, by a clock that stands still."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from alignment import WatermarkStrategy
from alignment.events import RangeReport
from streaming_source.coordinator import SourceCoordinator
from streaming_source.coordinator.group_exchange import GroupExchange
from streaming_source.coordinator.group_location import GroupFile
from streaming_source.monitoring.explained import ExplainedQuery, explain, explain_checkpoint
from streaming_source.monitoring.report import NOTE, WHY, WatermarkReport
from streaming_source.spark.offsets import OffsetCodec
from streaming_source.testing import FakeClock, InlineWorkers, SourceHarness, TestingSource
from streaming_source.tools.testing.source import Element
from tests.coordinator.groups import report

SECOND = 1_000_000
START_US = 1_767_261_600 * SECOND
"""2026-01-01 10:00:00 UTC: when the queries start. Records of the second 0 have that event time."""

Reports = Callable[[list[RangeReport]], list[RangeReport]]


def at(second: float) -> int:
    return START_US + round(second * SECOND)


def records(seconds: Iterable[float]) -> list[Element]:
    return [at(second) for second in seconds]


class Situation:
    """A query that writes its checkpoint as Spark does, and keeps its progress as Spark does."""

    def __init__(
        self,
        folder: Path,
        splits: Mapping[str, Sequence[Element]],
        *,
        delay: str = "2 seconds",
        drift: str | None = None,
        idle: str | None = "1 minute",
        max_rows: int | None = None,
        bounded: bool = False,
        reports: Reports | None = None,
        in_group: bool = False,
        available_now: bool = False,
        note: str | None = None,
        exact: bool = True,
    ) -> None:
        self.clock = FakeClock()
        self.clock.advance_to(START_US)
        self.source = TestingSource(splits, clock=self.clock, bounded=bounded, records_per_fetch=1000)
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(delay)
        strategy = strategy if idle is None else strategy.with_idleness(idle)
        strategy = strategy if drift is None else strategy.with_watermark_alignment("pair", drift)
        self.folder = folder
        self._note = note
        (folder / "checkpoint" / "offsets").mkdir(parents=True)
        self.other = self._exchange("payments") if in_group else None
        self._harness = _Harness(
            self.source,
            strategy,
            clock=self.clock,
            max_rows=max_rows,
            reports=reports,
            group=self._exchange("testing") if in_group else None,
            available_now=available_now,
            exact=exact,
        )
        self._codec = OffsetCodec(self.source)
        self.recentProgress: list[dict[str, Any]] = []
        self.name: str | None = None
        self._error: str | None = None
        self.isActive = True
        self.status = {"message": "Waiting for data to arrive"}

    def run(self, batches: int = 100) -> Situation:
        """Micro-batches until there is nothing to do, or so many; then the query reports its progress."""
        for _ in range(batches):
            if not self._harness.plan():
                break
            self._write()
            self._harness.commit(self._harness.read())
            self._report()
        self._report()
        return self

    def let_pass(self, seconds: int, each: Callable[[], None] | None = None) -> Situation:
        """Time passes, second by second; `each` second something may happen, and the query runs."""
        for _ in range(seconds):
            self.clock.advance("1 second")
            if each is not None:
                each()
            self.run()
        return self

    def plan(self) -> Situation:
        """Plan a micro-batch that Spark works on, and go no further."""
        assert self._harness.plan()
        self._write(committed=False)
        self.status = {"message": "Processing new data"}
        self._jsq = _Wrapped(self.folder / "checkpoint", None)
        return self

    def next_run(self, **splits: Iterable[float]) -> Situation:
        """A day later, with more records of these splits."""
        self.clock.advance("1 day")
        for split_id, seconds in splits.items():
            self.source.go_on(f"carrier={split_id}", *records(seconds))
        self._harness.restart()
        return self.run()

    def fail(self, error: str) -> Situation:
        """The query ends with an error."""
        self.isActive, self._error = False, error
        self._jsq = _Wrapped(self.folder / "checkpoint", self.clock.now_us())
        return self

    def explain(self) -> ExplainedQuery:
        """From the progress of the query that runs."""
        return explain(self, self.clock.now_us())

    def exception(self) -> Exception | None:
        return None if self._error is None else RuntimeError(self._error)

    def explain_checkpoint(self) -> ExplainedQuery:
        """From what it has written alone."""
        return explain_checkpoint(str(self.folder / "checkpoint"), self.clock.now_us())

    def close(self) -> None:
        self._harness.close()

    # ---- inside --------------------------------------------------------------------------------------------------

    def _exchange(self, name: str) -> GroupExchange:
        second, drift = SECOND, 10 * SECOND
        return GroupExchange(
            GroupFile(self.folder / "group"), "pair", drift, second, self.clock.now_us, lambda _: True, name
        )

    def _write(self, *, committed: bool = True) -> None:
        offset = self._codec.encode(self._harness.state, self._harness.coordinator.explain())
        if self._note is not None:
            offset[WHY][NOTE] = self._note
        metadata = {"batchWatermarkMs": 0, "batchTimestampMs": self.clock.now_us() // 1000}
        for log in ("offsets", "commits") if committed else ("offsets",):
            folder = self.folder / "checkpoint" / log
            folder.mkdir(parents=True, exist_ok=True)
            text = "\n".join(["v1", json.dumps(metadata), json.dumps(offset)])
            name = str(self._harness.state.sequence - 1)
            # As Spark writes a log: whole, or not there. And its clock is the system's.
            part = folder / f".{name}.tmp"
            part.write_text(text)
            os.utime(part, (self.clock.now_us() / 1e6,) * 2)
            part.replace(folder / name)

    def _report(self) -> None:
        self._harness.coordinator.end_batch()
        explanation = self._harness.coordinator.explain()
        assert explanation is not None
        found = WatermarkReport(self.source.name, self._harness.state.sequence, explanation).to_json()
        self.recentProgress.append({"sources": [{"latestOffset": json.dumps(found)}]})


class _Wrapped:
    """What the JVM says of a query."""

    def __init__(self, checkpoint: Path, failed_us: int | None) -> None:
        self._checkpoint = checkpoint
        self._failed_us = failed_us

    def streamingQuery(self) -> _Wrapped:
        return self

    def resolvedCheckpointRoot(self) -> str:
        return f"file:{self._checkpoint}"

    def exception(self) -> _Wrapped:
        return self

    def isDefined(self) -> bool:
        return self._failed_us is not None

    def get(self) -> _Wrapped:
        return self

    def time(self) -> int:
        assert self._failed_us is not None
        return self._failed_us // 1000


class _Harness(SourceHarness):
    """In an alignment group."""

    def __init__(self, *arguments: Any, group: GroupExchange | None, **options: Any) -> None:
        self._group = group
        super().__init__(*arguments, **options)

    def _new_coordinator(self) -> SourceCoordinator[Any, Any]:
        coordinator = SourceCoordinator(
            self.source,
            self._rules(),
            self._columns,
            self.clock.now_us,
            readers=self.readers,
            workers=InlineWorkers(self.clock),
            group=self._group,
        )
        if self.available_now:
            coordinator.drain()
        coordinator.restore(self.state)
        return coordinator


def silent_split(folder: Path) -> Situation:
    query = Situation(folder, {"carrier=HA": records([-20, 0]), **_four()}, drift="10 seconds")
    query.run()
    return query.let_pass(19)


def one_split_idle(folder: Path) -> Situation:
    query = Situation(folder, {"carrier=HA": records([-20, 0]), "carrier=UA": records(range(10))})
    query.run()
    second = iter(range(10, 1000))
    return query.let_pass(65, lambda: query.source.go_on("carrier=UA", at(next(second))))


def all_splits_idle(folder: Path) -> Situation:
    query = Situation(folder, {"carrier=HA": records([-20, 0]), "carrier=UA": records([10])})
    query.run()
    return query.let_pass(65)


def at_the_limit(folder: Path) -> Situation:
    query = Situation(folder, {"carrier=HA": records([0]), **_four()}, drift="10 seconds")
    second = iter(range(1, 1000))
    query.run()
    return query.let_pass(5, lambda: query.source.go_on("carrier=HA", at(next(second))))


def sink_hangs(folder: Path) -> Situation:
    query = Situation(folder, {"carrier=HA": records([0]), "carrier=UA": records([0])}).run()
    query.clock.advance("1 second")
    query.source.go_on("carrier=HA", *records([1, 2, 3]))
    query.source.go_on("carrier=UA", *records([1, 2]))
    query.plan()
    query.clock.advance("3 minutes")
    return query


def query_failed(folder: Path) -> Situation:
    query = sink_hangs(folder)
    return query.fail(
        "[STREAM_FAILED] Query [id = 5b2c, runId = 0f6e] terminated with exception: Job aborted: no space left on "
        "device"
    )


def nothing_there(folder: Path) -> Situation:
    return Situation(folder, {}).run().let_pass(5)


def finished(folder: Path) -> Situation:
    return Situation(folder, {"carrier=HA": records([0]), "carrier=UA": records([10])}, bounded=True).run()


def new_split_with_nothing(folder: Path) -> Situation:
    query = Situation(folder, {"carrier=HA": records([0]), "carrier=UA": records([10])}).run()
    query.source.go_on("carrier=YV")
    second = iter(range(11, 1000))
    return query.let_pass(20, lambda: query.source.go_on("carrier=UA", at(next(second))))


def empty_partition(folder: Path) -> Situation:
    query = Situation(folder, {"orders-0": records([0]), "orders-1": records([10]), "orders-2": []}, idle=None)
    query.run()
    return query.let_pass(20)


def record_from_the_future(folder: Path) -> Situation:
    ahead = [*records([0, 1]), 4_070_908_800 * SECOND, *records([2, 3])]
    query = Situation(folder, {"carrier=HA": ahead, "carrier=UA": records(range(4))}, drift="10 seconds")
    second = iter(range(4, 1000))
    query.run()
    return query.let_pass(5, lambda: query.source.go_on("carrier=UA", at(next(second))))


def watermark_in_the_future(folder: Path) -> Situation:
    query = Situation(folder, {"carrier=HA": records([0, 1])}).run()
    query.clock.advance("1 second")
    query.source.go_on("carrier=HA", at(2), 4_070_908_800 * SECOND, at(3))
    return query.run().let_pass(1)


def clock_of_another_zone(folder: Path) -> Situation:
    query = Situation(folder, {"carrier=HA": records([0, 1])}).run()
    query.source.go_on("carrier=HA", *records([7_200, 7_201]))
    return query.let_pass(1)


def split_of_another_unit(folder: Path) -> Situation:
    seconds = [at(second) // 1000 for second in (0, 3)]
    return Situation(folder, {"carrier=HA": records([0]), "carrier=UA": seconds}).run().let_pass(1)


def no_valid_times(folder: Path) -> Situation:
    query = Situation(folder, {"carrier=HA": [None, None, None], "carrier=UA": records([0, 1])})
    return query.run().let_pass(5)


def lost_reports(folder: Path) -> Situation:
    splits = {"carrier=HA": records([0]), "carrier=UA": records([10])}
    query = Situation(folder, splits, reports=lambda reports: [r for r in reports if r.split_id != "carrier=HA"])
    query.run()
    second = iter(range(11, 1000))
    return query.let_pass(5, lambda: query.source.go_on("carrier=UA", at(next(second))))


def dead_group_member(folder: Path) -> Situation:
    query = Situation(folder, {"carrier=HA": records(range(100))}, drift="10 seconds", in_group=True)
    assert query.other is not None
    report(query.other, at(20), at(21))
    query.run()
    return query.let_pass(8)


def read_limit_too_small(folder: Path) -> Situation:
    query = Situation(folder, {"carrier=HA": records(range(20)), "carrier=UA": records(range(20))}, max_rows=10)
    for second in range(20, 130, 10):
        query.run(1)
        query.clock.advance("10 seconds")
        for split_id in ("carrier=HA", "carrier=UA"):
            query.source.go_on(split_id, *records(range(second, second + 10)))
    return query.run(1)


def delay_too_small(folder: Path) -> Situation:
    query = Situation(folder, {"carrier=HA": records([0, 1]), "carrier=UA": records([0, 1])}).run()
    second = iter(range(2, 100))

    def each() -> None:
        now = next(second)
        query.source.go_on("carrier=HA", at(now))
        query.source.go_on("carrier=UA", at(now), at(now - 5 * (now % 3 == 0)))

    return query.let_pass(10, each)


def zeros_for_no_time(folder: Path) -> Situation:
    query = Situation(folder, {"carrier=HA": records([0, 1]), "carrier=UA": records([0, 1])}).run()
    query.source.go_on("carrier=HA", at(2), 0, at(3))
    query.source.go_on("carrier=UA", at(2), at(3))
    return query.let_pass(1)


def another_unit_from_one_record_on(folder: Path) -> Situation:
    query = Situation(folder, {"carrier=HA": records([0, 1]), "carrier=UA": records([0, 1])}).run()
    # Seconds, where milliseconds came before.
    query.source.go_on("carrier=UA", at(2), *[at(second) // 1000 for second in (3, 4)])
    query.source.go_on("carrier=HA", at(2), at(3))
    return query.let_pass(1)


def run_without_a_split(folder: Path) -> Situation:
    query = Situation(
        folder, {"carrier=HA": records([0, 1]), "carrier=UA": records([0, 2])}, idle=None, available_now=True
    )
    query.run()
    return query.next_run(UA=[86_400, 86_402]).let_pass(2)


def split_that_is_two_runs_late(folder: Path) -> Situation:
    query = run_without_a_split(folder)
    query.next_run(UA=[172_800])
    return query.next_run(HA=[86_400, 172_000, 172_900]).let_pass(2)


def nothing_wrong(folder: Path) -> Situation:
    query = Situation(folder, {"carrier=HA": records([0, 1]), "carrier=UA": records([0, 1])}, drift="1 minute").run()
    second = iter(range(2, 100))

    def each() -> None:
        now = at(next(second))
        query.source.go_on("carrier=HA", now)
        query.source.go_on("carrier=UA", now + SECOND // 2)

    return query.let_pass(10, each)


def _four() -> dict[str, list[Element]]:
    return {f"carrier={code}": records(range(60)) for code in ("AA", "B6", "DL", "UA")}


SITUATIONS: dict[str, Callable[[Path], Situation]] = {
    make.__name__.replace("_", " "): make
    for make in (
        nothing_wrong,
        silent_split,
        one_split_idle,
        all_splits_idle,
        at_the_limit,
        sink_hangs,
        query_failed,
        nothing_there,
        finished,
        new_split_with_nothing,
        empty_partition,
        record_from_the_future,
        watermark_in_the_future,
        clock_of_another_zone,
        split_of_another_unit,
        no_valid_times,
        lost_reports,
        dead_group_member,
        read_limit_too_small,
        delay_too_small,
        zeros_for_no_time,
        another_unit_from_one_record_on,
        run_without_a_split,
        split_that_is_two_runs_late,
    )
}

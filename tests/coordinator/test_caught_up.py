"""Idleness of splits whose reader knows whether there is anything more, and says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from alignment.combine import SplitStatus
from alignment.plan import PlanningRules
from alignment.strategy import WatermarkStrategy
from alignment.timestamps import FieldTimestampAssigner
from streaming_source.api import (
    Boundedness,
    CaughtUp,
    DiscoveredSplits,
    DiscoveredSplitsSerializer,
    DiscoveringSplitEnumerator,
    JsonSerializer,
    RecordBlock,
    RecordsBySplits,
    RecordSplit,
    Source,
    SourceReaderContext,
    SplitEnumeratorContext,
    SplitReader,
    SplitsAddition,
    SplitsChange,
)
from streaming_source.coordinator import ReadRules, SourceCoordinator
from streaming_source.testing import FakeClock, InlineWorkers

SCHEMA = pa.schema([("t", pa.int64())])


@dataclass
class Logs(Source[RecordSplit, DiscoveredSplits[RecordSplit]]):
    """Two logs of event times in seconds, and what their readers say of their ends."""

    times: dict[str, list[int]] = field(default_factory=lambda: {"a": [1], "b": [100]})
    says: dict[str, CaughtUp | None] = field(default_factory=lambda: {"a": CaughtUp.YES, "b": CaughtUp.YES})

    name = "logs"
    identity = ""
    boundedness = Boundedness.CONTINUOUS_UNBOUNDED
    split_serializer = JsonSerializer(RecordSplit)
    enumerator_checkpoint_serializer = DiscoveredSplitsSerializer(split_serializer)

    def schema(self) -> pa.Schema:
        return SCHEMA

    def create_enumerator(
        self, context: SplitEnumeratorContext[RecordSplit]
    ) -> DiscoveringSplitEnumerator[RecordSplit]:
        return DiscoveringSplitEnumerator(context, lambda: map(RecordSplit, self.times), period_seconds=1.0)

    def restore_enumerator(
        self, context: SplitEnumeratorContext[RecordSplit], checkpoint: DiscoveredSplits[RecordSplit]
    ) -> DiscoveringSplitEnumerator[RecordSplit]:
        raise AssertionError("nothing is restarted here")

    def create_split_reader(self, context: SourceReaderContext) -> LogReader:
        return LogReader(self)


class LogReader(SplitReader[RecordSplit]):
    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._next: dict[str, int] = {}
        self._paused: frozenset[str] = frozenset()

    def handle_splits_changes(self, change: SplitsChange[RecordSplit]) -> None:
        for split in change.splits:
            if isinstance(change, SplitsAddition):
                self._next[split.split_id] = split.position
            else:
                del self._next[split.split_id]

    def fetch(self) -> RecordsBySplits[RecordBlock]:
        for split_id, position in self._next.items():
            times = self._logs.times[split_id][position:]
            if times and split_id not in self._paused:
                self._next[split_id] += len(times)
                batch = pa.record_batch([pa.array(times)], schema=SCHEMA)
                return RecordsBySplits({split_id: [RecordBlock(batch, position)]})
        return RecordsBySplits()

    def pause_or_resume_splits(self, to_pause: Sequence[RecordSplit], to_resume: Sequence[RecordSplit]) -> None:
        self._paused = self._paused.union(split.split_id for split in to_pause)
        self._paused = self._paused.difference(split.split_id for split in to_resume)

    def caught_up(self, split_id: str) -> CaughtUp | None:
        if self._next[split_id] < len(self._logs.times[split_id]):
            return CaughtUp.NO
        return self._logs.says[split_id]


class Query:
    """One over the logs, with no out-of-orderness and an idle timeout of ten seconds."""

    def __init__(self, logs: Logs) -> None:
        self.clock = FakeClock()
        strategy = (
            WatermarkStrategy.for_monotonous_timestamps()
            .with_timestamp_assigner(FieldTimestampAssigner("t", "s"))
            .with_idleness("10 seconds")
        )
        rules = ReadRules(strategy, PlanningRules(0))
        workers = InlineWorkers(self.clock)
        self.coordinator = SourceCoordinator(logs, rules, SCHEMA, self.clock.now_us, workers=workers)
        self.coordinator.restore(self.coordinator.state)

    def run(self, seconds: int = 0) -> Sequence[SplitStatus]:
        """Plan every second, and return the statuses of `a` and `b`."""
        for _ in range(seconds + 1):
            while self.coordinator.state is not self.coordinator.advance():
                pass
            self.clock.advance("1 second")
        return [SplitStatus(status) for status in self.coordinator.state.table.statuses]


def test_a_split_that_has_nothing_more_is_idle_after_the_timeout() -> None:
    logs = Logs()
    query = Query(logs)
    assert query.run(5) == [SplitStatus.ACTIVE] * 2
    assert query.run(10) == [SplitStatus.IDLE] * 2


@pytest.mark.parametrize("says", [CaughtUp.NO, CaughtUp.BLOCKED])
def test_a_split_that_may_have_more_is_not_idle_however_long_nothing_comes(says: CaughtUp) -> None:
    logs = Logs(says={"a": says, "b": CaughtUp.YES})
    query = Query(logs)
    assert query.run(60) == [SplitStatus.ACTIVE, SplitStatus.IDLE]
    assert query.coordinator.state.table.combined == 1_000_000 - 1
    logs.says["a"] = CaughtUp.YES
    assert query.run(15) == [SplitStatus.IDLE] * 2


@pytest.mark.parametrize("says", [CaughtUp.NO, CaughtUp.BLOCKED])
def test_what_was_about_to_be_idle_is_not_if_there_may_be_more(says: CaughtUp) -> None:
    logs = Logs()
    query = Query(logs)
    query.run(5)
    logs.says["a"] = says
    assert query.run(30)[0] is SplitStatus.ACTIVE


def test_a_drained_query_ends_where_something_is_held_back() -> None:
    query = Query(Logs(says={"a": CaughtUp.BLOCKED, "b": CaughtUp.YES}))
    query.coordinator.drain()
    query.run()
    assert [split.position for split in query.coordinator.state.splits] == [1, 1]

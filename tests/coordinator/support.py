"""What stands around the parts of a coordinator in their tests."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from alignment import WatermarkStrategy
from alignment.engine import Engine
from alignment.events import Restored, SplitsAssigned
from alignment.index import EventTimeIndex
from alignment.plan import PlanningRules, SplitTable
from streaming_source.api import (
    Boundedness,
    Fetching,
    RecordBlock,
    RecordsBySplits,
    RecordSplit,
    SourceEvent,
    SourceReaderContext,
    SplitEnumerator,
    SplitEnumeratorContext,
    SplitReader,
    SplitsChange,
)
from streaming_source.coordinator import ReadRules, SourceCoordinator, Workers
from streaming_source.coordinator.calls import AsyncCalls
from streaming_source.coordinator.enumerator_host import EnumeratorHost
from streaming_source.coordinator.event_times.read_ahead import ReadAheadTimes
from streaming_source.coordinator.rules import FrameOptions
from streaming_source.testing import FakeClock, InlineWorkers, TestingSource

WAIT_S = 20.0
STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness("0 us")
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("value", pa.int64())])


def worker_threads() -> set[threading.Thread]:
    """Those that pools have started."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("source-worker")}


def await_end(threads: Iterable[threading.Thread]) -> None:
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive(), f"{thread.name} goes on"


def ids(splits: Iterable[RecordSplit]) -> list[str]:
    return [split.split_id for split in splits]


@dataclass(frozen=True)
class Note(SourceEvent):
    """An event of a connector's own."""

    text: str


class NotingEnumerator(SplitEnumerator[RecordSplit, tuple[RecordSplit, ...]]):
    """Has its splits from the start, gives one to each request, and records the calls that it receives."""

    def __init__(self, context: SplitEnumeratorContext[RecordSplit], splits: Iterable[str] = ()) -> None:
        self.context = context
        self.unassigned = deque(RecordSplit(split_id) for split_id in splits)
        self.received: list[tuple[Any, ...]] = []

    def start(self) -> None:
        self.received.append(("start", sorted(self.context.registered_readers())))

    def add_reader(self, subtask_id: int) -> None:
        self.received.append(("reader", subtask_id, self.context.registered_readers()[subtask_id].restored_splits))

    def handle_split_request(self, subtask_id: int, requester_hostname: str | None = None) -> None:
        if self.unassigned:
            self.context.assign_split(self.unassigned.popleft(), subtask_id)
        else:
            self.context.signal_no_more_splits(subtask_id)

    def add_splits_back(self, splits: Sequence[RecordSplit], subtask_id: int) -> None:
        self.received.append(("back", subtask_id, ids(splits)))
        self.unassigned.extend(splits)

    def handle_source_event(self, subtask_id: int, event: SourceEvent) -> None:
        self.received.append(("event", subtask_id, event))

    def snapshot_state(self, checkpoint_id: int) -> tuple[RecordSplit, ...]:
        return tuple(self.unassigned)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.received.append(("complete", checkpoint_id))

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.received.append(("aborted", checkpoint_id))

    def close(self) -> None:
        self.received.append(("close",))

    def received_of(self, *kinds: str) -> list[tuple[Any, ...]]:
        """Return the calls of some kinds, in order."""
        return [entry for entry in self.received if entry[0] in kinds]


class Planner:
    """An enumerator and all that it is runtime with; the time stands still, unless there are other workers."""

    def __init__(self, readers: int = 1, splits: Iterable[str] = (), workers: Workers | None = None) -> None:
        self.clock = FakeClock()
        self.workers = InlineWorkers(self.clock) if workers is None else workers
        self.calls = AsyncCalls(self.workers, self.clock.now_us)
        rules = ReadRules(WatermarkStrategy.no_watermarks(), PlanningRules(None))
        self.host: EnumeratorHost[RecordSplit, Any] = EnumeratorHost(
            readers, SCHEMA, rules, self.calls, self.clock.now_us
        )
        self.index = EventTimeIndex(self._load)
        self.engine = Engine(PlanningRules(None), self.index)
        self.host.take_engine(self.engine, probes_records=True)
        self.enumerator = NotingEnumerator(self.host, splits)
        self.host.enumerator = self.enumerator

    def assigned(self) -> list[str]:
        """Ids of the splits that were assigned and not taken by a plan."""
        return ids(self.host.added)

    def settle(self) -> None:
        """Plan, so that only what comes after it makes another plan due."""
        self.engine.plan(self.clock.now_us())
        assert not self.engine.is_due

    def give_up_splits(self) -> None:
        """What a coordinator does before its readers go back."""
        none = np.empty(0, np.int64)
        self.engine.apply(Restored(SplitTable.empty(), none, none, none, self.clock.now_us()))
        self.host.added.clear()

    def _load(self, split_id: str, start: int, stop: int) -> npt.NDArray[np.int64]:
        raise AssertionError("no times are asked for")


class HeldWorkers(Workers):
    """Keeps work until the test has it done: also from inside of other work, as threads would."""

    def __init__(self) -> None:
        self.held: list[tuple[float, Callable[[], None]]] = []

    def submit(self, work: Callable[[], None], delay_s: float = 0.0) -> None:
        self.held.append((delay_s, work))

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        return [function(item) for item in items]

    def do_one(self, *, due: bool) -> bool:
        return False

    def close(self) -> None:
        self.held.clear()

    def do(self, name: str) -> None:
        """Do the oldest work that is a method of this name."""
        for entry in self.held:
            if getattr(entry[1], "func", entry[1]).__name__ == name:
                self.held.remove(entry)
                entry[1]()
                return
        raise AssertionError(f"no {name} is held, only {[entry[1] for entry in self.held]}")

    def do_all_due(self) -> None:
        """Do all work that waits for no time to pass, and what that submits."""
        while due := next((entry for entry in self.held if not entry[0]), None):
            self.held.remove(due)
            due[1]()

    def count(self, name: str) -> int:
        """How much work of this name is held."""
        return sum(getattr(work, "func", work).__name__ == name for _, work in self.held)


class ScriptedFetches(SplitReader[RecordSplit]):
    """One step of a script a fetch: so many records, or something to do that says how many."""

    def __init__(self, source: FetchSource, split_id_of: dict[str, list[int | Callable[[], int]]]) -> None:
        self.source = source
        self.steps = split_id_of
        self.woken = threading.Event()
        self.closed = 0

    def handle_splits_changes(self, change: SplitsChange[RecordSplit]) -> None:
        (self.split,) = change.splits
        self.position = self.split.position

    def fetch(self) -> RecordsBySplits[RecordBlock]:
        split_id = self.split.split_id
        self.source.fetches[split_id] = self.source.fetches.get(split_id, 0) + 1
        steps = self.steps.get(split_id, [])
        step = steps.pop(0) if steps else 0
        rows = step if isinstance(step, int) else step()
        if not rows:
            return RecordsBySplits()
        positions = np.arange(self.position, self.position + rows)
        self.position += rows
        columns = [pa.array(positions).cast(SCHEMA.field(0).type), pa.array(positions)]
        kept = [column for column, field in zip(columns, SCHEMA, strict=True) if field.name in self.source.columns]
        names = [field.name for field in SCHEMA if field.name in self.source.columns]
        batch = pa.record_batch(kept, names=names)
        return RecordsBySplits({split_id: [RecordBlock(batch, int(positions[0]), positions)]})

    def wake_up(self) -> None:
        self.woken.set()
        self.source.wakes += 1

    def close(self) -> None:
        self.closed += 1


class FetchSource(TestingSource):
    """Splits whose fetches bring what a test says; nothing when it has said no more."""

    def __init__(self, steps: dict[str, list[int | Callable[[], int]]]) -> None:
        super().__init__({split_id: [] for split_id in steps}, fetching=Fetching.per_split())
        self.steps = steps
        self.fetches: dict[str, int] = {}
        self.readers: list[ScriptedFetches] = []
        self.columns: list[str] = []
        self.wakes = 0

    def create_split_reader(self, context: SourceReaderContext) -> SplitReader[RecordSplit]:
        self.columns = context.schema.names
        reader = ScriptedFetches(self, self.steps)
        self.readers.append(reader)
        return reader


class Looking:
    """A `ReadAheadTimes` alone."""

    def __init__(
        self,
        source: Any,
        workers: Workers | None = None,
        max_rows: int = 100,
        *,
        max_drift_us: int | None = None,
        allow_unaligned: bool = False,
    ) -> None:
        self.planner = Planner(workers=workers)
        if workers is None:
            self.planner.clock = source.clock
            self.planner.workers = InlineWorkers(source.clock)
            self.planner.calls = AsyncCalls(self.planner.workers, source.clock.now_us)
            self.planner.host.calls = self.planner.calls
        self.calls, self.host = self.planner.calls, self.planner.host
        self.index = self.planner.index
        planning = PlanningRules(None, max_drift_us=max_drift_us)
        rules = ReadRules(
            WatermarkStrategy.no_watermarks(),
            planning,
            FrameOptions(allow_unaligned_source_splits=allow_unaligned),
            read_ahead_rows=max_rows,
        )
        self.read_ahead = ReadAheadTimes(source, self.host, rules)

    def add(self, *split_ids: str) -> None:
        self.planner.engine.apply(SplitsAssigned(split_ids, (0,) * len(split_ids), (0,) * len(split_ids), 0))
        self.read_ahead.add_splits([RecordSplit(split_id) for split_id in split_ids])

    def seen(self) -> dict[str, int]:
        """Records taken over, by split."""
        return dict(zip(self.index.split_ids, self.index.ends().tolist(), strict=True))

    def run(self) -> dict[str, int]:
        """Let happen what is due; then what was seen."""
        self.calls.run()
        return self.seen()


def coordinator(
    source: TestingSource,
    strategy: WatermarkStrategy = STRATEGY,
    *,
    readers: int = 1,
    workers: Workers | None = None,
    read_ahead_rows: int = 1000,
    now_us: Callable[[], int] | None = None,
    lateness: Literal["none"] | None = None,
) -> SourceCoordinator[Any, Any]:
    """One with the exact watermark, on the clock of its source."""
    planning = PlanningRules(
        strategy.out_of_orderness_us,
        max_drift_us=strategy.alignment.max_drift_us if strategy.alignment else None,
        drains_past_caught_up=True,
        lateness=lateness or "bounded",
        bounded=source.boundedness is Boundedness.BOUNDED,
    )
    options = FrameOptions(watermark_rows=True, lateness=lateness)
    rules = ReadRules(strategy, planning, options, read_ahead_rows=read_ahead_rows)
    clock = source.clock
    workers = InlineWorkers(clock) if workers is None else workers
    return SourceCoordinator(source, rules, source.schema(), now_us or clock.now_us, readers=readers, workers=workers)


def available(of: SourceCoordinator[Any, Any]) -> dict[str, tuple[int, int]]:
    """Of each split in work: its next position, and the position after the last record known to be there."""
    if not of._started:
        return {split.split_id: (split.position, split.position) for split in of.state.unfinished()}
    position_at, known = of.runtime.event_times.position_at, of.runtime.engine.available()
    return {i: (position_at(i, position), position_at(i, end)) for i, (position, end) in known.items()}

"""Fakes for tests: of time, of workers, and of the context of an enumerator."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from alignment.durations import parse_duration_us
from alignment.timestamps import RecordTimestampAssigner, TimestampAssigner
from streaming_source.api import ReaderInfo, SourceEvent, SplitEnumeratorContext, SplitsAssignment
from streaming_source.api.split import SplitT
from streaming_source.coordinator import Workers
from streaming_source.exceptions import SourceError

T = TypeVar("T")
U = TypeVar("U")

_ENOUGH_STEPS: Final = 100_000


class FakeClock:
    """Microseconds since it was made.

    Examples
    --------
    >>> clock = FakeClock()
    >>> clock.advance("2 seconds")
    >>> clock.now_us()
    2000000
    """

    def __init__(self) -> None:
        self._now_us = 0

    def now_us(self) -> int:
        """Return what it shows."""
        return self._now_us

    def advance(self, duration: timedelta | str) -> None:
        self.advance_to(self._now_us + parse_duration_us(duration, name="duration"))

    def advance_to(self, now_us: int) -> None:
        """Move it on to a time; not back."""
        self._now_us = max(now_us, self._now_us)


class InlineWorkers(Workers):
    """Does work on the caller's thread, in the order in which it is due by a fake clock.

    Work that is due is done when the coordinator looks; where it waits, the clock jumps to what is due next.
    """

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._work: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._steps_ahead = 0
        self._closed = False

    def submit(self, work: Callable[[], None], delay_s: float = 0.0) -> None:
        if not self._closed:
            due_us = self._clock.now_us() + round(delay_s * 1e6)
            heapq.heappush(self._work, (due_us, next(self._order), work))

    def map(self, function: Callable[[T], U], items: Iterable[T]) -> list[U]:
        return [function(item) for item in items]

    def do_one(self, *, due: bool) -> bool:
        """See `Workers`; a `SourceError` if it is waited for what will never come."""
        if due and not (self._work and self._work[0][0] <= self._clock.now_us()):
            return False
        if not self._work or self._steps_ahead > _ENOUGH_STEPS:
            raise SourceError("the planner waits for something that will not happen, however far the clock is advanced")
        due_us, _, work = heapq.heappop(self._work)
        self._steps_ahead = 0 if due else self._steps_ahead + 1
        self._clock.advance_to(due_us)
        work()
        return True

    def close(self) -> None:
        self._closed = True
        self._work.clear()


class TestingEnumeratorContext(SplitEnumeratorContext[SplitT]):
    """Everything happens on one thread, and asynchronous calls when the test says so.

    The test fills `readers`, of which none is registered, with `register_reader`. What the enumerator did is in
    `assigned`, splits by reader in the order of their assignment; `without_more`, readers that get no more splits;
    `events`, `(reader, event)` in order; `calls`, `(call, handler, is periodic)` of `call_async`, those without a
    period until they are made, and `periods`, of all calls so far. By split id, `blocks` has `(rows, smallest, largest
    event time)`, `opaque_blocks` rows and maximum of each, and `expected` what was said last with `expect_records`.
    `complete` are splits to which no record will be added, `abandoned` those of which nothing more is there to be read,
    in the order in which that was said; `horizon_us` is the last one that was set, None for none.
    """

    __test__ = False

    def __init__(
        self,
        parallelism: int = 1,
        schema: pa.Schema | None = None,
        assigner: TimestampAssigner | None = None,
        out_of_orderness_us: int | None = None,
    ) -> None:
        self._parallelism = parallelism
        self.schema = schema or pa.schema([])
        self.timestamp_assigner = assigner or RecordTimestampAssigner()
        self.out_of_orderness_us = out_of_orderness_us
        self.supports_opaque_blocks = True
        self.readers: dict[int, ReaderInfo] = {}
        self.assigned: dict[int, list[SplitT]] = {}
        self.without_more: set[int] = set()
        self.events: list[tuple[int, SourceEvent]] = []
        self.calls: list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None], bool]] = []
        self.periods: list[float | None] = []
        self.blocks: dict[str, list[tuple[int, int, int]]] = {}
        self.opaque_blocks: dict[str, list[tuple[int, int]]] = {}
        self.complete: list[str] = []
        self.abandoned: list[str] = []
        self.horizon_us: int | None = None
        self.expected: dict[str, int] = {}

    # ---- for the test --------------------------------------------------------------------------------------------

    def register_reader(self, subtask_id: int, restored_splits: Iterable[str] = ()) -> None:
        """A reader is there. The enumerator is not called."""
        self.readers[subtask_id] = ReaderInfo(subtask_id, restored_splits=tuple(restored_splits))

    def run_calls(self) -> None:
        """Make every call once and hand over what it brings, also those that are added meanwhile."""
        calls, self.calls = self.calls, [entry for entry in self.calls if entry[2]]
        while calls:
            known = len(self.calls)
            for call, handler, _ in calls:
                result, raised = None, None
                try:
                    result = call()
                except Exception as error:  # the handler's to judge
                    raised = error
                handler(result, raised)
            calls = self.calls[known:]
            self.calls = [*self.calls[:known], *(entry for entry in calls if entry[2])]

    # ---- SplitEnumeratorContext ----------------------------------------------------------------------------------

    def current_parallelism(self) -> int:
        return self._parallelism

    def registered_readers(self) -> Mapping[int, ReaderInfo]:
        return dict(self.readers)

    def assign_splits(self, assignment: SplitsAssignment[SplitT]) -> None:
        for subtask_id in assignment.assignment:
            self._check_registered(subtask_id)
        for subtask_id, splits in assignment.assignment.items():
            self.assigned.setdefault(subtask_id, []).extend(splits)

    def signal_no_more_splits(self, subtask_id: int) -> None:
        self.without_more.add(subtask_id)

    def send_event_to_source_reader(self, subtask_id: int, event: SourceEvent) -> None:
        self._check_registered(subtask_id)
        self.events.append((subtask_id, event))

    def call_async(
        self,
        call: Callable[[], T],
        handler: Callable[[T | None, BaseException | None], None],
        *,
        initial_delay_seconds: float = 0.0,
        period_seconds: float | None = None,
        at_each_trigger: bool = False,
    ) -> None:
        """See `SplitEnumeratorContext`. Made by `run_calls`."""
        self.calls.append((call, handler, period_seconds is not None))
        self.periods.append(period_seconds)

    def run_in_coordinator_thread(self, action: Callable[[], None]) -> None:
        action()

    def map_on_workers(self, function: Callable[[T], U], items: Iterable[T]) -> list[U]:
        return [function(item) for item in items]

    def add_blocks(
        self,
        split_id: str,
        rows: npt.ArrayLike,
        min_us: npt.ArrayLike,
        max_us: npt.ArrayLike,
        earliest_us: npt.ArrayLike | None = None,
    ) -> None:
        columns = [np.atleast_1d(np.asarray(column, np.int64)).tolist() for column in (rows, min_us, max_us)]
        self.blocks.setdefault(split_id, []).extend(zip(*columns, strict=True))

    def add_opaque_block(self, split_id: str, rows: int, max_us: int) -> None:
        self.opaque_blocks.setdefault(split_id, []).append((rows, max_us))

    def expect_records(self, ends: Mapping[str, int]) -> None:
        self.expected.update(ends)

    def complete_split(self, split_id: str) -> None:
        self.complete.append(split_id)

    def abandon_split(self, split_id: str) -> None:
        self.abandoned.append(split_id)

    def set_horizon(self, event_time_us: int | None) -> None:
        self.horizon_us = event_time_us

    def _check_registered(self, subtask_id: int) -> None:
        if subtask_id not in self.readers:
            raise SourceError(f"reader {subtask_id} is not registered; registered are {sorted(self.readers)}")

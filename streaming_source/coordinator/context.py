"""The enumerator's side of the planner: discovery off its thread, results on it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from alignment.index import EventTimeIndex
from alignment.timestamps import NO_TIMESTAMP, TimestampAssigner
from streaming_source.api import SourceSplit, SplitEnumeratorContext

__all__ = ["CoordinatorContext"]

T = TypeVar("T")
SplitT = TypeVar("SplitT", bound=SourceSplit)
Handler = Callable[[Any, BaseException | None], None]


class CoordinatorContext(SplitEnumeratorContext[SplitT]):
    """Collects what the enumerator finds, between two plans.

    Parameters
    ----------
    assigner
        Where event times come from.
    schema
        The columns that the query reads.
    index
        Filled by the enumerator.
    time_limit_us
        Event times from here on are invalid; None for no such limit.
    now_us
        Processing time in microseconds, monotonic.

    Attributes
    ----------
    changed
        Whether something was found since the planner last set this to False.
    added
        Splits found since the planner last took them.
    complete
        Ids of the splits to which no record will be added.
    no_more_splits
        Whether no split will be added.
    observed_us
        Processing time at which the last completed look at the outside began; None before any. What is not there then
        was not there: idleness is counted up to this moment, not up to now.
    """

    def __init__(
        self,
        assigner: TimestampAssigner,
        schema: pa.Schema,
        index: EventTimeIndex,
        time_limit_us: int | None,
        now_us: Callable[[], int],
    ) -> None:
        self._assigner = assigner
        self._schema = schema
        self._time_limit_us = time_limit_us
        self._index = index
        self._now_us = now_us
        self._results: queue.SimpleQueue[tuple[int, Handler, Any, BaseException | None]] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._waiting_for_first = 0
        self.changed = False
        self.added: list[SplitT] = []
        self.complete: set[str] = set()
        self.no_more_splits = False
        self.observed_us: int | None = None

    @property
    def timestamp_assigner(self) -> TimestampAssigner:
        """See `SplitEnumeratorContext`."""
        return self._assigner

    @property
    def schema(self) -> pa.Schema:
        """See `SplitEnumeratorContext`."""
        return self._schema

    def call_async(
        self,
        call: Callable[[], T],
        handler: Callable[[T | None, BaseException | None], None],
        *,
        period_seconds: float | None = None,
    ) -> None:
        """See `SplitEnumeratorContext`. One daemon thread for each call."""

        def run() -> None:
            while not self._closed.is_set():
                began_us = self._now_us()
                try:
                    self._results.put((began_us, handler, call(), None))
                except BaseException as error:  # whatever it is, it is the handler's to judge
                    self._results.put((began_us, handler, None, error))
                if period_seconds is None or self._closed.wait(period_seconds):
                    return

        self._waiting_for_first += 1
        threading.Thread(target=run, name="split-enumerator", daemon=True).start()

    def add_split(self, split: SplitT) -> None:
        """See `SplitEnumeratorContext`."""
        self._index.add_split(split.split_id, split.position)
        self.added.append(split)
        self.changed = True

    def add_blocks(self, split_id: str, rows: npt.ArrayLike, min_us: npt.ArrayLike, max_us: npt.ArrayLike) -> None:
        """See `SplitEnumeratorContext`."""
        low, high = np.atleast_1d(np.asarray(min_us, np.int64)), np.atleast_1d(np.asarray(max_us, np.int64))
        if not high.size:
            return
        exact = np.ones(high.shape, np.bool_)
        if self._time_limit_us is not None:
            # What is invalid bounds nothing: such a block may hold records without a valid event time, and the latest
            # that has one is anywhere below the limit.
            exact = high < self._time_limit_us
            low = np.where(exact, low, NO_TIMESTAMP)
            high = np.minimum(high, self._time_limit_us - 1)
        self._index.append(split_id, rows, low, high, exact=exact)
        self.changed = True

    def complete_split(self, split_id: str) -> None:
        """See `SplitEnumeratorContext`."""
        self.complete.add(split_id)
        self.changed = True

    def signal_no_more_splits(self) -> None:
        """See `SplitEnumeratorContext`."""
        self.changed |= not self.no_more_splits
        self.no_more_splits = True

    def run_handlers(self, *, wait_for_first: bool = False) -> None:
        """Hand over what has arrived; with `wait_for_first`, block until every call has given a result once.

        Costs about a microsecond when nothing has arrived.
        """
        while not self._results.empty() or (wait_for_first and self._waiting_for_first > 0):
            began_us, handler, result, error = self._results.get()
            self._waiting_for_first -= 1
            handler(result, error)
            self.observed_us = began_us

    def close(self) -> None:
        """End the threads; those inside a call end after it."""
        self._closed.set()

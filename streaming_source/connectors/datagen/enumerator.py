"""The splits of a generator, and the clock by which their records arrive."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from streaming_source.api import (
    SplitEnumerator,
    SplitEnumeratorContext,
    SplitRange,
    SplitsAssignment,
    SupportsEventTimeIndex,
)
from streaming_source.connectors.datagen.arrivals import Arrival, Arrivals, EventTimeReader
from streaming_source.connectors.datagen.config import GeneratorConfig
from streaming_source.connectors.datagen.split import GeneratedSplit, GeneratorCheckpoint

__all__ = ["GeneratorSplitEnumerator", "wall_clock_us"]


def wall_clock_us() -> int:
    """Microseconds since 1970. Not a monotonic clock: arrivals go on across restarts."""
    return time.time_ns() // 1000


class GeneratorSplitEnumerator(
    SupportsEventTimeIndex[GeneratedSplit], SplitEnumerator[GeneratedSplit, GeneratorCheckpoint]
):
    """Lets the records of a generator arrive. Each reader gets its share of the splits as it registers.

    Parameters
    ----------
    config
        What is generated.
    context
        The planner that hosts this.
    checkpoint
        Of the offset at a restart; None for a fresh start.
    clock_us
        Wall clock in microseconds.

    Notes
    -----
    All splits are there from the first state on. So at a restart those that the state lacks are finished, and need not
    be remembered.
    """

    def __init__(
        self,
        config: GeneratorConfig,
        context: SplitEnumeratorContext[GeneratedSplit],
        checkpoint: GeneratorCheckpoint | None,
        clock_us: Callable[[], int] = wall_clock_us,
    ) -> None:
        self._config = config
        self._context = context
        self._clock_us = clock_us
        self._is_restart = checkpoint is not None
        self._arrival_epoch_us = checkpoint.arrival_epoch_us if checkpoint else None
        self._times = EventTimeReader(config.generator, context.timestamp_assigner, context.schema)
        self._in_work: dict[int, int] = {}

    # ---- discovery -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        if not self._is_restart:
            self._in_work = dict.fromkeys(range(self._config.splits), 0)
        rows, told = self._config.rows_per_split, dict(self._in_work)
        if self._config.bounded:
            self._context.call_async(Arrivals(self._times, rows, None, told).look, self._on_arrivals)
            return
        if self._arrival_epoch_us is None:
            self._arrival_epoch_us = self._clock_us()
        epoch_us = self._arrival_epoch_us
        arrivals = Arrivals(self._times, rows, lambda: self._clock_us() - epoch_us, told)
        period = self._config.discovery_interval_us / 1e6
        self._context.call_async(arrivals.look, self._on_arrivals, period_seconds=period)

    def add_reader(self, subtask_id: int) -> None:
        if not self._is_restart:
            share = range(subtask_id, self._config.splits, self._context.current_parallelism())
            splits = [GeneratedSplit(number) for number in share]
            self._context.assign_splits(SplitsAssignment({subtask_id: splits}))
        self._context.signal_no_more_splits(subtask_id)

    def handle_split_request(self, subtask_id: int, requester_hostname: str | None = None) -> None:
        """See `SplitEnumerator`. Every reader has its splits already."""

    def restore_splits(self, splits: Sequence[GeneratedSplit]) -> None:
        self._in_work = {split.number: split.position for split in splits}

    def _on_arrivals(self, arrivals: list[Arrival] | None, error: BaseException | None) -> None:
        if error is not None:
            raise error
        assert arrivals is not None
        for arrival in arrivals:
            split_id = GeneratedSplit(arrival.split).split_id
            self._context.add_blocks(split_id, arrival.rows, arrival.min_us, arrival.max_us)
            if arrival.complete:
                self._context.complete_split(split_id)

    # ---- what the planner asks -----------------------------------------------------------------------------------

    def event_times(self, split_id: str, start: int, stop: int) -> npt.NDArray[np.int64]:
        return self._times.times(GeneratedSplit.number_of(split_id), start, stop)

    def split_at(self, split_id: str, position: int) -> GeneratedSplit:
        return GeneratedSplit(GeneratedSplit.number_of(split_id), position)

    def ranges(
        self, start: GeneratedSplit, end: GeneratedSplit, rows_per_range: int
    ) -> Sequence[SplitRange[GeneratedSplit]]:
        return [
            SplitRange(GeneratedSplit(start.number, begin, stop), stop - begin)
            for begin in range(start.position, end.position, rows_per_range)
            for stop in (min(begin + rows_per_range, end.position),)
        ]

    def finish_split(self, split_id: str) -> None:
        self._in_work.pop(GeneratedSplit.number_of(split_id), None)

    def snapshot_state(self, checkpoint_id: int) -> GeneratorCheckpoint:
        return GeneratorCheckpoint(self._arrival_epoch_us)

"""Watermarks that no bound on out-of-orderness gives: a user's generators emit them, or the source itself."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from alignment.codec import Form, Wire
from alignment.column_paths import column_at
from alignment.combine import SplitStatus
from alignment.events import RangeReport
from alignment.exceptions import InvalidArgumentError
from alignment.plan import SplitTable
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import (
    LONG_AGO_US,
    MAX_WATERMARK,
    MIN_WATERMARK,
    BoolArray,
    Int64Array,
    WatermarkGenerator,
    WatermarkOutput,
)

RecordLoader: TypeAlias = Callable[[str, int, int], Iterable[tuple[pa.RecordBatch | None, Int64Array]]]
"""`(split_id, start, stop) -> blocks` of the records of `[start, stop)`: the columns wanted, and the event times."""


def _shortest(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class GeneratorState:
    """The state by which a restart generates the watermarks of one split, in addition to its watermark.

    All records before `position` count in the watermark, and in the state; None for the position of the split itself.
    It is an earlier one where readers report, and have not reported what was admitted last. `version` and `text` are
    those of a generator: its version, and what it gave as JSON; `null` if that is nothing. Where event times were
    limited, `time_limits` has `(stop, limit_us)` of each micro-batch from `position` on that admitted records, but the
    last one planned: of its records, which end before `stop`, event times from the limit on were invalid, and are when
    they are read again.
    """

    position: int | None = None
    version: Annotated[int, Wire(always=True)] = 1
    text: Annotated[str, Wire(form=Form(json.loads, _shortest), always=True)] = "null"
    time_limits: tuple[tuple[int, int], ...] = ()


_MAX_TIME_LIMITS: Final = 16
"""Entries of one split.

If there are more, the two oldest are merged into the earlier one: a watermark is never ahead.
"""


@dataclass(frozen=True, slots=True)
class WatermarkEmitted:
    """An entry of a log: the call of this number changed the watermark of its split, or whether it is idle."""

    call: int
    watermark_us: int
    is_idle: bool


class LatestWatermark(WatermarkOutput):
    """Keeps the largest watermark that was emitted, and whether the generator marked the split as idle.

    A watermark ends idleness even where it does not advance: it shows that records flow again (FLINK-40504).
    """

    __slots__ = ("is_idle", "watermark")

    def __init__(self, watermark: int = MIN_WATERMARK, is_idle: bool = False) -> None:
        self.watermark = watermark
        self.is_idle = is_idle

    def emit_watermark(self, watermark: int) -> None:
        """Keep `watermark` if it is the largest."""
        self.is_idle = False
        self.watermark = max(self.watermark, int(watermark))

    def mark_idle(self) -> None:
        """The split holds nothing back, as long as it has nothing to read."""
        self.is_idle = True

    def mark_active(self) -> None:
        """The split counts again."""
        self.is_idle = False


class RunningGenerator:
    """A generator of the user's own, for one split, from its first record or from a state."""

    def __init__(self, generator: WatermarkGenerator, state: GeneratorState | None = None) -> None:
        self._generator = generator
        if state is not None and state.text != "null":
            generator.restore_state(state.version, json.loads(state.text))

    def see(self, records: pa.RecordBatch | None, times: Int64Array, output: WatermarkOutput) -> None:
        """The next records: a batch that has the columns, and their event times, `NO_TIMESTAMP` where not valid."""
        columns = self._generator.columns
        if records is None or not columns:
            times = times[times != NO_TIMESTAMP]
            records = pa.RecordBatch.from_struct_array(pa.StructArray.from_buffers(pa.struct([]), len(times), [None]))
        else:
            records = pa.RecordBatch.from_arrays([column_at(records, name) for name in columns], names=list(columns))
        self._generator.on_batch(records, times, output)

    def emit(self, output: WatermarkOutput) -> None:
        """Call it without records."""
        self._generator.on_periodic_emit(output)

    def state(self) -> GeneratorState:
        """Return its state after the records it has seen; an `InvalidArgumentError` if that is no value of JSON."""
        state = self._generator.snapshot_state()
        try:
            text = json.dumps(state, sort_keys=True, separators=(",", ":"), allow_nan=False)
        except (TypeError, ValueError) as error:
            kind = type(self._generator).__name__
            raise InvalidArgumentError(
                f"{kind}.snapshot_state returned {state!r}: it must be a value of JSON ({error})"
            ) from None
        return GeneratorState(None, self._generator.state_version, text)


class SplitGenerators(ABC):
    """Gives the watermark of each split, and is called every `interval_us` without records.

    A split is known from the first call with its id. The next call without records is due at the processing time
    `emits_at_us`. `record` is called with each change, for a log that can be replayed; None for no log.
    """

    def __init__(self, interval_us: int) -> None:
        self._interval_us = interval_us
        self._latest: dict[str, LatestWatermark] = {}
        self._seen_to: dict[str, int] = {}
        # Of the records that are not seen yet: see `GeneratorState`; the last entry is the last micro-batch.
        self._time_limits: dict[str, list[tuple[int, int]]] = {}
        self._calls = 0
        self.emits_at_us = LONG_AGO_US
        self.record: Callable[[object], None] | None = None

    def begin(self, table: SplitTable, now_us: int) -> None:
        """Forget all, and begin with the splits of a table. O(n)."""
        self.forget(list(self._latest))
        rows = zip(table.split_ids, table.watermarks.tolist(), table.statuses.tolist(), strict=True)
        self._latest = {i: LatestWatermark(watermark, status == SplitStatus.IDLE) for i, watermark, status in rows}
        self._seen_to = dict(zip(table.split_ids, table.positions.tolist(), strict=True))
        self.emits_at_us = now_us

    def emit(self, table: SplitTable, now_us: int) -> bool:
        """Call it for each split without records; whether that changes a watermark or idleness. O(n)."""
        self.emits_at_us = now_us + self._interval_us
        is_new = False
        for split_id, position in zip(table.split_ids, table.positions.tolist(), strict=True):
            is_new |= self._call(split_id, partial(self._emit, split_id, position))
        return is_new

    def advance(self, split_id: str, start: int, stop: int) -> int:
        """Watermark of a split after the records of `[start, stop)`. These end idleness, before they are seen."""
        self._of(split_id).mark_active()
        self._call(split_id, partial(self._see, split_id, start, stop))
        self._seen_to[split_id] = stop
        return self._of(split_id).watermark

    def mark_active(self, split_ids: tuple[str, ...], are_read: BoolArray) -> None:
        """End the idleness of the splits of which records are read (`bool[n]`). O(n)."""
        for slot in np.flatnonzero(are_read).tolist():
            self._of(split_ids[slot]).mark_active()

    def take_report(self, report: RangeReport) -> bool:
        """Take the watermark that a reader reported; False if its records were reported before. O(1)."""
        split_id, latest = report.split_id, self._latest.get(report.split_id)
        if latest is None or report.stop <= self._seen_to.get(split_id, 0):
            return False
        latest.emit_watermark(report.watermark_us)
        latest.is_idle = report.is_idle
        self._seen_to[split_id] = report.stop
        self._restore(split_id, GeneratorState(None, report.state_version, report.state) if report.state else None)
        return True

    def raised(self, table: SplitTable) -> SplitTable:
        """The table with the watermarks that were emitted since. They never go back. O(n)."""
        for split_id, position in zip(table.split_ids, table.positions.tolist(), strict=True):
            self._seen_to.setdefault(split_id, position)
        emitted = np.fromiter((self._of(split_id).watermark for split_id in table.split_ids), np.int64, len(table))
        return replace(table, watermarks=np.maximum(table.watermarks, emitted))

    def idle(self, split_ids: tuple[str, ...]) -> BoolArray:
        """`bool[n]`: splits that were marked as idle. O(n)."""
        return np.fromiter((self._of(split_id).is_idle for split_id in split_ids), np.bool_, len(split_ids))

    def restore(
        self, split_ids: Iterable[str], states: Iterable[GeneratorState | None], time_limit_us: int | None = None
    ) -> None:
        """Go on from these states, after `begin`. O(n).

        In the micro-batch that led to them event times from the limit on were invalid; None for no limit.
        """
        for split_id, state in zip(split_ids, states, strict=True):
            if state is not None:
                if state.position is not None:
                    end, self._seen_to[split_id] = self._seen_to[split_id], state.position
                    if state.time_limits:
                        self._time_limits[split_id] = [*state.time_limits]
                    self._time_limits_before(split_id, end, state.position, time_limit_us)
                self._restore(split_id, state)

    def states(self, table: SplitTable, time_limit_us: int | None = None) -> tuple[GeneratorState | None, ...]:
        """Return the state of each split of a table that it has advanced to; None where the table has it. O(n).

        In the micro-batch that leads to the table event times from the limit on are invalid; None for no limit.
        """
        rows = zip(table.split_ids, table.positions.tolist(), strict=True)
        return tuple([self._known(split_id, position, time_limit_us) for split_id, position in rows])

    def split_ids(self) -> Set[str]:
        """Ids of the splits of which something is remembered."""
        return self._latest.keys() | self._seen_to.keys() | self._time_limits.keys()

    def forget(self, split_ids: Iterable[str]) -> None:
        """These have left."""
        for split_id in split_ids:
            self._latest.pop(split_id, None)
            self._seen_to.pop(split_id, None)
            self._time_limits.pop(split_id, None)

    # ---- for subclasses ------------------------------------------------------------------------------------------

    @abstractmethod
    def _see(self, split_id: str, start: int, stop: int, output: WatermarkOutput) -> None:
        """The records of `[start, stop)` were admitted."""

    @abstractmethod
    def _emit(self, split_id: str, position: int, output: WatermarkOutput) -> None:
        """Emit what is due without records; those before `position` were admitted."""

    def _restore(self, split_id: str, state: GeneratorState | None) -> None:  # noqa: B027 (most have nothing to do)
        """Go on from a state."""

    def _state(self, split_id: str) -> GeneratorState:
        return GeneratorState()

    def _call(self, split_id: str, emit: Callable[[WatermarkOutput], None]) -> bool:
        """Let a split's watermark be emitted; whether that changes it, or whether the split is idle."""
        latest = self._of(split_id)
        before = latest.watermark, latest.is_idle
        emit(latest)
        self._calls += 1
        is_new = before != (latest.watermark, latest.is_idle)
        if is_new and self.record is not None:
            self.record(WatermarkEmitted(self._calls, latest.watermark, latest.is_idle))
        return is_new

    def _of(self, split_id: str) -> LatestWatermark:
        return self._latest.setdefault(split_id, LatestWatermark())

    def _known(self, split_id: str, position: int, time_limit_us: int | None) -> GeneratorState | None:
        state, seen_to = self._state(split_id), self._seen_to.get(split_id, position)
        if seen_to == position:
            self._time_limits.pop(split_id, None)
            return None if state.text == "null" else state
        before = self._time_limits_before(split_id, position, seen_to, time_limit_us)
        return replace(state, position=seen_to, time_limits=before)

    def _time_limits_before(
        self, split_id: str, position: int, seen_to: int, time_limit_us: int | None
    ) -> tuple[tuple[int, int], ...]:
        """The limits of what is not seen, but that of the micro-batch that ends at `position`, which is kept.

        Where that micro-batch admitted nothing, the records before `position` keep the limit that they were read with.
        """
        limits = [entry for entry in self._time_limits.get(split_id, ()) if seen_to < entry[0] <= position]
        if len(limits) > _MAX_TIME_LIMITS:
            (_, first_us), (stop, second_us) = limits[:2]
            limits[:2] = [(stop, min(first_us, second_us))]
        kept = limits
        if (limits or time_limit_us is not None) and not (limits and limits[-1][0] == position):
            kept = [*limits, (position, MAX_WATERMARK if time_limit_us is None else time_limit_us)]
        if kept:
            self._time_limits[split_id] = kept
        return tuple(limits)


class UserGenerators(SplitGenerators):
    """A generator of the user's own for each split, made by `create`; `load` gives it the records."""

    def __init__(self, create: Callable[[], WatermarkGenerator], interval_us: int, load: RecordLoader) -> None:
        super().__init__(interval_us)
        self._create = create
        self._load = load
        self._running: dict[str, RunningGenerator] = {}

    def forget(self, split_ids: Iterable[str]) -> None:
        """See `SplitGenerators`."""
        for split_id in split_ids:
            self._running.pop(split_id, None)
            super().forget([split_id])

    def _see(self, split_id: str, start: int, stop: int, output: WatermarkOutput) -> None:
        generator = self._generator(split_id)
        for records, times in self._load(split_id, start, stop):
            generator.see(records, times, output)
        generator.emit(output)

    def _emit(self, split_id: str, position: int, output: WatermarkOutput) -> None:
        self._generator(split_id).emit(output)

    def _restore(self, split_id: str, state: GeneratorState | None) -> None:
        self._running[split_id] = RunningGenerator(self._create(), state)

    def _state(self, split_id: str) -> GeneratorState:
        return self._generator(split_id).state()

    def _generator(self, split_id: str) -> RunningGenerator:
        if split_id not in self._running:
            self._restore(split_id, None)
        return self._running[split_id]


class SourceWatermarks(SplitGenerators):
    """The watermarks that the source emits with its records.

    `emitted_before(split_id, position)` is the largest watermark that it emitted after the records before a position,
    or earlier, and whether it marked the split as idle last; None where it emitted nothing, or only readers know.
    """

    def __init__(self, interval_us: int, emitted_before: Callable[[str, int], tuple[int, bool] | None]) -> None:
        super().__init__(interval_us)
        self._emitted_before = emitted_before

    def _see(self, split_id: str, start: int, stop: int, output: WatermarkOutput) -> None:
        self._emit(split_id, stop, output)

    def _emit(self, split_id: str, position: int, output: WatermarkOutput) -> None:
        emitted = self._emitted_before(split_id, position)
        if emitted is not None:
            output.emit_watermark(emitted[0])
            if emitted[1]:
                output.mark_idle()

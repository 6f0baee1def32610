"""What a task says to its planner: reports of event times and watermarks, and events of the connector's own."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from alignment.events import RangeReport
from alignment.split_generators import GeneratorState, LatestWatermark, RunningGenerator
from alignment.strategy import WatermarkStrategy
from alignment.timestamps import NO_TIMESTAMP, EventTimes
from streaming_source.api import SourceEvent, SourceSplit

if TYPE_CHECKING:
    from streaming_source.gateway import TaskMessages

__all__ = ["ObservedTimes", "ReaderChannel"]


class ReaderChannel:
    """The way to the planner. Without `observed` event times are not reported."""

    ANSWERS_S: ClassVar = 0.1
    """How often a reader that has sent an event is given what the enumerator answered."""

    def __init__(self, messages: TaskMessages, observed: ObservedTimes | None = None) -> None:
        self._messages = messages
        self.observed = observed
        # Whether something was sent that the enumerator may answer.
        self.awaits_events = False
        self._asks_at = 0.0

    def report(self, ranges: Sequence[SourceSplit]) -> None:
        if self.observed is not None and ranges:
            self._messages.send_reports(self.observed.take(ranges))

    def send_event(self, event: SourceEvent) -> None:
        """Send an event to the enumerator; if it does not arrive that is no error, as in Flink."""
        self.awaits_events = True
        self._messages.send_event(event)

    def take_events(self) -> list[SourceEvent]:
        """What the enumerator answered so far; nothing, if that was asked a moment ago."""
        now = time.monotonic()
        if not self.awaits_events or now < self._asks_at:
            return []
        self._asks_at = now + self.ANSWERS_S
        return self._messages.take_events()


@dataclass(slots=True)
class _Seen:
    min_us: int = NO_TIMESTAMP
    max_us: int = NO_TIMESTAMP
    late: int = 0
    said: LatestWatermark = field(default_factory=LatestWatermark)
    generator: RunningGenerator | None = None


class ObservedTimes:
    """Sums up event times by split, block by block, and runs the user's watermark generators over the records.

    `generators` are those of an `AlignedInputPartition`; `hears` says whether the source's own watermarks count.
    """

    def __init__(
        self, strategy: WatermarkStrategy, generators: Mapping[str, tuple[int, GeneratorState | None]] | None = None
    ) -> None:
        self._strategy = strategy
        self._generators = generators or {}
        self._by_split: dict[str, _Seen] = {}
        self.hears = strategy.uses_source_watermarks

    def see(self, split_id: str, batch: pa.RecordBatch, times: EventTimes, positions: npt.NDArray[np.int64]) -> int:
        """The next records of a split, `n` of them; how many of the first were emitted before. O(n)."""
        seen = self._seen(split_id)
        seen.said.mark_active()
        valid = times.valid_values
        if valid.size:
            earliest = int(valid.min())
            seen.min_us = earliest if seen.min_us == NO_TIMESTAMP else min(seen.min_us, earliest)
            seen.max_us = max(seen.max_us, int(valid.max()))
        if seen.generator is not None:
            seen.generator.see(batch, times.values, seen.said)
        emitted_from, _ = self._generators.get(split_id, (0, None))
        return int(np.searchsorted(positions, emitted_from))

    def count_late(self, split_id: str, late: npt.NDArray[np.bool_]) -> None:
        """`bool[n]`: which records of a split that are emitted are at or below the announced watermark. O(n)."""
        self._seen(split_id).late += int(np.count_nonzero(late))

    def said(self, split_id: str) -> LatestWatermark:
        """What the source says of the records of a split that it has emitted."""
        return self._seen(split_id).said

    def take(self, ranges: Iterable[SourceSplit]) -> list[RangeReport]:
        """Reports of ranges that were read to their ends, one of each split; what was summed up of them is let go."""
        reports = []
        for split in ranges:
            seen = self._seen(split.split_id)
            del self._by_split[split.split_id]
            state = GeneratorState(version=0, text="")
            if seen.generator is not None:
                seen.generator.emit(seen.said)
                state = seen.generator.state()
            reports.append(
                RangeReport(
                    split.split_id,
                    split.position,
                    split.position if split.stop is None else split.stop,
                    seen.min_us,
                    seen.max_us,
                    seen.late,
                    seen.said.watermark,
                    seen.said.is_idle,
                    state.version,
                    state.text,
                )
            )
        return reports

    def _seen(self, split_id: str) -> _Seen:
        if split_id not in self._by_split:
            seen = self._by_split[split_id] = _Seen()
            if self._strategy.generator_supplier is not None:
                _, state = self._generators.get(split_id, (0, None))
                seen.generator = RunningGenerator(self._strategy.create_watermark_generator(), state)
        return self._by_split[split_id]

"""Reports of a task to the planner: event times and watermarks, aggregated by split."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from alignment.events import RangeReport
from alignment.split_generators import GeneratorState, LatestWatermark, RunningGenerator
from alignment.strategy import WatermarkStrategy
from alignment.timestamps import NO_TIMESTAMP, EventTimes
from alignment.watermarks import Int64Array
from streaming_source.api import SourceSplit


@dataclass(slots=True)
class _Seen:
    records: int = 0
    min_us: int = NO_TIMESTAMP
    max_us: int = NO_TIMESTAMP
    late: int = 0
    outside: int = 0
    output: LatestWatermark = field(default_factory=LatestWatermark)
    generator: RunningGenerator | None = None


class ObservedTimes:
    """Aggregates event times by split, block by block, and runs the user's watermark generators over the records.

    `generators` are those of an `AlignedInputPartition`; `uses_source_watermarks` if the source's own watermarks count.
    """

    def __init__(
        self, strategy: WatermarkStrategy, generators: Mapping[str, tuple[int, GeneratorState | None]] | None = None
    ) -> None:
        self._strategy = strategy
        self._generators = generators or {}
        self._by_split: dict[str, _Seen] = {}
        self.uses_source_watermarks = strategy.uses_source_watermarks

    def see(self, split_id: str, batch: pa.RecordBatch, times: EventTimes, positions: Int64Array) -> int:
        """Add the next `n` records of a split; return how many of the first were emitted before. O(n)."""
        seen = self._seen(split_id)
        seen.output.mark_active()
        seen.records += len(positions)
        valid = times.valid_values
        if valid.size:
            earliest = int(valid.min())
            seen.min_us = earliest if seen.min_us == NO_TIMESTAMP else min(seen.min_us, earliest)
            seen.max_us = max(seen.max_us, int(valid.max()))
        if seen.generator is not None:
            seen.generator.see(batch, times.values, seen.output)
        emitted_from, _ = self._generators.get(split_id, (0, None))
        return int(np.searchsorted(positions, emitted_from))

    def latest_valid(
        self, split_id: str, positions: int | Int64Array, rows: int, latest_us: int | Int64Array
    ) -> int | Int64Array:
        """Return the latest valid event time for the next records of a split: one, or one for each of `rows`.

        Records of an earlier micro-batch, which are read again for its watermark, keep the limit of that micro-batch.
        """
        _, state = self._generators.get(split_id, (0, None))
        first = positions if isinstance(positions, int) else int(positions[0])
        if state is None or not state.time_limits or first >= state.time_limits[-1][0]:
            return latest_us
        at = first + np.arange(rows) if isinstance(positions, int) else positions
        stops, limits_us = (np.array(column, np.int64) for column in zip(*state.time_limits, strict=True))
        return np.append(limits_us - 1, latest_us)[np.searchsorted(stops, at, side="right")]

    def count_late(self, split_id: str, late: npt.NDArray[np.bool_]) -> None:
        """Count late records of a split; `late` is `bool[n]`, True at or below the announced watermark. O(n)."""
        self._seen(split_id).late += int(np.count_nonzero(late))

    def count_outside(self, split_id: str, outside: npt.NDArray[np.bool_]) -> None:
        """Count records of a split that are outside of the wanted range, `bool[n]`. O(n)."""
        self._seen(split_id).outside += int(np.count_nonzero(outside))

    def source_output(self, split_id: str) -> LatestWatermark:
        """Return the output that takes the watermarks that the source itself emits for a split."""
        return self._seen(split_id).output

    def take(self, ranges: Iterable[SourceSplit]) -> list[RangeReport]:
        """Return the reports of ranges that were read to their ends, one for each split, and drop their aggregates."""
        reports = []
        for split in ranges:
            seen = self._seen(split.split_id)
            del self._by_split[split.split_id]
            state, output = GeneratorState(version=0, text=""), seen.output
            stop = split.position if split.stop is None else split.stop
            if seen.generator is not None:
                seen.generator.emit(output)
                state = seen.generator.state()
            reports.append(
                RangeReport(
                    split_id=split.split_id,
                    start=split.position,
                    stop=stop,
                    min_us=seen.min_us,
                    max_us=seen.max_us,
                    late=seen.late,
                    watermark_us=output.watermark,
                    is_idle=output.is_idle,
                    state_version=state.version,
                    state=state.text,
                    gaps=stop - split.position - seen.records,
                    outside=seen.outside,
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

"""Running a user's watermark generators in the planner."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from alignment.plan.model import SplitTable
from alignment.watermarks import MIN_WATERMARK, WatermarkGenerator, WatermarkOutput

__all__ = ["EMIT_PERIOD_US", "LatestWatermark", "SplitGenerators"]

EMIT_PERIOD_US: Final = 200_000
"""How often generators are called without records: Flink's default of `pipeline.auto-watermark-interval`."""


class LatestWatermark(WatermarkOutput):
    """Keeps the largest watermark that was emitted, and whether the split is idle by the generator's own word.

    A watermark ends idleness even where it does not advance: it shows that records flow again (FLINK-40504).
    """

    __slots__ = ("is_idle", "watermark")

    def __init__(self) -> None:
        self.watermark = MIN_WATERMARK
        self.is_idle = False

    def emit_watermark(self, watermark: int) -> None:
        """Keep `watermark` if it is the largest."""
        self.is_idle = False
        self.watermark = max(self.watermark, watermark)

    def mark_idle(self) -> None:
        """The split holds nothing back, as long as it has nothing to read."""
        self.is_idle = True

    def mark_active(self) -> None:
        """The split counts again."""
        self.is_idle = False


class SplitGenerators:
    """A generator of the user's own for each split.

    Parameters
    ----------
    create
        Makes one.

    Attributes
    ----------
    emits_at_us
        Processing time at which they are to be called without records, in microseconds.
    """

    def __init__(self, create: Callable[[], WatermarkGenerator]) -> None:
        self._create = create
        self._by_split: dict[str, tuple[WatermarkGenerator, LatestWatermark]] = {}
        self.emits_at_us = MIN_WATERMARK

    def begin(self, now_us: int) -> None:
        """Forget all, and begin anew."""
        self._by_split.clear()
        self.emits_at_us = now_us

    def emit(self, split_ids: Iterable[str], now_us: int) -> bool:
        """Call the generators of these splits without records; whether one of them says something new. O(n)."""
        self.emits_at_us = now_us + EMIT_PERIOD_US
        is_new = False
        for split_id in split_ids:
            generator, said = self._of(split_id)
            before = said.watermark, said.is_idle
            generator.on_periodic_emit(said)
            is_new |= before != (said.watermark, said.is_idle)
        return is_new

    def advance(self, split_id: str, times: npt.NDArray[np.int64]) -> int:
        """Watermark of a split after these event times. Records end idleness, before the generator sees them."""
        generator, said = self._of(split_id)
        said.mark_active()
        generator.on_batch(times, said)
        generator.on_periodic_emit(said)
        return said.watermark

    def raised(self, table: SplitTable) -> SplitTable:
        """The table with the watermarks that were emitted since. They never go back. O(n)."""
        emitted = np.fromiter((self._of(split_id)[1].watermark for split_id in table.split_ids), np.int64, len(table))
        return replace(table, watermarks=np.maximum(table.watermarks, emitted))

    def idle(self, split_ids: tuple[str, ...]) -> npt.NDArray[np.bool_]:
        """`bool[n]`: splits that their generators marked as idle. O(n)."""
        return np.fromiter((self._of(split_id)[1].is_idle for split_id in split_ids), np.bool_, len(split_ids))

    def forget(self, split_ids: Iterable[str]) -> None:
        """These are finished."""
        for split_id in split_ids:
            self._by_split.pop(split_id, None)

    def _of(self, split_id: str) -> tuple[WatermarkGenerator, LatestWatermark]:
        known = self._by_split.get(split_id)
        if known is None:
            known = self._by_split[split_id] = self._create(), LatestWatermark()
        return known

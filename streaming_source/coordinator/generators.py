"""Running a user's watermark generators in the planner."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from alignment.strategy import WatermarkStrategy
from alignment.watermarks import MIN_WATERMARK, WatermarkGenerator, WatermarkOutput

__all__ = ["LatestWatermark", "SplitGenerators"]


class LatestWatermark(WatermarkOutput):
    """Keeps the largest watermark that was emitted."""

    def __init__(self) -> None:
        self.watermark = MIN_WATERMARK

    def emit_watermark(self, watermark: int) -> None:
        """Keep `watermark` if it is the largest."""
        self.watermark = max(self.watermark, watermark)

    def mark_idle(self) -> None:
        """Idleness is the coordinator's to judge: it knows what is left to read."""

    def mark_active(self) -> None:
        """See `mark_idle`."""


class SplitGenerators:
    """A generator of the user's own for each split.

    Parameters
    ----------
    strategy
        Makes them.
    """

    def __init__(self, strategy: WatermarkStrategy) -> None:
        self._strategy = strategy
        self._by_split: dict[str, WatermarkGenerator] = {}

    def advance(self, split_id: str, times: npt.NDArray[np.int64]) -> int:
        """Watermark of a split after these event times."""
        generator = self._by_split.get(split_id)
        if generator is None:
            generator = self._by_split[split_id] = self._strategy.create_watermark_generator()
        output = LatestWatermark()
        generator.on_batch(times, output)
        generator.on_periodic_emit(output)
        return output.watermark

    def forget(self, split_ids: Iterable[str]) -> None:
        """These are finished."""
        for split_id in split_ids:
            self._by_split.pop(split_id, None)

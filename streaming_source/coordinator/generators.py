"""Running a user's watermark generator in the planner."""

from __future__ import annotations

from alignment.watermarks import MIN_WATERMARK, WatermarkOutput

__all__ = ["LatestWatermark"]


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

"""What the tests of the engine share: an output that records what it is told."""

from __future__ import annotations

import pytest

from alignment.watermarks import WatermarkOutput


class RecordingOutput(WatermarkOutput):
    """Keeps what it is told, in order: watermarks as ints, changes of status as 'IDLE' and 'ACTIVE'."""

    def __init__(self) -> None:
        self.said: list[int | str] = []

    @property
    def watermarks(self) -> list[int]:
        return [entry for entry in self.said if isinstance(entry, int)]

    def emit_watermark(self, watermark: int) -> None:
        self.said.append(watermark)

    def mark_idle(self) -> None:
        self.said.append("IDLE")

    def mark_active(self) -> None:
        self.said.append("ACTIVE")


@pytest.fixture
def output() -> RecordingOutput:
    return RecordingOutput()

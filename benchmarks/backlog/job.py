"""What one run of a contestant is, and what it is measured by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks import flink
from benchmarks.backlog.inputs import Backlog

__all__ = ["MAX_DRIFT_MS", "Counted", "Job"]

MAX_DRIFT_MS = 60_000


@dataclass(frozen=True)
class Counted:
    """One run: seconds, the windows, the most that were in state, and the drift over time.

    `drifts` are pairs of seconds since the job began and milliseconds. In state are windows of a minute and key of a
    count, records of a join.
    """

    seconds: float
    windows: flink.Windows
    in_state: int
    drifts: Sequence[tuple[float, int]]

    @property
    def drift_ms(self) -> int:
        return max((drift for _, drift in self.drifts), default=0)


Job = Callable[[Backlog], Counted]

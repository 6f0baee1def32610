"""When a split is idle: it has had nothing left to read for a timeout of processing time.

Only time in which the split could have delivered counts (FLIP-471): not the time it is paused, nor the time
in which it has a backlog and waits its turn. The clock is always passed in: monotonic, in microseconds, from
any origin.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from alignment.exceptions import AlignmentError, InvalidArgumentError
from alignment.watermarks import WatermarkGenerator, WatermarkOutput

__all__ = ["IdlenessTimer", "WatermarksWithIdleness"]


def _check_timeout(timeout_us: int) -> None:
    if timeout_us <= 0:
        raise InvalidArgumentError(f"timeout_us = {timeout_us} must be above 0; leave idleness out for never")


class IdlenessTimer:
    """Tells whether one split is idle, from what is known about it and a clock.

    The timer runs from :meth:`caught_up` on, stands still between :meth:`pause` and :meth:`resume`, and is
    taken back by :meth:`activity`. A split is idle once the timer has run for the timeout, and is never idle
    while it is paused.

    Parameters
    ----------
    timeout_us : int
        Microseconds, above 0.

    Examples
    --------
    >>> timer = IdlenessTimer(10)
    >>> timer.caught_up(now_us=100)
    >>> timer.is_idle(109), timer.is_idle(110)
    (False, True)
    """

    __slots__ = ("_paused_at_us", "_pauses", "_started_at_us", "_timeout_us")

    def __init__(self, timeout_us: int) -> None:
        _check_timeout(timeout_us)
        self._timeout_us = timeout_us
        # None, not 0, where there is no instant: a monotonic clock may read 0.
        self._started_at_us: int | None = None
        self._paused_at_us: int | None = None
        self._pauses = 0

    def caught_up(self, now_us: int) -> None:
        """Start the timer, unless it runs already: the split has nothing left to read."""
        if self._started_at_us is None:
            self._started_at_us = now_us if self._paused_at_us is None else self._paused_at_us

    def activity(self) -> None:
        """Take the timer back: the split has a record, read or waiting."""
        self._started_at_us = None

    def pause(self, now_us: int) -> None:
        """Stop the timer until as many :meth:`resume` as there were pauses."""
        self._pauses += 1
        if self._paused_at_us is None:
            self._paused_at_us = now_us

    def resume(self, now_us: int) -> None:
        """Take back one :meth:`pause`.

        Raises
        ------
        AlignmentError
            If there is none to take back.
        """
        if self._paused_at_us is None:
            raise AlignmentError("resume() without pause(): call resume once for each pause")
        self._pauses -= 1
        if self._pauses == 0:
            if self._started_at_us is not None:
                self._started_at_us += max(0, now_us - self._paused_at_us)
            self._paused_at_us = None

    @property
    def is_paused(self) -> bool:
        """Whether the timer stands still because of a pause."""
        return self._pauses > 0

    def is_idle(self, now_us: int) -> bool:
        """Whether the timer has run for the timeout, or longer."""
        deadline_us = self.deadline_us()
        return deadline_us is not None and now_us >= deadline_us

    def deadline_us(self) -> int | None:
        """The first instant at which the split will be idle; None while the timer does not run."""
        if self._started_at_us is None or self._paused_at_us is not None:
            return None
        return self._started_at_us + self._timeout_us


class WatermarksWithIdleness(WatermarkGenerator):
    """Wraps a generator: without records for a timeout, its output is marked idle.

    As in Flink idleness is found at periodic emits, marked once, and the wrapped generator is not asked to
    emit during it. Otherwise than there the timeout is counted from the last record itself (without any
    record, from the first periodic emit), so that the output is idle at the first periodic emit not less than
    the timeout after it (FLINK-40503); and the first record ends idleness at once, whether or not a watermark
    comes of it (FLINK-40504).

    Parameters
    ----------
    generator : WatermarkGenerator
        The wrapped one.
    timeout_us : int
        Microseconds, above 0.
    clock : callable
        Gives the present instant in microseconds. It must stand still while the split is paused.
    """

    __slots__ = ("_clock", "_generator", "_is_idle", "_last_activity_us", "_timeout_us")

    def __init__(self, generator: WatermarkGenerator, timeout_us: int, clock: Callable[[], int]) -> None:
        _check_timeout(timeout_us)
        self._generator = generator
        self._timeout_us = timeout_us
        self._clock = clock
        self._last_activity_us: int | None = None
        self._is_idle = False

    @property
    def is_idle(self) -> bool:
        """Whether the output was marked idle and no record has come since."""
        return self._is_idle

    def on_event(self, timestamp: int, output: WatermarkOutput) -> None:
        """End idleness, and hand the event time on."""
        self._see_activity(output)
        self._generator.on_event(timestamp, output)

    def on_batch(self, timestamps: npt.NDArray[np.int64], output: WatermarkOutput) -> None:
        """End idleness if there is a record, and hand the event times on."""
        if len(timestamps):
            self._see_activity(output)
            self._generator.on_batch(timestamps, output)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Let the wrapped generator emit, or mark the output idle when the timeout has passed."""
        now_us = self._clock()
        if self._last_activity_us is None:
            self._last_activity_us = now_us
        if now_us - self._last_activity_us < self._timeout_us:
            self._generator.on_periodic_emit(output)
        elif not self._is_idle:
            self._is_idle = True
            output.mark_idle()

    def _see_activity(self, output: WatermarkOutput) -> None:
        self._last_activity_us = self._clock()
        if self._is_idle:
            self._is_idle = False
            output.mark_active()

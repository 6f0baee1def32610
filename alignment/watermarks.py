"""Watermarks and the generators that make them.

A watermark ``W`` says: no more records with an event time of ``W`` or less. A split's watermark never goes
back. Each split has a generator of its own, so that one split's pace never speaks for another (FLIP-27).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, Protocol, overload

import numpy as np
import numpy.typing as npt

from alignment.exceptions import InvalidArgumentError
from alignment.timestamps import NO_TIMESTAMP

__all__ = [
    "MAX_WATERMARK",
    "MIN_WATERMARK",
    "BoundedOutOfOrdernessWatermarks",
    "MonotoneWatermarkOutput",
    "MonotonousWatermarks",
    "NoWatermarks",
    "WatermarkGenerator",
    "WatermarkOutput",
    "bounded_watermark",
]

MIN_WATERMARK: Final = -(2**63)
"""The watermark that says nothing: the one before any record."""

MAX_WATERMARK: Final = 2**63 - 1
"""The watermark that says: no record will ever come again."""


class WatermarkOutput(Protocol):
    """Where a generator puts its watermarks and its idleness."""

    def emit_watermark(self, watermark: int) -> None:
        """Announce a watermark, in microseconds; this also ends idleness."""

    def mark_idle(self) -> None:
        """Leave the combination of watermarks: this output holds nothing back until it is active again."""

    def mark_active(self) -> None:
        """Count again."""


class WatermarkGenerator(ABC):
    """Makes the watermarks of one split from the event times of its records."""

    __slots__ = ()

    @abstractmethod
    def on_event(self, timestamp: int, output: WatermarkOutput) -> None:
        """See one record's event time, in microseconds, after the record was handed on."""

    @abstractmethod
    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emit a watermark, mark the split idle or active, or do nothing.

        Called after each batch, and every 200 ms of processing time between two micro-batches, also without records.
        """

    def on_batch(self, timestamps: npt.NDArray[np.int64], output: WatermarkOutput) -> None:
        """See the event times of a batch, in the order of its records.

        The default calls :meth:`on_event` for each; overriding it spares a Python call for each record.

        Parameters
        ----------
        timestamps : int64[n]
            Valid event times only, in microseconds; n may be 0.
        output : WatermarkOutput
            Where watermarks go.
        """
        for timestamp in timestamps.tolist():
            self.on_event(timestamp, output)


class BoundedOutOfOrdernessWatermarks(WatermarkGenerator):
    """Records are at most `bound_us` behind the latest one seen: ``W = max_time - bound_us - 1``, saturating.

    Emits from :meth:`on_periodic_emit` only, and at each call, :data:`MIN_WATERMARK` before any record. An
    emission ends idleness, so an idle split must not be asked
    (:class:`alignment.idleness.WatermarksWithIdleness` sees to it).

    Parameters
    ----------
    bound_us : int
        Microseconds, at least 0.
    """

    __slots__ = ("_bound_us", "_max_time")

    def __init__(self, bound_us: int) -> None:
        if bound_us < 0:
            raise InvalidArgumentError(f"bound_us = {bound_us} must be at least 0")
        self._bound_us = bound_us
        self._max_time: int = NO_TIMESTAMP

    @property
    def current_watermark(self) -> int:
        """The watermark that the records seen so far justify, in microseconds."""
        return bounded_watermark(self._max_time, self._bound_us)

    def on_event(self, timestamp: int, output: WatermarkOutput) -> None:
        """Remember the event time if it is the latest."""
        if timestamp > self._max_time:
            self._max_time = timestamp

    def on_batch(self, timestamps: npt.NDArray[np.int64], output: WatermarkOutput) -> None:
        """Remember the latest event time of the batch. O(n), vectorised."""
        self.on_event(int(timestamps.max(initial=NO_TIMESTAMP)), output)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emit :attr:`current_watermark`."""
        output.emit_watermark(self.current_watermark)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(bound_us={self._bound_us}, current_watermark={self.current_watermark})"


class MonotonousWatermarks(BoundedOutOfOrdernessWatermarks):
    """Event times never fall within a split: bounded out-of-orderness with the bound 0."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(0)


class NoWatermarks(WatermarkGenerator):
    """Never emits anything, not even :data:`MIN_WATERMARK`."""

    __slots__ = ()

    def on_event(self, timestamp: int, output: WatermarkOutput) -> None:
        """Do nothing."""

    def on_batch(self, timestamps: npt.NDArray[np.int64], output: WatermarkOutput) -> None:
        """Do nothing."""

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Do nothing."""


@overload
def bounded_watermark(max_time: int, bound_us: int) -> int: ...
@overload
def bounded_watermark(max_time: npt.NDArray[np.int64], bound_us: int) -> npt.NDArray[np.int64]: ...
def bounded_watermark(max_time: int | npt.NDArray[np.int64], bound_us: int) -> int | npt.NDArray[np.int64]:
    """Bounded out-of-orderness: ``max_time - bound_us - 1``, not below :data:`MIN_WATERMARK`.

    Parameters
    ----------
    max_time : int or int64[n]
        Latest event time seen, in microseconds; ``NO_TIMESTAMP`` before any record.
    bound_us : int
        How far records may be behind it, in microseconds: 0 to 2**63 - 1.

    Returns
    -------
    int or int64[n]
        :data:`MIN_WATERMARK` where there was no record yet.
    """
    # The earliest time that does not saturate; raising to it first keeps the subtraction within int64.
    earliest = MIN_WATERMARK + bound_us + 1
    if isinstance(max_time, np.ndarray):
        return np.maximum(max_time, earliest) - bound_us - 1
    return max(int(max_time), earliest) - bound_us - 1


class MonotoneWatermarkOutput:
    """Passes on only watermarks above all before them, and each change of idleness once.

    A watermark that does not advance still ends idleness: it shows that records flow again, and a split that
    stays idle then would have them dropped as late (FLINK-40504).
    """

    __slots__ = ("_is_idle", "_output", "_watermark")

    def __init__(self, output: WatermarkOutput) -> None:
        self._output = output
        self._watermark: int = MIN_WATERMARK
        self._is_idle = False

    @property
    def current_watermark(self) -> int:
        """The largest watermark so far, in microseconds."""
        return self._watermark

    @property
    def is_idle(self) -> bool:
        """Whether the last thing said was that there is nothing to say."""
        return self._is_idle

    def emit_watermark(self, watermark: int) -> None:
        """Pass `watermark` on if it advances; end idleness first, in any case."""
        self.mark_active()
        if watermark > self._watermark:
            self._watermark = watermark
            self._output.emit_watermark(watermark)

    def mark_idle(self) -> None:
        """Pass idleness on, once."""
        if not self._is_idle:
            self._is_idle = True
            self._output.mark_idle()

    def mark_active(self) -> None:
        """Pass the end of idleness on, once."""
        if self._is_idle:
            self._is_idle = False
            self._output.mark_active()

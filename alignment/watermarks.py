"""Watermarks and the generators that make them.

A watermark ``W`` says: no more records with an event time of ``W`` or less. A split's watermark never goes
back. Each split has a generator of its own, so that one split's pace never speaks for another (FLIP-27).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, Protocol, overload

import numpy as np
import numpy.typing as npt

__all__ = [
    "MAX_WATERMARK",
    "MIN_WATERMARK",
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

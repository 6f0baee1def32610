"""Where readers put records (FLIP-27)."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, NoReturn

from alignment.watermarks import WatermarkOutput
from streaming_source.exceptions import UnsupportedOperationError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

__all__ = ["ReaderOutput", "SourceOutput"]


class SourceOutput(WatermarkOutput):
    """Takes the records of one split, a block at a time.

    The planner decides watermarks and idleness, for all readers: the three methods for them raise an
    `UnsupportedOperationError`.
    """

    @abstractmethod
    def collect(
        self,
        batch: pa.RecordBatch,
        source_timestamps: npt.NDArray[np.int64] | None = None,
        *,
        positions: int | npt.NDArray[np.int64],
    ) -> None:
        """Emit records.

        Parameters
        ----------
        batch
            `n` records with the columns of the source's schema.
        source_timestamps
            `int64[n]` microseconds since the epoch, the source record timestamps of two-step assignment;
            `NO_TIMESTAMP` where a record has none. None if the source has no such thing.
        positions
            Position of the first record if the others follow it without a gap, else `int64[n]`.
        """

    def emit_watermark(self, watermark: int) -> None:
        """Not supported."""
        _refuse("emit a watermark")

    def mark_idle(self) -> None:
        """Not supported."""
        _refuse("mark a split as idle")

    def mark_active(self) -> None:
        """Not supported."""
        _refuse("mark a split as active")


class ReaderOutput(SourceOutput):
    """A reader's output: one output for each split, so that each has a watermark of its own."""

    @abstractmethod
    def create_output_for_split(self, split_id: str) -> SourceOutput:
        """The output of a split; the same one when asked again."""

    @abstractmethod
    def release_output_for_split(self, split_id: str) -> None:
        """No more records of this split will come out of this reader."""


def _refuse(what: str) -> NoReturn:
    raise UnsupportedOperationError(
        f"a reader cannot {what}: watermarks and idleness are decided by the WatermarkStrategy of the query. Emit "
        "source timestamps or a column of event times, and let the query use for_bounded_out_of_orderness(...), or "
        "for_generator(...) for a rule of your own, and with_idleness(...)"
    )

"""The output of one split, as its emitter sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from streaming_source.api import ReaderMetrics, RecordEvaluator, SourceOutput

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["SplitOutput"]


class SplitOutput(SourceOutput):
    """Counts what goes into a split's output, and ends it at the record that says so.

    Parameters
    ----------
    target
        Where records and watermarks go.
    metrics
        Counts records.
    end_of_stream
        Finds the record that ends the split; None if there is no such record.

    Attributes
    ----------
    ended
        Whether that record was seen. Nothing is emitted from then on.
    """

    __slots__ = ("_end_of_stream", "_metrics", "_target", "ended")

    def __init__(self, target: SourceOutput, metrics: ReaderMetrics, end_of_stream: RecordEvaluator | None) -> None:
        self._target = target
        self._metrics = metrics
        self._end_of_stream = end_of_stream
        self.ended = False

    def collect(
        self,
        batch: pa.RecordBatch,
        source_timestamps: npt.NDArray[np.int64] | None = None,
        *,
        positions: int | npt.NDArray[np.int64],
    ) -> None:
        """See `SourceOutput`."""
        if self.ended:
            return
        row = None if self._end_of_stream is None else self._end_of_stream.end_of_stream(batch)
        if row is not None:
            self.ended = True
            batch = batch.slice(0, row)
            source_timestamps = None if source_timestamps is None else source_timestamps[:row]
            positions = positions if isinstance(positions, int) else positions[:row]
        if batch.num_rows:
            self._target.collect(batch, source_timestamps, positions=positions)
            self._metrics.records += batch.num_rows

    def emit_watermark(self, watermark: int) -> None:
        """See `WatermarkOutput`."""
        self._target.emit_watermark(watermark)

    def mark_idle(self) -> None:
        """See `WatermarkOutput`."""
        self._target.mark_idle()

    def mark_active(self) -> None:
        """See `WatermarkOutput`."""
        self._target.mark_active()

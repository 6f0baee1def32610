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
    """Counts what goes into a split's output, and cuts it off at its stop, or at the record that says so.

    Parameters
    ----------
    end_of_stream
        Finds the record that ends the split; None if there is no such record.
    stop
        Position from which on nothing is emitted; None for no such position.

    Attributes
    ----------
    ended
        Whether it was cut off. Nothing is emitted from then on.
    """

    __slots__ = ("_end_of_stream", "_metrics", "_stop", "_target", "ended")

    def __init__(
        self,
        target: SourceOutput,
        metrics: ReaderMetrics,
        end_of_stream: RecordEvaluator | None = None,
        stop: int | None = None,
    ) -> None:
        self._target = target
        self._metrics = metrics
        self._end_of_stream = end_of_stream
        self._stop = stop
        self.ended = False

    def collect(
        self,
        batch: pa.RecordBatch,
        source_timestamps: npt.NDArray[np.int64] | None = None,
        *,
        positions: int | npt.NDArray[np.int64],
    ) -> None:
        if self.ended or not batch.num_rows:
            return
        rows = self._rows_before_stop(batch.num_rows, positions)
        end = None if self._end_of_stream is None else self._end_of_stream.end_of_stream(batch)
        rows = rows if end is None else min(rows, end)
        if rows < batch.num_rows:
            self.ended = True
            batch = batch.slice(0, rows)
            source_timestamps = None if source_timestamps is None else source_timestamps[:rows]
            positions = positions if isinstance(positions, int) else positions[:rows]
        if rows:
            self._target.collect(batch, source_timestamps, positions=positions)
            self._metrics.records += batch.num_rows

    def emit_watermark(self, watermark: int) -> None:
        """See `SourceOutput`. Behind what was cut off it is of records that were not emitted."""
        if not self.ended:
            self._target.emit_watermark(watermark)

    def mark_idle(self) -> None:
        if not self.ended:
            self._target.mark_idle()

    def mark_active(self) -> None:
        if not self.ended:
            self._target.mark_active()

    def _rows_before_stop(self, rows: int, positions: int | npt.NDArray[np.int64]) -> int:
        if self._stop is None:
            return rows
        if isinstance(positions, int):
            return min(max(self._stop - positions, 0), rows)
        return int(np.searchsorted(positions, self._stop))

"""The reader that turns a `SplitReader` into a `SourceReader`, and the outputs of its splits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from streaming_source.api import (
    Fetching,
    InputStatus,
    ReaderMetrics,
    ReaderOutput,
    RecordEmitter,
    RecordEvaluator,
    Source,
    SourceOutput,
    SourceReader,
    SourceReaderContext,
    SplitState,
)
from streaming_source.api.split import SplitT
from streaming_source.exceptions import SourceError
from streaming_source.reader.fetcher import Handover
from streaming_source.reader.managers import (
    FixedSizeSplitFetcherManager,
    PerSplitFetcherManager,
    SingleThreadFetcherManager,
    SplitFetcherManager,
    SplitReaderSupplier,
)

if TYPE_CHECKING:
    import pyarrow as pa


class SplitOutput(SourceOutput, Generic[SplitT]):
    """A split while it is read: its state, and its output, which is cut off where the split ends.

    A split ends at its stop, or at the record that `end_of_stream` finds. `target` takes the records before; it is set
    before the first record. After the output was cut off the split has `ended`, and nothing more is emitted. Positions
    must rise from that of the split on: ranges are cut by them, so that records out of order would be lost, or come
    twice.
    """

    def __init__(
        self, state: SplitState[SplitT], metrics: ReaderMetrics, end_of_stream: RecordEvaluator | None = None
    ) -> None:
        self.state = state
        self.target: SourceOutput
        self.ended = False
        self._next_position, self._stop = state.position, state.split.stop
        self._metrics = metrics
        self._end_of_stream = end_of_stream

    @property
    def has_reached_end(self) -> bool:
        """True if the output was cut off, or the split is at its stop."""
        return self.ended or (self._stop is not None and self.state.position >= self._stop)

    def collect(
        self,
        batch: pa.RecordBatch,
        source_timestamps: npt.NDArray[np.int64] | None = None,
        *,
        positions: int | npt.NDArray[np.int64],
    ) -> None:
        if self.ended or not batch.num_rows:
            return
        self._check_positions(batch.num_rows, positions)
        rows = self._rows_before_stop(batch.num_rows, positions)
        end = None if self._end_of_stream is None else self._end_of_stream.end_of_stream(batch)
        rows = rows if end is None else min(rows, end)
        if rows < batch.num_rows:
            self.ended = True
            batch = batch.slice(0, rows)
            source_timestamps = None if source_timestamps is None else source_timestamps[:rows]
            positions = positions if isinstance(positions, int) else positions[:rows]
        if rows:
            self.target.collect(batch, source_timestamps, positions=positions)
            self._metrics.records += batch.num_rows

    def emit_watermark(self, watermark: int) -> None:
        """See `SourceOutput`. After the cut a watermark is dropped: it is of records that were not emitted."""
        if not self.ended:
            self.target.emit_watermark(watermark)

    def mark_idle(self) -> None:
        if not self.ended:
            self.target.mark_idle()

    def mark_active(self) -> None:
        if not self.ended:
            self.target.mark_active()

    def _check_positions(self, rows: int, positions: int | npt.NDArray[np.int64]) -> None:
        """Check that the next records have rising positions. O(1), and O(n) where these have gaps."""
        where = f"split {self.state.split.split_id!r}"
        if isinstance(positions, int):
            first, end = positions, positions + rows
        else:
            if len(positions) != rows:
                raise SourceError(f"{where}: {rows} records have {len(positions)} positions; give one for each record")
            first, end = int(positions[0]), int(positions[-1]) + 1
            if (falls := np.flatnonzero(positions[1:] <= positions[:-1])).size:
                before, after = positions[falls[0] : falls[0] + 2].tolist()
                raise _out_of_order(f"{where}: position {after} follows position {before}")
        if first < self._next_position:
            raise _out_of_order(f"{where}: position {first} was fetched where {self._next_position} is the next one")
        self._next_position = end

    def _rows_before_stop(self, rows: int, positions: int | npt.NDArray[np.int64]) -> int:
        if self._stop is None:
            return rows
        if isinstance(positions, int):
            return min(max(self._stop - positions, 0), rows)
        return int(np.searchsorted(positions, self._stop))


def _out_of_order(what: str) -> SourceError:
    return SourceError(
        f"{what}: the positions of a split rise from record to record, from its own position on, or records would be "
        "lost or come twice; let SplitReader.fetch return them in that order (ORDER BY in a query)"
    )


ElementT = TypeVar("ElementT")

CLOSE_TIMEOUT_S: Final = 30.0


class SourceReaderBase(SourceReader[SplitT], Generic[SplitT, ElementT]):
    """Fetches on the threads of a fetcher manager, and emits one element a poll into its split's output.

    - A split that has a `stop` ends there, whatever is fetched of it.
    - The only state is that of the splits, as of the records emitted. A split and its output are open from the split's
      addition until the last record of the fetch that finished it is emitted.
    - The end of input is reached when no split will be added, no fetcher is left, and nothing is queued.

    The manager is closed with the reader, which waits up to `close_timeout_s` for threads that are inside a fetch.
    `end_of_stream` finds the record that ends a split, for sources that write one.
    """

    def __init__(
        self,
        fetcher_manager: SplitFetcherManager[SplitT, ElementT],
        record_emitter: RecordEmitter[ElementT, SplitT],
        context: SourceReaderContext,
        *,
        end_of_stream: RecordEvaluator | None = None,
        close_timeout_s: float = CLOSE_TIMEOUT_S,
    ) -> None:
        self.context = context
        self._fetchers = fetcher_manager
        self._emitter = record_emitter
        self._end_of_stream = end_of_stream
        self._close_timeout_s = close_timeout_s
        self._output: ReaderOutput | None = None
        self._open: dict[str, SplitOutput[SplitT]] = {}
        # Splits that `end_of_stream` ended, and that their fetcher has not removed yet.
        self._dropped: set[str] = set()
        self._handover: Handover[ElementT] | None = None
        self._split_id: str | None = None
        self._no_more_splits = False
        self._ready: Future[None] = Future()
        self._ready.set_result(None)

    # ---- for subclasses ------------------------------------------------------------------------------------------

    def initialized_state(self, split: SplitT) -> SplitState[SplitT]:
        """The state of a split that was added. Override it where a state keeps more than a position."""
        return SplitState(split)

    def on_split_finished(self, finished: Mapping[str, SplitState[SplitT]]) -> None:
        """Called when splits were read to their end, or removed, and all records fetched of them are emitted."""

    # ---- the life of a reader ------------------------------------------------------------------------------------

    def start(self) -> None:
        """See `SourceReader`."""

    def add_splits(self, splits: Sequence[SplitT]) -> None:
        self._fetchers.add_splits(splits)
        for split in splits:
            opened = SplitOutput(self.initialized_state(split), self.context.metrics, self._end_of_stream)
            self._open[split.split_id] = opened
            if self._output is not None:
                opened.target = self._output.create_output_for_split(split.split_id)

    def notify_no_more_splits(self) -> None:
        self._no_more_splits = True
        self._fetchers.queue.notify_available()

    def snapshot_state(self) -> list[SplitT]:
        return [opened.state.to_split() for opened in self._open.values()]

    def close(self) -> None:
        """See `SourceReader`. Threads that do not end in time are named in a warning."""
        self._fetchers.close(self._close_timeout_s)

    # ---- polling -------------------------------------------------------------------------------------------------

    def is_available(self) -> Future[None]:
        if self._handover is not None:
            return self._ready
        return self._fetchers.queue.available

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        """See `SourceReader`. Raises the error of a `SplitReader`; its notes name the fetcher and later errors."""
        if self._output is None:
            self._output = output
            for split_id, opened in self._open.items():
                opened.target = output.create_output_for_split(split_id)
        while (handover := self._handover or self._fetchers.poll()) is not None:
            self._handover = handover
            while self._split_id is not None or self._next_split(handover):
                element = handover.records.next_record_from_split()
                if element is None:
                    self._split_id = None
                elif self._split_id not in self._dropped:
                    self._emit(element, handover)
                    return InputStatus.MORE_AVAILABLE
            self._handover = None
            self._end_splits(handover)
            handover.recycle()
            self.context.metrics.fetches += 1
        return self._without_element()

    def _next_split(self, handover: Handover[ElementT]) -> bool:
        split_id = self._split_id = handover.records.next_split()
        if split_id is None:
            return False
        if split_id not in self._dropped and split_id not in self._open:
            raise SourceError(f"fetched records of split {split_id!r}, which was never added or is finished")
        if not self._fetchers.is_read_by(split_id, handover.fetcher):
            raise SourceError(
                f"{handover.fetcher!r} fetched records of split {split_id!r}, which it was not given or let go of"
            )
        return True

    def _emit(self, element: ElementT, handover: Handover[ElementT]) -> None:
        split_id = self._split_id
        assert split_id is not None
        opened = self._open[split_id]
        self._emitter.emit_record(element, opened, opened.state)
        if opened.ended or (opened.has_reached_end and split_id not in handover.finished):
            self._drop(split_id)

    def _without_element(self) -> InputStatus:
        none_left = self._fetchers.maybe_shutdown_finished_fetchers()
        if len(self._fetchers.queue):
            return InputStatus.MORE_AVAILABLE
        if not (none_left and self._no_more_splits):
            return InputStatus.NOTHING_AVAILABLE
        self._fetchers.check_errors()
        return InputStatus.END_OF_INPUT

    # ---- the end of a split --------------------------------------------------------------------------------------

    def _end_splits(self, handover: Handover[ElementT]) -> None:
        """End the splits that a hand-over finishes or removes, after all of its elements are emitted."""
        ended: dict[str, SplitState[SplitT]] = {}
        for split_id in (*sorted(handover.finished), *sorted(handover.removed)):
            self._fetchers.forget_split(split_id)
            if split_id in self._dropped:
                self._dropped.discard(split_id)
            else:
                ended[split_id] = self._release(split_id)
        if ended:
            self.on_split_finished(ended)

    def _drop(self, split_id: str) -> None:
        """End a split at its end-of-stream record: further records fetched of the split are not emitted."""
        self._dropped.add(split_id)
        self._fetchers.remove_splits([split_id])
        self.on_split_finished({split_id: self._release(split_id)})

    def _release(self, split_id: str) -> SplitState[SplitT]:
        assert self._output is not None
        self._output.release_output_for_split(split_id)
        return self._open.pop(split_id).state


def create_reader(source: Source[SplitT, Any], context: SourceReaderContext) -> SourceReader[SplitT]:
    """Return the reader of one micro-batch: the source's own if it overrides `Source.create_reader`, else the base."""
    if type(source).create_reader is Source.create_reader:
        return create_base_reader(source, context)
    return source.create_reader(context)


def create_base_reader(source: Source[SplitT, Any], context: SourceReaderContext) -> SourceReaderBase[SplitT, Any]:
    """Return the base reader over `create_split_reader`, `create_record_emitter`, `fetching` and `end_of_stream`.

    An override of `Source.create_reader` may begin with this call.
    """
    manager = create_fetcher_manager(source.fetching, lambda: source.create_split_reader(context))
    emitter = source.create_record_emitter(context)
    return SourceReaderBase(manager, emitter, context, end_of_stream=source.end_of_stream)


def create_fetcher_manager(
    fetching: Fetching, split_reader_supplier: SplitReaderSupplier[SplitT]
) -> SplitFetcherManager[SplitT, Any]:
    """Return the chosen fetcher manager; it starts no thread before splits are added."""
    if fetching.kind == "per_split":
        return PerSplitFetcherManager(split_reader_supplier)
    if fetching.kind == "fixed_size":
        return FixedSizeSplitFetcherManager(split_reader_supplier, fetching.threads or 1)
    return SingleThreadFetcherManager(split_reader_supplier)

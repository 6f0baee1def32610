"""The reader that turns a `SplitReader` into a `SourceReader`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Final, Generic, TypeVar

from streaming_source.api import (
    InputStatus,
    ReaderOutput,
    RecordEmitter,
    RecordEvaluator,
    SourceReader,
    SourceReaderContext,
    SourceSplit,
    SplitState,
)
from streaming_source.exceptions import SourceError, UnsupportedOperationError
from streaming_source.reader.fetcher import Handover
from streaming_source.reader.held import PausedElements
from streaming_source.reader.managers import SplitFetcherManager
from streaming_source.reader.split_output import SplitOutput

__all__ = ["SourceReaderBase"]

SplitT = TypeVar("SplitT", bound=SourceSplit)
ElementT = TypeVar("ElementT")

CLOSE_TIMEOUT_S: Final = 30.0


class _OpenSplit(Generic[SplitT]):
    """A split that is read: its state, its output once there is one, and whether more will be fetched of it."""

    __slots__ = ("fetched", "output", "state")

    def __init__(self, state: SplitState[SplitT]) -> None:
        self.state = state
        self.output: SplitOutput | None = None
        # How its fetcher ended it, while elements of it are held: "finished" or "removed".
        self.fetched: str | None = None

    @property
    def has_reached_stop(self) -> bool:
        stop = self.state.split.stop
        return stop is not None and self.state.position >= stop


class SourceReaderBase(SourceReader[SplitT], Generic[SplitT, ElementT]):
    """Fetches on the threads of a fetcher manager, and emits one element a poll into its split's output.

    - A split that says where to stop ends there, whatever is fetched of it.
    - All state is that of the splits, as of what was emitted. A split is open from its addition until the last record
      of the fetch that finished it is out; so is its output.
    - A paused split emits nothing from the call on. What was fetched of it by then is held. To fetch no more its
      `SplitReader` must support pausing, or read nothing but paused splits: with a fetcher for each split that is
      always so. Otherwise the reader refuses, at `start` if the context says that splits will be paused; unless
      `allow_unaligned_source_splits`, which makes pausing a wish: nothing is held, and who cannot pause reads on.
    - The end of input is reached when no split will be added, no fetcher is left, and nothing is queued or held.

    Parameters
    ----------
    fetcher_manager
        Whose threads fetch. Closed with the reader.
    record_emitter
        Makes records of elements.
    context
        Where this runs.
    end_of_stream
        Finds the record that ends a split, for sources that write one; None for none.
    close_timeout_s
        How long `close` waits for threads that are inside a fetch.
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
        self._open: dict[str, _OpenSplit[SplitT]] = {}
        # Ended by a record of theirs, and not yet let go of by their fetcher.
        self._dropped: set[str] = set()
        self._handover: Handover[ElementT] | None = None
        self._split_id: str | None = None
        self._held: PausedElements[ElementT] = PausedElements()
        self._no_more_splits = False
        self._ready: Future[None] = Future()
        self._ready.set_result(None)

    # ---- for subclasses ------------------------------------------------------------------------------------------

    def initialized_state(self, split: SplitT) -> SplitState[SplitT]:
        """The state of a split that was added. Override it where a state keeps more than a position."""
        return SplitState(split)

    def on_split_finished(self, finished: Mapping[str, SplitState[SplitT]]) -> None:
        """Splits were read to their end, or removed, and all that was fetched of them is out. Theirs are the states."""

    # ---- the life of a reader ------------------------------------------------------------------------------------

    def start(self) -> None:
        """See `SourceReader`.

        Raises
        ------
        UnsupportedOperationError
            If splits will be paused, and cannot be.
        """
        if self.context.pauses_splits and self._pauses_strictly and not self._fetchers.can_pause_any_split:
            raise UnsupportedOperationError(
                "the source aligns watermarks while it reads, and its SplitReader can neither pause splits nor has "
                "each split to itself: override SplitReader.pause_or_resume_splits, or fetch with "
                "Fetching.per_split(); or set allowUnalignedSourceSplits = true to let splits run ahead"
            )

    def add_splits(self, splits: Sequence[SplitT]) -> None:
        """See `SourceReader`."""
        self._fetchers.add_splits(splits)
        for split in splits:
            opened = self._open[split.split_id] = _OpenSplit(self.initialized_state(split))
            if self._output is not None:
                self._create_output(opened, self._output)
        self._check_paused()

    def remove_splits(self, split_ids: Sequence[str]) -> None:
        """Stop reading splits. What was fetched of them is emitted, then they end as if they were finished."""
        self._fetchers.remove_splits([split_id for split_id in split_ids if split_id not in self._dropped])

    def notify_no_more_splits(self) -> None:
        """See `SourceReader`."""
        self._no_more_splits = True
        self._fetchers.queue.notify_available()

    def pause_or_resume_splits(self, to_pause: Sequence[str], to_resume: Sequence[str]) -> None:
        """See `SourceReader`. A split that is not read yet is paused from its first record on.

        Raises
        ------
        UnsupportedOperationError
            If one of them shares a `SplitReader` that cannot pause with a split that goes on.
        """
        self._fetchers.pause_or_resume_splits(to_pause, to_resume)
        self._held.resume(to_resume)
        if self._held.has_resumed:
            self._fetchers.queue.notify_available()
        self._check_paused()

    def snapshot_state(self) -> list[SplitT]:
        """See `SourceReader`."""
        return [opened.state.to_split() for opened in self._open.values()]

    def close(self) -> None:
        """See `SourceReader`. Threads that do not end in time are named in a warning."""
        self._fetchers.close(self._close_timeout_s)

    # ---- polling -------------------------------------------------------------------------------------------------

    def is_available(self) -> Future[None]:
        """See `SourceReader`."""
        if self._handover is not None or self._held.has_resumed:
            return self._ready
        return self._fetchers.queue.available

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        """See `SourceReader`.

        Raises
        ------
        Exception
            What a `SplitReader` raised, on its thread; notes say which, and what failed after it.
        """
        if self._output is None:
            self._output = output
            for opened in self._open.values():
                self._create_output(opened, output)
        taken = self._take()
        if taken is None:
            return self._without_element()
        self._emit(*taken)
        return InputStatus.MORE_AVAILABLE

    def _take(self) -> tuple[str, ElementT, Handover[ElementT]] | None:
        """The next element to emit: what was held first, and of what is fetched only what is not paused."""
        resumed = self._held.take(self._fetchers.paused)
        if resumed is not None:
            return resumed
        while True:
            if self._handover is None:
                self._handover = self._fetchers.poll()
                if self._handover is None:
                    return None
            handover = self._handover
            while self._split_id is not None or self._next_split(handover):
                split_id = self._split_id
                assert split_id is not None
                element = handover.records.next_record_from_split()
                if element is None:
                    self._split_id = None
                elif split_id in self._dropped:
                    continue
                elif self._pauses_strictly and split_id in self._fetchers.paused:
                    self._held.put(split_id, element, handover)
                else:
                    return split_id, element, handover
            self._handover = None
            self._end_splits(handover)
            if not handover.held:
                self._recycle(handover)

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

    def _emit(self, split_id: str, element: ElementT, handover: Handover[ElementT]) -> None:
        opened = self._open[split_id]
        assert opened.output is not None
        self._emitter.emit_record(element, opened.output, opened.state)
        touched = {handover}
        if opened.output.ended or (opened.has_reached_stop and split_id not in handover.finished):
            touched |= self._drop(split_id)
        elif opened.fetched is not None and split_id not in self._held:
            self._end(split_id, opened)
        for done in touched - {self._handover}:
            if not done.held:
                self._recycle(done)

    def _without_element(self) -> InputStatus:
        none_left = self._fetchers.maybe_shutdown_finished_fetchers()
        if len(self._fetchers.queue):
            return InputStatus.MORE_AVAILABLE
        if not (none_left and self._no_more_splits) or self._held:
            return InputStatus.NOTHING_AVAILABLE
        self._fetchers.check_errors()
        return InputStatus.END_OF_INPUT

    # ---- the end of a split --------------------------------------------------------------------------------------

    def _end_splits(self, handover: Handover[ElementT]) -> None:
        """All elements of a hand-over are out or held: end the splits that end with it."""
        ended: dict[str, SplitState[SplitT]] = {}
        for kind, split_ids in (("finished", handover.finished), ("removed", handover.removed)):
            for split_id in sorted(split_ids):
                if split_id in self._dropped:
                    self._dropped.discard(split_id)
                    self._fetchers.forget_split(split_id)
                    continue
                opened = self._open[split_id]
                opened.fetched = kind
                if split_id in self._held:
                    continue
                if not self._moves(split_id, opened):
                    ended[split_id] = self._release(split_id)
        if ended:
            self.on_split_finished(ended)

    def _end(self, split_id: str, opened: _OpenSplit[SplitT]) -> None:
        if not self._moves(split_id, opened):
            self.on_split_finished({split_id: self._release(split_id)})

    def _moves(self, split_id: str, opened: _OpenSplit[SplitT]) -> bool:
        if opened.fetched != "removed" or not self._fetchers.is_moving(split_id):
            return False
        opened.fetched = None
        self._fetchers.move_split(opened.state.to_split())
        return True

    def _release(self, split_id: str) -> SplitState[SplitT]:
        assert self._output is not None
        self._output.release_output_for_split(split_id)
        self._fetchers.forget_split(split_id)
        return self._open.pop(split_id).state

    def _drop(self, split_id: str) -> set[Handover[ElementT]]:
        """A record said that its split ends with it: what else was fetched of it is nothing any more.

        Returns the hand-overs of which that was held.
        """
        opened = self._open.pop(split_id)
        touched = self._held.drop(split_id)
        if opened.fetched is None:
            self._dropped.add(split_id)
            self._fetchers.remove_splits([split_id])
        else:
            self._fetchers.forget_split(split_id)
        assert self._output is not None
        self._output.release_output_for_split(split_id)
        self.on_split_finished({split_id: opened.state})
        return touched

    # ---- inside --------------------------------------------------------------------------------------------------

    @property
    def _pauses_strictly(self) -> bool:
        return not self.context.allow_unaligned_source_splits

    def _check_paused(self) -> None:
        if not (self._fetchers.paused and self._pauses_strictly):
            return
        refused = self._fetchers.unpausable()
        if refused:
            raise UnsupportedOperationError(
                f"splits {', '.join(map(repr, refused))} cannot be paused while others are read: their SplitReader "
                "does not support it, and reads them together. Override SplitReader.pause_or_resume_splits, or fetch "
                "with Fetching.per_split(); or set allowUnalignedSourceSplits = true to let splits run ahead"
            )

    def _create_output(self, opened: _OpenSplit[SplitT], output: ReaderOutput) -> None:
        target = output.create_output_for_split(opened.state.split.split_id)
        opened.output = SplitOutput(target, self.context.metrics, self._end_of_stream, opened.state.split.stop)

    def _recycle(self, handover: Handover[ElementT]) -> None:
        handover.recycle()
        self.context.metrics.fetches += 1

"""The life of an enumerator, and of the readers that it knows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from streaming_source.api import ReaderInfo, SourceEvent, SourceSplit, SplitEnumerator
from streaming_source.coordinator.calls import AsyncCalls
from streaming_source.coordinator.context import CoordinatorContext

__all__ = ["EnumeratorHost"]

SplitT = TypeVar("SplitT", bound=SourceSplit)
CheckpointT = TypeVar("CheckpointT")


class EnumeratorHost(Generic[SplitT, CheckpointT]):
    """Runs an enumerator as FLIP-27's source coordinator does, for readers that live for one micro-batch each.

    The readers it registers stand for the tasks of the next micro-batch. Each asks for a split when it is registered
    and whenever it was given some, until the enumerator has no more for it: so all known splits are in work, and hold
    the watermark. Which task reads what of them is decided anew in each micro-batch.

    Parameters
    ----------
    enumerator, context, calls
        What it runs, and with what.
    """

    def __init__(
        self, enumerator: SplitEnumerator[SplitT, CheckpointT], context: CoordinatorContext[SplitT], calls: AsyncCalls
    ) -> None:
        self.enumerator = enumerator
        self._context = context
        self._calls = calls

    # ---- life ----------------------------------------------------------------------------------------------------

    def start(self, restored_splits: Sequence[str] = ()) -> None:
        """Start the enumerator and register its readers, the restored splits shared out among them."""
        self.enumerator.start()
        self._register_all(restored_splits)

    def close(self) -> None:
        """Close the enumerator, and do nothing for it any more. What is under way on a worker is not waited for."""
        self._calls.close()
        self.enumerator.close()

    # ---- what readers say ----------------------------------------------------------------------------------------

    def register(self, subtask_id: int, restored_splits: Sequence[str] = ()) -> None:
        """A reader is there; it asks for a split."""
        self._context.readers[subtask_id] = ReaderInfo(subtask_id, restored_splits=tuple(restored_splits))
        self.enumerator.add_reader(subtask_id)
        self.request_split(subtask_id)

    def unregister(self, subtask_id: int) -> None:
        """A reader has failed: nothing can be assigned to it. One that is not registered is fine."""
        self._context.readers.pop(subtask_id, None)

    def reset(self, subtask_id: int, checkpoint_id: int) -> None:
        """A reader goes on from a state: give back what it was assigned later. It may be given splits again."""
        self.unregister(subtask_id)
        self._context.without_more.discard(subtask_id)
        self._context.take_events(subtask_id)
        self.enumerator.add_splits_back(self._context.tracker.take_back(subtask_id, checkpoint_id), subtask_id)

    def request_split(self, subtask_id: int) -> None:
        """A reader asks for a split: heard in the next `ask`."""
        if subtask_id not in self._context.asking:
            self._context.asking.append(subtask_id)

    def handle_source_event(self, subtask_id: int, event: SourceEvent) -> None:
        """A reader sends an event of the connector's."""
        self.enumerator.handle_source_event(subtask_id, event)

    # ---- steps ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Do what has arrived, and let readers ask."""
        self._calls.run()
        self.ask()

    def run_until(self, is_done: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Do what arrives, and let readers ask, until something is so, or the time is over."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self.run()
        while not is_done():
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                return
            self._calls.wait(left_s)
            self.run()

    def ask(self) -> None:
        """Let every reader that was registered, or given splits, ask for another; not those that get no more."""
        asking = self._context.asking
        while asking:
            subtask_id = asking.popleft()
            if subtask_id in self._context.readers and subtask_id not in self._context.without_more:
                self.enumerator.handle_split_request(subtask_id)

    def snapshot(self, checkpoint_id: int) -> CheckpointT:
        """The enumerator's part of a state; from now on all that was assigned so far is in the state."""
        self._context.tracker.on_checkpoint(checkpoint_id)
        return self.enumerator.snapshot_state(checkpoint_id)

    def complete(self, checkpoint_id: int) -> None:
        """The micro-batch that leads to a state is committed."""
        self._context.tracker.on_complete(checkpoint_id)
        self.enumerator.notify_checkpoint_complete(checkpoint_id)

    def go_back(self, checkpoint_id: int, restored_splits: Sequence[str] = ()) -> None:
        """All readers go on from an earlier state, with the splits that it has; the later ones are given up."""
        readers = sorted(self._context.readers)
        for subtask_id in readers:
            self.unregister(subtask_id)
        for subtask_id in readers:
            self.reset(subtask_id, checkpoint_id)
        for given_up in self._context.tracker.forget_after(checkpoint_id):
            self.enumerator.notify_checkpoint_aborted(given_up)
        self._register_all(restored_splits)

    # ---- inside --------------------------------------------------------------------------------------------------

    def _register_all(self, restored_splits: Sequence[str]) -> None:
        readers = self._context.current_parallelism()
        for subtask_id in range(readers):
            self.register(subtask_id, restored_splits[subtask_id::readers])

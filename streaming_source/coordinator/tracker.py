"""Which splits were assigned since when: what has to be given back when reading goes on from an earlier state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from streaming_source.api import SourceSplit

__all__ = ["AssignmentTracker"]

SplitT = TypeVar("SplitT", bound=SourceSplit)

Assignments = dict[int, list[SplitT]]


class AssignmentTracker(Generic[SplitT]):
    """Splits by reader, and by the first checkpoint that has them.

    A checkpoint is a state handed out to Spark, its id the state's number. Assignments are *uncheckpointed* until the
    next state is made, and forgotten when the micro-batch that leads to the state is committed.

    Examples
    --------
    >>> from streaming_source.api import RecordSplit
    >>> tracker = AssignmentTracker()
    >>> tracker.record({0: [RecordSplit("a")]})
    >>> tracker.on_checkpoint(100)
    >>> tracker.record({0: [RecordSplit("b")]})
    >>> [split.split_id for split in tracker.take_back(0, 100)]
    ['b']
    """

    def __init__(self) -> None:
        self._uncheckpointed: Assignments[SplitT] = {}
        self._by_checkpoint: dict[int, Assignments[SplitT]] = {}

    @property
    def uncheckpointed(self) -> Mapping[int, Sequence[SplitT]]:
        """Assigned since the last state, by reader."""
        return self._uncheckpointed

    @property
    def by_checkpoint(self) -> Mapping[int, Mapping[int, Sequence[SplitT]]]:
        """By state, oldest first, and by reader; of states that are not committed."""
        return self._by_checkpoint

    def record(self, assignment: Mapping[int, Sequence[SplitT]]) -> None:
        """Splits were assigned. O(splits)."""
        for subtask_id, splits in assignment.items():
            if splits:
                self._uncheckpointed.setdefault(subtask_id, []).extend(splits)

    def on_checkpoint(self, checkpoint_id: int) -> None:
        """A state was made, and has all that was assigned so far. O(1)."""
        self._by_checkpoint[checkpoint_id] = self._uncheckpointed
        self._uncheckpointed = {}

    def on_complete(self, checkpoint_id: int) -> None:
        """The micro-batch that leads to a state is committed: nothing before it comes back. O(states)."""
        for known in [known for known in self._by_checkpoint if known <= checkpoint_id]:
            del self._by_checkpoint[known]

    def take_back(self, subtask_id: int, checkpoint_id: int) -> list[SplitT]:
        """Take from a reader what it was assigned after a state, in the order in which it was. O(states + splits)."""
        later = [self._by_checkpoint[known] for known in sorted(self._by_checkpoint) if known > checkpoint_id]
        return [split for entry in [*later, self._uncheckpointed] for split in entry.pop(subtask_id, [])]

    def forget_after(self, checkpoint_id: int) -> list[int]:
        """Forget the states after one, which are given up; their ids."""
        given_up = sorted(known for known in self._by_checkpoint if known > checkpoint_id)
        for known in given_up:
            del self._by_checkpoint[known]
        return given_up

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

    Attributes
    ----------
    uncheckpointed
        Assigned since the last state, by reader.
    by_checkpoint
        By state that is not committed, oldest first, and by reader.

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
        self.uncheckpointed: Assignments[SplitT] = {}
        self.by_checkpoint: dict[int, Assignments[SplitT]] = {}

    def record(self, assignment: Mapping[int, Sequence[SplitT]]) -> None:
        """Splits were assigned. O(splits)."""
        for subtask_id, splits in assignment.items():
            if splits:
                self.uncheckpointed.setdefault(subtask_id, []).extend(splits)

    def on_checkpoint(self, checkpoint_id: int) -> None:
        """A state was made, and has all that was assigned so far. O(1)."""
        self.by_checkpoint[checkpoint_id] = self.uncheckpointed
        self.uncheckpointed = {}

    def on_complete(self, checkpoint_id: int) -> None:
        """The micro-batch that leads to a state is committed: nothing before it comes back. O(states)."""
        for known in [known for known in self.by_checkpoint if known <= checkpoint_id]:
            del self.by_checkpoint[known]

    def take_back(self, subtask_id: int, checkpoint_id: int) -> list[SplitT]:
        """Take from a reader what it was assigned after a state, in the order in which it was. O(states + splits)."""
        later = [self.by_checkpoint[known] for known in sorted(self.by_checkpoint) if known > checkpoint_id]
        return [split for entry in [*later, self.uncheckpointed] for split in entry.pop(subtask_id, [])]

    def forget_after(self, checkpoint_id: int) -> list[int]:
        """Forget the states after one, which are given up; their ids."""
        given_up = sorted(known for known in self.by_checkpoint if known > checkpoint_id)
        for known in given_up:
            del self.by_checkpoint[known]
        return given_up

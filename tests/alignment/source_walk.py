"""What happens to a source in both random walks: in the one over an index, and in the one over reports."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK

__all__ = ["BOUNDS", "EXTREME", "MAX_ROWS", "SPLIT_IDS", "Walk", "WalkedSource"]

SPLIT_IDS = st.sampled_from(["a", "b", "c", "d", "e"])
EXTREME = st.sampled_from([NO_TIMESTAMP + 1, NO_TIMESTAMP + 4, MAX_WATERMARK - 4, MAX_WATERMARK])
BOUNDS = st.sampled_from([0, 1, 3, 8, 2**63 - 1])
MAX_ROWS = st.none() | st.integers(1, 12)


class WalkedSource(Protocol):
    """A source beside its naive model."""

    no_more_splits: bool
    draining: bool

    def leave_finished(self) -> None: ...

    def restart(self) -> None: ...


SourceT = TypeVar("SourceT", bound=WalkedSource)


class Walk(RuleBasedStateMachine, Generic[SourceT]):
    """A source whose splits end, and which restarts."""

    source: SourceT

    @rule()
    def no_more_splits_come(self) -> None:
        self.source.no_more_splits = True

    @rule()
    def the_end_is_fixed(self) -> None:
        self.source.draining = True

    @rule()
    def finished_splits_leave(self) -> None:
        self.source.leave_finished()

    @rule()
    def the_source_restarts(self) -> None:
        self.source.restart()

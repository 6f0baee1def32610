"""Fetching records of splits: the part that a connector's author writes (FLIP-27)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeAlias, TypeVar

from streaming_source.api.records import RecordsWithSplitIds
from streaming_source.api.split import SourceSplit
from streaming_source.exceptions import UnsupportedOperationError

__all__ = ["CaughtUp", "SplitReader", "SplitsAddition", "SplitsChange", "SplitsRemoval"]

SplitT = TypeVar("SplitT", bound=SourceSplit)


@dataclass(frozen=True, slots=True)
class SplitsAddition(Generic[SplitT]):
    """Splits to begin with, each from its position on."""

    splits: Sequence[SplitT]


@dataclass(frozen=True, slots=True)
class SplitsRemoval(Generic[SplitT]):
    """Splits to let go of, as they were added. No record of theirs may come out of a later fetch."""

    splits: Sequence[SplitT]


SplitsChange: TypeAlias = SplitsAddition[SplitT] | SplitsRemoval[SplitT]


class CaughtUp(Enum):
    """Whether all that a split has was fetched.

    Attributes
    ----------
    YES
        There was nothing more.
    BLOCKED
        Nothing more can be fetched, but there is something: records of a transaction that is open, say. Such a split
        is not idle.
    NO
        There may be more: where it would come from does not answer, say.
    """

    YES = "yes"
    BLOCKED = "blocked_splits"
    NO = "no"


class SplitReader(ABC, Generic[SplitT]):
    """Fetches records of the splits that it was given, in order within each split.

    Each has a thread of its own, which makes all calls but `wake_up`, one after another: no locks are needed beside
    those that `wake_up` asks for. A reader makes a new one for each of its threads; they share nothing.
    """

    @abstractmethod
    def fetch(self) -> RecordsWithSplitIds[Any]:
        """The next records, `RecordBlock` by `RecordBlock` unless the source has an emitter of its own.

        May block; after `wake_up` it must return soon, with or without records, and a later call go on where it was
        left. Called only while a split that is not paused is there to read, until each was reported as finished. A
        split that has nothing to read is reported as well.
        """

    @abstractmethod
    def handle_splits_changes(self, change: SplitsChange[SplitT]) -> None:
        """Take over splits, or let go of some; does not block."""

    def wake_up(self) -> None:
        """Make a `fetch` that blocks return; override it where `fetch` can block.

        The only method that is called from another thread, at any time. It must not get lost: if no fetch blocks at
        the moment, the next one returns at once. A `threading.Event` that fetch waits for and clears does that.
        """

    def pause_or_resume_splits(self, to_pause: Sequence[SplitT], to_resume: Sequence[SplitT]) -> None:
        """Fetch nothing of some splits until they are resumed; override it where one fetch reads several splits.

        Raises
        ------
        UnsupportedOperationError
            Unless it is overridden.
        """
        raise UnsupportedOperationError(
            f"{type(self).__name__} cannot pause splits: override pause_or_resume_splits, "
            "or read each split with a fetcher of its own (Fetching.per_split())"
        )

    @property
    def supports_pausing(self) -> bool:
        """Whether `pause_or_resume_splits` is overridden."""
        return type(self).pause_or_resume_splits is not SplitReader.pause_or_resume_splits

    def caught_up(self, split_id: str) -> CaughtUp | None:
        """After a fetch that brought nothing: whether there was nothing of this split. It must know, not guess.

        A split is idle only if it has caught up. None: that a fetch brings nothing says so, by itself or after a long
        wait from which it was woken.
        """
        return None

    def close(self) -> None:
        """Let go of resources; called once, last."""

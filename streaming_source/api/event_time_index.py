"""An enumerator that knows event times without reading: what it adds to the planner's index, and how it cuts splits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic

from streaming_source.api.enumerator import SplitRange
from streaming_source.api.split import SplitT
from streaming_source.exceptions import UnsupportedOperationError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class SupportsEventTimeIndex(ABC, Generic[SplitT]):
    """A mixin for a `SplitEnumerator`, named before it, that knows its records' event times without reading them.

    Parquet files have event times in their footers, brokers in a time index. Such an enumerator assigns its splits, and
    adds their records with `SplitEnumeratorContext.add_blocks`. For other sources the planner reads ahead of the
    readers: every record is read twice.

    Records are counted by positions. If positions of opaque blocks have gaps, a limit on rows may count some gaps as
    rows; it does not count gaps that a call of `first_later` without a bound has shown.
    """

    @abstractmethod
    def restore_splits(self, splits: Sequence[SplitT]) -> None:
        """Restore the splits in work from the offset, before `start`. They are assigned already."""

    @abstractmethod
    def event_times(self, split_id: str, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the event times of the block `[start, stop)`, `int64[stop - start]`; `NO_TIMESTAMP` without one."""

    def first_later(
        self, split_ids: Sequence[str], starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64], bound_us: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the first record of each split in `[start, stop)` whose event time is later than a bound.

        Called only for splits with opaque blocks, see `SplitEnumeratorContext.add_opaque_block`. A plan waits for it:
        one call for all splits, seldom more than two. Returns positions and event times, `int64[n]` each: `stop` and
        `NO_TIMESTAMP` if there is no such record.
        """
        raise UnsupportedOperationError(
            f"{type(self).__name__} adds opaque blocks and does not override first_later: override it, or use "
            "SplitEnumeratorContext.add_blocks"
        )

    def extend_snapshot(self) -> None:
        """Add more records of splits whose indexed records are all in a state, up to the ends of the last discovery.

        Called before each plan of a run with AvailableNow, which makes no more discoveries. By default all records were
        added when they were found.
        """

    def place_of(self, split_id: str, position: int) -> str | None:
        """Describe where the record at `position` is, for a person; None for the text of `SourceSplit.place`.

        Override it if a split at the end of a file does not know the next file.
        """
        return None

    @abstractmethod
    def split_at(self, split_id: str, position: int) -> SplitT:
        """Return the split in the state in which the record at `position` is next."""

    @abstractmethod
    def ranges(self, start: SplitT, end: SplitT, rows_per_range: int) -> Sequence[SplitRange[SplitT]]:
        """Return what to read between two states of a split, in ranges of about `rows_per_range` records.

        It is a function of the two states: it works before any discovery, and always returns the same records. Raise a
        `DataLossError` if they no longer all exist.
        """

    @abstractmethod
    def finish_split(self, split_id: str) -> None:
        """A completed split was read to its end, and leaves the offset: it must not be assigned again."""

    def assign_waiting(self, readable: int, nearest_us: int) -> bool:
        """Assign the next waiting splits, and return whether any was assigned. By default none waits.

        A source with more splits than can be in work at once assigns them in the order of their earliest records, and
        sets the earliest event time of the others with `SplitEnumeratorContext.set_horizon`. Called before each plan
        while there is a horizon, until nothing is assigned. `readable` splits in work have something to read, and the
        earliest next record has the event time `nearest_us`: if that is beyond the horizon, nothing can be read before
        more splits are in work.
        """
        return False

    def expect_finished(self, split_ids: Collection[str]) -> None:
        """The next plan reads these splits to their ends, if nothing else changes: others may be assigned for them.

        Called before each `assign_waiting` of a micro-batch whose rows are limited, as long as the limit is not
        reached: assign few splits at a time. Each call replaces the one before. By default nothing happens.
        """

    def count_late(self, late: Mapping[str, int]) -> None:
        """Count the records of each split that the next state has read at or below the watermark, by split id.

        Called before `snapshot_state`, for a source that knows whose they are. By default nothing happens.
        """

    def finished_between(
        self, left: Sequence[SplitT], start: Any, end: Any, in_work: Collection[str]
    ) -> Sequence[SplitT]:
        """Return the splits that were finished between two states, as they were at their ends.

        `start` and `end` are the enumerator's checkpoints, `start` None for the state before the first; `in_work` are
        the splits that `end` has, and `left` those of `start` that it has not. Called after a restart, where
        `Source.names_finished` is true of `end`. Raise a `DataLossError` if it cannot be found any more.
        """
        raise UnsupportedOperationError(
            f"{type(self).__name__} does not override finished_between, and its source's names_finished is true: "
            "override it, or leave names_finished out"
        )

    def add_splits_back(self, splits: Sequence[SplitT], subtask_id: int) -> None:
        """See `SplitEnumerator`. Not called here: an earlier state has a new enumerator restored from it."""
        raise UnsupportedOperationError(
            f"{type(self).__name__} cannot take splits back: its planned blocks have left the index. Restore a new "
            "enumerator from the checkpoint"
        )

"""An enumerator that knows event times without reading: what it adds to the planner's index, and how it cuts splits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic

from streaming_source.api.enumerator import SplitRange
from streaming_source.api.split import SplitT
from streaming_source.exceptions import UnsupportedOperationError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["SupportsEventTimeIndex"]


class SupportsEventTimeIndex(ABC, Generic[SplitT]):
    """Mixed into a `SplitEnumerator`, in front of it: it knows its records' event times without reading them.

    Parquet files have them in their footers, brokers in a time index. Such an enumerator assigns its splits, and adds
    their records with `SplitEnumeratorContext.add_blocks`. Without this, the planner reads ahead of the readers to
    learn event times: every record is read twice.

    Records are counted by their positions. Where those of opaque blocks have gaps, a limit on rows counts none that an
    answer of `first_later` without a bound has shown, and may count others.
    """

    @abstractmethod
    def restore_splits(self, splits: Sequence[SplitT]) -> None:
        """Take back the splits in work as the offset has them, before `start`. They are assigned already."""

    @abstractmethod
    def event_times(self, split_id: str, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Exact event times of the block `[start, stop)`, `int64[stop - start]`; `NO_TIMESTAMP` where there is none."""

    def first_later(
        self, split_ids: Sequence[str], starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64], bound_us: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Of each split the first record in `[start, stop)` whose event time is later than a bound.

        Only of splits that have opaque blocks, see `SplitEnumeratorContext.add_opaque_block`. A plan calls it and waits
        for the answer: for all splits at once, and seldom more than twice. Gives positions and event times, `int64[n]`
        each: `stop` and `NO_TIMESTAMP` where there is none.
        """
        raise UnsupportedOperationError(
            f"{type(self).__name__} adds opaque blocks and does not override first_later: override it, or use "
            "SplitEnumeratorContext.add_blocks"
        )

    def extend_snapshot(self) -> None:
        """Add more records of the splits whose known ones are all in a state, up to what was there when last listed.

        Called before each plan of a run that reads to the end of what is there (AvailableNow), when nothing is
        listed any more. By default all was added when it was found.
        """

    def place_of(self, split_id: str, position: int) -> str | None:
        """Describe where the record at `position` is, for a person; None for the text of `SourceSplit.place`.

        Override it where a split does not know what follows its own position: one that was read to the end of a file.
        """
        return None

    @abstractmethod
    def split_at(self, split_id: str, position: int) -> SplitT:
        """The split in the state in which the record at `position` is next."""

    @abstractmethod
    def ranges(self, start: SplitT, end: SplitT, rows_per_range: int) -> Sequence[SplitRange[SplitT]]:
        """What to read to get from one state of a split to another, cut into parts of about `rows_per_range`.

        A function of the two states: it works before any discovery, and always gives the same records. A
        `DataLossError` if these are not all there any more.
        """

    @abstractmethod
    def finish_split(self, split_id: str) -> None:
        """A completed split was read to its end and leaves the offset; remember not to assign it again."""

    def assign_waiting(self, readable: int, nearest_us: int) -> bool:
        """Assign splits that were kept waiting, if it is their turn; whether any was assigned. By default none waits.

        A source with more splits than can be in work at once assigns them in the order of their earliest records, and
        reports with `SplitEnumeratorContext.set_horizon` from which event time on there are others. Called before each
        plan while there is a horizon, until nothing is assigned. `readable` splits in work have something to read; the
        next record has the event time `nearest_us`: where it is beyond the horizon, nothing can be read before more
        splits are in work.
        """
        return False

    def add_splits_back(self, splits: Sequence[SplitT], subtask_id: int) -> None:
        """See `SplitEnumerator`. Not called here: an earlier state has a new enumerator restored from it."""
        raise UnsupportedOperationError(
            f"{type(self).__name__} cannot take splits back: its planned blocks have left the index. Restore a new "
            "enumerator from the checkpoint"
        )

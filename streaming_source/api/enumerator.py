"""Discovery of splits, on the planner (FLIP-27)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from streaming_source.api.split import SourceSplit

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from alignment.timestamps import TimestampAssigner

__all__ = ["SplitEnumerator", "SplitEnumeratorContext", "SplitRange"]

T = TypeVar("T")
SplitT = TypeVar("SplitT", bound=SourceSplit)
CheckpointT = TypeVar("CheckpointT")


@dataclass(frozen=True, slots=True)
class SplitRange(Generic[SplitT]):
    """A part of a split that one reader reads in one micro-batch.

    Attributes
    ----------
    split
        Picklable, and knows where to stop; several ranges may have the same split id.
    rows
        How many records it has.
    """

    split: SplitT
    rows: int


class SplitEnumeratorContext(ABC, Generic[SplitT]):
    """What an enumerator may ask of, and tell, the planner that hosts it.

    Everything but the callable of `call_async` runs on the planner's thread, never two things at once.
    """

    @property
    @abstractmethod
    def timestamp_assigner(self) -> TimestampAssigner:
        """Where event times come from: the index is built with it."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns that the query reads, in the source's own types: what every record must have."""

    @abstractmethod
    def call_async(
        self,
        call: Callable[[], T],
        handler: Callable[[T | None, BaseException | None], None],
        *,
        period_seconds: float | None = None,
    ) -> None:
        """Run `call` off the planner's thread and hand its result, or its error, to `handler` on it.

        With a period, again and again: each call begins a period after the one before has ended. The first result is
        waited for before the first micro-batch is planned. An error raised by `handler` fails the query.
        """

    @abstractmethod
    def add_split(self, split: SplitT) -> None:
        """Make a new split known. It counts for the watermark at once, read or not."""

    @abstractmethod
    def add_blocks(self, split_id: str, rows: npt.ArrayLike, min_us: npt.ArrayLike, max_us: npt.ArrayLike) -> None:
        """Tell the next records of a split: `int64[k]` each, see `alignment.EventTimeIndex.append`."""

    @abstractmethod
    def complete_split(self, split_id: str) -> None:
        """No record will be added to this split: once read it is finished."""

    @abstractmethod
    def signal_no_more_splits(self) -> None:
        """No split will be added."""


class SplitEnumerator(ABC, Generic[SplitT, CheckpointT]):
    """Finds splits and their records, and says what is known of their event times ahead of reading.

    One enumerator lives in Spark's planner process. Its methods run on the planner's thread; work that may take longer
    than a moment goes through `SplitEnumeratorContext.call_async`.
    """

    @abstractmethod
    def start(self) -> None:
        """Begin discovery. Called once, after `restore_splits` if this is a restart."""

    @abstractmethod
    def restore_splits(self, splits: Sequence[SplitT]) -> None:
        """Take back the splits in work as the offset has them; the planner knows them already."""

    @abstractmethod
    def event_times(self, split_id: str, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Exact event times of the block `[start, stop)`, `int64[stop - start]`; `NO_TIMESTAMP` where there is none."""

    @abstractmethod
    def split_at(self, split_id: str, position: int) -> SplitT:
        """The split in the state in which the record at `position` is next."""

    @abstractmethod
    def ranges(self, start: SplitT, end: SplitT, rows_per_range: int) -> Sequence[SplitRange[SplitT]]:
        """What to read to get from one state of a split to another, cut into parts of about `rows_per_range`.

        A function of the two states: it works before any discovery, and gives the same records whenever it is asked.

        Raises
        ------
        streaming_source.exceptions.DataLossError
            If the records between are not all there any more.
        """

    @abstractmethod
    def finish_split(self, split_id: str) -> None:
        """A completed split was read to its end and leaves the offset; remember not to add it again."""

    @abstractmethod
    def snapshot_state(self) -> CheckpointT:
        """What must survive a restart beside the splits in work. Its size must not grow with the splits ever seen."""

    def notify_checkpoint_complete(self) -> None:
        """The batch planned before the last one is committed. May be repeated, and is missing for a last batch."""

    def close(self) -> None:
        """Let go of resources. Spark does not always call it: nothing may rely on it."""

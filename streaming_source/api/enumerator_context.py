"""Services of the planner for the enumerator that it hosts (FLIP-27)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from alignment.event_time_range import ALL_TIMES, EventTimeRange
from streaming_source.api.serializer import SourceEvent
from streaming_source.api.split import SplitT
from streaming_source.exceptions import UnsupportedOperationError

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from alignment.timestamps import TimestampAssigner

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class ReaderInfo:
    """A registered reader: its number, from 0, and its host, empty where that is not known, as always on Spark.

    `restored_splits` are the ids of those that it was restored with (FLIP-537): in work already, and not to be assigned
    again.
    """

    subtask_id: int
    location: str = ""
    restored_splits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SplitsAssignment(Generic[SplitT]):
    """New splits for readers, by their numbers, in addition to those that they have."""

    assignment: Mapping[int, Sequence[SplitT]]


class SplitEnumeratorContext(ABC, Generic[SplitT]):
    """The planner as the enumerator that it hosts sees it.

    The enumerator's methods and its handlers run on one thread, the coordinator's. What changes something here may be
    called from any thread; from another one it takes effect on the coordinator's, in the order of the calls.

    Attributes
    ----------
    schema
        The columns that the query reads, in the source's own types: what every record must have.
    timestamp_assigner
        Where event times come from: an index is built with it.
    out_of_orderness_us
        How far a record may be behind the latest one of its split and still be on time; None without such a bound, as
        with a watermark generator of the user's own, and without any.
    supports_opaque_blocks
        Whether `add_opaque_block` may be called: watermarks follow from a bound and one time of each cut. Not with a
        watermark generator of the user's own, and not where the user needs every event time to be known (option
        `lateness=none`, or late records that are dropped or routed).
    """

    schema: pa.Schema
    timestamp_assigner: TimestampAssigner
    out_of_orderness_us: int | None
    supports_opaque_blocks: bool

    @property
    def event_time_limit_us(self) -> int | None:
        """Event times from here on are invalid, and move no watermark; None where there is no such limit.

        With `maxFutureSkew` it rises with the clock: read it when it is needed, and do not keep it.
        """
        return None

    @property
    def event_time_range(self) -> EventTimeRange:
        """The event times that the query wants, in batch or in a stream; by default all. It does not change.

        Records outside of it are left out of the frame, unless its `overlap` is `keep` or `fail`. An enumerator may
        also leave out blocks, or whole splits, that this range excludes (`EventTimeRange.excludes`): in
        `SupportsEventTimeIndex.ranges`, and where a new split begins or ends.
        """
        return ALL_TIMES

    @property
    def needs_event_times(self) -> bool:
        """True if plans depend on event times; by default they do. It does not change.

        If not, the first plan reads all records that were found: those of a batch read, or of a bounded source without
        limits. An enumerator may then add blocks with `NO_TIMESTAMP` as their smallest and largest event times, where
        to find these takes longer than to count records.
        """
        return True

    # ---- readers -------------------------------------------------------------------------------------------------

    @abstractmethod
    def current_parallelism(self) -> int:
        """Return how many readers there are. It differs after a restart with another `numReaders`: do not keep it."""

    @abstractmethod
    def registered_readers(self) -> Mapping[int, ReaderInfo]:
        """Return the readers to which splits can be assigned, by their numbers."""

    @abstractmethod
    def assign_splits(self, assignment: SplitsAssignment[SplitT]) -> None:
        """Assign splits to readers. They count for the watermark at once.

        Raises a `SourceError` if a reader is not registered, or a split is in work already; then none is assigned.
        """

    def assign_split(self, split: SplitT, subtask_id: int) -> None:
        """Assign one split to a reader; see `assign_splits`."""
        self.assign_splits(SplitsAssignment({subtask_id: [split]}))

    @abstractmethod
    def signal_no_more_splits(self, subtask_id: int) -> None:
        """Report that a reader will get no more splits: it will request none. May be called again.

        A bounded source has ended when this was called for all readers, and all splits are finished.
        """

    @abstractmethod
    def send_event_to_source_reader(self, subtask_id: int, event: SourceEvent) -> None:
        """Call `handle_source_events` of a reader with this event; raises a `SourceError` if it is not registered.

        On Spark the reader is the task of that number in a later micro-batch. Events do not survive a restart.
        """

    # ---- work ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def call_async(
        self,
        call: Callable[[], T],
        handler: Callable[[T | None, BaseException | None], None],
        *,
        initial_delay_seconds: float = 0.0,
        period_seconds: float | None = None,
        at_each_trigger: bool = False,
    ) -> None:
        """Run `call` on a worker thread and hand its result, or its error, to `handler` on the coordinator's thread.

        With a period it is repeated: each call begins a period after the one before has ended. Before the first
        micro-batch is planned, the planner waits for the first result of every call without a delay. An error raised by
        `handler` fails the query. `call` must not use what the enumerator's methods change. It never runs twice at
        once.

        With `at_each_trigger` it is also called, for up to a second, whenever a trigger finds nothing to read, so that
        `processAllAvailable` covers what was written before. After a call there is a pause nine times as long as the
        call; one that took more than 20 ms eight times in a row is only made by its period.
        """

    @abstractmethod
    def run_in_coordinator_thread(self, action: Callable[[], None]) -> None:
        """Run an action on the coordinator's thread, soon. An error raised by it fails the query."""

    @abstractmethod
    def map_on_workers(self, function: Callable[[T], U], items: Iterable[T]) -> list[U]:
        """Apply a function to each item, several at once on the worker threads, and return the results in order.

        For use inside of a `call` of `call_async`, and for what a plan needs. Waits for all; raises the error of the
        first item that failed.
        """

    # ---- event times ---------------------------------------------------------------------------------------------

    @abstractmethod
    def add_blocks(
        self,
        split_id: str,
        rows: npt.ArrayLike,
        min_us: npt.ArrayLike,
        max_us: npt.ArrayLike,
        earliest_us: npt.ArrayLike | None = None,
    ) -> None:
        """Add the next records of a split that is assigned: `int64[k]` each, see `alignment.EventTimeIndex.append`.

        Give `earliest_us` where records without a valid event time make `min_us` `NO_TIMESTAMP`: no watermark passes
        it before the block is read.

        Only for an enumerator that is a `SupportsEventTimeIndex`, as is `complete_split`.
        """

    @abstractmethod
    def add_opaque_block(self, split_id: str, rows: int, max_us: int) -> None:
        """Add the next records of a split as one opaque block, which `SupportsEventTimeIndex.first_later` cuts.

        Only if `supports_opaque_blocks` is true. It covers `rows` positions; if these have gaps, it has fewer records.
        One of them has the event time `max_us`, below `event_time_limit_us`, and none is later.
        """

    @abstractmethod
    def expect_records(self, ends: Mapping[str, int]) -> None:
        """Report that these splits have records up to these positions, by split id.

        For a `call_async` with `at_each_trigger` of a source without an index of event times: a trigger does not report
        that there is nothing to read before the planner has read ahead to these positions.
        """

    @abstractmethod
    def complete_split(self, split_id: str) -> None:
        """Report that no record will be added to this split: it is finished once it is read."""

    @abstractmethod
    def abandon_split(self, split_id: str) -> None:
        """Report that the unread records of this split are lost: none is planned, and the split finishes.

        Its blocks leave the index, and later ones are ignored. Records that were planned already are missing in their
        micro-batch.
        """

    def emit_watermark(self, watermark_us: int, writer: str | None = None) -> None:
        """Emit a watermark for all splits: no record that is found from now on is at or before it, but late ones.

        For an enumerator whose source has `emits_watermark`. What was found and is unread holds the watermark in any
        case. It never goes back. Emit it again after a restart. `writer` is the checkpoint of the query that wrote what
        is read here, and holds the watermark; None if that is not known.
        """
        raise UnsupportedOperationError(
            f"{type(self).__name__} takes no watermark of a source as a whole; let its splits emit them"
        )

    @abstractmethod
    def set_horizon(self, event_time_us: int | None) -> None:
        """Set the earliest event time of known splits that are not assigned yet; None if none waits.

        No later record is read, and the watermark stays below it. See `SupportsEventTimeIndex.assign_waiting`.
        """

"""Discovery and assignment of splits, on the planner (FLIP-27)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Generic, TypeVar

from alignment.event_time_range import ALL_TIMES, EventTimeRange
from streaming_source.api.serializer import SourceEvent
from streaming_source.api.split import SourceSplit, SplitT
from streaming_source.exceptions import UnsupportedOperationError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from alignment.timestamps import TimestampAssigner

__all__ = [
    "ReaderInfo",
    "SplitEnumerator",
    "SplitEnumeratorContext",
    "SplitRange",
    "SplitsAssignment",
    "SupportsEventTimeIndex",
]

T = TypeVar("T")
U = TypeVar("U")
CheckpointT = TypeVar("CheckpointT")


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
    """New splits for readers, by their numbers, beside those that they have."""

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
        watermark generator of the user's own, and not with perfect watermarks, which need every event time.
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

        Records outside are left out of the frame, whatever the enumerator does. One that knows blocks, or whole splits,
        that this range excludes may leave them out of what is read: of `SupportsEventTimeIndex.ranges`, and of where a
        new split begins or ends.
        """
        return ALL_TIMES

    # ---- readers -------------------------------------------------------------------------------------------------

    @abstractmethod
    def current_parallelism(self) -> int:
        """How many readers there are to be. It differs after a restart with another `numReaders`: do not keep it."""

    @abstractmethod
    def registered_readers(self) -> Mapping[int, ReaderInfo]:
        """The readers that can be given splits, by their numbers."""

    @abstractmethod
    def assign_splits(self, assignment: SplitsAssignment[SplitT]) -> None:
        """Give splits to readers. They count for the watermark at once, read or not.

        A `SourceError` if one of the readers is not registered, or one of the splits in work already; then none is
        assigned.
        """

    def assign_split(self, split: SplitT, subtask_id: int) -> None:
        """Give one split to a reader; see `assign_splits`."""
        self.assign_splits(SplitsAssignment({subtask_id: [split]}))

    @abstractmethod
    def signal_no_more_splits(self, subtask_id: int) -> None:
        """A reader will get no more splits: no request of it will come. May be repeated.

        When that is so of all readers, and all their splits are finished, a bounded source has ended.
        """

    @abstractmethod
    def send_event_to_source_reader(self, subtask_id: int, event: SourceEvent) -> None:
        """Have `handle_source_events` of a reader called with this event; a `SourceError` if it is not registered.

        On Spark the reader is the task of that number in a micro-batch to come; events do not survive a restart.
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

        With a period, again and again: each call begins a period after the one before has ended. The first result of
        every call without a delay is waited for before the first micro-batch is planned. An error raised by `handler`
        fails the query. `call` must not touch what the enumerator's methods use. It is never made twice at once.

        With `at_each_trigger` it is also made, and waited for up to a second, whenever a micro-batch would be planned
        and there is nothing to read: so a trigger that finds nothing has looked, and `processAllAvailable` covers what
        was written before. It rests nine times as long as it took; one that took more than 20 ms eight times in a row
        is left to its period.
        """

    @abstractmethod
    def run_in_coordinator_thread(self, action: Callable[[], None]) -> None:
        """Run something on the coordinator's thread, soon. An error raised by it fails the query."""

    @abstractmethod
    def map_on_workers(self, function: Callable[[T], U], items: Iterable[T]) -> list[U]:
        """Apply a function to each item, several at once on the worker threads; the results in order.

        For use inside of a `call` of `call_async`, and for what a plan cannot be made without. Waits for all; raises
        the error of the first item that failed.
        """

    # ---- event times ---------------------------------------------------------------------------------------------

    @abstractmethod
    def add_blocks(self, split_id: str, rows: npt.ArrayLike, min_us: npt.ArrayLike, max_us: npt.ArrayLike) -> None:
        """Add the next records of a split that is assigned: `int64[k]` each, see `alignment.EventTimeIndex.append`.

        Only for an enumerator that is a `SupportsEventTimeIndex`, as is `complete_split`.
        """

    @abstractmethod
    def add_opaque_block(self, split_id: str, rows: int, max_us: int) -> None:
        """Add the next records of a split as one opaque block, which `SupportsEventTimeIndex.first_later` cuts.

        Only where `supports_opaque_blocks` is true. It covers `rows` positions; where these have gaps, it has fewer
        records. One of these has the event time `max_us`, below `event_time_limit_us`, and none is later.
        """

    @abstractmethod
    def expect_records(self, ends: Mapping[str, int]) -> None:
        """There are records before these positions of these splits, whatever is known of them.

        For a `call_async` with `at_each_trigger`, of a source without an index of event times: a trigger does not
        report that there is nothing to read before it has looked at the splits that have more than it knows of.
        """

    @abstractmethod
    def complete_split(self, split_id: str) -> None:
        """No record will be added to this split: once read it is finished."""

    @abstractmethod
    def abandon_split(self, split_id: str) -> None:
        """The unread records of this split are lost: none is planned, and the split finishes.

        What is known of it is forgotten, and later blocks of it are ignored. Records that were planned already are
        missing in their micro-batch.
        """

    @abstractmethod
    def set_horizon(self, event_time_us: int | None) -> None:
        """Splits that are known, and not assigned yet, have no record earlier than this; None if none waits.

        Nothing later is read, and the watermark stays below it. See `SupportsEventTimeIndex.assign_waiting`.
        """


class SplitEnumerator(ABC, Generic[SplitT, CheckpointT]):
    """Finds splits, and gives them to readers.

    One enumerator lives in Spark's planner process. Work that may take longer than a moment goes through
    `SplitEnumeratorContext.call_async`.
    """

    @abstractmethod
    def start(self) -> None:
        """Begin discovery. Called once, first; no reader is registered yet."""

    @abstractmethod
    def handle_split_request(self, subtask_id: int, requester_hostname: str | None = None) -> None:
        """A reader has room for a split: assign it one now, or later, or signal that there are no more.

        An enumerator that assigns on its own does nothing here. A reader requests again when it was given a split, and
        not before.
        """

    @abstractmethod
    def add_splits_back(self, splits: Sequence[SplitT], subtask_id: int) -> None:
        """A reader has lost splits: those that it was given since the state from which reading goes on.

        They are to be assigned again. The reader registers anew afterwards. There may be none.
        """

    def add_reader(self, subtask_id: int) -> None:
        """A reader was registered."""

    def handle_source_event(self, subtask_id: int, event: SourceEvent) -> None:
        """Take an event from a reader. An enumerator that expects some overrides this; to others one is an error."""
        raise UnsupportedOperationError(
            f"{type(self).__name__} understands no source events, but was sent a {type(event).__name__}: "
            "override handle_source_event"
        )

    def end_positions(self, splits: Sequence[SplitT]) -> Sequence[int | None]:
        """Return where the records of each split end now: the position after its last one.

        Needed for `indexing=off` alone, where the planner does not read ahead. It is called again and again, on a
        worker thread, and splits are read up to these positions and no further. By default it returns the splits' own
        stops.

        Parameters
        ----------
        splits
            The splits in work, each at the position up to which it was read.

        Returns
        -------
        sequence
            One position for each split; None where it is not known now. A record before a returned position must stay
            readable.

        Raises
        ------
        UnsupportedOperationError
            If a split has no stop, and this method is not overridden.
        """
        return own_stops(self, splits)

    def blocked_splits(self) -> Collection[str]:
        """Ids of splits with records that cannot be read yet: these are not idle. By default there are none.

        A mapping gives the number of these records with each id, 0 where it is not known.
        A reader that the planner looks ahead with can report it itself, see `CaughtUp.BLOCKED`.
        """
        return ()

    def unindexed_splits(self) -> Collection[str]:
        """Ids of splits with records that the index does not have yet: these are not idle. By default none."""
        return ()

    def unreachable_splits(self) -> Collection[str]:
        """Ids of splits that cannot be looked at now, some or all: these are not idle. By default there are none.

        A mapping gives with each id why, since when and what follows, for `explain`. Log that as well, and fail with an
        error in the end.
        """
        return ()

    def metrics(self) -> Mapping[str, int]:
        """Return what the progress of a query has of this source beside its splits: numbers by name; by default none.

        They are in the reasons for the watermark too, which `explain` gives: how many files wait, for example.
        """
        return {}

    def lost_splits(self) -> Collection[str]:
        """Ids of splits whose records are not there any more: nothing of them is read. By default there are none.

        Called before a micro-batch is read that was planned a while ago: one that is read again after a restart, then
        also before `start`, and each one of a run to the end of what is there (AvailableNow). An enumerator that has
        started may abandon and assign splits here. A `DataLossError` if the user does not want to go on without them.
        """
        return ()

    def ranges_to_read(self, ranges: Sequence[SplitRange[SplitT]]) -> Sequence[SplitRange[SplitT]]:
        """Return these ranges of a micro-batch as its tasks are to get them; by default as they are.

        Called each time before a micro-batch is read, after `lost_splits`. Here a split may be given what only a task
        needs and no offset has, and a range may be left out of which nothing is there any more.
        """
        return ranges

    @abstractmethod
    def snapshot_state(self, checkpoint_id: int) -> CheckpointT:
        """What must survive a restart beside the splits in work; all that was assigned is in work.

        Its size must not grow with the splits ever seen. No split may be assigned here: the micro-batch is planned.
        `checkpoint_id` is the number of the state, and so of the micro-batch that leads to it; it rises.
        """

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """The micro-batch that leads to a state, and all before it, is done. Missing for the last one of a query."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """A state was given up: planning goes on from an earlier one."""

    def close(self) -> None:
        """Let go of resources. Spark does not always call it: nothing may rely on it."""


def own_stops(owner: object, splits: Sequence[SourceSplit]) -> list[int]:
    """Return the stops of splits, for `end_positions` of a source or an enumerator; an error if a split has none."""
    stops = []
    for split in splits:
        if split.stop is None:
            raise UnsupportedOperationError(
                f"{type(owner).__name__}: split {split.split_id!r} has no stop, and with indexing = off the planner "
                "must know where the records of each split end now. Override end_positions (see "
                "docs/write-a-connector.md), or leave indexing = auto, where the planner reads ahead"
            )
        stops.append(split.stop)
    return stops


@dataclass(frozen=True, slots=True)
class SplitRange(Generic[SplitT]):
    """A part of a split that one reader reads in one micro-batch, and how many records it has.

    The split knows where to stop; several ranges may have the same split id.
    """

    split: SplitT
    rows: int

    @classmethod
    def evenly(cls, start: SplitT, stop: int, rows_per_range: int) -> list[SplitRange[SplitT]]:
        """What lies before `stop` in a split, in ranges of about as many positions, at most `rows_per_range`."""
        rows = stop - start.position
        if rows <= rows_per_range:
            return [cls(start.until(stop), rows)]
        parts = -(-rows // rows_per_range)
        cuts = [start.position + rows * part // parts for part in range(parts + 1)]
        return [cls(start.at(begin).until(end), end - begin) for begin, end in pairwise(cuts)]


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

"""Discovery and assignment of splits, on the planner (FLIP-27), with their event times where these are known unread."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from streaming_source.api.serializer import SourceEvent
from streaming_source.api.split import SourceSplit, SplitT
from streaming_source.exceptions import UnsupportedOperationError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

CheckpointT = TypeVar("CheckpointT")


@dataclass(frozen=True, slots=True)
class SplitRange(Generic[SplitT]):
    """A part of a split that one reader reads in one micro-batch, and how many records it has.

    The split knows where to stop; several ranges may have the same split id.
    """

    split: SplitT
    rows: int

    @classmethod
    def evenly(cls, start: SplitT, stop: int, rows_per_range: int) -> list[SplitRange[SplitT]]:
        """Return what is before `stop` in a split as ranges of equal size, at most `rows_per_range` positions each."""
        rows = stop - start.position
        if rows <= rows_per_range:
            return [cls(start.until(stop), rows)]
        parts = -(-rows // rows_per_range)
        cuts = [start.position + rows * part // parts for part in range(parts + 1)]
        return [cls(start.at(begin).until(end), end - begin) for begin, end in pairwise(cuts)]


class SplitEnumerator(ABC, Generic[SplitT, CheckpointT]):
    """Finds splits, and gives them to readers.

    One enumerator lives in Spark's planner process. Work that may take longer than a moment goes through
    `SplitEnumeratorContext.call_async`.

    Attributes
    ----------
    cleans_up
        Whether something is left to do after the end of a bounded source, as to remove what was read. If not, a query
        that is started again after the end closes the enumerator, and does not start it.
    """

    cleans_up: bool = False

    @abstractmethod
    def start(self) -> None:
        """Begin discovery. Called once, first; no reader is registered yet."""

    def restore_splits(self, splits: Sequence[SplitT]) -> None:
        """Take the splits of the state from which reading goes on, before `start`. They are assigned already.

        By default nothing is done: what the enumerator must know of them is in its checkpoint.
        """

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
        """Return the ids of splits with records that cannot be read yet: these are not idle. By default none.

        A mapping gives the number of these records with each id, 0 if it is not known. A reader with which the planner
        reads ahead can report this itself, see `CaughtUp.BLOCKED`.
        """
        return ()

    def unindexed_splits(self) -> Collection[str]:
        """Return the ids of splits with records that the index does not have yet: these are not idle.

        By default none.
        """
        return ()

    def unreachable_splits(self) -> Collection[str]:
        """Return the ids of splits that cannot be reached now: these are not idle. By default none.

        A mapping gives with each id the reason, since when, and what follows, for `explain`. Log this as well, and
        raise an error in the end.
        """
        return ()

    def metrics(self) -> Mapping[str, int]:
        """Return numbers by name for the progress of a query, such as how many files wait; by default none.

        `explain` has them too.
        """
        return {}

    def lost_splits(self) -> Collection[str]:
        """Return the ids of splits whose records no longer exist: nothing of them is read. By default none.

        Called before a micro-batch is read that was planned a while ago: after a restart, then also before `start`, and
        in each micro-batch of a run with AvailableNow. An enumerator that has started may abandon and assign splits
        here. Raise a `DataLossError` if the options do not allow to go on without the records.
        """
        return ()

    def read_at(self, splits: Sequence[SplitT], known: Mapping[str, SplitT], checkpoint: CheckpointT) -> Sequence[int]:
        """Return up to which position each split had been read at a state of a stream over the same data.

        Called in a batch that reads what the stream has read, for splits at their ends, of the source of
        `Source.for_batch_at`. `known` are the splits of the state by their ids, `checkpoint` is what its enumerator
        remembered. Override it where splits end, or positions may begin anew: it is 0 of a split that is new since, and
        a `DataLossError` where records that the stream has read are gone.
        """
        for split in splits:
            if split.split_id not in known:
                raise UnsupportedOperationError(
                    f"{type(self).__name__}: split {split.split_id!r} is not in the offset of the query, which does "
                    "not show whether it was read to its end or is new; override read_at"
                )
        return [known[split.split_id].position for split in splits]

    def ranges_to_read(self, ranges: Sequence[SplitRange[SplitT]]) -> Sequence[SplitRange[SplitT]]:
        """Return the ranges of a micro-batch as its tasks get them; by default unchanged.

        Called each time before a micro-batch is read, after `lost_splits`. Override it to add to splits what only tasks
        need, and to leave out ranges whose records no longer exist.
        """
        return ranges

    @abstractmethod
    def snapshot_state(self, checkpoint_id: int) -> CheckpointT:
        """Return what must survive a restart in addition to the splits in work, which are all assigned splits.

        Its size must not grow with the number of splits ever found. No split may be assigned here, since the
        micro-batch is planned. `checkpoint_id` is the number of the state after this micro-batch; it rises.
        """

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """The micro-batch before a state, and all earlier ones, are committed.

        Not called for the last one of a query.
        """

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """A state was discarded: planning goes on from an earlier one."""

    def close(self) -> None:
        """Release resources. Spark does not always call it: nothing may depend on it."""


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


class Scanned(NamedTuple):
    """A part of a split that was scanned: `add` adds it to the index, on the coordinator's thread.

    `add` returns event times that were read, `(start, int64[n])` of each block, `kept` of them in all. The latest so
    far is `latest_us`. If it `is_last`, all records of the split that were found are indexed.
    """

    add: Callable[[], Sequence[tuple[int, npt.NDArray[np.int64]]]]
    latest_us: int
    is_last: bool
    kept: int = 0


class SupportsScan(SupportsEventTimeIndex[SplitT], Generic[SplitT]):
    """An index that takes event times from the records themselves: it can be filled while what is known is read.

    With `scans_in_parts`, which the planner sets before `start` where it `may_scan`, the first discovery only finds the
    records. Of so many splits parts are `scans_at_once`.
    """

    scans_in_parts: bool = False
    scans_at_once: int = 1

    @property
    @abstractmethod
    def may_scan(self) -> bool:
        """Return whether event times are taken from the records, and not from statistics."""

    @abstractmethod
    def unscanned_splits(self) -> Collection[str]:
        """Return the ids of assigned splits with records that were found and are not indexed yet."""

    @abstractmethod
    def scan(self, split_id: str, *, keeps_times: bool) -> Scanned:
        """Scan the next part of such a split. On a worker, by one at a time of a split.

        Where it `keeps_times` what is returned may have the event times of some records, but not of very many.
        """

"""The contract of all that fill the planner's index of unread records, and the index that an enumerator has itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NewType

import numpy as np

from alignment.index import CACHED_TIMES, EventTimeIndex, EventTimeLoader, FirstLater
from alignment.strategy import WatermarkStrategy
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import Int64Array
from streaming_source.api import Source, SplitRange, SupportsEventTimeIndex
from streaming_source.api.split import SplitT
from streaming_source.coordinator.rules import ReadRules
from streaming_source.coordinator.state import SourceState
from streaming_source.exceptions import OptionError, UnsupportedOperationError

if TYPE_CHECKING:
    import pyarrow as pa

    from alignment.recording import Recorder
    from streaming_source.coordinator.event_times.ahead_reader import FetchedBlock

RecordNumber = NewType("RecordNumber", int)
"""A place in a split as the engine and its index count it.

Where the enumerator has an index, and where readers report, it is the position of the source. Where the planner reads
ahead it counts records from the position at which the split was taken over: positions may have gaps, numbers have none.
"""


class EventTimeProvider(ABC, Generic[SplitT]):
    """Fills the planner's index, and turns its numbers into splits and ranges, on the coordinator's thread.

    A *number* is what the index has for a position of the source: see `RecordNumber`. `index` is the enumerator, if it
    has an index of its own.

    It `goes_back` if planning can go on from an earlier state without a new enumerator. The index keeps `cached_times`;
    opaque blocks are cut where `first_later` finds, if there are any. It `loads_ahead` if to load exact event times
    takes long.
    """

    goes_back: ClassVar[bool] = True
    loads_ahead: ClassVar[bool] = False
    cached_times: ClassVar[int] = CACHED_TIMES
    index: SupportsEventTimeIndex[SplitT] | None = None
    first_later: FirstLater | None = None
    drains_from_us: int | None = None

    def create_index(self, rules: ReadRules, recorder: Recorder | None) -> EventTimeIndex:
        """An index that loads event times from here, by what the user decided of them."""
        earliest_us = rules.earliest_us

        def load_valid(split_id: str, start: int, stop: int) -> Int64Array:
            times = self.event_times(split_id, start, stop)
            has_earlier = times.min(initial=earliest_us) < earliest_us
            return np.where(times < earliest_us, NO_TIMESTAMP, times) if has_earlier else times

        load: EventTimeLoader = load_valid
        locate = self.first_later
        if recorder is not None:
            load, locate = recorder.loading(load), locate and recorder.locating(locate)
        return EventTimeIndex(load, cached_times=self.cached_times, locate=locate, wanted=rules.planning.times)

    # ---- splits --------------------------------------------------------------------------------------------------

    @abstractmethod
    def restore_splits(self, state: SourceState[SplitT, Any]) -> None:
        """The splits of a state are in work. May be called again, with an earlier state, if this `goes_back`."""

    def before_discovery(self, max_rows: int | None) -> None:
        """The enumerator starts next; the first plan has this limit on rows."""

    def start(self) -> None:
        """The first splits were found."""

    def add_splits(self, splits: Sequence[SplitT]) -> None:
        """These were assigned."""

    def finish_splits(self, split_ids: Iterable[str]) -> None:
        """These were read to their ends, and leave the state."""

    @abstractmethod
    def commit_plan(self, split_ids: Sequence[str], numbers: Sequence[RecordNumber]) -> tuple[SplitT, ...]:
        """Return the splits of the next state, in which the records of these numbers are next."""

    @abstractmethod
    def ranges(self, start: SplitT, end: SplitT, rows_per_range: int) -> Sequence[SplitRange[SplitT]]:
        """See `SupportsEventTimeIndex`."""

    def split_ids(self) -> Set[str]:
        """Ids of the splits of which something is remembered."""
        return frozenset()

    # ---- what is known -------------------------------------------------------------------------------------------

    @property
    def knows_each(self) -> bool:
        """True if `event_times` gives the event time of each record."""
        return True

    def known_from(self, split: SplitT) -> int:
        """Return the position of a split from which on its watermark has the event times of all that was read."""
        return split.origin().position

    def place_of(self, split_id: str, number: int) -> str | None:
        """Describe where the record at a number of the index is, for a person; None for the text of its split."""
        return None

    def position_at(self, split_id: str, number: RecordNumber) -> int:
        """Return the position of the source for a number of the index."""
        return number

    @abstractmethod
    def event_times(self, split_id: str, start: int, stop: int) -> Int64Array:
        """See `SupportsEventTimeIndex`."""

    def load_ahead(self, blocks: Iterable[tuple[str, int, int]]) -> None:
        """Begin to load the event times of these blocks, `(split_id, start, stop)`; those loaded before are dropped."""

    def blocks(self, split_id: str, start: int, stop: int) -> Iterable[FetchedBlock]:
        """The records of `[start, stop)` with the columns that a watermark generator needs."""
        raise UnsupportedOperationError(f"{type(self).__name__} has no records")

    def emitted_before(self, split_id: str, number: int) -> tuple[int, bool] | None:
        """Return what the source emitted of a split with the records before a number: see `SourceWatermarks`."""
        return None

    def planning(self) -> AbstractContextManager[object]:
        """Return what is entered while a plan is made."""
        return nullcontext()

    def before_plan(self) -> None:
        """A micro-batch is planned next."""

    # ---- life ----------------------------------------------------------------------------------------------------

    def drain(self, from_us: int) -> None:
        """Take what was there at a processing time for all there is (AvailableNow)."""
        self.drains_from_us = from_us

    def find_expected(self, ends: Mapping[str, int]) -> Callable[[], bool]:
        """Find the records that there are before these positions of splits; return what checks if they are found."""
        return lambda: True

    def is_warm(self) -> bool:
        """Return whether something is known of every split."""
        return True

    @property
    def knows_all(self) -> bool:
        """True if nothing is left unseen because enough was seen: then fewer records are no reason to wait for more."""
        return True

    @property
    def is_settled(self) -> bool:
        """While draining: whether enough is known to plan."""
        return True

    @property
    def is_at_rest(self) -> bool:
        """While draining: whether nothing more will be known before more is handed out."""
        return True

    def probe_last(self, split_ids: Iterable[str]) -> bool:
        """While draining: find out whether these splits have ended, once before the run ends; whether that is begun."""
        return False

    def close(self) -> None:
        """Let go of resources."""


class IndexedTimes(EventTimeProvider[SplitT]):
    """The enumerator knows its records' event times, and adds them to the index.

    Records themselves, of which a watermark generator needs columns, are read here once they are planned.
    """

    index: SupportsEventTimeIndex[SplitT]
    # What it added of the records since an earlier state is forgotten.
    goes_back = False

    def __init__(
        self,
        source: Source[SplitT, Any],
        index: SupportsEventTimeIndex[SplitT],
        schema: pa.Schema,
        strategy: WatermarkStrategy,
    ) -> None:
        if strategy.uses_source_watermarks and not source.emits_watermark:
            raise OptionError(
                f"WatermarkStrategy.from_source_watermarks(): {source.name} has an index of event times, and emits no "
                "watermarks; use for_bounded_out_of_orderness(...), or for_generator(...) for a rule of your own"
            )
        self._source = source
        self.index = index
        self._schema = schema
        self._strategy = strategy
        # Only one that adds opaque blocks overrides it.
        if type(index).first_later is not SupportsEventTimeIndex.first_later:
            self.first_later = index.first_later

    def restore_splits(self, state: SourceState[SplitT, Any]) -> None:
        """Do nothing: the index is the enumerator, which has them."""

    def finish_splits(self, split_ids: Iterable[str]) -> None:
        for split_id in split_ids:
            self.index.finish_split(split_id)

    def commit_plan(self, split_ids: Sequence[str], numbers: Sequence[RecordNumber]) -> tuple[SplitT, ...]:
        return tuple(self.index.split_at(split_id, number) for split_id, number in zip(split_ids, numbers, strict=True))

    def ranges(self, start: SplitT, end: SplitT, rows_per_range: int) -> Sequence[SplitRange[SplitT]]:
        return self.index.ranges(start, end, rows_per_range)

    def event_times(self, split_id: str, start: int, stop: int) -> Int64Array:
        return self.index.event_times(split_id, start, stop)

    def blocks(self, split_id: str, start: int, stop: int) -> Iterable[FetchedBlock]:
        # Here and not above: it brings the readers with it.
        from streaming_source.coordinator.event_times.ahead_reader import read_range

        assigner, columns = self._strategy.timestamp_assigner, self._strategy.generator_columns
        ends = self.index.split_at(split_id, start), self.index.split_at(split_id, stop)
        for part in self.index.ranges(*ends, stop - start):
            yield from read_range(self._source, part.split, self._schema, assigner, columns)

    @property
    def knows_each(self) -> bool:
        # One that cuts opaque blocks does not know all that is in them.
        return self.first_later is None

    def place_of(self, split_id: str, number: int) -> str | None:
        return self.index.place_of(split_id, number) or self.index.split_at(split_id, number).place

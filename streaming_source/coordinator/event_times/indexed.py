"""Event times from an index of the enumerator's own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from alignment.strategy import WatermarkStrategy
from alignment.watermarks import Int64Array
from streaming_source.api import Source, SplitRange, SupportsEventTimeIndex
from streaming_source.api.split import SplitT
from streaming_source.coordinator.event_times.provider import EventTimeProvider, RecordNumber
from streaming_source.coordinator.state import SourceState
from streaming_source.exceptions import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

    from streaming_source.coordinator.event_times.ahead_reader import FetchedBlock


class IndexedTimes(EventTimeProvider[SplitT]):
    """The enumerator knows its records' event times, and adds them to the index.

    Records themselves, of which a watermark generator needs columns, are read here once they are planned.
    """

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
        self._index = index
        self._schema = schema
        self._strategy = strategy
        # Only one that adds opaque blocks overrides it.
        if type(index).first_later is not SupportsEventTimeIndex.first_later:
            self.first_later = index.first_later

    def restore_splits(self, state: SourceState[SplitT, Any]) -> None:
        """Do nothing: the index is the enumerator, which has them."""

    def finish_splits(self, split_ids: Iterable[str]) -> None:
        for split_id in split_ids:
            self._index.finish_split(split_id)

    def assign_waiting(self, readable: int, nearest_us: int) -> bool:
        return self._index.assign_waiting(readable, nearest_us)

    def expect_finished(self, split_ids: Collection[str]) -> None:
        self._index.expect_finished(split_ids)

    def count_late(self, late: Mapping[str, int]) -> None:
        self._index.count_late(late)

    def finished_between(
        self, left: Sequence[SplitT], start: Any, end: Any, in_work: Collection[str]
    ) -> Sequence[SplitT]:
        return self._index.finished_between(left, start, end, in_work)

    def commit_plan(self, split_ids: Sequence[str], numbers: Sequence[RecordNumber]) -> tuple[SplitT, ...]:
        return tuple(
            self._index.split_at(split_id, number) for split_id, number in zip(split_ids, numbers, strict=True)
        )

    def ranges(self, start: SplitT, end: SplitT, rows_per_range: int) -> Sequence[SplitRange[SplitT]]:
        return self._index.ranges(start, end, rows_per_range)

    def event_times(self, split_id: str, start: int, stop: int) -> Int64Array:
        return self._index.event_times(split_id, start, stop)

    def blocks(self, split_id: str, start: int, stop: int) -> Iterable[FetchedBlock]:
        # Here and not above: it brings the readers with it.
        from streaming_source.coordinator.event_times.ahead_reader import read_range

        assigner, columns = self._strategy.timestamp_assigner, self._strategy.generator_columns
        ends = self._index.split_at(split_id, start), self._index.split_at(split_id, stop)
        for part in self._index.ranges(*ends, stop - start):
            yield from read_range(self._source, part.split, self._schema, assigner, columns)

    @property
    def knows_each(self) -> bool:
        # One that cuts opaque blocks does not know all that is in them.
        return self.first_later is None

    def place_of(self, split_id: str, number: int) -> str | None:
        return self._index.place_of(split_id, number) or self._index.split_at(split_id, number).place

    def extend_snapshot(self) -> None:
        self._index.extend_snapshot()

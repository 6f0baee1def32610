"""One micro-batch in a test: readers that fetch in a fixed order, what they emit, and what must be so of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from alignment.events import RangeReport
from alignment.strategy import WatermarkStrategy
from alignment.timestamps import NO_TIMESTAMP, TimestampAssigner
from alignment.watermarks import MIN_WATERMARK, Int64Array
from streaming_source.api import (
    InputStatus,
    ReaderOutput,
    Source,
    SourceEvent,
    SourceOutput,
    SourceReader,
    SourceReaderContext,
    SourceSplit,
    SplitReader,
)
from streaming_source.api.split import SplitT
from streaming_source.coordinator import SourceState, one_range_each
from streaming_source.reader import SourceReaderBase, SplitFetcher, SplitFetcherManager
from streaming_source.reader.fetcher import Handover

ElementT = TypeVar("ElementT")

PATIENCE_S: Final = 30.0
ReaderHook: TypeAlias = Callable[[SourceReader[Any], int], None]
"""`(reader, number of the poll)`, called before each poll of a reader."""

_ENOUGH_POLLS: Final = 100_000


class EmittedRecord(NamedTuple):
    """A record that came out of a reader; its event time is `NO_TIMESTAMP` for none."""

    split_id: str
    position: int
    time_us: int


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """One micro-batch, by the number of the state that it leads to, and the watermark that it announces.

    `records` are by reader, in the order in which it emitted them. The planner cut every split at its first record
    later than `bound_us`, and planned `planned_rows`; both are None where another planner had.
    """

    sequence: int
    records: tuple[tuple[EmittedRecord, ...], ...]
    bound_us: int | None
    watermark: int
    planned_rows: int | None = None

    @property
    def all_records(self) -> list[EmittedRecord]:
        """Of all readers, one after another."""
        return [record for records in self.records for record in records]


@dataclass(eq=False)
class CollectingOutput(ReaderOutput):
    """Collects records with the event times that the application assigns, in the order in which they are emitted.

    Every batch must have the columns of `schema`, if there is one.
    """

    assigner: TimestampAssigner
    schema: pa.Schema | None = None
    records: list[EmittedRecord] = field(default_factory=list, init=False)
    open_splits: set[str] = field(default_factory=set, init=False)

    def create_output_for_split(self, split_id: str) -> SourceOutput:
        self.open_splits.add(split_id)
        return _SplitOutput(self, split_id)

    def release_output_for_split(self, split_id: str) -> None:
        self.open_splits.remove(split_id)


@dataclass(eq=False)
class _SplitOutput(SourceOutput):
    whole: CollectingOutput
    split_id: str

    def collect(
        self, batch: pa.RecordBatch, source_timestamps: Int64Array | None = None, *, positions: int | Int64Array
    ) -> None:
        if self.split_id not in self.whole.open_splits:
            raise AssertionError(f"records of split {self.split_id!r} were emitted after its output was released")
        if self.whole.schema is not None and not batch.schema.equals(self.whole.schema):
            raise AssertionError(
                f"split {self.split_id!r}: the reader was given the columns {self.whole.schema} to read, and emitted "
                f"{batch.schema}"
            )
        where = np.arange(positions, positions + batch.num_rows) if isinstance(positions, int) else positions
        times = self.whole.assigner.extract(batch, source_timestamps).values
        if not len(where) == len(times) == batch.num_rows:
            raise AssertionError(f"{batch.num_rows} records were emitted with {len(where)} positions")
        self.whole.records += [
            EmittedRecord(self.split_id, position, time)
            for position, time in zip(where.tolist(), times.tolist(), strict=True)
        ]


# ---- what a task does ------------------------------------------------------------------------------------------------


def read_ranges(
    ranges: Sequence[SourceSplit],
    events: Sequence[SourceEvent],
    create_reader: Callable[[], SourceReader[Any]],
    output: ReaderOutput,
    hook: ReaderHook | None,
    wait_s: float,
) -> None:
    """Read the ranges of a task, with a reader of its own for each further range of a split.

    A reader may have nothing for `wait_s`; records that were planned and do not come are an error.
    """
    for splits in one_range_each(ranges):
        reader = create_reader()
        try:
            reader.add_splits(splits)
            reader.notify_no_more_splits()
            reader.start()
            for event in events:
                reader.handle_source_events(event)
            _poll_to_the_end(reader, output, hook, wait_s)
        finally:
            reader.close()
        events = ()


def _poll_to_the_end(reader: SourceReader[Any], output: ReaderOutput, hook: ReaderHook | None, wait_s: float) -> None:
    for poll in range(_ENOUGH_POLLS):
        if hook is not None:
            hook(reader, poll)
        status = reader.poll_next(output)
        if status is InputStatus.END_OF_INPUT:
            return
        if status is InputStatus.NOTHING_AVAILABLE:
            try:
                reader.is_available().result(wait_s)
            except TimeoutError:
                raise AssertionError(
                    f"the reader waits for records of {_left(reader)} that were planned and do not come"
                ) from None
    raise AssertionError(f"after {_ENOUGH_POLLS} polls the splits {_left(reader)} have not come to their end")


def _left(reader: SourceReader[Any]) -> list[str]:
    return [split.split_id for split in reader.snapshot_state()]


def reports_of(ranges: Sequence[SourceSplit], records: Sequence[EmittedRecord]) -> list[RangeReport]:
    """Return what a reader of these ranges reports of the records that it emitted, found record by record."""
    reports = []
    for split in ranges:
        stop = split.position if split.stop is None else split.stop
        read = [r.time_us for r in records if r.split_id == split.split_id and split.position <= r.position < stop]
        timed = [time_us for time_us in read if time_us != NO_TIMESTAMP]
        earliest, latest = min(timed, default=NO_TIMESTAMP), max(timed, default=NO_TIMESTAMP)
        gaps = stop - split.position - len(read)
        reports.append(RangeReport(split.split_id, split.position, stop, earliest, latest, gaps=gaps))
    return reports


# ---- a reader without threads ----------------------------------------------------------------------------------------


def create_inline_reader(
    source: Source[SplitT, Any], context: SourceReaderContext, patience_s: float = PATIENCE_S
) -> SourceReaderBase[SplitT, Any]:
    """The base reader of a source (`streaming_source.reader.create_base_reader`), without threads.

    Its `SplitReader` must not wait in `fetch` for records that are not there. After `patience_s` of fetching in vain,
    by the wall clock, the reader has nothing available.
    """
    manager = InlineFetcherManager(source, context, patience_s)
    emitter = source.create_record_emitter(context)
    return SourceReaderBase(manager, emitter, context, end_of_stream=source.end_of_stream)


class _InlineFetcher(SplitFetcher[SplitT, ElementT]):
    """Takes a step whenever the reader has nothing to do."""

    def start(self) -> None:
        """See `SplitFetcher`. No thread is needed."""

    def join(self, timeout_s: float) -> bool:
        self.end()
        return True

    def step(self) -> bool:
        try:
            return self.run_once(wait=False)
        except BaseException as error:  # as on a thread: the reader raises it when it polls
            self._on_error(self, error)
            return False

    def end(self) -> None:
        """Run once more if the thread was shut down."""
        if self._shut_down and not self.closed.is_set() and not (self._waits_for_reader and self._handed_over):
            self._run()


class InlineFetcherManager(SplitFetcherManager[SplitT, Any]):
    """Fetches when the reader polls, and its queue is empty. Splits share fetchers as the source says."""

    def __init__(
        self, source: Source[SplitT, Any], context: SourceReaderContext, patience_s: float = PATIENCE_S
    ) -> None:
        super().__init__(lambda: source.create_split_reader(context), queue_capacity=1)
        self._fetching = source.fetching
        self._metrics = context.metrics
        self._patience_s = patience_s
        # How many records were out when there was news of them, and when that was.
        self._last_news: tuple[int, float] | None = None

    def key_of(self, split_id: str) -> Hashable:
        return self._fetching.key_of(split_id)

    def poll(self) -> Handover[Any] | None:
        """See `SplitFetcherManager`. Lets the fetchers run, one after another, until one has brought something."""
        for fetcher in self._started:
            assert isinstance(fetcher, _InlineFetcher)
            fetcher.end()
        progress = self._is_patient()
        while not len(self.queue) and progress:
            progress = False
            for fetcher in list(self._live.values()):
                assert isinstance(fetcher, _InlineFetcher)
                if not len(self.queue):
                    progress |= fetcher.step()
        return super().poll()

    def _is_patient(self) -> bool:
        now = time.monotonic()
        if self._last_news is None or self._last_news[0] != self._metrics.records:
            self._last_news = (self._metrics.records, now)
        return now - self._last_news[1] <= self._patience_s

    def _new_fetcher(self, fetcher_id: int, split_reader: SplitReader[SplitT]) -> SplitFetcher[SplitT, Any]:
        return _InlineFetcher(fetcher_id, split_reader, self.queue, self._note_error)


# ---- what must be so of a micro-batch --------------------------------------------------------------------------------


def check_batch(
    batch: ReadBatch,
    before: SourceState[Any, Any],
    after: SourceState[Any, Any],
    strategy: WatermarkStrategy,
    excused: Mapping[str, int] | None = None,
    *,
    foreknown: bool = True,
) -> None:
    """Check what was read against the two states between which it was planned.

    - Of each split exactly the records between its two positions were read, each once, each reader's in their order.
    - The watermark did not go back, and no split did.
    - Nothing later than the planner's bound was read.
    - A split's watermark is what its records give; not where event times are learnt from reports, which come later.
    - No record is late that is later than its own split's watermark.

    `excused` has, by split that joined, or came back from being idle, after a watermark had been announced, that
    watermark: no promise was made for its records at or below it. Where event times are not `foreknown`, ahead of
    reading, neither the planner's bound nor its number of records is exact.
    """
    records: dict[str, list[tuple[int, int]]] = {}
    for record in batch.all_records:
        records.setdefault(record.split_id, []).append((record.position, record.time_us))
    planned, read = batch.planned_rows if foreknown else None, len(batch.all_records)
    _check(after.table.combined >= before.table.combined, "the watermark went back")
    _check(planned is None or planned == read, f"{planned} records were planned, {read} were read")
    for number, of_reader in enumerate(batch.records):
        _check_order(number, of_reader)
    begun = before.by_id()
    watermarks = dict(zip(before.table.split_ids, before.table.watermarks.tolist(), strict=True))
    for slot, split in enumerate(after.splits):
        of_split = sorted(records.pop(split.split_id, []))
        start = (begun.get(split.split_id) or split.origin()).position
        _check(split.position >= start, f"split {split.split_id!r} went back from {start} to {split.position}")
        positions = [position for position, _ in of_split]
        _check(len(set(positions)) == len(positions), f"split {split.split_id!r}: records came twice: {positions}")
        outside = [position for position in positions if not start <= position < split.position]
        _check(not outside, f"split {split.split_id!r}: read {outside}, planned were {start} to {split.position}")
        is_read = not positions or positions[-1] == split.position - 1
        is_read &= bool(positions) == (split.position > start)
        _check(is_read or not foreknown, f"split {split.split_id!r} was not all read")
        times = np.array([time for _, time in of_split if time != NO_TIMESTAMP], np.int64)
        if foreknown and batch.bound_us is not None and times.size:
            _check(int(times.max()) <= batch.bound_us, f"split {split.split_id!r} was read past {batch.bound_us}")
        if strategy.out_of_orderness_us is not None:
            known = watermarks.get(split.split_id, MIN_WATERMARK)
            promised = (excused or {}).get(split.split_id, MIN_WATERMARK)
            own = _watermark_after(
                split.split_id, times, known, strategy.out_of_orderness_us, promised, before.table.combined
            )
            watermark = int(after.table.watermarks[slot])
            holds = own == watermark or not foreknown
            _check(holds, f"split {split.split_id!r} has the watermark {watermark}, its records give {own}")
    _check(not records, f"records of splits came that are not in work: {sorted(records)}")


def _check_order(reader: int, records: Sequence[EmittedRecord]) -> None:
    last: dict[str, int] = {}
    for record in records:
        before = last.get(record.split_id, -1)
        _check(
            record.position > before,
            f"split {record.split_id!r}: reader {reader} emitted {record.position} after {before}",
        )
        last[record.split_id] = record.position


def _watermark_after(
    split_id: str, times: Int64Array, watermark: int, bound_us: int, excused_us: int, announced_us: int
) -> int:
    """The watermark of a split with bounded out-of-orderness after its records, none of which may be late."""
    for time_us in times.tolist():
        is_on_time = time_us > max(watermark, excused_us)
        _check(
            not is_on_time or time_us > announced_us,
            f"split {split_id!r}: the record at {time_us} is on time, and late to the watermark {announced_us}",
        )
        watermark = max(watermark, time_us - bound_us - 1, MIN_WATERMARK)
    return watermark


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)

"""Splits as the planner reads them: for their event times alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic

import numpy as np
import pyarrow as pa

from alignment.arrow_compute import from_numpy
from alignment.column_paths import top_level_column
from alignment.split_generators import LatestWatermark
from alignment.timestamps import NO_TIMESTAMP, TimestampAssigner
from alignment.watermarks import Int64Array
from streaming_source.api import (
    CaughtUp,
    ReaderMetrics,
    RecordEvaluator,
    Source,
    SourceOutput,
    SourceReaderContext,
    SplitEnumerator,
    SplitReader,
    SplitsAddition,
    SplitsRemoval,
    SplitState,
)
from streaming_source.api.reader import ignore
from streaming_source.api.split import SplitT
from streaming_source.exceptions import SourceError, UnsupportedOperationError
from streaming_source.reader.base import SplitOutput
from streaming_source.reader.fetcher import fetched_by


def columns_for_times(schema: pa.Schema, assigner: TimestampAssigner, others: Sequence[str] = ()) -> pa.Schema:
    """The columns of event times, and others by path; at least one: records without columns cannot be counted."""
    columns = assigner.columns
    if columns is None:
        return schema
    needed = {top_level_column(column, schema.names) for column in (*columns, *others)} or {*schema.names[:1]}
    return pa.schema([field for field in schema if field.name in needed])


@dataclass(frozen=True, slots=True, eq=False)
class FetchedBlock:
    """Consecutive records of a split: their positions, as in `RecordBlock`, and event times, `int64[n]`.

    `records` has the columns of them that a watermark generator needs; None if none does.
    """

    positions: int | Int64Array
    times: Int64Array
    records: pa.RecordBatch | None = None

    def __len__(self) -> int:
        return self.times.size

    def __getitem__(self, row: int) -> int:
        return self.positions + row if isinstance(self.positions, int) else int(self.positions[row])

    @property
    def end(self) -> int:
        return self[len(self) - 1] + 1

    def bounds(self) -> tuple[int, int]:
        """Smallest and largest event time, as `alignment.EventTimeIndex.append` takes them. O(n)."""
        # The mark of an invalid time is the smallest number: it is the minimum if there is one, as it should be.
        return int(self.times.min(initial=2**63 - 1)), int(self.times.max(initial=NO_TIMESTAMP))


@dataclass(frozen=True, slots=True)
class FetchResult:
    """The result of one fetch from one split: blocks in order, none empty; and whether nothing more will come.

    `caught_up` is the result of `SplitReader.caught_up`. `emitted` are the watermarks that the source emitted of the
    split: after how many of these records, the watermark, and whether the split is idle.
    """

    blocks: tuple[FetchedBlock, ...]
    finished: bool
    caught_up: CaughtUp | None = None
    emitted: tuple[tuple[int, int, bool], ...] = ()

    @property
    def rows(self) -> int:
        return sum(map(len, self.blocks))


class AheadSplit(SplitOutput[SplitT]):
    """The progress of an `AheadReader` in one split."""

    def __init__(self, split: SplitT, end_of_stream: RecordEvaluator | None, times: _TimesOutput) -> None:
        super().__init__(SplitState(split), ReaderMetrics(), end_of_stream)
        self.target = self.times = times

    @property
    def split(self) -> SplitT:
        """The split in the state in which it was added."""
        return self.state.split


class AheadReader(Generic[SplitT]):
    """Fetches splits with one `SplitReader`, opened when it is needed, and closed in between if need be.

    `columns` are paths of columns that are kept with the event times; where it `keeps_watermarks` those that the
    source emits are kept, too. Used by one thread at a time, but for `wake_up`. Where it `must_pause` a `SplitReader`
    that cannot is refused.
    """

    def __init__(
        self,
        source: Source[SplitT, Any],
        schema: pa.Schema,
        assigner: TimestampAssigner,
        enumerator: SplitEnumerator[SplitT, Any] | None = None,
        *,
        columns: Sequence[str] = (),
        keeps_watermarks: bool = False,
        must_pause: bool = False,
    ) -> None:
        self._source = source
        self._context = SourceReaderContext(columns_for_times(schema, assigner, columns), enumerator=enumerator)
        self._new_output = partial(_TimesOutput, assigner, columns, keeps_watermarks=keeps_watermarks)
        self._must_pause = must_pause
        self._emitter = source.create_record_emitter(self._context)
        self._reader: SplitReader[SplitT] | None = None
        # What the reader has: each split, and as which it was added.
        self._added: dict[str, tuple[AheadSplit[SplitT], SplitT]] = {}
        self._paused: set[str] = set()
        self._is_woken = False

    def take_over(self, split: SplitT) -> AheadSplit[SplitT]:
        """A split to fetch, from its position on."""
        return AheadSplit(split, self._source.end_of_stream, self._new_output())

    def fetch(self, splits: Mapping[str, AheadSplit[SplitT]], paused: Set[str] = frozenset()) -> dict[str, FetchResult]:
        """Fetch once, of these splits but for the paused. May block until `wake_up`.

        Gives what came of each split; of one that is paused only if something did, as where pausing is not supported.
        """
        fetched = {
            split_id: FetchResult((), finished=True) for split_id, split in splits.items() if split.has_reached_end
        }
        if not fetched:
            fetched = self._fetch(self._opened(), splits, paused)
        if all(split_id in fetched and fetched[split_id].finished for split_id in splits):
            self.close()
        return fetched

    def wake_up(self) -> None:
        # Noted before the reader is used: one that is being opened is not there yet, and must be woken all the same.
        self._is_woken = True
        reader = self._reader
        if reader is not None:
            reader.wake_up()

    def close(self) -> None:
        """Close the `SplitReader`; the next fetch opens another, from where this one was."""
        reader, self._reader = self._reader, None
        self._added.clear()
        self._paused.clear()
        if reader is not None:
            reader.close()

    def _fetch(
        self, reader: SplitReader[SplitT], splits: Mapping[str, AheadSplit[SplitT]], paused: Set[str]
    ) -> dict[str, FetchResult]:
        if not reader.supports_pausing:
            paused = frozenset()
        self._change_splits(reader, splits, paused)
        records = fetched_by(reader)
        self._is_woken = False
        while (split_id := records.next_split()) is not None:
            split = splits.get(split_id)
            if split is None:
                of = ", ".join(map(repr, splits))
                raise SourceError(f"fetched records of split {split_id!r} with the reader of {of}")
            while (element := records.next_record_from_split()) is not None:
                self._emitter.emit_record(element, split, split.state)
        finished = records.finished_splits
        records.recycle()
        fetched = {}
        for split_id, split in splits.items():
            (blocks, emitted), is_finished = split.times.take(), split_id in finished or split.has_reached_end
            if blocks or is_finished:
                fetched[split_id] = FetchResult(blocks, is_finished, emitted=emitted)
            elif emitted or split_id not in paused:
                fetched[split_id] = FetchResult(blocks, is_finished, reader.caught_up(split_id), emitted)
        for split_id in finished:
            self._added.pop(split_id, None)
            self._paused.discard(split_id)
        return fetched

    def _change_splits(
        self, reader: SplitReader[SplitT], splits: Mapping[str, AheadSplit[SplitT]], paused: Set[str]
    ) -> None:
        added = self._added
        if ended := [split_id for split_id, (split, _) in added.items() if splits.get(split_id) is not split]:
            reader.handle_splits_changes(SplitsRemoval([added.pop(split_id)[1] for split_id in ended]))
            self._paused.difference_update(ended)
        if new := {split_id: split.state.to_split() for split_id, split in splits.items() if split_id not in added}:
            reader.handle_splits_changes(SplitsAddition([*new.values()]))
            added.update((split_id, (splits[split_id], split)) for split_id, split in new.items())
        if self._paused != paused:
            pause, resume = sorted(paused - self._paused), sorted(self._paused - paused)
            reader.pause_or_resume_splits([added[i][1] for i in pause], [added[i][1] for i in resume])
            self._paused = set(paused)

    def _opened(self) -> SplitReader[SplitT]:
        if self._reader is None:
            self._reader = self._source.create_split_reader(self._context)
            if self._must_pause and not self._reader.supports_pausing:
                name, reader = self._source.name, type(self._reader).__name__
                raise UnsupportedOperationError(
                    f"{name}: its event times are read ahead with one {reader} for several splits, and a split that is "
                    f"far ahead cannot be paused there: override {reader}.pause_or_resume_splits, or fetch each split "
                    "with a reader of its own (fetching = Fetching.per_split() in the source); or let splits run ahead "
                    "with option allowUnalignedSourceSplits = true"
                )
            if self._is_woken:
                self._reader.wake_up()
        return self._reader


def read_range(
    source: Source[SplitT, Any], split: SplitT, schema: pa.Schema, assigner: TimestampAssigner, columns: Sequence[str]
) -> Iterator[FetchedBlock]:
    """The records of a split up to its stop: their event times, and these columns."""
    reader = AheadReader(source, schema, assigner, columns=columns)
    ahead = reader.take_over(split)
    try:
        is_finished = False
        while not is_finished:
            fetched = reader.fetch({split.split_id: ahead})[split.split_id]
            yield from fetched.blocks
            is_finished = fetched.finished
    finally:
        reader.close()


class _TimesOutput(SourceOutput):
    """Keeps positions and event times, and further columns if any are asked for."""

    def __init__(self, assigner: TimestampAssigner, columns: Sequence[str], *, keeps_watermarks: bool) -> None:
        self._assigner = assigner
        self._columns = columns
        self._keeps_watermarks = keeps_watermarks
        self._blocks: list[FetchedBlock] = []
        self._rows = 0
        self._latest = LatestWatermark()
        self._emitted: list[tuple[int, int, bool]] = []

    def collect(
        self, batch: pa.RecordBatch, source_timestamps: Int64Array | None = None, *, positions: int | Int64Array
    ) -> None:
        if self._latest.is_idle:
            self.mark_active()
        # Copied: they would keep the whole batch in memory, and its buffers may be used again.
        times = np.array(self._assigner.extract(batch, source_timestamps).values)
        records = None
        if self._columns:
            names = sorted({top_level_column(column, batch.schema.names) for column in self._columns})
            records = batch.select(names).take(from_numpy(np.arange(batch.num_rows)))
        self._blocks.append(
            FetchedBlock(positions if isinstance(positions, int) else np.array(positions, np.int64), times, records)
        )
        self._rows += batch.num_rows

    def emit_watermark(self, watermark: int) -> None:
        self._latest.emit_watermark(watermark)
        self._keep("a watermark")

    def mark_idle(self) -> None:
        self._latest.mark_idle()
        self._keep("idleness")

    def mark_active(self) -> None:
        self._latest.mark_active()
        self._keep("activity")

    def _keep(self, what: str) -> None:
        if self._keeps_watermarks:
            self._emitted.append((self._rows, self._latest.watermark, self._latest.is_idle))
        else:
            ignore(what)

    def take(self) -> tuple[tuple[FetchedBlock, ...], tuple[tuple[int, int, bool], ...]]:
        """The records and watermarks that were emitted since the last call."""
        taken = tuple(self._blocks), tuple(self._emitted)
        self._blocks, self._emitted, self._rows = [], [], 0
        return taken

"""The memory of a source between two micro-batches."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import numpy as np

from alignment.codec import Wire
from alignment.combine import SplitStatus
from alignment.plan import SplitTable, WatermarkTable
from alignment.watermarks import LONG_AGO_US, MAX_WATERMARK, Int64Array
from streaming_source.api import Source
from streaming_source.api.split import SplitT

if TYPE_CHECKING:
    import numpy.typing as npt

    from alignment.engine import Engine
    from alignment.split_generators import GeneratorState
else:
    GeneratorState = Any  # not loaded: few queries have generators

CheckpointT = TypeVar("CheckpointT")


@dataclass(frozen=True, slots=True)
class RunState:
    """The splits that a run that ends by itself (AvailableNow) has brought until now, where runs are counted.

    The splits that are `silent` brought nothing in it, and count: they are idle in the next run that brings nothing of
    them either. The source had no split in it if it `is_empty`. Once it `has_ended` the next one begins.
    """

    silent: frozenset[str] = frozenset()
    is_empty: Annotated[bool, Wire("empty")] = False
    has_ended: Annotated[bool, Wire("ended")] = False


@dataclass(slots=True)
class Run:
    """The run that a planner is in, until it `has_ended`; if it `counts`, a split silent in it is idle in the next.

    Only present records are read since `drains_from_us` (AvailableNow; None if more may come), all in one micro-batch
    if it `is_one_batch`. It `goes_on` if a run before it planned a micro-batch that was not committed.
    """

    counts: bool
    drains_from_us: int | None = None
    is_one_batch: bool = False
    goes_on: bool = False
    has_ended: bool = False

    def state_at(self, table: SplitTable, engine: Engine) -> RunState | None:
        """Return what it has brought up to a table; None where runs are not counted."""
        if self.drains_from_us is None or not self.counts:
            return None
        return RunState(engine.silent_in_run(table), engine.idle_clock.is_empty, self.has_ended)

    def take(self, rows: int) -> None:
        """Take a micro-batch that was planned."""
        self.has_ended = self.is_one_batch or (self.has_ended and not rows)

    def known_of_last(self, last: RunState | None, split_ids: Collection[str]) -> dict[str, Any]:
        """Return what `Restored` has of the splits by a state of the last run; of this one, if it goes on."""
        if last is None:
            return {}
        if last.has_ended and not self.goes_on:
            return {"overdue": last.silent, "was_empty": last.is_empty}
        return {"seen": frozenset(split_ids) - last.silent}


@dataclass(frozen=True, slots=True)
class SourceState(Generic[SplitT, CheckpointT]):
    """A source between two micro-batches; what an offset has.

    `sequence` counts the states of a query, 0 being the one before its first micro-batch. `splits` and `table` are
    those in work and those that the last micro-batch finished, in order of their ids. `int64[n]` each: `late`, their
    records that came at or below the announced watermark so far; `silent_since_us`, the processing time since which
    each has had nothing left to read, `LONG_AGO_US` where it had something, or that is not known: it decides alone
    when a split is idle after a restart. `checkpoint` is what the enumerator remembers, None before it has started.

    `routed` late records were taken out of the frame so far, of all splits that ever were, and left to the query that
    reads `late_records`. So far `outside` records lay outside of the wanted range, as far as their event times were
    known to the planner. `generators` is what the watermark generator of each split goes on from, where the table does
    not say that; empty without one. Event times from `time_limit_us` on are invalid in the micro-batch that leads to
    this state: by the wall clock when it was planned, and `maxFutureSkew`; None without that option. `left_out` counts
    the splits that the last micro-batch finished and that are not here but follow from the checkpoint, and their
    records: a state that comes of an offset. The source has had no split in work since `empty_since_us`, by
    processing time; `LONG_AGO_US` if it has one, or never had one. `run` is that in which the state was planned; None
    where runs are not counted.
    """

    sequence: Annotated[int, Wire("n")]
    splits: Annotated[tuple[SplitT, ...], Wire("-")] = ()
    table: Annotated[WatermarkTable, Wire("-")] = field(default_factory=WatermarkTable.empty)
    late: Annotated[Int64Array, Wire("-")] = field(default_factory=lambda: np.empty(0, np.int64))
    silent_since_us: Annotated[Int64Array, Wire("-")] = field(default_factory=lambda: np.empty(0, np.int64))
    checkpoint: Annotated[CheckpointT | None, Wire("-")] = None
    routed: int = 0
    outside: Annotated[int, Wire("out_of_range")] = 0
    generators: Annotated[tuple[GeneratorState | None, ...], Wire("-")] = ()
    time_limit_us: Annotated[int | None, Wire("time_limit")] = None
    left_out: Annotated[tuple[int, int], Wire("finished")] = (0, 0)
    empty_since_us: Annotated[int, Wire("empty_since")] = LONG_AGO_US
    run: RunState | None = None

    @classmethod
    def initial(cls) -> SourceState[SplitT, CheckpointT]:
        return cls(0)

    @property
    def has_ended(self) -> bool:
        """True if all splits of a bounded source are finished, and no more will come."""
        return self.checkpoint is not None and self.table.combined == MAX_WATERMARK and not self.unfinished()

    def at_slots(self, slots: Sequence[int] | npt.NDArray[np.intp]) -> SourceState[SplitT, CheckpointT]:
        """The same of some of its splits alone. O(n)."""
        table, places = self.table, np.asarray(slots, np.intp)
        part = replace(
            table,
            split_ids=tuple(table.split_ids[slot] for slot in places),
            watermarks=table.watermarks[places],
            statuses=table.statuses[places],
        )
        return replace(
            self,
            splits=tuple(self.splits[slot] for slot in places),
            table=part,
            late=self.late[places],
            silent_since_us=self.silent_since_us[places],
            generators=tuple(self.generators[slot] for slot in places) if self.generators else (),
        )

    def as_written(self, source: Source[SplitT, CheckpointT]) -> SourceState[SplitT, CheckpointT]:
        """Return what an offset has of it: without finished splits that follow from the enumerator's checkpoint."""
        if self.checkpoint is None or not source.names_finished(self.checkpoint):
            return self
        # Those with late records are needed to route these again.
        left_out = (self.table.statuses == SplitStatus.FINISHED) & (self.late == 0)
        rows = sum(self.splits[slot].position for slot in np.flatnonzero(left_out))
        known, known_rows = self.left_out
        return replace(
            self.at_slots(np.flatnonzero(~left_out)),
            left_out=(known + int(np.count_nonzero(left_out)), known_rows + rows),
        )

    def unfinished(self) -> list[SplitT]:
        statuses = zip(self.splits, self.table.statuses, strict=True)
        return [split for split, status in statuses if status != SplitStatus.FINISHED]

    def finished(self) -> list[str]:
        """Ids of the splits that the last micro-batch finished."""
        statuses = zip(self.splits, self.table.statuses, strict=True)
        return [split.split_id for split, status in statuses if status == SplitStatus.FINISHED]

    def by_id(self) -> dict[str, SplitT]:
        return dict(zip(self.table.split_ids, self.splits, strict=True))

    def since(self, start: SourceState[SplitT, CheckpointT], *, reads_on: bool = False) -> list[tuple[SplitT, SplitT]]:
        """Each split as it was in an earlier state, or before its first record; and as it is in this one.

        Where a reader `reads_on` it begins before: with what was not reported when this state was planned.
        """
        before = start.by_id()
        pairs = [(before.get(split_id) or split.origin(), split) for split_id, split in self.by_id().items()]
        if not (reads_on and self.generators):
            return pairs
        seen_to = [None if known is None else known.position for known in self.generators]
        return [
            (before if position is None else before.at(position), after)
            for (before, after), position in zip(pairs, seen_to, strict=True)
        ]

    def generators_since(self, start: SourceState[SplitT, CheckpointT]) -> dict[str, tuple[int, GeneratorState | None]]:
        """Return what readers need to give the watermarks of what they read after an earlier state.

        By split id from which position on records are emitted, and what a generator goes on from.
        """
        known = self.generators or [None] * len(self.splits)
        pairs = zip(self.since(start), known, strict=True)
        return {after.split_id: (before.position, generator) for (before, after), generator in pairs}

"""A source whose records are known, planned step by step: what each step must hold is checked after each step."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from alignment.combine import SplitStatus
from alignment.index import EventTimeIndex
from alignment.plan import MicroBatchPlan, PlanConditions, PlanningRules, SplitTable
from alignment.plan.by_index import awaits_scan, plan_micro_batch
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK
from tests.alignment.index_blocks import check_kept_times
from tests.alignment.naive_planner import NaivePlan, NaiveSplit, clamp, naive_plan

CACHED_TIMES = 7


@dataclass(frozen=True)
class Block:
    """Records of one block, how much looser than they its indexed bounds are, and whether its earliest one is told."""

    times: tuple[int, ...]
    below: int = 0
    tells_earliest: bool = True

    @property
    def low(self) -> int:
        if NO_TIMESTAMP in self.times:
            return NO_TIMESTAMP
        return max(min(self.times) - self.below, NO_TIMESTAMP)

    @property
    def earliest(self) -> int:
        """No valid event time is before this, by bounds or, where these do not tell it, by the records themselves."""
        valid = [time for time in self.times if time != NO_TIMESTAMP]
        below = self.below if self.tells_earliest else 0
        return max(min(valid) - below, NO_TIMESTAMP + 1) if valid else MAX_WATERMARK

    @property
    def high(self) -> int:
        return max(self.times)


@dataclass
class SplitLog:
    """What a test knows of a split beyond what a planner knows."""

    blocks: list[Block] = field(default_factory=list)
    # The watermark that was announced when each record came.
    announced: list[int] = field(default_factory=list)
    # Records at or below these were older than what was announced when the split joined or came back.
    excused_by_source: int = MIN_WATERMARK
    excused_by_spark: int = MIN_WATERMARK


class PlannedSource:
    """Splits with their records, the index over them, and the table from plan to plan.

    Every `plan` is compared with the naive planner's, and with that of an index built afresh with the splits in
    another order.
    """

    def __init__(self, rules: PlanningRules) -> None:
        self.rules = rules
        self._random = random.Random(0)
        self.naive: dict[str, NaiveSplit] = {}
        self.logs: dict[str, SplitLog] = {}
        self.indexed_from: dict[str, int] = {}
        self.index = self._new_index()
        self.combined = self.furthest = MIN_WATERMARK
        self.statuses: dict[str, SplitStatus] = {}
        self.no_more_splits = self.draining = False
        self.spark_max = NO_TIMESTAMP
        self.spark_drops: dict[tuple[str, int], int] = {}
        self.last: MicroBatchPlan | None = None

    # ---- what happens to a source ---------------------------------------------------------------------------------

    def join(self, split_id: str) -> None:
        self.naive[split_id] = NaiveSplit()
        self.logs[split_id] = SplitLog(excused_by_source=self.combined, excused_by_spark=self.spark_max)
        self.statuses[split_id] = SplitStatus.ACTIVE
        self.index.add_split(split_id)

    def append(self, split_id: str, blocks: Sequence[Block]) -> None:
        split, log = self.naive[split_id], self.logs[split_id]
        if blocks and self.statuses[split_id] is SplitStatus.IDLE and not split.unread:
            log.excused_by_source, log.excused_by_spark = self.combined, self.spark_max
        for block in blocks:
            begin = len(split.times)
            split.times += block.times
            log.announced += [self.combined] * len(block.times)
            split.block += [begin] * len(block.times)
            split.floor += [block.earliest] * len(block.times)
            log.blocks.append(block)
            self._index_block(self.index, split_id, block, 0)

    def restart(self) -> None:
        """Build the index anew from the positions, as a source does that starts from an offset."""
        self.indexed_from = {split_id: split.position for split_id, split in self.naive.items()}
        self.index = self._index(sorted(self.naive))
        for split in self.naive.values():
            position = split.position
            if 0 < position < len(split.times):
                # Looked into from now on: nobody remembers whether this block was begun.
                block = split.block[position]
                split.block = [position - 0.5 if begin == block else begin for begin in split.block]

    def forget_read(self) -> None:
        self.index.forget_before(self._positions())

    def leave_finished(self) -> None:
        gone = [split_id for split_id, status in self.statuses.items() if status is SplitStatus.FINISHED]
        self.index.remove(gone)
        for split_id in gone:
            del self.naive[split_id], self.logs[split_id], self.statuses[split_id]
            self.indexed_from.pop(split_id, None)

    # ---- planning -------------------------------------------------------------------------------------------------

    def plan(
        self, max_rows: int | None = None, group_limit: int = MAX_WATERMARK, horizon: int = MAX_WATERMARK
    ) -> MicroBatchPlan:
        expected = naive_plan(
            self.naive,
            self.combined,
            self.rules,
            max_rows=max_rows,
            group_limit=group_limit,
            horizon=horizon,
            no_more_splits=self.no_more_splits,
            draining=self.draining,
            furthest=self.furthest,
            advance=lambda split_id, times: _own_generator(times),
        )
        before = self.table()
        plan = self._plan(self.index, before, max_rows, group_limit, horizon)
        if self._has_one_plan(max_rows):
            again = self._plan(self._index(sorted(self.naive, reverse=True)), before, max_rows, group_limit, horizon)
            assert _shown(again) == _shown(plan), "same state, same data, splits in another order: another plan"
            self._check_half_scanned(before, plan, max_rows, group_limit, horizon)
        self._agrees(plan, expected)
        self._check(before, plan, expected, max_rows)
        self._read(before, plan)
        return plan

    def table(self) -> SplitTable:
        ids = sorted(self.naive)
        return SplitTable(
            split_ids=tuple(ids),
            positions=self._positions(),
            watermarks=np.array([self.naive[i].watermark for i in ids], np.int64),
            statuses=np.array([self.statuses[i] for i in ids], np.int8),
            combined=self.combined,
            furthest=self.kept_furthest,
        )

    @property
    def kept_furthest(self) -> int:
        """What has finished is remembered as long as it may still move the combined watermark."""
        return self.furthest if self.furthest > self.combined else MIN_WATERMARK

    @property
    def unread(self) -> int:
        return sum(len(split.unread) for split in self.naive.values())

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _new_index(self) -> EventTimeIndex:
        def load(split_id: str, start: int, stop: int) -> np.ndarray:
            return np.array(self.naive[split_id].times[start:stop], np.int64)

        return EventTimeIndex(load, cached_times=CACHED_TIMES)

    def _index(self, order: Sequence[str], blocks: Mapping[str, int] | None = None) -> EventTimeIndex:
        """What a source tells that starts from the positions of the last restart; of some splits so many blocks."""
        index = self._new_index()
        for split_id in order:
            start = self.indexed_from.get(split_id, 0)
            index.add_split(split_id, start)
            begin = 0
            for block in self.logs[split_id].blocks[: (blocks or {}).get(split_id)]:
                rest = min(len(block.times), begin + len(block.times) - start)
                if rest > 0:
                    self._index_block(index, split_id, block, len(block.times) - rest)
                begin += len(block.times)
        return index

    def _index_block(self, index: EventTimeIndex, split_id: str, block: Block, start: int) -> None:
        """Tell a block without its first records."""
        earliest = block.earliest if block.tells_earliest else NO_TIMESTAMP
        low = block.low if block.tells_earliest else NO_TIMESTAMP
        index.append(split_id, len(block.times) - start, low, block.high, earliest)

    @property
    def knows_unread(self) -> bool:
        """Whether the index knows the smallest event time of each block."""
        return True

    def _has_one_plan(self, max_rows: int | None) -> bool:
        """Whether the plan is the same whatever was planned before."""
        return True

    def _positions(self) -> np.ndarray:
        return np.array([self.naive[split_id].position for split_id in sorted(self.naive)], np.int64)

    def _check_half_scanned(
        self, before: SplitTable, plan: MicroBatchPlan, max_rows: int | None, group_limit: int, horizon: int
    ) -> None:
        """Where only the first blocks of some splits are known, the plan is the same, or awaits the scan."""
        scanned = {}
        for split_id, split in self.naive.items():
            ends = list(accumulate(len(block.times) for block in self.logs[split_id].blocks))
            n = self._random.randint(bisect_left(ends, split.position) + (split.position > 0), len(ends))
            if n < len(ends) and self._random.random() < 0.8:
                scanned[split_id] = n
        if not scanned:
            return
        index = self._index(sorted(self.naive), scanned)
        half = self._plan(index, before, max_rows, group_limit, horizon, unscanned=scanned.keys())
        conditions = self._conditions(before, max_rows, group_limit, horizon, scanned.keys())
        if awaits_scan(before, index, self.rules, conditions) and self.rules.lateness == "none":
            assert half.awaits_scan, "by the bounds of blocks it awaits the scan, and by event times it does not"
        if not half.awaits_scan:
            assert _shown(half)[1:4] == _shown(plan)[1:4], "what is scanned later changes what is read"
            assert _shown(half)[5:] == _shown(plan)[5:], "what is scanned later changes the bound, or what is late"
            assert half.after.combined == before.combined, "what is not scanned holds the watermark"
            assert before.combined <= plan.after.combined

    def _plan(
        self,
        index: EventTimeIndex,
        before: SplitTable,
        max_rows: int | None,
        group_limit: int,
        horizon: int,
        unscanned: Collection[str] = (),
    ) -> MicroBatchPlan:
        conditions = self._conditions(before, max_rows, group_limit, horizon, unscanned)

        def advance(split_id: str, start: int, stop: int) -> int:
            times = index.times_between(split_id, start, stop)
            return _own_generator(times[times > NO_TIMESTAMP].tolist())

        return plan_micro_batch(before, index, self.rules, conditions, advance)

    def _conditions(
        self, before: SplitTable, max_rows: int | None, group_limit: int, horizon: int, unscanned: Collection[str]
    ) -> PlanConditions:
        naive = {split_id: self.naive[split_id] for split_id in before.split_ids}
        return PlanConditions(
            max_rows=max_rows,
            group_limit_us=group_limit,
            horizon_us=horizon,
            idle=np.array([split.idle and i not in unscanned for i, split in naive.items()], np.bool_),
            complete=np.array([split.complete and i not in unscanned for i, split in naive.items()], np.bool_),
            unscanned=np.array([i in unscanned for i in naive], np.bool_) if unscanned else None,
            no_more_splits=self.no_more_splits,
            draining=self.draining,
        )

    def _agrees(self, plan: MicroBatchPlan, expected: NaivePlan) -> None:
        ids = plan.after.split_ids
        planned = {
            "ends": dict(zip(ids, plan.after.positions.tolist(), strict=True)),
            "watermarks": dict(zip(ids, plan.after.watermarks.tolist(), strict=True)),
            "statuses": dict(zip(ids, map(SplitStatus, plan.after.statuses.tolist()), strict=True)),
            "late": dict(zip(ids, plan.late.tolist(), strict=True)),
            "combined": plan.after.combined,
            "bound": plan.bound_us,
            "limited_by": plan.limited_by,
        }
        assert planned == {name: getattr(expected, name) for name in planned}

    def _check(self, before: SplitTable, plan: MicroBatchPlan, expected: NaivePlan, max_rows: int | None) -> None:
        """What must hold of every micro-batch, whatever planned it."""
        after = plan.after
        assert after.combined >= before.combined
        assert (after.positions >= before.positions).all()
        assert plan.rows == (after.positions - before.positions).sum()
        assert max_rows is None or plan.rows <= max_rows
        heads = [split.unread[0] for split in self.naive.values() if split.unread]
        if any(time <= expected.alignment_limit for time in heads):
            assert plan.rows > 0, "something could be read, and nothing is"
        nearest = min(heads, default=MIN_WATERMARK)
        assert plan.bound_us <= max(expected.alignment_limit, nearest), "drift, and not over a gap"
        for split_id, end in zip(after.split_ids, after.positions.tolist(), strict=True):
            split, log = self.naive[split_id], self.logs[split_id]
            assert end <= len(split.times)
            assert all(time <= plan.bound_us for time in split.times[split.position : end])
            if end < len(split.times):
                # Only records of the very first event time are ever shared out.
                shared = plan.rows == max_rows and nearest == plan.bound_us
                assert split.times[end] > plan.bound_us or shared, "a split is not cut where the others are"
            if self.rules.out_of_orderness_us is not None:
                for position in range(split.position, end):
                    if self._on_time(split, position) and split.times[position] > log.excused_by_source:
                        assert split.times[position] > before.combined, "on time by its split, and late"
            if self.rules.lateness == "none" and self.knows_unread and after.combined > before.combined:
                unread = [time for time in split.times[end:] if time != NO_TIMESTAMP]
                assert all(time > after.combined for time in unread), "visible, and announced as past"
                # What came from behind the watermark that was announced already is late; nothing else is.
                came = zip(split.times[split.position : end], log.announced[split.position : end], strict=True)
                assert all(time > before.combined or time <= announced for time, announced in came)
        check_kept_times(self.index)

    def _on_time(self, split: NaiveSplit, position: int) -> bool:
        """Whether a record is later than the watermark that all before it in its split gave."""
        bound = self.rules.out_of_orderness_us
        assert bound is not None
        earlier = [time for time in split.times[:position] if time != NO_TIMESTAMP]
        time = split.times[position]
        return time != NO_TIMESTAMP and (not earlier or time >= max(earlier) - bound)

    def _read(self, before: SplitTable, plan: MicroBatchPlan) -> None:
        batch_max = self.spark_max
        for slot, split_id in enumerate(plan.after.split_ids):
            split = self.naive[split_id]
            end = int(plan.after.positions[slot])
            for position in range(split.position, end):
                if self.rules.out_of_orderness_us is not None and self._on_time(split, position):
                    self._remember_delay_needed(split_id, split.times[position])
                batch_max = max(batch_max, split.times[position])
            split.position = end
            split.watermark = int(plan.after.watermarks[slot])
            self.statuses[split_id] = SplitStatus(int(plan.after.statuses[slot]))
        self.spark_max = batch_max
        self.combined = plan.after.combined
        finished = plan.after.statuses == SplitStatus.FINISHED
        self.furthest = max(self.furthest, int(plan.after.watermarks[finished].max(initial=MIN_WATERMARK)))
        assert plan.after.furthest == self.kept_furthest
        self.last = plan

    def _remember_delay_needed(self, split_id: str, time: int) -> None:
        """Keep what `spark_loses` asks: an on-time record, and the largest event time of all batches before its own."""
        if self.spark_max != NO_TIMESTAMP:
            key = (split_id, time)
            self.spark_drops[key] = max(self.spark_drops.get(key, NO_TIMESTAMP), self.spark_max)

    def spark_loses(self, delay_ms: int, *, per_row: bool) -> list[tuple[str, int]]:
        """On-time records read so far that Spark would drop with this delay, as (split, event time).

        Windows of one millisecond end soonest and are dropped first. Not counted are records that were older than
        Spark's watermark already when their split joined, or came back from idleness.
        """
        lost = []
        for (split_id, time), earlier_max in self.spark_drops.items():
            excused = self.logs[split_id].excused_by_spark
            watermark_ms = earlier_max // 1000 - delay_ms
            already = excused != NO_TIMESTAMP and _dropped(time, excused // 1000 - delay_ms, per_row)
            if _dropped(time, watermark_ms, per_row) and not already:
                lost.append((split_id, time))
        return lost


def _dropped(time: int, watermark_ms: int, per_row: bool) -> bool:
    return time <= watermark_ms * 1000 if per_row else time // 1000 + 1 <= watermark_ms


def _own_generator(times: list[int]) -> int:
    """A generator whose watermarks nobody can foretell: tens, rounded down."""
    return clamp(max(times) // 10 * 10) if times else MIN_WATERMARK


def _shown(plan: MicroBatchPlan) -> tuple[object, ...]:
    after = plan.after
    return (
        after.split_ids,
        after.positions.tolist(),
        after.watermarks.tolist(),
        after.statuses.tolist(),
        after.combined,
        plan.bound_us,
        plan.limited_by,
        plan.rows,
        plan.late.tolist(),
    )

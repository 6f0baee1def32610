"""Random walks over `SplitWatermarks` beside a model that keeps a dict and computes everything anew."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from alignment.combine import SplitStatus, SplitWatermarks
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK
from tests.examples import examples

ACTIVE, PAUSED, IDLE, FINISHED = SplitStatus

SPLIT_IDS = st.sampled_from("abcdef")
WATERMARKS = st.integers(-3, 12) | st.sampled_from([MIN_WATERMARK, MAX_WATERMARK])


class NaiveSplits:
    """What the rules say, without a thought for speed."""

    def __init__(self, bounded: bool) -> None:
        self.bounded = bounded
        self.table: dict[str, tuple[int, SplitStatus]] = {}
        self.taken_away: set[str] = set()
        self.had_splits = self.had_finished = self.no_more_splits = False
        self.combined = MIN_WATERMARK

    def counting(self) -> dict[str, int]:
        return {split_id: w for split_id, (w, status) in self.table.items() if status in (ACTIVE, PAUSED)}

    def candidate(self) -> int:
        if self.counting():
            return min(self.counting().values())
        idle = [w for w, status in self.table.values() if status is IDLE]
        if idle:
            return max(idle)
        ended = self.bounded and self.no_more_splits and self.had_finished and not self.taken_away
        return MAX_WATERMARK if ended else MIN_WATERMARK

    def set(self, split_id: str, watermark: int, status: SplitStatus) -> None:
        self.table[split_id] = (watermark, status)
        self.had_splits = True
        self.had_finished |= status is FINISHED
        self.taken_away.discard(split_id)

    def set_status(self, split_id: str, status: SplitStatus, allowed_from: set[SplitStatus]) -> None:
        watermark, before = self.table[split_id]
        if before in allowed_from:
            self.set(split_id, watermark, status)

    def remove(self, split_id: str) -> None:
        if self.table.pop(split_id)[1] is not FINISHED and self.bounded:
            self.taken_away.add(split_id)


class SplitWatermarksWalk(RuleBasedStateMachine):
    @initialize(bounded=st.booleans())
    def start(self, bounded: bool) -> None:
        self.splits = SplitWatermarks(bounded)
        self.naive = NaiveSplits(bounded)
        self.block = self.splits.together()
        self.in_block = False

    def settle(self) -> None:
        if not self.in_block:
            self.naive.combined = max(self.naive.combined, self.naive.candidate())

    def a_split(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.naive.table)))

    @rule(split_id=SPLIT_IDS, initial=WATERMARKS)
    def register(self, split_id: str, initial: int) -> None:
        if split_id not in self.naive.table:
            self.splits.register(split_id, initial)
            self.naive.set(split_id, initial, ACTIVE)
            self.settle()

    @precondition(lambda self: self.naive.table)
    @rule(data=st.data())
    def unregister(self, data: st.DataObject) -> None:
        split_id = self.a_split(data)
        self.splits.unregister(split_id)
        self.naive.remove(split_id)
        self.settle()

    @precondition(lambda self: self.naive.table)
    @rule(data=st.data(), watermark=WATERMARKS)
    def update(self, data: st.DataObject, watermark: int) -> None:
        split_id = self.a_split(data)
        self.splits.update(split_id, watermark)
        before, status = self.naive.table[split_id]
        self.naive.set(split_id, max(before, watermark), ACTIVE if status is IDLE else status)
        self.settle()

    @precondition(lambda self: self.naive.table)
    @rule(data=st.data(), status=st.sampled_from(SplitStatus))
    def mark(self, data: st.DataObject, status: SplitStatus) -> None:
        split_id = self.a_split(data)
        if status is ACTIVE:
            self.splits.mark_active(split_id)
            self.naive.set_status(split_id, ACTIVE, {ACTIVE, PAUSED, IDLE})
        elif status is PAUSED:
            self.splits.mark_paused(split_id)
            self.naive.set_status(split_id, PAUSED, {ACTIVE})
        elif status is IDLE:
            self.splits.mark_idle(split_id)
            self.naive.set_status(split_id, IDLE, {ACTIVE})
        else:
            self.splits.mark_finished(split_id)
            self.naive.set_status(split_id, FINISHED, set(SplitStatus))
        self.settle()

    @rule()
    def no_more_splits(self) -> None:
        self.splits.no_more_splits()
        self.naive.no_more_splits = True
        self.settle()

    @rule()
    def open_or_close_a_block(self) -> None:
        if self.in_block:
            self.in_block = False
            self.block.__exit__(None, None, None)
            self.settle()
        else:
            self.block = self.splits.together()
            self.block.__enter__()
            self.in_block = True

    @invariant()
    def agrees_with_the_model(self) -> None:
        if not hasattr(self, "splits"):
            return
        self.splits._check()
        assert self.splits.combined == self.naive.combined
        assert self.splits.is_idle == (self.naive.had_splits and not self.naive.counting())
        assert {s: (self.splits.watermark(s), self.splits.status(s)) for s in self.splits} == self.naive.table
        slowest = min(self.naive.counting().values(), default=None)
        held = sorted(split_id for split_id, w in self.naive.counting().items() if w == slowest)
        assert list(self.splits.holding_back()) == held


TestSplitWatermarksAgreeWithTheNaiveModel = SplitWatermarksWalk.TestCase
TestSplitWatermarksAgreeWithTheNaiveModel.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)

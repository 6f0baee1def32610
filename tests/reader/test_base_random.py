"""The base reader against a naive model, with the fetchers' steps in the hands of hypothesis: a failure shrinks."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from streaming_source.api import BlockEmitter, InputStatus, RecordBlock, SourceReaderContext, SplitState
from streaming_source.reader import (
    FixedSizeSplitFetcherManager,
    PerSplitFetcherManager,
    SingleThreadFetcherManager,
    SourceReaderBase,
    SplitFetcher,
)
from tests.examples import examples
from tests.reader.numbers import SCHEMA, NumberSplitReader, Output, Readers, Split

STOP = 7
IDS = st.sampled_from("abcd")
MANAGERS = {
    "one": SingleThreadFetcherManager,
    "two": FixedSizeSplitFetcherManager,
    "per split": PerSplitFetcherManager,
}


def stepped(kind: str, capacity: int, per_fetch: int) -> Any:
    """A manager whose fetchers have no threads: the test runs them step by step."""

    class Stepped(MANAGERS[kind]):  # type: ignore[misc]
        def _create_fetcher(self, key: Hashable) -> SplitFetcher[Split, RecordBlock]:
            fetcher = super()._create_fetcher(key)
            fetcher.start = lambda: None  # type: ignore[method-assign]
            fetcher.join = lambda timeout_s: True  # type: ignore[method-assign]
            return fetcher

    arguments = (2,) if kind == "two" else ()
    return Stepped(Readers(lambda: NumberSplitReader(per_fetch)), *arguments, queue_capacity=capacity)


class ReaderMachine(RuleBasedStateMachine):
    """Four splits of seven numbers each."""

    @initialize(kind=st.sampled_from(sorted(MANAGERS)), capacity=st.integers(1, 3), per_fetch=st.integers(1, 3))
    def begin(self, kind: str, capacity: int, per_fetch: int) -> None:
        machine = self

        class Reader(SourceReaderBase[Split, RecordBlock]):
            def on_split_finished(self, finished: Mapping[str, SplitState[Split]]) -> None:
                for split_id, state in finished.items():
                    machine.ended(split_id, state.to_split())

        self.manager = stepped(kind, capacity, per_fetch)
        self.reader = Reader(self.manager, BlockEmitter(), SourceReaderContext(SCHEMA))
        self.output = Output()
        # The naive model: what is read, and what each split has still to bring.
        self.is_read: set[str] = set()
        self.unread = {split_id: Split(split_id, 0, STOP) for split_id in "abcd"}

    def ended(self, split_id: str, split: Split) -> None:
        self.is_read.discard(split_id)
        if split.position < STOP:
            self.unread[split_id] = split

    @rule(split_ids=st.sets(IDS))
    def add(self, split_ids: set[str]) -> None:
        added = [self.unread.pop(split_id) for split_id in sorted(split_ids & self.unread.keys())]
        ids = {split.split_id for split in added}
        self.output.released = [split_id for split_id in self.output.released if split_id not in ids]
        self.is_read |= ids
        self.reader.add_splits(added)

    @rule(splits=st.sets(IDS, min_size=1))
    def remove(self, splits: set[str]) -> None:
        self.manager.remove_splits(sorted(splits & self.is_read))

    @rule(number=st.integers(0, 3), times=st.integers(1, 4), woken=st.booleans())
    def step(self, number: int, times: int, woken: bool) -> None:
        fetchers = list(self.manager._live.values())
        if fetchers:
            for _ in range(times):
                self._step(fetchers[number % len(fetchers)], woken)

    def _step(self, fetcher: SplitFetcher[Split, RecordBlock], woken: bool = False) -> None:
        has_work = fetcher._changes or fetcher._left or fetcher._fetched
        if not (has_work or fetcher._assigned):
            return
        if len(self.manager.queue) == self.manager.queue._capacity:
            # Nobody else would ever make room: the put must give up.
            self.manager.queue.wake_up(fetcher.fetcher_id)
        fetcher._woken = woken
        fetcher.run_once()

    @rule(times=st.integers(1, 6))
    def poll(self, times: int) -> None:
        for _ in range(times):
            before = len(self.output.emitted)
            status = self.reader.poll_next(self.output)
            emitted = {split_id for split_id, _ in self.output.emitted[before:]}
            assert status is not InputStatus.END_OF_INPUT
            assert len(emitted) <= 1

    @invariant()
    def a_snapshot_is_that_of_what_was_emitted(self) -> None:
        if hasattr(self, "reader"):
            snapshot = {split.split_id: split.position for split in self.reader.snapshot_state()}
            assert snapshot == {split_id: len(self.output.of(split_id)) for split_id in self.is_read}

    @invariant()
    def every_split_comes_in_its_order(self) -> None:
        if hasattr(self, "output"):
            for split_id in "abcd":
                assert self.output.of(split_id) == list(range(len(self.output.of(split_id))))

    @invariant()
    def whoever_waits_will_be_told(self) -> None:
        """Where the queue has something, the future that the reader would wait for is done."""
        if hasattr(self, "reader") and len(self.manager.queue):
            assert self.reader.is_available().done()

    def teardown(self) -> None:
        if not hasattr(self, "reader"):
            return
        for _ in range(500):
            self.add(set(self.unread))
            for fetcher in list(self.manager._live.values()):
                self._step(fetcher)
            self.reader.poll_next(self.output)
            if not (self.unread or self.is_read):
                break
        self.reader.notify_no_more_splits()
        for _ in range(50):
            for fetcher in list(self.manager._live.values()):
                self._step(fetcher)
            if self.reader.poll_next(self.output) is InputStatus.END_OF_INPUT:
                break
        else:
            raise AssertionError("no end of input")
        self.reader.close()
        for split_id in "abcd":
            assert self.output.of(split_id) == list(range(STOP))
        assert sorted(self.output.released) == list("abcd")


TestReader = ReaderMachine.TestCase
TestReader.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)

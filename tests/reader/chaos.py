"""One random run of a reader over split readers that are slow, block, fail and finish, while splits come and go.

The driver is the reader's thread. Between polls it adds, removes and wakes at random. When there is
nothing to poll it waits for the reader's future, and lets whoever blocks go on: if neither happens, that is a deadlock.
"""

from __future__ import annotations

import faulthandler
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future

import pyarrow as pa

from streaming_source.api import (
    BlockEmitter,
    InputStatus,
    RecordBlock,
    RecordEvaluator,
    RecordsBySplits,
    RecordsWithSplitIds,
    SourceReaderContext,
    SplitReader,
    SplitsAddition,
    SplitsChange,
    SplitState,
)
from streaming_source.reader import (
    FixedSizeSplitFetcherManager,
    PerSplitFetcherManager,
    SingleThreadFetcherManager,
    SourceReaderBase,
    SplitFetcherManager,
)
from tests.reader.numbers import SCHEMA, Output, Split, block

DEADLOCK_S = 30.0
SPACING = 1000


class InjectedError(Exception):
    """What a chaotic split reader fails with."""


class Switchboard:
    """Where those who block wait, and the driver finds them."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._blocked: list[Callable[[], None]] = []

    def block(self, release: Callable[[], None]) -> None:
        with self.changed:
            self._blocked.append(release)
            self.changed.notify_all()

    def release(self, chance: random.Random) -> None:
        with self.changed:
            release = self._blocked.pop(chance.randrange(len(self._blocked)))
        release()

    def wait_for(self, future: Future[None], chance: random.Random) -> None:
        """Return when the future is done; meanwhile let the blocked go on, one after another."""
        future.add_done_callback(lambda _: self._notify())
        while not future.done():
            with self.changed:
                if not self.changed.wait_for(lambda: future.done() or self._blocked, DEADLOCK_S):
                    faulthandler.dump_traceback(sys.stderr)
                    raise AssertionError("deadlock: the reader waits, and nobody blocks")
                is_blocked = bool(self._blocked)
            if not future.done() and is_blocked:
                self.release(chance)

    def _notify(self) -> None:
        with self.changed:
            self.changed.notify_all()


class ChaoticSplitReader(SplitReader[Split]):
    """Fetches now this, now that."""

    def __init__(self, seed: int, board: Switchboard, fails_after: int | None) -> None:
        self._chance = random.Random(seed)
        self._board = board
        self._fails_after = fails_after
        self._splits: dict[str, Split] = {}
        self._go_on = threading.Event()
        self.closed = 0

    def handle_splits_changes(self, change: SplitsChange[Split]) -> None:
        for split in change.splits:
            if isinstance(change, SplitsAddition):
                self._splits[split.split_id] = split
            else:
                del self._splits[split.split_id]

    def fetch(self) -> RecordsWithSplitIds[RecordBlock]:
        chance = self._chance
        if self._fails_after is not None:
            self._fails_after -= 1
            if self._fails_after < 0:
                raise InjectedError
        kind = chance.random()
        if kind < 0.1:
            self._board.block(self._go_on.set)
            assert self._go_on.wait(2 * DEADLOCK_S), "nobody woke or released the fetch"
            self._go_on.clear()
            return RecordsBySplits() if chance.random() < 0.5 else self._records()
        if kind < 0.2:
            time.sleep(0)
        elif kind < 0.25:
            return RecordsBySplits()
        return self._records()

    def wake_up(self) -> None:
        self._go_on.set()

    def close(self) -> None:
        self.closed += 1

    def _records(self) -> RecordsWithSplitIds[RecordBlock]:
        elements: dict[str, list[RecordBlock]] = {}
        finished = set()
        ready = list(self._splits)
        for split_id in self._chance.sample(ready, self._chance.randint(0, len(ready))):
            split = self._splits[split_id]
            assert split.stop is not None
            position = split.position
            blocks = elements[split_id] = []
            for _ in range(self._chance.randint(0, 3)):
                stop = min(position + self._chance.randint(1, 4), split.stop)
                if stop > position:
                    blocks.append(block(position, stop))
                position = stop
            self._splits[split_id] = Split(split_id, position, split.stop)
            if position == split.stop and self._chance.random() < 0.7:
                finished.add(split_id)
                del self._splits[split_id]
        return RecordsBySplits(elements, finished)


class EndsAt(RecordEvaluator):
    """One number is the end of its split."""

    def __init__(self, number: int) -> None:
        self._number = number

    def end_of_stream(self, batch: pa.RecordBatch) -> int | None:
        first = batch.column(0)[0].as_py()
        return self._number - first if first <= self._number < first + batch.num_rows else None


class ChaoticReader(SourceReaderBase[Split, RecordBlock]):
    """Notes how its splits ended."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.ended: dict[str, Split] = {}

    def on_split_finished(self, finished: Mapping[str, SplitState[Split]]) -> None:
        assert not finished.keys() & self.ended.keys()
        self.ended.update((split_id, state.to_split()) for split_id, state in finished.items())


class Run:
    """Everything that one seed decides."""

    def __init__(self, seed: int) -> None:
        chance = self.chance = random.Random(seed)
        self.board = Switchboard()
        self.output = Output()
        self.split_readers: list[ChaoticSplitReader] = []
        self.fails = chance.random() < 0.1
        # Disjoint numbers, so that one of them can be the end of its split.
        starts = range(0, SPACING * chance.randint(1, 5), SPACING)
        self.splits = {str(n): Split(str(n), start, start + chance.randint(0, 25)) for n, start in enumerate(starts)}
        self.expected = {s.split_id: list(range(s.position, s.stop or 0)) for s in self.splits.values()}
        end = None
        if chance.random() < 0.2:
            ended = chance.choice(list(self.splits.values()))
            number = ended.position + chance.randrange(20)
            self.expected[ended.split_id] = [n for n in self.expected[ended.split_id] if n < number]
            end = EndsAt(number)
        self.unread = dict(self.splits)
        self.manager = self._manager()
        self.reader = ChaoticReader(
            self.manager,
            BlockEmitter(),
            SourceReaderContext(SCHEMA),
            end_of_stream=end,
            close_timeout_s=DEADLOCK_S,
        )

    def _manager(self) -> SplitFetcherManager[Split, RecordBlock]:
        capacity = self.chance.randint(1, 3)
        kind = self.chance.choice(["single", "fixed", "per split"])

        def supplier() -> ChaoticSplitReader:
            fails_after = self.chance.randint(0, 6) if self.fails else None
            self.split_readers.append(ChaoticSplitReader(self.chance.randrange(2**32), self.board, fails_after))
            return self.split_readers[-1]

        if kind == "single":
            return SingleThreadFetcherManager(supplier, queue_capacity=capacity)
        if kind == "fixed":
            return FixedSizeSplitFetcherManager(supplier, self.chance.randint(1, 3), queue_capacity=capacity)
        return PerSplitFetcherManager(supplier, queue_capacity=capacity)

    def go(self) -> None:
        """Run to the end, or to the injected failure, and check everything."""
        try:
            self.reader.start()
            for _ in range(self.chance.randint(0, 60)):
                self._disturb()
                self._poll()
            self._take_back()
            self._add(list(self.unread))
            while self.reader.snapshot_state() or self.reader._dropped:
                if self._poll() is InputStatus.NOTHING_AVAILABLE and (
                    self.reader.snapshot_state() or self.reader._dropped
                ):
                    self.board.wait_for(self.reader.is_available(), self.chance)
                self._take_back()
                self._add(list(self.unread))
            self.reader.notify_no_more_splits()
            while (status := self._poll()) is not InputStatus.END_OF_INPUT:
                if status is InputStatus.NOTHING_AVAILABLE:
                    self.board.wait_for(self.reader.is_available(), self.chance)
            for split_id, numbers in self.expected.items():
                assert self.output.of(split_id) == numbers, f"split {split_id!r} of {self.splits}"
        except InjectedError:
            assert self.fails
            for split_id, numbers in self.expected.items():
                assert self.output.of(split_id) == numbers[: len(self.output.of(split_id))]
        finally:
            self.reader.close()
        assert not any(fetcher._thread.is_alive() for fetcher in self.manager._started)
        assert all(split_reader.closed == 1 for split_reader in self.split_readers)
        assert not len(self.manager.queue)

    def _is_reading(self) -> bool:
        return bool(self.reader.snapshot_state() or self.reader._dropped)

    def _poll(self) -> InputStatus:
        before = len(self.output.emitted)
        status = self.reader.poll_next(self.output)
        emitted = {split_id for split_id, _ in self.output.emitted[before:]}
        assert len(emitted) <= 1
        for split in self.reader.snapshot_state():
            start = self.splits[split.split_id].position
            assert split.position == start + len(self.output.of(split.split_id))
        return status

    def _disturb(self) -> None:
        chance = self.chance
        kind = chance.random()
        some = chance.sample(list(self.splits), chance.randint(0, len(self.splits)))
        if kind < 0.15:
            self._add([split_id for split_id in some if split_id in self.unread])
        elif kind < 0.2:
            self.manager.remove_splits(some[:1])
        elif kind < 0.3 and self.manager._started:
            chance.choice(self.manager._started).wake_up()
        self._take_back()

    def _add(self, split_ids: list[str]) -> None:
        if split_ids:
            self.output.released = [split_id for split_id in self.output.released if split_id not in split_ids]
            self.reader.add_splits([self.unread.pop(split_id) for split_id in split_ids])

    def _take_back(self) -> None:
        """Splits that ended before their end were removed: they are to be added again, from where they are."""
        for split_id, split in self.reader.ended.items():
            numbers = self.expected[split_id]
            if len(self.output.of(split_id)) < len(numbers):
                self.unread[split_id] = split
        self.reader.ended.clear()


def run(seed: int) -> None:
    """One run; whatever goes wrong is told with the seed."""
    try:
        Run(seed).go()
    except BaseException as error:
        raise AssertionError(f"seed {seed}: {error!r}; repeat with tests.reader.chaos.run({seed})") from error

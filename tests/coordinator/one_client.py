"""A source whose splits are all fetched with one client, as a broker's are; and what a pause means there."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from streaming_source.api import (
    Boundedness,
    DiscoveringSource,
    Fetching,
    RecordBlock,
    RecordsBySplits,
    RecordSplit,
    SourceReaderContext,
    SplitReader,
    SplitsAddition,
    SplitsChange,
)
from streaming_source.testing import FakeClock

SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC"))])


@dataclass
class OneClient(DiscoveringSource):
    """Logs of event times in microseconds; a record's position is its place in its log.

    Attributes
    ----------
    logs
        Event times by split. More may be appended.
    policy
        Of which splits a fetch brings something: of `all`, of the `next` in turn, or only of the `first` that has some.
    blocks
        A fetch that would bring nothing waits for `wake_up`.
    """

    logs: dict[str, list[int]]
    policy: str = "next"
    rows_per_fetch: int = 3
    can_pause: bool = True
    blocks: bool = False

    name = "one_client"
    identity = ""
    boundedness = Boundedness.CONTINUOUS_UNBOUNDED
    fetching = Fetching.single_thread()
    has_source_timestamps = True

    def __post_init__(self) -> None:
        self.clock = FakeClock()
        self.clients: list[ClientReader] = []

    def schema(self) -> pa.Schema:
        return SCHEMA

    def discover(self) -> list[RecordSplit]:
        return [RecordSplit(name) for name in self.logs]

    def create_split_reader(self, context: SourceReaderContext) -> SplitReader[RecordSplit]:
        self.clients.append((PausingReader if self.can_pause else ClientReader)(self))
        return self.clients[-1]


class ClientReader(SplitReader[RecordSplit]):
    """Checks that it is used as its interface says."""

    def __init__(self, source: OneClient) -> None:
        self.source = source
        self.splits: dict[str, RecordSplit] = {}
        self.paused: set[str] = set()
        self.woken = threading.Event()
        self.is_blocked = threading.Event()
        self.closed = 0

    def handle_splits_changes(self, change: SplitsChange[RecordSplit]) -> None:
        for split in change.splits:
            if isinstance(change, SplitsAddition):
                assert split.split_id not in self.splits
                self.splits[split.split_id] = split
            else:
                del self.splits[split.split_id]
                self.paused.discard(split.split_id)

    def fetch(self) -> RecordsBySplits[RecordBlock]:
        assert not self.closed
        assert self.splits.keys() - self.paused, "nothing is to be fetched"
        blocks: dict[str, list[RecordBlock]] = {}
        for name in [name for name in self.splits if name not in self.paused]:
            split, log = self.splits[name], self.source.logs[name]
            position = split.position
            until = len(log) if split.stop is None else min(split.stop, len(log))
            times = log[position : min(position + self.source.rows_per_fetch, until)]
            if not times:
                continue
            if self.source.policy != "first":
                # To the end of the line.
                del self.splits[name]
            self.splits[name] = split.at(position + len(times))
            array = pa.array(times)
            batch = pa.record_batch([array.cast(SCHEMA.field(0).type)], schema=SCHEMA)
            blocks[name] = [RecordBlock(batch, position, array.to_numpy())]
            if self.source.policy != "all":
                break
        self.on_fetched(blocks)
        if not blocks and self.source.blocks:
            self.is_blocked.set()
            assert self.woken.wait(20), "nobody woke the fetch"
            self.is_blocked.clear()
            self.woken.clear()
        return RecordsBySplits(blocks)

    def on_fetched(self, blocks: dict[str, list[RecordBlock]]) -> None:
        """For a test to see what a fetch brings."""

    def wake_up(self) -> None:
        self.woken.set()

    def close(self) -> None:
        self.closed += 1


class PausingReader(ClientReader):
    def pause_or_resume_splits(self, to_pause: Sequence[RecordSplit], to_resume: Sequence[RecordSplit]) -> Any:
        paused, resumed = {s.split_id for s in to_pause}, {s.split_id for s in to_resume}
        assert paused <= self.splits.keys() - self.paused
        assert resumed <= self.splits.keys() & self.paused
        self.paused = (self.paused | paused) - resumed

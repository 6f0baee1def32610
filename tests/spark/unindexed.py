"""A source of a user's own that knows nothing of event times ahead of reading: each split a file of numbers."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streaming_source.api import (
    BlockEmitter,
    Boundedness,
    DataclassEventSerializer,
    DiscoveringSource,
    DiscoveringSplitEnumerator,
    InputStatus,
    ReaderOutput,
    RecordBlock,
    RecordEmitter,
    RecordsBySplits,
    RecordSplit,
    SourceEvent,
    SourceOutput,
    SourceReaderContext,
    SplitReader,
    SplitsAddition,
    SplitsChange,
    SplitState,
)
from streaming_source.reader import SourceReaderBase, create_fetcher_manager

SCHEMA = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("k", pa.int64()), ("s", pa.string())])
_ROWS_PER_FETCH = 5_000
LOW_WATER_US = 3_000_000


def append_log(folder: Path, split: str, times: npt.NDArray[np.int64]) -> None:
    """Event times of the next records of a split."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / split).open("ab") as file:
        file.write(times.astype("<i8").tobytes())


def write_logs(folder: Path, logs: Mapping[str, npt.NDArray[np.int64]]) -> None:
    for split, times in logs.items():
        append_log(folder, split, times)


@dataclass(frozen=True)
class UnindexedLogs(DiscoveringSource):
    """Files to which event times are appended, 8 bytes each."""

    path: str
    bounded: bool = False

    name = "unindexed_logs"
    discovery_interval_seconds = 0.2

    @property
    def identity(self) -> str:
        return self.path

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED if self.bounded else Boundedness.CONTINUOUS_UNBOUNDED

    def schema(self) -> pa.Schema:
        return SCHEMA

    def discover(self) -> list[RecordSplit]:
        names = sorted(path.name for path in Path(self.path).iterdir())
        return [RecordSplit(name, stop=self._end(name) if self.bounded else None) for name in names]

    def end_positions(self, splits: Sequence[RecordSplit]) -> Sequence[int]:
        return [split.stop if split.stop is not None else self._end(split.split_id) for split in splits]

    def create_split_reader(self, context: SourceReaderContext) -> SplitReader[RecordSplit]:
        return _LogReader(Path(self.path), context)

    def _end(self, name: str) -> int:
        return (Path(self.path) / name).stat().st_size // 8


class _LogReader(SplitReader[RecordSplit]):
    def __init__(self, folder: Path, context: SourceReaderContext) -> None:
        self._folder = folder
        self._schema = context.schema
        self._splits: dict[str, RecordSplit] = {}
        self._seen_end: dict[str, int] = {}
        self._paused: set[str] = set()

    def handle_splits_changes(self, change: SplitsChange[RecordSplit]) -> None:
        for split in change.splits:
            if isinstance(change, SplitsAddition):
                self._splits[split.split_id] = split
            else:
                self._splits.pop(split.split_id, None)
                self._paused.discard(split.split_id)

    def pause_or_resume_splits(self, to_pause: Sequence[RecordSplit], to_resume: Sequence[RecordSplit]) -> None:
        self._paused.update(split.split_id for split in to_pause)
        self._paused.difference_update(split.split_id for split in to_resume)

    def fetch(self) -> RecordsBySplits[RecordBlock]:
        """Of one split, the next that has something."""
        for name in [name for name in self._splits if name not in self._paused]:
            records, brought = self._fetch(name)
            if brought:
                return records
        return RecordsBySplits()

    def _fetch(self, name: str) -> tuple[RecordsBySplits[RecordBlock], bool]:
        split = self._splits.pop(name)
        rows = _ROWS_PER_FETCH if split.stop is None else min(_ROWS_PER_FETCH, split.stop - split.position)
        times = np.fromfile(self._folder / name, "<i8", rows, offset=split.position * 8).astype(np.int64)
        blocks = {name: [self._block(split, times)]} if times.size else {}
        after = split.at(split.position + times.size)
        if split.stop is not None and after.position >= split.stop:
            return RecordsBySplits(blocks, finished_splits=[name]), True
        self._splits[name] = after
        return RecordsBySplits(blocks), bool(blocks)

    def _block(self, split: RecordSplit, times: npt.NDArray[np.int64]) -> RecordBlock:
        positions = np.arange(split.position, split.position + times.size)
        columns = {
            "ts": pa.array(times).cast(SCHEMA.field("ts").type),
            "k": pa.array(positions),
            "s": pa.array([self._name(split)] * times.size),
        }
        batch = pa.record_batch([columns[name] for name in self._schema.names], schema=self._schema)
        return RecordBlock(batch, split.position)

    def _name(self, split: RecordSplit) -> str:
        return split.split_id

    def wake_up(self) -> None:
        """No fetch blocks."""

    def close(self) -> None:
        """Nothing is kept open."""


class EndingLogs(UnindexedLogs):
    """The same, but a split is not told where to stop: its `SplitReader` finishes it where its file ends."""

    name = "ending_logs"

    def discover(self) -> list[RecordSplit]:
        return [RecordSplit(split.split_id) for split in super().discover()]

    def end_positions(self, splits: Sequence[RecordSplit]) -> Sequence[int]:
        return [self._end(split.split_id) for split in splits]

    def create_split_reader(self, context: SourceReaderContext) -> SplitReader[RecordSplit]:
        return _EndingLogReader(Path(self.path), context)


class _EndingLogReader(_LogReader):
    def _fetch(self, name: str) -> tuple[RecordsBySplits[RecordBlock], bool]:
        records, brought = super()._fetch(name)
        split = self._splits.get(name)
        if split is None or split.position < (self._folder / name).stat().st_size // 8:
            return records, brought
        # By a fetch of its own, as one that has to come to the end to see it.
        if split.position == self._seen_end.get(name):
            del self._splits[name]
            return RecordsBySplits(finished_splits=[name]), True
        self._seen_end[name] = split.position
        return records, brought


class DiaryLogs(UnindexedLogs):
    """The same, but the client that reads ahead writes down which splits are its own, and which are paused."""

    name = "diary_logs"

    def create_split_reader(self, context: SourceReaderContext) -> SplitReader[RecordSplit]:
        return _DiaryReader(Path(self.path), context)


class _DiaryReader(_LogReader):
    def handle_splits_changes(self, change: SplitsChange[RecordSplit]) -> None:
        super().handle_splits_changes(change)
        self._note("add" if isinstance(change, SplitsAddition) else "remove", change.splits)

    def pause_or_resume_splits(self, to_pause: Sequence[RecordSplit], to_resume: Sequence[RecordSplit]) -> None:
        super().pause_or_resume_splits(to_pause, to_resume)
        self._note("pause", to_pause)
        self._note("resume", to_resume)

    def _note(self, kind: str, splits: Sequence[RecordSplit]) -> None:
        names = [split.split_id for split in splits if split.stop is None]
        if names:
            with self._folder.with_name("diary").open("a") as file:
                file.write(" ".join([f"{os.getpid()}-{id(self)}", kind, *names]) + "\n")


class UnpausableLogs(UnindexedLogs):
    """The same, but its `SplitReader` cannot pause."""

    name = "unpausable_logs"

    def create_split_reader(self, context: SourceReaderContext) -> SplitReader[RecordSplit]:
        return _UnpausableLogReader(Path(self.path), context)


class _UnpausableLogReader(_LogReader):
    pause_or_resume_splits = SplitReader.pause_or_resume_splits


class LowWaterLogs(UnindexedLogs):
    """The same, by an author who emits behind each block how far the log had come when its last record was written."""

    name = "low_water_logs"

    def create_record_emitter(self, context: SourceReaderContext) -> RecordEmitter[RecordBlock, RecordSplit]:
        return _LowWaterEmitter()


class _LowWaterEmitter(BlockEmitter):
    def emit_record(self, element: RecordBlock, output: SourceOutput, split_state: SplitState[Any]) -> None:
        super().emit_record(element, output, split_state)
        output.emit_watermark(element.batch.column("ts").cast(pa.int64())[-1].as_py() - LOW_WATER_US)


class MainOutputLogs(UnindexedLogs):
    """The same, but its reader emits all records into its own output, and none into that of a split."""

    name = "main_output_logs"

    def create_reader(self, context: SourceReaderContext) -> _MainOutputReader:
        manager = create_fetcher_manager(self.fetching, lambda: self.create_split_reader(context))
        return _MainOutputReader(manager, self.create_record_emitter(context), context)


class _MainOutputReader(SourceReaderBase[Any, RecordSplit]):
    def poll_next(self, output: ReaderOutput) -> InputStatus:
        return super().poll_next(_MainOutput(output))


@dataclass
class _MainOutput(ReaderOutput):
    main: ReaderOutput

    def create_output_for_split(self, split_id: str) -> SourceOutput:
        return self.main

    def release_output_for_split(self, split_id: str) -> None:
        """None was made."""


@dataclass(frozen=True)
class Question(SourceEvent):
    """A reader asks for a word."""


@dataclass(frozen=True)
class Answer(SourceEvent):
    """The enumerator gives it."""

    word: str


class AskingLogs(UnindexedLogs):
    """The same, but each reader asks its enumerator what to write into column `s`, and waits for the answer."""

    name = "asking_logs"
    source_event_serializer = DataclassEventSerializer(Question, Answer)

    def create_enumerator(self, context: Any) -> Any:
        return _AnsweringEnumerator(context, self.discover, period_seconds=None)

    def restore_enumerator(self, context: Any, checkpoint: Any) -> Any:
        return _AnsweringEnumerator(context, self.discover, period_seconds=None, checkpoint=checkpoint)

    def create_reader(self, context: SourceReaderContext) -> _AskingReader:
        word: list[str] = []
        manager = create_fetcher_manager(self.fetching, lambda: _AskingLogReader(Path(self.path), context, word))
        return _AskingReader(manager, self.create_record_emitter(context), context, word)


class _AnsweringEnumerator(DiscoveringSplitEnumerator[RecordSplit]):
    def __init__(self, context: Any, *args: Any, **options: Any) -> None:
        super().__init__(context, *args, **options)
        self._answers_through = context

    def handle_source_event(self, subtask_id: int, event: SourceEvent) -> None:
        assert isinstance(event, Question)
        answer = Answer(f"the answer to reader {subtask_id}")
        self._answers_through.send_event_to_source_reader(subtask_id, answer)


class _AskingReader(SourceReaderBase[Any, RecordSplit]):
    def __init__(self, manager: Any, emitter: Any, context: SourceReaderContext, word: list[str]) -> None:
        super().__init__(manager, emitter, context)
        self._word = word

    def start(self) -> None:
        # In the planner nobody answers: it reads ahead without asking.
        self.context.send_source_event_to_coordinator(Question())
        super().start()

    def handle_source_events(self, event: SourceEvent) -> None:
        assert isinstance(event, Answer)
        self._word.append(event.word)


class _AskingLogReader(_LogReader):
    """Brings nothing before it was told the word."""

    def __init__(self, folder: Path, context: SourceReaderContext, word: list[str]) -> None:
        super().__init__(folder, context)
        self._word = word

    def fetch(self) -> RecordsBySplits[RecordBlock]:
        if not self._word:
            time.sleep(0.01)
            return RecordsBySplits()
        return super().fetch()

    def _name(self, split: RecordSplit) -> str:
        return self._word[0]

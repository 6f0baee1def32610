"""What one reader does in one micro-batch."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from alignment.events import RangeReport
from alignment.timestamps import NO_TIMESTAMP
from streaming_source.api import InputStatus, ReaderOutput, SourceEvent, SourceReader, SourceSplit
from streaming_source.testing.output import EmittedRecord

__all__ = ["ReadTask", "ReaderHook", "reports_of"]

ReaderHook: TypeAlias = Callable[[SourceReader[Any], int], None]
"""`(reader, number of the poll)`, called before each poll of a reader."""

_ENOUGH_POLLS: Final = 100_000


@dataclass(frozen=True, slots=True)
class ReadTask:
    """What one reader is given: the same when the task is repeated.

    Attributes
    ----------
    subtask_id
        Number of the reader.
    splits
        Its ranges, pickled, as they travel to executors.
    events
        From the enumerator.
    """

    subtask_id: int
    splits: bytes
    events: tuple[SourceEvent, ...]

    @classmethod
    def of(cls, subtask_id: int, splits: Sequence[SourceSplit], events: Sequence[SourceEvent]) -> ReadTask:
        """Of splits that are not pickled yet."""
        return cls(subtask_id, pickle.dumps(list(splits)), tuple(events))

    def ranges(self) -> list[SourceSplit]:
        """Its ranges."""
        ranges: list[SourceSplit] = pickle.loads(self.splits)
        return ranges

    def run(
        self,
        create_reader: Callable[[], SourceReader[Any]],
        output: ReaderOutput,
        hook: ReaderHook | None,
        wait_s: float,
    ) -> None:
        """Read the ranges, with a reader of its own for each further range of a split: readers know splits by ids.

        Parameters
        ----------
        create_reader
            Makes readers.
        output
            Where records go.
        hook
            Called before each poll.
        wait_s
            How long a reader may have nothing.

        Raises
        ------
        AssertionError
            If records that were planned do not come.
        """
        events, remaining = self.events, self.ranges()
        while remaining:
            now: dict[str, SourceSplit] = {}
            for split in remaining:
                now.setdefault(split.split_id, split)
            reader = create_reader()
            try:
                reader.add_splits(list(now.values()))
                reader.notify_no_more_splits()
                reader.start()
                for event in events:
                    reader.handle_source_events(event)
                _poll_to_the_end(reader, output, hook, wait_s)
            finally:
                reader.close()
            remaining, events = [split for split in remaining if split is not now[split.split_id]], ()


def reports_of(ranges: Sequence[SourceSplit], records: Sequence[EmittedRecord]) -> list[RangeReport]:
    """What a reader of these ranges reports of the records that it emitted, found record by record."""
    reports = []
    for split in ranges:
        stop = split.position if split.stop is None else split.stop
        read = [r.time_us for r in records if r.split_id == split.split_id and split.position <= r.position < stop]
        timed = [time_us for time_us in read if time_us != NO_TIMESTAMP]
        earliest, latest = min(timed, default=NO_TIMESTAMP), max(timed, default=NO_TIMESTAMP)
        reports.append(RangeReport(split.split_id, split.position, stop, earliest, latest))
    return reports


def _poll_to_the_end(reader: SourceReader[Any], output: ReaderOutput, hook: ReaderHook | None, wait_s: float) -> None:
    for poll in range(_ENOUGH_POLLS):
        if hook is not None:
            hook(reader, poll)
        status = reader.poll_next(output)
        if status is InputStatus.END_OF_INPUT:
            return
        if status is InputStatus.NOTHING_AVAILABLE:
            _wait_for(reader, wait_s)
    raise AssertionError(f"after {_ENOUGH_POLLS} polls the splits {_left(reader)} have not come to their end")


def _wait_for(reader: SourceReader[Any], wait_s: float) -> None:
    available = reader.is_available()
    try:
        available.result(wait_s)
    except TimeoutError:
        raise AssertionError(
            f"the reader waits for records of {_left(reader)} that were planned and do not come"
        ) from None


def _left(reader: SourceReader[Any]) -> list[str]:
    return [split.split_id for split in reader.snapshot_state()]

"""A twin of Spark: what it calls of Python sources in its order, and its rules of the watermark, in one process.

No JVM is there: a query takes milliseconds. `test_twin.py` holds the twin to Spark, on programs that are drawn.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import numpy as np
import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.types import StructType

from alignment import WatermarkStrategy
from alignment.watermarks import FAR_US
from streaming_source.api import Source
from streaming_source.coordinator.rules import EMITTED, FrameOptions
from streaming_source.spark.before_4_2 import ReadAllAvailable, ReaderBefore42, ReadLimit
from streaming_source.spark.datasource import AlignedDataSource
from streaming_source.spark.watermark_rows import OFFSET_US
from tests.spark.answers import Row, Rows, micros

__all__ = ["Batch", "DiedError", "Frame", "Twin", "frame", "plain_frame", "source_frame"]

MS = 1_000
Trigger = Literal["availableNow", "once", "processingTime"]


class DiedError(Exception):
    """The query was killed."""


# ---- frames ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Frame:
    """A streaming frame: what makes its data source in each process, and the delay of its watermark."""

    made: AlignedDataSource
    schema: StructType
    delay_ms: int

    @property
    def time(self) -> str:
        """The column of its event time."""
        return self.made.event_time_in(self.schema)


def frame(path: Path | str, format: str = "aligned_files", **options: Any) -> Frame:
    """What `read_stream(spark).format(...)` loads: with the exact watermark."""
    return _of_format(path, format, {"watermarkRows": EMITTED, **options}, OFFSET_US // MS)


def plain_frame(path: Path | str, delay_ms: int, format: str = "aligned_files", **options: Any) -> Frame:
    """What `spark.readStream` loads, with a watermark of Spark's own."""
    return _of_format(path, format, options, delay_ms)


def _of_format(path: Path | str, format: str, options: Mapping[str, Any], delay_ms: int) -> Frame:
    given = {"path": str(path), "eventTimeColumn": "ts"} | {name: str(value) for name, value in options.items()}
    made = AlignedDataSource.of_format(format, given)
    return Frame(made, made.schema(), delay_ms)


def source_frame(source: Source[Any, Any], strategy: WatermarkStrategy, **options: Any) -> Frame:
    """What `from_source` loads; options as it takes them, in snake_case."""
    made = AlignedDataSource(source, strategy, FrameOptions(watermark_rows=True, **options))
    return Frame(made, made.schema(), OFFSET_US // MS)


# ---- a query ---------------------------------------------------------------------------------------------------------


@dataclass
class Batch:
    """A micro-batch, as its progress shows it. `offsets` are the ends; `read` the tables of the frames, without marks.

    Its watermark is the one that it began with.
    """

    watermark_ms: int
    offsets: list[dict[str, Any]]
    starts: list[dict[str, Any]]
    read: list[pa.Table] = field(default_factory=list)


@dataclass
class _Kept:
    """What Spark has on disk: of each micro-batch its plan, and behind it the state and the next watermark."""

    planned: dict[int, Batch] = field(default_factory=dict)
    done: dict[int, tuple[Rows, int]] = field(default_factory=dict)
    sink: dict[int, list[Row]] = field(default_factory=dict)


class Twin:
    """A query over frames that is started and killed any number of times, into a sink that is exactly-once.

    Each `run` is of another process: the sources are pickled into the planner's, readers and partitions into those of
    tasks, and offsets are JSON. The logs of offsets and commits are written into `checkpoint`, as Spark writes them.
    """

    def __init__(self, checkpoint: Path, *frames: Frame, answer: Rows) -> None:
        self.checkpoint = checkpoint
        self.frames = frames
        self.answer = answer
        self.calls: list[str] = []
        """What was called of the sources in the last run, in order."""
        self._kept = _Kept()
        self._dies_at: int | None = None
        self._readers: list[Any] = []

    def run(
        self,
        trigger: Trigger = "availableNow",
        *,
        dies_at: int | None = None,
        no_data: bool = True,
        looks: int = 3,
        each: Callable[[Twin], None] | None = None,
    ) -> Twin:
        """Run until all is read, or the query dies before a call, by its number.

        A stream ends when so many looks have found nothing. `each` is called after each micro-batch. Without `no_data`
        Spark runs no micro-batch that only closes windows.
        """
        self.calls, self._dies_at = [], dies_at
        if not (known := self.checkpoint / "metadata").exists():
            self.checkpoint.mkdir(parents=True, exist_ok=True)
            known.write_text(json.dumps({"id": str(uuid4())}))
        self._readers = [_in_another_process(one) for one in self.frames]
        try:
            self._run(trigger, no_data, looks, each)
        finally:
            for reader in self._readers:
                reader.stop()
        return self

    def dies(self, at: int, trigger: Trigger = "availableNow") -> bool:
        """Run, and whether the query was killed before that call: if not, it had ended before."""
        try:
            self.run(trigger, dies_at=at)
        except DiedError:
            return True
        return False

    def forget_commit(self) -> int:
        """The driver died before it wrote that its last micro-batch was done; return the number of that one."""
        number = max(self._kept.done)
        del self._kept.done[number]
        (self.checkpoint / "commits" / str(number)).unlink()
        return number

    @property
    def rows(self) -> list[Row]:
        """What has come out so far, sorted."""
        return sorted(row for rows in self._kept.sink.values() for row in rows)

    @property
    def batches(self) -> list[Batch]:
        """The committed micro-batches, of all runs."""
        return [self._kept.planned[number] for number in sorted(self._kept.done)]

    @property
    def watermark_ms(self) -> int:
        """The watermark that follows from all that was read."""
        return self._kept.done[max(self._kept.done)][1] if self._kept.done else 0

    # ---- inside --------------------------------------------------------------------------------------------------

    def _run(self, trigger: Trigger, no_data: bool, looks: int, each: Callable[[Twin], None] | None) -> None:
        limits: list[ReadLimit] = []
        for source, reader in enumerate(self._readers):
            if trigger == "availableNow":
                self._call(source, "prepareForTriggerAvailableNow")
            limit = self._call(source, "getDefaultReadLimit")
            limits.append(ReadAllAvailable() if trigger == "once" else limit)
            assert not isinstance(reader, ReaderBefore42)
        kept = self._kept
        number = max(kept.planned, default=-1)
        watermark_ms = kept.planned[number].watermark_ms if kept.planned else 0
        marks_ms = [0] * len(self.frames)
        is_planned = number >= 0 and number not in kept.done
        if number in kept.done:
            watermark_ms = kept.done[number][1]
            number += 1
        number = max(number, 0)
        quiet, executed = 0, False
        while quiet < looks:
            if not is_planned:
                # A run that has executed nothing yet begins with records.
                batch = self._plan(number, limits, watermark_ms, closes=no_data and executed)
                if batch is None:
                    if trigger != "processingTime":
                        return
                    quiet += 1
                    continue
                self._write("offsets", number, batch)
                kept.planned[number] = batch
                if number:
                    for source, offset in enumerate(kept.planned[number - 1].offsets):
                        self._call(source, "commit", offset)
            is_planned, quiet, executed = False, 0, True
            batch = kept.planned[number]
            self._execute(number, batch, marks_ms)
            watermark_ms = kept.done[number][1]
            number += 1
            if each is not None:
                each(self)
            if trigger == "once":
                return

    def _plan(self, number: int, limits: Sequence[ReadLimit], watermark_ms: int, *, closes: bool) -> Batch | None:
        """The next micro-batch, which may be one that only `closes` windows; None if there is nothing to do."""
        before = self._kept.planned.get(number - 1)
        starts, ends = [], []
        for source, limit in enumerate(limits):
            start = self._call(source, "initialOffset") if before is None else before.offsets[source]
            starts.append(start)
            ends.append(self._call(source, "latestOffset", start, limit))
            self._call(source, "reportLatestOffset")
        closes &= before is not None and self.answer.has_state and watermark_ms > before.watermark_ms
        is_new = ends != (starts if before is None else before.offsets)
        return Batch(watermark_ms, ends, starts) if is_new or closes else None

    def _execute(self, number: int, batch: Batch, marks_ms: list[int]) -> None:
        kept, before = self._kept, self._kept.planned.get(number - 1)
        answer, latest_ms = deepcopy(kept.done[number - 1][0] if number else self.answer), list[int | None]()
        batch.read = []
        for source, one in enumerate(self.frames):
            start = batch.starts[source] if before is None else before.offsets[source]
            table = self._read(source, one, start, batch.offsets[source])
            times = np.array([t for t in micros(table[one.time]) if t is not None], np.int64)
            latest_ms.append(int(times.max()) // MS if len(times) else None)
            is_mark = np.array([t is not None and t >= FAR_US for t in micros(table[one.time])], bool)
            batch.read.append(table.filter(pa.array(~is_mark)))
        late_us = (before.watermark_ms if before is not None else 0) * MS
        out = answer.run(batch.read, [one.time for one in self.frames], late_us, batch.watermark_ms * MS)
        kept.sink[number] = out
        self._alive("sink")
        for source, (latest, one) in enumerate(zip(latest_ms, self.frames, strict=True)):
            if latest is not None:
                marks_ms[source] = max(marks_ms[source], latest - one.delay_ms)
        kept.done[number] = answer, max(batch.watermark_ms, min(marks_ms))
        self._write("commits", number, batch)

    def _read(self, source: int, one: Frame, start: dict[str, Any], end: dict[str, Any]) -> pa.Table:
        schema = self._readers[source].shaper.schema
        if start == end:
            return schema.empty_table()
        parts = self._call(source, "partitions", start, end)
        # A task has a reader of another process, which was made as the planner's was.
        task = pickle.loads(cloudpickle.dumps(_in_another_process(one)))  # type: ignore[no-untyped-call]
        read = []
        for part in parts:
            self._alive("read")
            read += list(task.read(pickle.loads(pickle.dumps(part))))
        return pa.Table.from_batches(read, schema)

    def _call(self, source: int, name: str, *arguments: Any) -> Any:
        """Call a reader as PySpark's runner does: offsets go and come as text."""
        self._alive(name if len(self.frames) == 1 else f"{name} {source}")
        found = getattr(self._readers[source], name)(*map(_as_text, arguments))
        return _as_text(found)

    def _alive(self, what: str) -> None:
        if len(self.calls) == self._dies_at:
            raise DiedError
        self.calls.append(what)

    def _write(self, log: str, number: int, batch: Batch) -> None:
        folder = self.checkpoint / log
        folder.mkdir(parents=True, exist_ok=True)
        planned = {"batchWatermarkMs": batch.watermark_ms, "batchTimestampMs": 1_700_000_000_000 + number, "conf": {}}
        lines = ["v1", json.dumps(planned), *map(json.dumps, batch.offsets)]
        if log == "commits":
            lines = ["v1", json.dumps({"nextBatchWatermarkMs": self._kept.done[number][1]})]
        part = folder / f".{number}.tmp"
        part.write_text("\n".join(lines))
        os.replace(part, folder / str(number))


def _as_text(value: Any) -> Any:
    return json.loads(json.dumps(value)) if isinstance(value, dict) else value


def _in_another_process(one: Frame) -> Any:
    """A reader, made of what was pickled where the frame was loaded."""
    made: AlignedDataSource = pickle.loads(cloudpickle.dumps(one.made))  # type: ignore[no-untyped-call]
    reader = made.stream_reader(StructType.fromJson(json.loads(one.schema.json())))
    return reader.reader if isinstance(reader, ReaderBefore42) else reader

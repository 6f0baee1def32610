"""A windowed query, the query that repairs it, and their targets, by the data source's own objects and without Spark.

Both die at any step. Each repair is compared with all records up to the positions that it names, one by one.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from alignment.event_time_range import Ranges, covering, covering_sessions
from streaming_source.spark.before_4_2 import ReadAllAvailable, ReadMaxRows
from streaming_source.spark.datasource import AlignedDataSource
from streaming_source.spark.late_reader import NOTE_COLUMN
from tests.spark.reading import SECOND, T0

Record = tuple[int, str, int]
"""Event time, key, value."""
Windows = dict[tuple[int, int, str], tuple[int, int]]
"""Start, end and key: count and sum."""


class Data(Protocol):
    """Where the records are, in any number of splits."""

    written: list[Record]

    def source(self, **options: Any) -> AlignedDataSource:
        """The data source of a format over them."""

    def put(self, split: str, records: list[Record]) -> None:
        """Add records to a split."""

    def records(self, batch: pa.RecordBatch) -> list[Record]:
        """The records of a batch of rows; those without a time are none."""

    def known_at(self, offset: Mapping[str, Any], read: list[Record]) -> list[Record]:
        """The records that a repair may have at an offset of a query that had `read` so many up to there."""


@dataclass(frozen=True)
class Window:
    """As `F.window` has it: windows of `size` seconds, one each `slide` seconds."""

    size: int
    slide: int

    @property
    def delay_us(self) -> int:
        return self.size * SECOND

    def of(self, time_us: int) -> list[tuple[int, int]]:
        """By going through the starts one by one."""
        last = time_us // (self.slide * SECOND) * self.slide * SECOND
        starts = range(last, time_us - self.size * SECOND, -self.slide * SECOND)
        return [(start, start + self.size * SECOND) for start in starts]

    def counted(self, records: Iterable[Record]) -> Windows:
        found: Windows = {}
        for time_us, key, value in records:
            for start, end in self.of(time_us):
                count, total = found.get((start, end, key), (0, 0))
                found[start, end, key] = count + 1, total + value
        return found

    def ranges(self, late: list[Record], read: Callable[[Ranges], list[Record]]) -> Ranges:
        spans = np.array([window[:2] for window in self.counted(late)], np.int64)
        return covering(spans[:, 0], spans[:, 1])


@dataclass(frozen=True)
class Session:
    """As `F.session_window` has it: a session ends `gap` seconds after its last record."""

    gap: int
    longest: int

    @property
    def delay_us(self) -> int:
        return self.longest * SECOND

    def counted(self, records: Iterable[Record]) -> Windows:
        found: Windows = {}
        last: dict[str, tuple[int, int, str]] = {}
        for time_us, key, value in sorted(records):
            start, count, total = time_us, 0, 0
            if key in last and time_us <= last[key][1]:
                start = last[key][0]
                count, total = found.pop(last[key])
            last[key] = start, time_us + self.gap * SECOND, key
            found[last[key]] = count + 1, total + value
        return found

    def ranges(self, late: list[Record], read: Callable[[Ranges], list[Record]]) -> Ranges:
        def sessions_in(ranges: Ranges) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
            spans = np.array([one[:2] for one in touched_by(late, self.counted(read(ranges)))], np.int64)
            return spans[:, 0], spans[:, 1]

        return covering_sessions(np.array([one[0] for one in late], np.int64), self.gap * SECOND, sessions_in)


def touched_by(records: list[Record], windows: Windows) -> Windows:
    """The windows that have one of these records."""
    return {
        (start, end, key): value
        for (start, end, key), value in windows.items()
        if any(start <= time_us < end and key == of for time_us, of, _ in records)
    }


WINDOWS: list[Window | Session] = [Window(10, 10), Window(20, 5), Window(60, 60), Session(4, 600)]


@dataclass
class Target:
    """Rows by window and key, replaced as by an upsert; which ones were repaired."""

    rows: Windows = field(default_factory=dict)
    repaired: set[tuple[int, int, str]] = field(default_factory=set)

    def repair(self, written: Windows) -> None:
        """Replace what lies within; of windows of one length that is the window itself."""
        for start, end, key in written:
            for other in [one for one in self.rows if one[2] == key and start <= one[0] and one[1] <= end]:
                del self.rows[other]
        self.rows |= written
        self.repaired |= written.keys()


class LiveQuery:
    """As Spark runs it: offsets are written down before a micro-batch is read, commits behind it."""

    def __init__(self, data: Data, window: Window | Session, folder: Path, **options: Any) -> None:
        self.data, self.window, self.target, self.checkpoint = data, window, Target(), folder / "cp"
        self.options = {"late": "route", "lateLocation": folder / "late", "watermarkRows": "true", **options}
        self._open: list[Record] = []
        self._all: dict[int, list[Record]] = {-1: []}
        """By micro-batch: all records up to it, late ones too."""
        self._reader: Any = None
        for log in ("offsets", "commits"):
            (self.checkpoint / log).mkdir(parents=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": "live"}))

    def all_up_to(self, batch: int) -> list[Record]:
        return self._all[batch]

    def die(self) -> None:
        if self._reader is not None:
            self._reader.stop()
        self._reader = None

    @property
    def reader(self) -> Any:
        if self._reader is None:
            source = self.data.source(**self.options)
            self._reader = source.stream_reader(source.schema())
        return self._reader

    def batches(self, log: str) -> list[int]:
        return sorted(int(path.name) for path in (self.checkpoint / log).iterdir())

    def _planned(self, batch: int) -> tuple[int, dict[str, Any]]:
        """The watermark of a micro-batch and its offset."""
        if batch < 0:
            return 0, self.reader.initialOffset()
        _, metadata, offset = (self.checkpoint / "offsets" / str(batch)).read_text().splitlines()
        return json.loads(metadata)["batchWatermarkMs"] * 1000, json.loads(offset)

    def run(self, max_rows: int, *, dies: str = "") -> bool:
        """One micro-batch: the one that was written down and not committed, or the next; whether there was one."""
        batch = max(self.batches("commits"), default=-1) + 1
        before_us, start = self._planned(batch - 1)
        if self.batches("offsets")[-1:] != [batch]:
            end = self.reader.latestOffset(start, ReadMaxRows(max_rows))
            watermark_us = max(before_us, min(start.get("watermark") or 0, 2**53) // 1000 * 1000)
            if end == start and watermark_us == before_us:
                return False
            metadata = json.dumps({"batchTimestampMs": 0, "batchWatermarkMs": watermark_us // 1000})
            (self.checkpoint / "offsets" / str(batch)).write_text(f"v1\n{metadata}\n{json.dumps(end)}")
        if dies == "planned":
            self.die()
            return True
        watermark_us, end = self._planned(batch)
        kept: list[Record] = []
        read: list[Record] = []
        for part in self.reader.partitions(start, end) if end != start else ():
            kept += [r for b in self.reader.read(part) for r in self.data.records(b)]
            read += [r for b in self.reader.read(replace(part, late="keep")) for r in self.data.records(b)]
        self._all[batch] = self._all[batch - 1] + read
        windows = self.window.counted(kept)
        assert all(end > before_us for _, end, _ in windows), "no kept record belongs to a window that was emitted"
        now = self.window.counted([*self._open, *kept])
        emitted = {window: value for window, value in now.items() if before_us < window[1] <= watermark_us}
        assert not emitted.keys() & self.target.repaired, "a repair is not undone"
        self.target.rows |= emitted
        if dies == "written":
            self.die()
            return True
        still_open = {window: value for window, value in now.items() if window[1] > watermark_us}
        self._open = [one for one in [*self._open, *kept] if touched_by([one], still_open)]
        (self.checkpoint / "commits" / str(batch)).write_text("v1\n{}")
        # Spark keeps two micro-batches at least.
        for log in ("offsets", "commits"):
            for old in self.batches(log)[:-2]:
                (self.checkpoint / log / str(old)).unlink()
        return True

    @property
    def closed_us(self) -> int:
        return self._planned(max(self.batches("commits"), default=-1))[0]


class RepairQuery:
    """The query of the repairs, from its own offset."""

    def __init__(self, live: LiveQuery) -> None:
        self.live, self.target = live, live.target
        self._reader: Any = None
        self._offset: dict[str, Any] | None = None
        self._planned: dict[str, Any] | None = None
        self._written: Windows | None = None
        self.rows_again = self.repairs = 0

    def die(self) -> None:
        if self._reader is not None:
            self._reader.stop()
        self._reader = None

    @property
    def reader(self) -> Any:
        if self._reader is None:
            live = self.live
            options = {"lateRecordsOf": live.checkpoint, "repairDelay": f"{live.window.delay_us} microseconds"}
            source = live.data.source(**live.options, **options)
            schema = StructType([*source.schema(), StructField(NOTE_COLUMN, StringType())])
            self._reader = source.stream_reader(schema)
        return self._reader

    def run(self, *, dies: str = "") -> bool:
        start = self.reader.initialOffset() if self._offset is None else self._offset
        if self._planned is None:
            end = self.reader.latestOffset(start, ReadAllAvailable())
            if end == start:
                return False
            self._planned = json.loads(json.dumps(end))
            if self._offset is not None:
                # Spark does so when the next micro-batch is written down.
                self.reader.commit(self._offset)
        if dies == "planned":
            self.die()
            return True
        batches = [b for part in self.reader.partitions(start, self._planned) for b in self.reader.read(part)]
        notes = [note for b in batches for note in b.column(NOTE_COLUMN).drop_null().to_pylist()]
        if notes:
            (note,) = notes
            late = [r for b in batches for r in self.live.data.records(b.drop_columns([NOTE_COLUMN]))]
            written = self._corrected(late, json.loads(note))
            assert self._written in (None, written), "the same micro-batch again writes the same"
            self.target.repair(written)
            if dies == "written":
                self._written = written
                self.die()
                return True
        self._offset, self._planned, self._written = self._planned, None, None
        return True

    def _corrected(self, late: list[Record], note: Mapping[str, Any]) -> Windows:
        live, (offset,) = self.live, note["offsets"]
        assert late, "a micro-batch with a note has late records"

        def read(ranges: Ranges) -> list[Record]:
            source = live.data.source(**live.options, repairRead=json.dumps({"ranges": ranges, "offset": offset}))
            reader = source.batch_reader(source.schema())
            again = [r for part in reader.partitions() for b in reader.read(part) for r in live.data.records(b)]
            self.rows_again += len(again)
            return again

        self.repairs += 1
        corrected = touched_by(late, live.window.counted(read(live.window.ranges(late, read))))
        # The rule: closed windows alone, and of these all records up to the positions that are named, no more.
        assert max(end for _, end, _ in corrected) <= note["closed_us"], "no open window is written"
        expected = live.window.counted(live.data.known_at(offset, live.all_up_to(note["batch"])))
        assert corrected == touched_by(late, expected)
        return corrected


def check_seed(
    seed: int, data: Data, folder: Path, window: Window | Session, steps: int = 12, **options: Any
) -> tuple[int, RepairQuery]:
    """A random workload: skew, disorder beyond the bound, splits that come back, deaths of both queries.

    Once quiet the target is the batch over all records. Returns how many windows are in it, and the query of the
    repairs.
    """
    chance = random.Random(seed)
    live = LiveQuery(data, window, folder, maxOutOfOrderness="3 seconds", idleTimeout="1 ms", **options)
    repairs = RepairQuery(live)
    clocks = {split: chance.uniform(0, 60) for split in "abc"}
    deaths = ["", "", "", "planned", "written"]
    splits = ["a", *(split for split in "bc" if chance.random() < 0.8)]
    for _ in range(steps):
        split = chance.choice(splits)
        records = []
        for _ in range(chance.randrange(1, 12)):
            clocks[split] += chance.choice([0.1, 0.5, 1, 1, 5, 20])
            behind = chance.choice([0, 0, 0, 2, 10, 40, 150]) * chance.random()
            time_us = T0 + round(max(clocks[split] - behind, 0) * 1000) * 1000
            records.append((time_us, chance.choice("xyz"), chance.randrange(100)))
        data.put(split, records)
        for _ in range(chance.randrange(3)):
            live.run(chance.randrange(1, 20), dies=chance.choice(deaths))
        if chance.random() < 0.5:
            repairs.run(dies=chance.choice(deaths))
        if chance.random() < 0.2:
            (live if chance.random() < 0.5 else repairs).die()
    far_us = T0 + 10_000 * SECOND
    data.put("z", [(far_us, "x", 0)])
    live.die()
    quiet(live)
    # One that starts anew looks at once: a slow look that found nothing is not repeated for a while.
    repairs.die()
    while repairs.run(dies=chance.choice(deaths)):
        pass
    expected = window.counted(data.written)
    expected = {one: value for one, value in expected.items() if one[1] <= far_us}
    assert {one: live.target.rows.get(one) for one in expected} == expected, f"seed {seed}"
    assert live.target.rows.keys() == expected.keys(), f"seed {seed}"
    live.die()
    repairs.die()
    return len(expected), repairs


def quiet(live: LiveQuery) -> None:
    """Micro-batches until all is read, and all splits but the one that is far ahead are idle."""
    deadline = time.monotonic() + 60
    while live.closed_us < T0 + 9_000 * SECOND:
        if not live.run(1000):
            time.sleep(0.002)
        assert time.monotonic() < deadline, "the last windows never close"


def every(seconds: range) -> list[Record]:
    return [(T0 + second * SECOND, "x", second) for second in seconds]


def with_late_records(root: Path, data: Data, **options: Any) -> RepairQuery:
    """The repairs of a query that has read a split, and then late records of the same minutes from another one."""
    live = LiveQuery(data, Window(60, 60), root, maxOutOfOrderness="3 seconds", idleTimeout="1 ms", **options)
    for first in range(0, 300, 60):
        data.put("a", every(range(first, first + 60)))
        while live.run(1000):
            pass
    data.put("b", every(range(30, 120, 7)))
    data.put("z", every(range(10_000, 10_001)))
    live.die()
    quiet(live)
    return RepairQuery(live)

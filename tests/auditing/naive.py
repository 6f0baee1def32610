"""A naive model of Spark's watermark: a query run row by row, window by window, and the checkpoint that it leaves."""

from __future__ import annotations

import json
import random
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

SECOND = 1_000_000
T0 = 1_700_000_040_000_000
COMPACTED_EVERY = 10
NO_OFFSET = "-"

Time = int | None


@dataclass
class Query:
    """What a query computes. `size_us` is None where it drops by the time of a row."""

    delay_ms: int
    size_us: int | None = None
    slide_us: int = 0
    start_us: int = 0
    name: str = "stateStoreSave"
    mode: str = "append"

    @property
    def window(self) -> str | None:
        if self.size_us is None:
            return None
        return f"{self.size_us} us, {self.slide_us} us, {self.start_us} us"

    def windows(self, t: int) -> Iterator[int]:
        """The ends of all windows that a time is in, by trying them one after another."""
        assert self.size_us is not None
        begin = (t - self.start_us) // self.slide_us * self.slide_us + self.start_us
        while begin + self.size_us > t:
            yield begin + self.size_us
            begin -= self.slide_us


@dataclass
class Run:
    """Micro-batches as Spark would run them: of each its files and watermarks; and what became of each row."""

    batches: list[list[str]] = field(default_factory=list)
    watermarks_ms: list[int] = field(default_factory=list)
    next_ms: list[int] = field(default_factory=list)
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    emitted: Counter[int] = field(default_factory=Counter)
    """Rows by the end of their window, or by their time: what the sink has."""


def run(query: Query, batches: Sequence[Sequence[tuple[str, Sequence[Time]]]]) -> Run:
    """Run a query over micro-batches of files, one after another."""
    found = Run()
    watermark_ms, before_ms = 0, 0
    state: Counter[int] = Counter()
    fates: list[tuple[str, list[int] | None, bool]] = []
    for batch in batches:
        latest_ms = None
        for name, times in batch:
            counts = found.counts.setdefault(name, Counter())
            for t in times:
                counts["read"] += 1
                if t is None:
                    waits = query.name == "stateStoreSave" and query.mode == "append"
                    counts["without_time" if query.size_us else "open" if waits else "emitted"] += 1
                    continue
                latest_ms = max(t // 1000, t // 1000 if latest_ms is None else latest_ms)
                ends = [t] if query.size_us is None else list(query.windows(t))
                kept = [end for end in ends if query.mode == "complete" or end > before_ms * 1000]
                counts["windows_read"] += len(ends)
                counts["windows_dropped"] += len(ends) - len(kept)
                state.update(kept)
                fates.append((name, kept, len(kept) < len(ends)))
        if query.mode == "append":
            for end in [end for end in state if end <= watermark_ms * 1000]:
                found.emitted[end] += state.pop(end)
        found.batches.append([name for name, _ in batch])
        found.watermarks_ms.append(watermark_ms)
        next_ms = watermark_ms if latest_ms is None else max(watermark_ms, latest_ms - query.delay_ms)
        found.next_ms.append(next_ms)
        before_ms, watermark_ms = watermark_ms, next_ms
    waits = query.mode == "append" and query.name == "stateStoreSave"
    if query.mode != "append":
        found.emitted = state
    for name, kept, is_dropped in fates:
        assert kept is not None
        is_open = waits and any(end in state for end in kept)
        found.counts[name]["dropped" if is_dropped else "open" if is_open else "emitted"] += 1
        found.counts[name]["windows_open"] += sum(end in state for end in kept) if waits else 0
        found.counts[name]["windows_emitted"] += sum(end not in state for end in kept) if waits else len(kept)
    return found


# ---- what it leaves --------------------------------------------------------------------------------------------------


def write_files(root: Path, batches: Sequence[Sequence[tuple[str, Sequence[Time]]]], group: int = 50) -> None:
    """One Parquet file each, with a column `ts`."""
    for batch in batches:
        for name, times in batch:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            table = pa.table({"ts": pa.array(times, pa.timestamp("us", "UTC"))})
            pq.write_table(table, root / name, row_group_size=group)


def write_checkpoint(path: Path, root: Path, query: Query, done: Run) -> None:
    """As Spark 4 writes it: offset log, commit log, the log of a file source, and metadata of the state."""
    for folder in ("offsets", "commits", "sources/0"):
        (path / folder).mkdir(parents=True)
    (path / "metadata").write_text('{"id":"5f1c"}')
    logged, last = 0, -1
    entries: list[list[str]] = []
    for number, names in enumerate(done.batches):
        if names:
            last += 1
            uris = [f"file://{root}/{name}" for name in names]
            entries.append([json.dumps({"path": uri, "timestamp": 0, "batchId": last}) for uri in uris])
            logged = last
            _log_files(path / "sources/0", last, entries)
        conf = {"spark.sql.streaming.multipleWatermarkPolicy": "min"}
        meta = {"batchWatermarkMs": done.watermarks_ms[number], "batchTimestampMs": 1, "conf": conf}
        offset = json.dumps({"logOffset": logged}) if entries else NO_OFFSET
        (path / f"offsets/{number}").write_text("\n".join(["v1", json.dumps(meta), offset]))
        commit = {"nextBatchWatermarkMs": done.next_ms[number]}
        (path / f"commits/{number}").write_text("\n".join(["v1", json.dumps(commit)]))
    write_state(path, query)


def _log_files(folder: Path, last: int, entries: list[list[str]]) -> None:
    if (last + 1) % COMPACTED_EVERY:
        (folder / str(last)).write_text("\n".join(["v1", *entries[last]]))
        return
    (folder / f"{last}.compact").write_text("\n".join(["v1", *chain.from_iterable(entries)]))
    for number in range(last):
        (folder / str(number)).unlink(missing_ok=True)


def write_state(path: Path, query: Query, number: int = 0) -> None:
    """The metadata of one stateful operator, and the schema of its state."""
    metadata = {"spark.watermarkDelayMs": query.delay_ms}
    kind: Any = "timestamp"
    if query.size_us is not None:
        bounds = [{"name": name, "type": "timestamp", "nullable": True, "metadata": {}} for name in ("start", "end")]
        kind, metadata = {"type": "struct", "fields": bounds}, {"spark.timeWindow": True, **metadata}
    key = {"name": "window" if query.size_us else "ts", "type": kind, "nullable": True, "metadata": metadata}
    folder = path / f"state/{number}"
    (folder / "_metadata").mkdir(parents=True)
    (folder / "0/_metadata").mkdir(parents=True)
    operator = {"operatorInfo": {"operatorId": number, "operatorName": query.name}}
    operator["stateStoreInfo"] = [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 2}]  # type: ignore[assignment]
    (folder / "_metadata/metadata").write_text("v1\n" + json.dumps(operator))
    schema = _utf("v2")
    for fields in ([key], [{"name": "count", "type": "long", "nullable": True, "metadata": {}}]):
        schema += struct.pack(">i", 1) + _utf(json.dumps({"type": "struct", "fields": fields}, separators=(",", ":")))
    (folder / "0/_metadata/schema").write_bytes(schema)


def _utf(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


# ---- drawn -----------------------------------------------------------------------------------------------------------


def drawn_query(draw: random.Random) -> Query:
    """A window, a delay and a mode."""
    delay_ms = draw.choice([0, 1, 500, 5_000, 60_000, 600_000])
    kind = draw.choice(["tumbling", "tumbling", "sliding", "time", "dedupe", "dedupeWithinWatermark"])
    mode = draw.choice(["append", "append", "update", "complete"]) if kind in ("tumbling", "sliding") else "append"
    if kind == "time":
        return Query(delay_ms)
    if kind.startswith("dedupe"):
        return Query(delay_ms, name=kind)
    size_us = draw.choice([7, 60, 300, 3600]) * SECOND + draw.choice([0, 0, 1])
    slide_us = size_us if kind == "tumbling" else max(size_us // draw.choice([2, 3, 4, 5]), 1) + draw.choice([0, 1])
    return Query(delay_ms, size_us, slide_us, draw.choice([0, 0, 1_500_000, -SECOND]) % size_us, mode=mode)


def drawn_batches(draw: random.Random) -> list[list[tuple[str, list[Time]]]]:
    """Skewed directories, whose files are read so many a trigger; now and then a micro-batch without data."""
    files: list[tuple[str, list[Time]]] = []
    skew_us = draw.choice([0, 10, 1_000, 100_000]) * SECOND
    for directory in range(draw.randint(1, 4)):
        at_us, step_us = T0 + draw.randint(0, skew_us), draw.choice([1_000, SECOND, 17 * SECOND])
        disorder_us = draw.choice([0, 1, 3_000, 40 * SECOND])
        for part in range(draw.randint(1, 6)):
            times: list[Time] = []
            for _ in range(draw.randint(0, 60)):
                at_us += draw.randint(0, step_us)
                times.append(None if draw.random() < 0.02 else at_us - draw.randint(0, disorder_us))
            files.append((f"d={directory}/part {part}.parquet", times))
    if draw.random() < 0.5:
        draw.shuffle(files)
    each = draw.randint(1, 5)
    batches = [files[begin : begin + each] for begin in range(0, len(files), each)]
    for _ in range(draw.randint(0, 3)):
        batches.insert(draw.randint(0, len(batches)), [])
    return batches

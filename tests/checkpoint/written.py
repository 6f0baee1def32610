"""A checkpoint as Spark writes it, micro-batch by micro-batch, for a query that is not run."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path

from tests.auditing.naive import Query, write_state

__all__ = ["STOCK", "WrittenCheckpoint", "ours"]

STOCK = '{"logOffset":0}'
SECOND = 1_000_000


def ours(watermark_us: int | None, column: str | None = "ts", source: str = "aligned_files") -> str:
    """An offset of a source of this library."""
    fixed = {} if column is None else {"eventTimeColumn": column}
    return json.dumps(
        {"v": 1, "source": source, "id": "1", "n": 1, "watermark": watermark_us, "splits": [], "fixed": fixed}
    )


@dataclass
class WrittenCheckpoint:
    """The checkpoint of the query `id`. Its logs are of these versions; it has windows if `window_s` is given."""

    path: Path
    id: str = "5f1c"
    window_s: int | None = None
    offset_log: str = "v1"
    commit_log: str = "v1"
    keeps: int = 100
    planned: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        for folder in ("offsets", "commits"):
            (self.path / folder).mkdir(parents=True)
        (self.path / "metadata").write_text(json.dumps({"id": self.id}))
        if self.window_s is not None:
            size_us = self.window_s * SECOND
            write_state(self.path, Query(0, size_us, size_us))

    def __str__(self) -> str:
        return str(self.path)

    def plan(self, batch: int, watermark_us: int = 0, *offsets: str, planned_ms: int = 1) -> None:
        """Write the offsets of a micro-batch, and remove those that Spark would not keep."""
        meta = {"batchWatermarkMs": watermark_us // 1000, "batchTimestampMs": planned_ms, "conf": {}}
        lines = offsets or (STOCK,)
        if self.offset_log == "v2":
            lines = tuple(f"{number}:{line}" for number, line in enumerate(lines))
        (self.path / f"offsets/{batch}").write_text("\n".join([self.offset_log, json.dumps(meta), *lines]))
        self.planned.append(batch)
        for old in self.planned[: -self.keeps]:
            (self.path / f"offsets/{old}").unlink()
            (self.path / f"commits/{old}").unlink(missing_ok=True)
        del self.planned[: -self.keeps]

    def keep(self, batch: int, *windows_s: tuple[int, int], kind: str = "delta", partition: int = 0) -> None:
        """Write the state of windows behind a micro-batch, as Spark's default store does: starts and ends."""
        entries = b""
        for start_s, end_s in windows_s:
            key = struct.pack("<qqqqq", 0, 16 << 32 | 24, 0, start_s * SECOND, end_s * SECOND)
            entries += struct.pack(">i", len(key)) + key + struct.pack(">iq", 8, 1)
        entries += struct.pack(">i", -1)
        block = struct.pack("<8sBiii", b"LZ4Block", 0x10, len(entries), len(entries), 0) + entries
        folder = self.path / f"state/0/{partition}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{batch + 1}.{kind}").write_bytes(block + struct.pack("<8sBiii", b"LZ4Block", 0x10, 0, 0, 0))

    def commit(self, batch: int, next_us: int = 0) -> None:
        """Write that a micro-batch is done, and the watermark that follows from it."""
        entry = {"nextBatchWatermarkMs": next_us // 1000}
        (self.path / f"commits/{batch}").write_text(f"{self.commit_log}\n{json.dumps(entry)}")

"""Over how many mutated footers of Parquet pyarrow ends the process: `python -m tests.data_files.footers 4000`."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from alignment.timestamps import FieldTimestampAssigner
from streaming_source.connectors.files import ParquetFormat
from streaming_source.data_files.file import DataFile, FileRows, StoredFile
from streaming_source.exceptions import AlignmentError

__all__ = ["outcomes"]

_SCHEMA: Final = pa.schema([("t", pa.timestamp("us")), ("n", pa.int64()), ("s", pa.string())])
_ROWS: Final = 20


def _content() -> bytes:
    rows = {
        "t": [i * 1_000_003 for i in range(_ROWS)],
        "n": range(_ROWS),
        "s": ["xy"[: i % 3] or None for i in range(_ROWS)],
    }
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({k: list(v) for k, v in rows.items()}, schema=_SCHEMA), sink, row_group_size=9)
    return bytes(sink.getvalue())


def _mutated(content: bytes, seed: int) -> bytes:
    """One to three changes of a single byte each in the footer; its length and the magic stay."""
    chance = random.Random(seed)
    begin = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    footer = bytearray(content[begin:-8])
    for _ in range(chance.randint(1, 3)):
        footer[chance.randrange(len(footer))] = chance.randrange(256)
    return content[:begin] + footer + content[-8:]


def _read(path: Path) -> str:
    """`rows`, `refused`, or `other rows`: what became of a file whose rows are 0 to 19."""
    stored, assigner = StoredFile(fs.LocalFileSystem(), DataFile(str(path))), FieldTimestampAssigner("t")
    try:
        found = ParquetFormat().describe(stored, _SCHEMA, assigner, "auto")
        rows = int(found.rows.sum())
        blocks = list(ParquetFormat().read_rows(FileRows(stored, 0, rows), _SCHEMA))
    except AlignmentError:
        return "refused"
    return "rows" if sum(block.batch.num_rows for block in blocks) == rows else "other rows"


def _work(first: int, stop: int) -> None:
    content = _content()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "f.parquet"
        for seed in range(first, stop):
            path.write_bytes(_mutated(content, seed))
            sys.stdout.write(f"{seed} ")
            sys.stdout.flush()
            sys.stdout.write(f"{_read(path)}\n")
            sys.stdout.flush()


def outcomes(count: int) -> Counter[str]:
    """What became of so many footers, each read by a process that may end: its signal, or what `_read` says."""
    found: Counter[str] = Counter()
    first = 0
    while first < count:
        done = subprocess.run(
            [sys.executable, "-m", "tests.data_files.footers", str(first), str(count)], capture_output=True, text=True
        )
        lines = [line.split(" ", 1) for line in done.stdout.splitlines()]
        found.update(what for _, what in lines if what)
        if done.returncode == 0:
            break
        if done.returncode > 0:
            raise AssertionError(done.stderr)
        found[signal.Signals(-done.returncode).name] += 1
        first = int(lines[-1][0]) + 1
    return found


if __name__ == "__main__":
    if len(sys.argv) == 3:
        _work(int(sys.argv[1]), int(sys.argv[2]))
    else:
        sys.stdout.write(f"{dict(outcomes(int(sys.argv[1])))}\n")

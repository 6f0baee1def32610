"""What must be true after faults: each row once, no window wrong, no watermark back, batches the same, nothing left."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from streaming_source.coordinator.group_location import member_from_json
from tests.spark.support import SECOND

__all__ = [
    "batches_of_sink",
    "check_output",
    "check_reads",
    "check_watermarks",
    "files_of_sink",
    "last_commit",
    "members_of_groups",
    "processes_of",
    "wrong_rows",
]

WINDOW_US = 10 * SECOND
RUN = "FAULTS_RUN"
"""Environment variable that all processes of a run inherit."""


def check_output(
    out: Path,
    sink: str,
    shape: str,
    times: Mapping[str, list[int]],
    positions: Mapping[str, list[int]],
    watermark: int,
) -> int:
    """That a sink holds exactly what a batch over all of the input gives, but for windows that the last watermark has
    not closed; how many rows that is.
    """
    found = sorted(tuple(row.values()) for row in _sink_rows(out, sink).to_pylist())
    wanted = sorted(_rows(times, positions) if shape == "rows" else _windows(times, positions, watermark))
    assert found == wanted, f"{out.name}: {wrong_rows(found, wanted)}"
    return len(found)


def wrong_rows(found: list[Any], wanted: list[Any]) -> str:
    """What is missing, too many, or there twice, in a few words."""
    missing, odd = sorted({*wanted} - {*found}), sorted({*found} - {*wanted})
    twice = len(found) - len({*found})
    return f"{len(missing)} rows missing {missing[:3]}, {len(odd)} wrong {odd[:3]}, {twice} twice"


def _rows(times: Mapping[str, list[int]], positions: Mapping[str, list[int]]) -> Iterator[tuple[Any, ...]]:
    for split, of_split in times.items():
        for position, us in zip(positions[split], of_split, strict=True):
            yield split, position, us


def _windows(
    times: Mapping[str, list[int]], positions: Mapping[str, list[int]], watermark: int
) -> Iterator[tuple[Any, ...]]:
    for split, of_split in times.items():
        starts = np.array(of_split, np.int64) // WINDOW_US * WINDOW_US
        for start in np.unique(starts[starts <= watermark - WINDOW_US]).tolist():
            inside = np.array(positions[split], np.int64)[starts == start]
            yield start, split, len(inside), int(inside.sum())


def _sink_rows(out: Path, sink: str) -> pa.Table:
    files = sorted(out.glob("*.parquet")) if sink == "batches" else files_of_sink(out)
    return pa.concat_tables([pq.ParquetFile(file).read() for file in files])


def files_of_sink(out: Path) -> list[Path]:
    """What the log of Spark's file sink says is in it."""
    logs = {int(log.name.split(".")[0]): log for log in (out / "_spark_metadata").iterdir() if log.name[0].isdigit()}
    begin = max((number for number, log in logs.items() if log.suffix == ".compact"), default=0)
    return [file for number in logs if number >= begin for file in _files_in(logs[number])]


def batches_of_sink(out: Path) -> dict[Path, int]:
    """Which micro-batch has written each file, by all that the log still has: one that it compacted brings the rest."""
    found: dict[Path, int] = {}
    logs = [log for log in (out / "_spark_metadata").glob("[0-9]*") if not log.name.endswith(".crc")]
    for log in sorted(logs, key=lambda log: int(log.name.split(".")[0])):
        for file in _files_in(log):
            found.setdefault(file, int(log.name.split(".")[0]))
    return found


def _files_in(log: Path) -> list[Path]:
    lines = log.read_text().splitlines()[1:]
    return [Path(unquote(urlparse(json.loads(line)["path"]).path)) for line in lines]


def check_watermarks(checkpoint: Path, last: int | None = None) -> None:
    """That no source's watermark and not Spark's ever goes back, by the offsets that Spark has kept; that the first
    source's ends at `last`.
    """
    before, spark_before_ms = dict[int, int](), 0
    for file in sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda file: int(file.name)):
        metadata, *sources = file.read_text().splitlines()[1:]
        for number, source in enumerate(sources):
            watermark = None if source == "-" else json.loads(source)["watermark"]
            known = before.get(number, -(2**63))
            assert watermark is None or watermark >= known, f"{file}: the watermark goes from {known} to {watermark}"
            before[number] = known if watermark is None else watermark
        spark_ms = json.loads(metadata)["batchWatermarkMs"]
        assert spark_ms >= spark_before_ms, f"{file}: Spark's watermark goes from {spark_before_ms} to {spark_ms}"
        spark_before_ms = spark_ms
    assert last is None or before[0] == last, f"{checkpoint.name}: the last watermark is {before[0]}, must be {last}"


def check_reads(reads: Path) -> tuple[int, int]:
    """That what was read again was the same to the byte, and no thread is left; how many were read, how many again."""
    digests: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for file in reads.iterdir():
        for line in file.read_text().splitlines():
            read = json.loads(line)
            assert read["threads"] <= 0, f"{read['threads']} threads are left of {read}"
            digests[read["query"], read["batch"], read["readers"], read["reader"]].append(read["digest"])
    differing = {key: found for key, found in digests.items() if len({*found}) > 1}
    assert not differing, f"batches that were read again are not the same: {differing}"
    return len(digests), sum(len(found) > 1 for found in digests.values())


def last_commit(checkpoint: Path) -> int:
    """Number of the last committed batch; -1 for none."""
    commits = checkpoint / "commits"
    return max((int(file.name) for file in commits.glob("[0-9]*")), default=-1) if commits.exists() else -1


def processes_of(run: str, wanted: Callable[[list[str]], bool] = lambda _: True) -> list[psutil.Process]:
    """The processes of a run that are alive, and whose command line is wanted."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(RUN) == run and process.status() != psutil.STATUS_ZOMBIE:
                command = process.cmdline()
                found += [process] if wanted(command) else []
        except psutil.Error:
            continue
    return found


def members_of_groups(local: Path) -> set[int]:
    """The processes that have a lease in an alignment group."""
    pids: set[int] = set()
    for path in local.rglob("watermark-alignment.sqlite"):
        with closing(sqlite3.connect(path)) as file:
            pids |= {member_from_json(text).pid for (text,) in file.execute("SELECT report FROM member")}
    return pids

"""Many small Parquet files in a store that takes its time: ours, pyarrow alone, the plainest source; and planning."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import lru_cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import fs

import streaming_source
from benchmarks import peers
from benchmarks.data import DDL, SPLITS, write_parquet
from benchmarks.on_spark import drain, session
from benchmarks.report import Report, in_turn, median_ratio, ratio, spread
from benchmarks.slow_store import SlowStore, slow_store
from streaming_source.coordinator.calls import WORKERS
from tests.spark.reading import stream_reader

LATENCY_S = 0.03
FILES, QUICK_FILES = 1_000, 480
ROWS = 8_000
"""Of a file, which then has some 210 KiB."""

THREADS = {1: (1, 2), 4: (4, 4), 16: (8, 5)}
"""Of a reader; for each how many of the splits are read, and how many times."""

DELAY = "5 seconds"
_ACCESS = {"access_key": "somebody", "secret_key": "secret", "scheme": "http", "region": "us-east-1"}

Files: TypeAlias = list[tuple[str, int]]
"""Paths and bytes."""

Contestants: TypeAlias = dict[str, Callable[[], object]]


def run(report: Report, folder: Path, *, quick: bool) -> None:
    files = QUICK_FILES if quick else FILES
    data = folder / "small-files"
    write_parquet(data, files * ROWS, "narrow", files // SPLITS)
    with slow_store(LATENCY_S) as store, ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as processes:
        fs.copy_files(str(data), "bucket/in", destination_filesystem=_connected(store.moto))
        there = _listed(store.proxy)
        of = f"files of {there[0][1] >> 10} KiB, {LATENCY_S * 1e3:.0f} ms an answer"
        plans: Contestants = {
            "ours": lambda: _plan("s3://bucket/in", **_storage(store.proxy))[0],
            "pyarrow": partial(_footers, store.proxy, there),
        }
        _compare(report, store, f"First plan of {len(there)} {of}", plans, 3, len(there))
        spark = session()
        peers.register(spark)
        for threads, (splits, rounds) in THREADS.items():
            read = [file for file in there if file[0] < f"bucket/in/split-{splits}"]
            path = f"bucket/in/split-[0-{splits - 1}]"
            ours = partial(_drained, _ours, spark, folder, f"s3://{path}", _storage(store.proxy))
            alone = partial(_read, processes, store.proxy, read, threads)
            _, reader, partitions = _plan(f"s3://{path}", filesAhead=str(threads), **_storage(store.proxy))
            contestants: Contestants = {
                "ours": partial(ours, filesAhead=threads),
                "ours, without Spark": partial(_read_by_ours, processes, reader, partitions),
                "pyarrow": partial(alone, "known sizes"),
                "ours, local files": partial(_drained, _ours, spark, folder, str(data / path.rpartition("/")[2]), {}),
            }
            if splits == 1:
                contestants["plainest"] = partial(_drained, _plainest, spark, folder, "bucket/in/split-0", store.proxy)
            if splits == SPLITS:
                contestants["ours, no option"] = ours
                contestants["pyarrow, read_table"] = partial(alone, "read_table")
            title = f"{len(read)} {of}, {threads} threads a reader, into a no-op sink"
            seconds = _compare(report, store, title, contestants, rounds, len(read))
            for name in ("ours", "ours, without Spark"):
                against = median_ratio(seconds["pyarrow"], seconds[name])
                report.at_least(f"object store, {threads} threads: {name}, against pyarrow", against, 0.9)
        spark.stop()


def _compare(report: Report, store: SlowStore, title: str, contestants: Contestants, rounds: int, files: int) -> float:
    """How fast ours is against pyarrow."""
    requests = {}

    def counted(name: str, run: Callable[[], object]) -> object:
        before = store.requests()
        taken = run()
        requests[name] = store.requests() - before
        return taken

    seconds = in_turn({name: partial(counted, name, run) for name, run in contestants.items()}, rounds)
    report.seconds[title] = seconds
    lines = [
        [name, spread(taken), f"{requests[name] / files:.1f}", ratio(taken, seconds["ours"])]
        for name, taken in seconds.items()
    ]
    header = ["", "seconds", "requests a file", "speed of ours against it"]
    report.table(f"{title} ({rounds} rounds in turn)", header, lines)
    return seconds


# ---- ours, and the plainest ------------------------------------------------------------------------------------------


def _drained(frame: Callable[..., Any], spark: Any, folder: Path, *arguments: Any, **options: Any) -> float:
    return drain(frame(spark, *arguments, **options), folder)


def _ours(spark: Any, path: str, storage: dict[str, str], **options: Any) -> Any:
    reader = streaming_source.read_stream(spark).format("aligned_files").option("eventTimeColumn", "ts")
    return reader.options(maxOutOfOrderness=DELAY, bounded="true", **storage, **options).load(path)


def _plainest(spark: Any, path: str, endpoint: str) -> Any:
    user = f"{_ACCESS['access_key']}:{_ACCESS['secret_key']}"
    place = f"s3://{user}@{path}?scheme=http&region=us-east-1&endpoint_override={quote(endpoint)}"
    return spark.readStream.format("plainest").option("schema", DDL["narrow"]).load(place).withWatermark("ts", DELAY)


def _plan(path: str, **more: str) -> tuple[float, Any, Any]:
    """Seconds of the first `latestOffset` of a reader, that reader, and its partitions.

    Spark has looked up the columns before, in another process.
    """
    options = {"eventTimeColumn": "ts", "maxOutOfOrderness": DELAY, "bounded": "true", "watermarkRows": "true"}
    reader = stream_reader(path, **options, **more)
    start = reader.initialOffset()
    began = time.perf_counter()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    seconds = time.perf_counter() - began
    partitions = reader.partitions(start, end)
    reader.stop()
    return seconds, reader, partitions


def _read_by_ours(processes: ProcessPoolExecutor, reader: Any, partitions: Any) -> None:
    """What Spark's workers do, in as many processes, but for sending the rows."""
    for share in [processes.submit(_read_partition, reader, partition) for partition in partitions]:
        share.result()


def _read_partition(reader: Any, partition: Any) -> int:
    return sum(batch.num_rows for batch in reader.read(partition))


def _storage(endpoint: str) -> dict[str, str]:
    given = {**_ACCESS, "endpoint_override": endpoint}
    return {f"storage.{name}": value for name, value in given.items()}


# ---- pyarrow alone ---------------------------------------------------------------------------------------------------


def _read(processes: ProcessPoolExecutor, endpoint: str, files: Files, threads: int, how: str) -> None:
    """All files, in as many processes as ours has readers."""
    n = os.cpu_count() or 1
    shares = [processes.submit(_read_share, endpoint, files[k::n], threads, how) for k in range(n)]
    if sum(share.result() for share in shares) != len(files) * ROWS:
        raise RuntimeError("some rows were not read")


def _read_share(endpoint: str, files: Files, threads: int, how: str) -> int:
    filesystem = _connected(endpoint)

    def known_size(file: tuple[str, int]) -> int:
        """The fewest requests with which pyarrow reads a file: one for the footer, one for the columns."""
        path, size = file
        fragment = ds.ParquetFileFormat(pre_buffer=True).make_fragment(path, filesystem, file_size=size)
        return int(fragment.to_table(use_threads=False).num_rows)

    def read_table(file: tuple[str, int]) -> int:
        return int(pq.read_table(file[0], filesystem=filesystem, use_threads=False).num_rows)

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(known_size if how == "known sizes" else read_table, files))


def _footers(endpoint: str, files: Files) -> None:
    """All footers, with as many threads as a planner has."""
    filesystem = _connected(endpoint)
    with ThreadPoolExecutor(WORKERS) as pool:
        for _ in pool.map(lambda file: pq.read_metadata(file[0], filesystem=filesystem), files):
            pass


def _listed(endpoint: str) -> Files:
    infos = _connected(endpoint).get_file_info(fs.FileSelector("bucket/in", recursive=True))
    return [(info.path, info.size) for info in infos if info.is_file]


@lru_cache
def _connected(endpoint: str) -> fs.S3FileSystem:
    return fs.S3FileSystem(endpoint_override=endpoint, allow_bucket_creation=True, **_ACCESS)

"""What the Spark tests share: skewed data with known bounds, running a query, and naive answers to compare with."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from streaming_source.spark.before_4_2 import IS_BEFORE_4_2
from streaming_source.spark.watermark_rows import MAX_SPARK_WATERMARK_US
from tests.forked_planners import RUNNER

MS = 1_000
SECOND = 1_000_000
MINUTE = 60 * SECOND
T0 = 1_700_000_040_000_000  # 2023-11-14 22:14:00 UTC
UTC_US = pa.timestamp("us", tz="UTC")

Times = npt.NDArray[np.int64]
Logs = dict[str, Times]
"""Split id -> event times in the order of its records."""


def write_file(path: Path, times: Any, split: str = "", row_group_size: int = 100, **columns: Any) -> None:
    """One Parquet file with columns `ts`, `k` (unique) and `s`, put in place at once as a careful writer does."""
    table = pa.table({"ts": pa.array(times, UTC_US)})
    table = table.append_column("k", pa.array([f"{path.stem}/{i}" for i in range(len(table))], pa.string()))
    table = table.append_column("s", pa.array([split or path.parent.name] * len(table), pa.string()))
    for name, values in columns.items():
        table = table.append_column(name, values if isinstance(values, pa.Array) else pa.array(values))
    write_table(path, table, row_group_size)


def write_table(path: Path, table: pa.Table, row_group_size: int = 100, **options: Any) -> None:
    """Written under a hidden name and renamed when complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f"_{path.name}")
    pq.write_table(table, hidden, row_group_size=row_group_size, **options)
    hidden.rename(path)


def write_logs(root: Path, logs: Mapping[str, Times], files: int = 3, row_group_size: int = 100) -> None:
    """Each split a directory of `files` files."""
    for split, times in logs.items():
        for number, part in enumerate(np.array_split(times, files)):
            write_file(root / split / f"part-{number:03d}.parquet", part, split, row_group_size)


def skewed_logs(
    seed: int,
    *,
    rows: tuple[int, ...] = (400, 400, 400),
    starts: tuple[int, ...] = (0, 0, 0),
    steps: tuple[int, ...] = (SECOND, SECOND, SECOND),
    bound: int = 5 * SECOND,
) -> Logs:
    """Splits of different length, begin and speed; each is out of order by at most `bound`, and somewhere by that."""
    rng = np.random.default_rng(seed)
    logs = {}
    for i, (n, start, step) in enumerate(zip(rows, starts, steps, strict=True)):
        displaced = rng.integers(0, bound + 1, n)
        displaced[n // 2 : n // 2 + 2] = bound, 0
        rising = T0 + start + np.arange(n, dtype=np.int64) * step
        rising[n // 2 : n // 2 + 2] = rising[n // 2]
        rising[n // 2 + 2 :] -= step
        logs[f"split-{i}"] = rising + displaced
    return logs


def out_of_orderness(times: Times) -> int:
    """The smallest bound under which none of these is late."""
    return int((np.maximum.accumulate(times) - times).max())


SKEWS: dict[str, Logs] = {
    # one split begins an hour ahead; one runs sixty times as fast; one is tiny and far behind
    "one-ahead": skewed_logs(1, starts=(0, 3600 * SECOND, 10 * SECOND)),
    "one-fast": skewed_logs(2, rows=(600, 300, 300), steps=(SECOND, 60 * SECOND, SECOND)),
    "one-tiny": skewed_logs(3, rows=(500, 6, 500), starts=(1800 * SECOND, 0, 900 * SECOND)),
}


def event_time_of(frame: DataFrame) -> str:
    """Its event-time column: an added one, that of `write_file`, or Kafka's."""
    return next(name for name in ("event_time", "ts", "timestamp") if name in frame.columns)


def windows(frame: DataFrame, size: str = "1 minute") -> DataFrame:
    """The windowed count that the tests compare."""
    counted = frame.groupBy(F.window(event_time_of(frame), size), "s").count()
    start = F.unix_micros("window.start").alias("start")
    return counted.select(start, F.unix_micros("window.end").alias("end"), "s", "count")


def naive_windows(logs: Mapping[str, Times], size_us: int = MINUTE) -> list[tuple[int, int, str, int]]:
    """The same by counting in plain Python."""
    counts: dict[tuple[int, int, str], int] = {}
    for split, times in logs.items():
        for t in times.tolist():
            start = t // size_us * size_us
            counts[start, start + size_us, split] = counts.get((start, start + size_us, split), 0) + 1
    return sorted((*key, count) for key, count in counts.items())


class Run:
    """A query into a memory table of its own, or into Parquet files where it shall be restarted."""

    def __init__(
        self,
        spark: SparkSession,
        frame: DataFrame,
        checkpoint: Path,
        mode: str = "append",
        trigger: Mapping[str, Any] | None = None,
        files: Path | None = None,
    ) -> None:
        self._spark = spark
        self._files = files
        self._table = f"out_{uuid4().hex[:10]}"
        writer = frame.writeStream.outputMode(mode).option("checkpointLocation", str(checkpoint))
        if files is None:
            writer = writer.format("memory").queryName(self._table)
        else:
            writer = writer.format("parquet").option("path", str(files))
        self.query = (writer.trigger(**trigger) if trigger else writer).start()

    def finished(self, within_s: int = 120) -> Run:
        """Wait for a query that ends by itself."""
        assert self.query.awaitTermination(within_s), "the query did not end"
        return self

    def caught_up(self) -> Run:
        """Wait until all that is there was processed, and stop."""
        self.query.processAllAvailable()
        self.query.stop()
        return self

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """What came out so far, of all runs with the same files, sorted."""
        sink = self._spark.table(self._table) if self._files is None else self._spark.read.parquet(str(self._files))
        return sorted(tuple(row) for row in sink.collect())

    @property
    def progress(self) -> list[dict[str, Any]]:
        return [json.loads(p.json) for p in self.query.recentProgress]


def available_now(
    spark: SparkSession, frame: DataFrame, checkpoint: Path, mode: str = "append", files: Path | None = None
) -> Run:
    """Run a query to the end of what is there; before Spark 4.2 as a stream, as AvailableNow takes an option there."""
    if IS_BEFORE_4_2:
        return Run(spark, frame, checkpoint, mode, files=files).caught_up()
    return Run(spark, frame, checkpoint, mode, {"availableNow": True}, files).finished()


def state_rows(run: Run) -> int:
    """Rows left in the state of all stateful operators at the end."""
    return sum(operator["numRowsTotal"] for operator in run.progress[-1]["stateOperators"])


def end_offset(progress: Mapping[str, Any], source: int = 0) -> dict[str, Any]:
    offset = progress["sources"][source]["endOffset"]
    return json.loads(offset) if isinstance(offset, str) else offset


def last_offset(checkpoint: Path) -> str:
    """The text of the offset of the last micro-batch."""
    return (checkpoint / "offsets" / str(last_batch(checkpoint))).read_text().splitlines()[-1]


def watermark_ms(progress: Mapping[str, Any]) -> int:
    """The watermark that a micro-batch reports, in epoch milliseconds."""
    text = progress["eventTime"]["watermark"]
    return int(np.datetime64(text.removesuffix("Z"), "ms").astype(np.int64))


def naive_watermark(logs: Mapping[str, Times], read: Mapping[str, int], bound: int, *, complete: bool) -> int | None:
    """The minimum over the splits, record by record, or None where there is none.

    A split of which nothing was read holds the watermark just below its earliest record, or where all its records
    would bring it if that is less. A split that was read to its end, and to which nothing will be added, is left out.
    """
    held = []
    for split, times in logs.items():
        at = read.get(split, 0)
        if complete and at == len(times):
            continue
        if at:
            held.append(max(times[:at].tolist()) - bound - 1)
        elif len(times):
            held.append(min(min(times.tolist()) - 1, max(times.tolist()) - bound - 1))
        else:
            return None
    return min(held) if held else MAX_SPARK_WATERMARK_US


def eventually(
    condition: Callable[[], Any], what: str, query: StreamingQuery | None = None, seconds: float = 60
) -> Any:
    """Wait for a condition on what a running query has reported."""
    limit = time.monotonic() + seconds
    while not (result := condition()):
        if query is not None and query.exception() is not None:
            raise AssertionError(f"the query failed while waiting for {what}: {query.exception()}")
        assert time.monotonic() < limit, f"waited {seconds} s for {what}"
        time.sleep(0.02)
    return result


def processes(spark: SparkSession) -> list[int]:
    """The processes that the driver has started, and those that these have."""
    stream = spark._jvm.java.lang.ProcessHandle.current().descendants()  # type: ignore[union-attr]
    return [handle.pid() for handle in stream.toArray()]


def is_planner(pid: int) -> bool:
    """Whether a process is a planner. It need not be one that the driver has started: see `tests.forked_planners`."""
    with suppress(OSError):
        return RUNNER.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def forget_batches(log: Path, first: int) -> None:
    """Delete the entries of a checkpoint's or sink's log from batch `first` on, as if the driver had died before."""
    for file in log.iterdir():
        number = file.name.removeprefix(".").removesuffix(".crc")
        if number.isdigit() and int(number) >= first:
            file.unlink()


def last_batch(checkpoint: Path) -> int:
    """Number of the last micro-batch that was planned."""
    return max(int(file.name) for file in (checkpoint / "offsets").iterdir() if file.name.isdigit())


class PlannerLog:
    """What planners that are started meanwhile write to their standard error: there Python's warnings go."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self._path = path
        system = spark._jvm.java.lang.System  # type: ignore[union-attr]
        self._set, self._before = system.setErr, system.err
        self._stream = spark._jvm.java.io.PrintStream(str(path))  # type: ignore[union-attr]

    def __enter__(self) -> PlannerLog:
        self._set(self._stream)
        return self

    def __exit__(self, *error: object) -> None:
        self._set(self._before)
        self._stream.close()

    def lines(self, words: str) -> list[str]:
        """Those that have these words."""
        self._stream.flush()
        return [line for line in self._path.read_text().splitlines() if words in line]


@contextmanager
def fails_with(*words: str) -> Iterator[None]:
    """Spark fails inside, and its message has all these words, whatever its line breaks."""
    with pytest.raises(PySparkException) as error:
        yield
    message = " ".join(str(error.value).split())
    for expected in words:
        assert expected in message

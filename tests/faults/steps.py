"""The steps of a micro-batch, as orders of the supervisor meet them: a stream reader around the product's own.

An order is a file `orders/<query>.<step>`. Whoever comes to that step takes it and does what it says to itself or to
the driver, so a fault strikes exactly there, in a query at work.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from streaming_source.spark.before_4_2 import ReaderBefore42, ReadLimit, SupportsTriggerAvailableNow
from streaming_source.spark.format_class import format_class

__all__ = ["PLANNER_STEPS", "READ_STEPS", "OrderedFailureError", "Steps", "stepped_format"]

PLANNER_STEPS = ("committed", "planned", "offset written", "partitioned", "in commit")
"""In the planner: the last batch is committed and none planned; the next is planned, Spark has not written its offset;
Spark has; its partitions are made; the commit of the one before is announced."""

READ_STEPS = ("read", "read to the end")
"""In a Python worker: after the first records of a partition, and after its last."""


class OrderedFailureError(Exception):
    """What a step raises whose order is to fail."""


class Steps:
    """Where a query comes by, and what is ordered there.

    Parameters
    ----------
    folder
        Of the run.
    query
        Its name.
    """

    def __init__(self, folder: Path, query: str) -> None:
        self._folder = folder
        self._query = query

    def reach(self, step: str, batch: int) -> None:
        """Carry out the order for this step, if there is one."""
        order = self._folder / "orders" / f"{self._query}.{step}"
        try:
            wanted = json.loads(order.read_text())
            order.rename(self._folder / "taken" / wanted["id"])
        except FileNotFoundError:
            return  # there is none, or another worker was first
        commits = self._folder / "checkpoints" / self._query / "commits"
        committed = [int(name) for name in os.listdir(commits) if name.isdigit()] if commits.exists() else []
        taken = {"pid": os.getpid(), "batch": batch, "committed": max(committed, default=-1)}
        report = self._folder / "taken" / f"{wanted['id']}.json"
        report.with_suffix(".new").write_text(json.dumps(taken))
        report.with_suffix(".new").rename(report)
        self._strike(wanted["fault"], f"order {wanted['id']}: {step} of batch {batch}")

    def _strike(self, fault: str, why: str) -> None:
        if fault == "fail":
            raise OrderedFailureError(why)
        if fault == "kill driver":
            # The JVM first: the other may be this process. Who is left must notice by itself.
            pids = json.loads((self._folder / "driver.json").read_text())
            for name in ("jvm", "driver"):
                os.kill(pids[name], signal.SIGKILL)
        else:
            os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[fault])


class SteppedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream reader whose steps are met by orders, and whose batches are hashed.

    Parameters
    ----------
    reader
        The product's.
    folder, query
        See `Steps`.
    readers
        Tasks a micro-batch: only with as many is a batch cut as it was.
    """

    def __init__(self, reader: Any, folder: Path, query: str, readers: int) -> None:
        self._reader = reader
        self._readers = readers
        self._steps = Steps(folder, query)
        self._folder = folder
        self._query = query

    def __copy__(self) -> SteppedReader:
        """As Spark before 4.2 has one planned anew."""
        return SteppedReader(copy(self._reader), self._folder, self._query, self._readers)

    @property
    def source(self) -> Any:
        return self._reader.source

    # ---- in the planner ------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        offset: dict[str, Any] = self._reader.initialOffset()
        return offset

    def getDefaultReadLimit(self) -> ReadLimit:
        limit: ReadLimit = self._reader.getDefaultReadLimit()
        return limit

    def prepareForTriggerAvailableNow(self) -> None:
        self._reader.prepareForTriggerAvailableNow()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        self._steps.reach("committed", start["n"])
        end: dict[str, Any] = self._timed("plan", lambda: self._reader.latestOffset(start, limit))
        if end is not start:
            self._steps.reach("planned", end["n"])
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Any:
        self._steps.reach("offset written", end["n"])
        made = self._timed("partitions", lambda: self._reader.partitions(start, end))
        self._steps.reach("partitioned", end["n"])
        return made

    def commit(self, end: dict[str, Any]) -> None:
        self._steps.reach("in commit", end["n"])
        self._reader.commit(end)

    def reportLatestOffset(self) -> Any:
        return self._reader.reportLatestOffset()

    def stop(self) -> None:
        self._reader.stop()

    def _timed(self, what: str, call: Callable[[], Any]) -> Any:
        """The result; how long it took and what this process holds are written down where figures are wanted."""
        figures = self._folder / "figures"
        if not figures.exists():
            return call()
        begun = time.perf_counter()
        result = call()
        took_ms = (time.perf_counter() - begun) * 1000
        with open("/proc/self/statm") as file:
            rss = int(file.read().split()[1]) * resource.getpagesize()
        line = [what, time.time(), took_ms, rss, len(os.listdir("/proc/self/fd")), threading.active_count()]
        with (figures / f"{self._query}-{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        return result

    # ---- in a worker ---------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batch, reader = partition.batch, partition.subtask_id  # type: ignore[attr-defined]
        threads, found = threading.active_count(), list[pa.RecordBatch]()
        for records in self._reader.read(partition):
            found.append(records)
            yield records
            if len(found) == 1:
                self._steps.reach("read", batch)
        done = {"query": self._query, "batch": batch, "readers": self._readers, "reader": reader}
        done |= {"digest": digest_of(found), "threads": threading.active_count() - threads}
        with (self._folder / "reads" / f"{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps(done) + "\n")
        self._steps.reach("read to the end", batch)


def digest_of(batches: Sequence[pa.RecordBatch]) -> str:
    """Of what a task read: schema, rows in their order, nulls; the same however the rows are cut into batches."""
    sink = pa.BufferOutputStream()
    if batches:
        table = pa.Table.from_batches(batches).combine_chunks()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    return hashlib.blake2b(sink.getvalue(), digest_size=16).hexdigest()


def stepped_format(folder: Path, query: str, readers: int) -> Callable[..., Any]:
    """What stands in for `format_class` where a frame is made whose steps shall be met by orders."""

    def make(*arguments: Any) -> Any:
        base = format_class(*arguments)

        class Stepped(base):  # type: ignore[misc, valid-type]
            def streamReader(self, schema: Any) -> DataSourceStreamReader:
                reader = base.streamReader(self, schema)
                if isinstance(reader, ReaderBefore42):
                    return replace(reader, reader=SteppedReader(reader.reader, folder, query, readers))
                return SteppedReader(reader, folder, query, readers)

        return Stepped

    return make

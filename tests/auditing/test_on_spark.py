"""An audit counts what Spark itself dropped: real queries, whose sinks are compared with it."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import streaming_source
from streaming_source.auditing import Audit
from streaming_source.exceptions import OptionError
from streaming_source.tools.auditing.rule import Windows
from tests.auditing import naive
from tests.auditing.naive import SECOND, Query, Run, Time
from tests.examples import one_in
from tests.spark.support import forget_batches, last_batch

pytestmark = pytest.mark.spark

COUNTS = ("read", "dropped", "emitted", "open", "unknown", "without_time")
Files = dict[str, Sequence[Time]]
WRITERS: dict[str, Callable[[Path, Sequence[Time]], None]] = {}


def _writer(ending: str) -> Callable[[Any], Any]:
    def keep(write: Any) -> Any:
        WRITERS[ending] = write
        return write

    return keep


@_writer("parquet")
def _parquet(path: Path, times: Sequence[Time]) -> None:
    pq.write_table(_table(times), path, row_group_size=40)


@_writer("orc")
def _orc(path: Path, times: Sequence[Time]) -> None:
    from pyarrow import orc

    orc.write_table(_table(times), path)


@_writer("json")
def _json(path: Path, times: Sequence[Time]) -> None:
    path.write_text("".join(json.dumps({"ts": _text(t), "k": f"{i}"}) + "\n" for i, t in enumerate(times)))


@_writer("csv")
def _csv(path: Path, times: Sequence[Time]) -> None:
    path.write_text("".join(["ts,k\n", *(f"{_text(t) or ''},{i}\n" for i, t in enumerate(times))]))


@_writer("txt")
def _txt(path: Path, times: Sequence[Time]) -> None:
    path.write_text("".join(f"[{_text(t)}] line {i}\n" for i, t in enumerate(times)))


def _table(times: Sequence[Time]) -> pa.Table:
    return pa.table({"ts": pa.array(times, naive_type()), "k": [str(i) for i in range(len(times))]})


def naive_type() -> pa.DataType:
    return pa.timestamp("us", "UTC")


def _text(t: Time) -> str | None:
    if t is None:
        return None
    text = pa.scalar(t, pa.timestamp("us")).as_py().isoformat(timespec="microseconds")
    return f"{text}Z"


def write(root: Path, files: Files, ending: str, at_s: int = 0) -> None:
    """Files in the order of their names' appearance, which Spark takes from the times they were modified."""
    for number, (name, times) in enumerate(files.items()):
        path = root / f"{name}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden = path.with_name(f"_{path.name}")
        WRITERS[ending](hidden, times)
        os.utime(hidden, (1_600_000_000 + at_s + number,) * 2)
        hidden.rename(path)


def load(
    spark: SparkSession, root: Path, ending: str, files_a_trigger: int, delay_ms: int, name: str | None = None
) -> DataFrame:
    reader = spark.readStream.option("maxFilesPerTrigger", files_a_trigger).option("recursiveFileLookup", True)
    if name is not None:
        reader = reader.name(name)
    if ending == "txt":
        lines = reader.text(str(root))
        time = F.try_to_timestamp(F.regexp_extract("value", r"^\[(.*?)\]", 1))
        return lines.select(time.alias("ts"), F.col("value").alias("k")).withWatermark("ts", f"{delay_ms} milliseconds")
    reader = reader.schema("ts timestamp, k string")
    if ending == "csv":
        reader = reader.option("header", True)
    return reader.format(ending).load(str(root)).withWatermark("ts", f"{delay_ms} milliseconds")


def computed(frame: DataFrame, query: Query) -> DataFrame:
    """The query: its rows are an end or a time, and a count."""
    if query.name != "stateStoreSave":
        once = frame.dropDuplicates(["ts", "k"]) if query.name == "dedupe" else None
        kept = frame.dropDuplicatesWithinWatermark(["ts", "k"]) if once is None else once
        return kept.select(F.unix_micros("ts").alias("end"), F.lit(1).alias("count"))
    if query.size_us is None:
        return frame.groupBy("ts").count().select(F.unix_micros("ts").alias("end"), "count")
    parts = (query.size_us, query.slide_us, query.start_us)
    window = F.window("ts", *(f"{us} microseconds" for us in parts))
    return frame.groupBy(window).count().select(F.unix_micros("window.end").alias("end"), "count")


class Sink:
    """What a query emits, by micro-batch: one that is written twice counts once."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.batches: dict[int, Counter[Any]] = {}

    def write(self, frame: DataFrame, number: int) -> None:
        found: Counter[Any] = Counter()
        for end, count in frame.collect():
            found[end] += count
        self.batches[number] = found

    @property
    def emitted(self) -> Counter[Any]:
        total: Counter[Any] = Counter()
        for number in sorted(self.batches):
            total = (
                total + self.batches[number] if self.mode == "append" else Counter({**total, **self.batches[number]})
            )
        return total


def run(frame: DataFrame, query: Query, sink: Sink, checkpoint: Path, *, trigger: str = "availableNow") -> None:
    writer = computed(frame, query).writeStream.outputMode(query.mode).foreachBatch(sink.write)
    writer = writer.option("checkpointLocation", str(checkpoint))
    if trigger == "availableNow":
        started = writer.trigger(availableNow=True).start()
        assert started.awaitTermination(120)
    else:
        started = writer.trigger(processingTime="0 seconds").start()
        started.processAllAvailable()
        started.stop()


def logged_batches(
    checkpoint: Path, root: Path, files: Files, source: str = "0"
) -> list[list[tuple[str, Sequence[Time]]]]:
    """The files of each micro-batch, by the log of the only source."""
    log, found = checkpoint / "sources" / source, []
    entries: dict[str, int] = {}
    for file in log.iterdir():
        if not file.name.startswith("."):
            for line in file.read_text().splitlines()[1:]:
                entry = json.loads(line)
                entries[unquote(entry["path"].removeprefix("file://"))] = entry["batchId"]
    before = -1
    for number in range(last_batch(checkpoint) + 1):
        offset = (checkpoint / f"offsets/{number}").read_text().splitlines()[2].removeprefix(f"{source}:")
        end = json.loads(offset)["logOffset"]
        paths = [path for path, entry in entries.items() if before < entry <= end]
        names = [str(Path(path).relative_to(root)) for path in sorted(paths)]
        found.append([(name, files[name.rpartition(".")[0]]) for name in names])
        before = end
    return found


def assert_counted(found: Audit, done: Run, sink: Sink, query: Query, checkpoint: Path) -> None:
    """The model did what Spark did; and the audit counts what the model did, to the row and by split."""
    logged = [json.loads(path.read_text().splitlines()[1]) for path in _in_order(checkpoint / "offsets")]
    assert [meta["batchWatermarkMs"] for meta in logged] == done.watermarks_ms
    null = sink.emitted.pop(None, 0) if query.mode != "append" else sink.emitted.get(None, 0)
    emitted = Counter({end: count for end, count in sink.emitted.items() if end is not None})
    if query.name == "stateStoreSave":
        assert emitted == done.emitted
    assert found.notes == ()
    assert found.dropped + found.emitted + found.open + found.unknown + found.without_time == found.read
    for split in found.splits().to_pylist():
        expected = done.counts[split["split"]]
        assert {name: split[name] for name in COUNTS} == {name: expected[name] for name in COUNTS}, split
    if query.name != "stateStoreSave":
        assert found.emitted == sum(emitted.values()) + null
    elif query.size_us == query.slide_us:
        assert found.emitted == sum(emitted.values())


def assert_mode_is_inferred(found: Audit, query: Query, checkpoint: Path, ending: str) -> None:
    """Without a mode the counts are those with it, but for what append and update do differently."""
    inferred = audited(checkpoint, query, ending, with_mode=False)
    same = ("read", "dropped", "without_time", "windows_read", "windows_dropped")
    assert [inferred.count(name) for name in same] == [found.count(name) for name in same]
    is_complete = query.mode == "complete"
    assert inferred.query.mode == ("complete" if is_complete else None)
    if query.name != "stateStoreSave" or is_complete:
        assert (inferred.emitted, inferred.open, inferred.unknown) == (found.emitted, found.open, found.unknown)
    else:
        assert (inferred.open, inferred.emitted + inferred.unknown) == (0, found.emitted + found.open)
        assert "in groups that are still open (pass --mode update if the query runs in update mode)" in str(inferred)
        if query.mode == "append":
            assert (inferred.emitted, inferred.unknown) == (found.emitted, found.open)
    if query.name == "stateStoreSave":
        wrong, right = ("append", "complete") if is_complete else ("complete", "append or --mode update")
        with pytest.raises(OptionError, match=rf"mode = '{wrong}' is not the query's: .*; give --mode {right}$"):
            streaming_source.audit(str(checkpoint), window="1 minute", mode=wrong)


def _in_order(folder: Path) -> list[Path]:
    return sorted((path for path in folder.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))


def skewed(seed: int, directories: int = 3, parts: int = 4, rows: int = 60) -> Files:
    """One directory runs ahead of the others; file after file in turn. No row twice."""
    draw, files = random.Random(seed), {}
    for part in range(parts):
        for number in range(directories):
            step_us = SECOND if number else 8 * SECOND
            begin = naive.T0 + part * rows * step_us
            times: list[Time] = [begin + i * step_us - draw.randint(0, 20_000) * 1_000 - i for i in range(rows)]
            if part == 1:
                times[3 + number] = None
            files[f"d={number}/part {part}"] = times
    return files


def audited(checkpoint: Path, query: Query, ending: str, window: str | None = None, *, with_mode: bool = True) -> Audit:
    """Without a `window` it is that of the state; so is the mode, unless it is given."""
    options = {"txt": {"timePattern": r"^\[(.*?)\]"}, "csv": {"header": "true"}}.get(ending, {})
    mode = query.mode if with_mode else None
    time = {"txt": "value", "csv": "ts", "json": "ts"}.get(ending)
    return streaming_source.audit(str(checkpoint), time=time, window=window, mode=mode, options=options)


MINUTE = 60 * SECOND
QUERIES = {
    "tumbling": Query(10_000, MINUTE, MINUTE),
    "sliding": Query(10_000, MINUTE, 25 * SECOND, 3 * SECOND),
    "update": Query(10_000, MINUTE, MINUTE, mode="update"),
    "complete": Query(10_000, MINUTE, MINUTE, mode="complete"),
    "time": Query(10_000),
    "dedupe": Query(10_000, name="dedupe"),
    "within": Query(10_000, name="dedupeWithinWatermark"),
}


@pytest.mark.soak
@pytest.mark.parametrize("trigger", ["availableNow", "processingTime"])
@pytest.mark.parametrize("ending", WRITERS)
@pytest.mark.parametrize("name", QUERIES)
def test_a_query_that_was_killed_and_restarted_is_counted_to_the_row(
    spark: SparkSession, tmp_path: Path, name: str, ending: str, trigger: str
) -> None:
    query, files, root, checkpoint = QUERIES[name], skewed(1), tmp_path / "in", tmp_path / "checkpoint"
    sink = Sink(query.mode)
    first = dict(list(files.items())[:7])
    write(root, first, ending)
    run(load(spark, root, ending, 2, query.delay_ms), query, sink, checkpoint, trigger=trigger)
    # As if the driver had died after the sink's last write: the micro-batch runs again.
    forget_batches(checkpoint / "commits", last_batch(checkpoint))
    write(root, {key: times for key, times in files.items() if key not in first}, ending, at_s=100)
    run(load(spark, root, ending, 2, query.delay_ms), query, sink, checkpoint, trigger=trigger)

    found = audited(checkpoint, query, ending)

    in_windows = query.size_us is not None and query.mode != "complete"
    assert found.query.window == (str(Windows.parse(query.window or "")) if in_windows else found.query.window)
    done = naive.run(query, logged_batches(checkpoint, root, files))
    assert_counted(found, done, sink, query, checkpoint)
    assert_mode_is_inferred(found, query, checkpoint, ending)
    assert (found.dropped > 0) == (query.mode != "complete")
    assert [one.directory for one in found.carriers[:1]] == ["d=0"] * (query.mode != "complete")


@pytest.mark.soak
def test_with_rocksdb_as_state_store_an_error_requires_the_mode_and_the_window(
    spark: SparkSession, tmp_path: Path
) -> None:
    query, files, root, checkpoint = QUERIES["tumbling"], skewed(1), tmp_path / "in", tmp_path / "checkpoint"
    sink, provider = Sink(query.mode), "spark.sql.streaming.stateStore.providerClass"
    write(root, files, "parquet")
    spark.conf.set(provider, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
    try:
        run(load(spark, root, "parquet", 2, query.delay_ms), query, sink, checkpoint)
    finally:
        spark.conf.unset(provider)
    assert list(checkpoint.rglob("state/0/*/*.zip")) or list(checkpoint.rglob("state/0/*/*.changelog"))
    with pytest.raises(OptionError, match="give it with --mode"):
        streaming_source.audit(str(checkpoint))
    with pytest.raises(OptionError, match="--window"):
        streaming_source.audit(str(checkpoint), mode="append")

    found = audited(checkpoint, query, "parquet", "1 minute")

    assert_counted(found, naive.run(query, logged_batches(checkpoint, root, files)), sink, query, checkpoint)
    assert found.dropped > 0


@pytest.mark.parametrize("seed", one_in(12, range(12)))
def test_a_query_drawn_by_seed_is_counted_as_spark_ran_it(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    query = naive.drawn_query(draw)
    rows = draw.choice([20, 60])
    files = skewed(seed, directories=draw.randint(1, 4), parts=draw.randint(1, 5), rows=rows)
    root, checkpoint, sink = tmp_path / "in", tmp_path / "checkpoint", Sink(query.mode)
    write(root, files, "parquet")
    run(load(spark, root, "parquet", draw.randint(1, 5), query.delay_ms), query, sink, checkpoint)

    found = audited(checkpoint, query, "parquet", query.window)

    directory = os.path.commonpath([str(Path(name).parent) for name in files])
    batches = logged_batches(
        checkpoint, root / directory, {n.removeprefix(f"{directory}/"): t for n, t in files.items()}
    )
    assert_counted(found, naive.run(query, batches), sink, query, checkpoint)

"""The twin calls sources as Spark does, and drops and closes what Spark does: what is drawn runs alike on both."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from streaming_source import read_stream
from streaming_source.spark.before_4_2 import IS_BEFORE_4_2
from tests.spark.answers import Distinct, Joined, Row, Rows, Windows
from tests.spark.support import MINUTE, SECOND, T0, Run, windows, write_file
from tests.spark.twin import Frame, Twin, frame, plain_frame

APART_US = 3 * SECOND


@dataclass
class Program:
    """A query, drawn by its seed: its sources, what it computes, and what comes between its runs."""

    seed: int
    folder: Path
    draw: random.Random = field(init=False)
    parts: int = 0

    def __post_init__(self) -> None:
        self.draw = draw = random.Random(self.seed)
        self.kind = draw.choice(["windows", "windows", "distinct", "joined", "rows"])
        self.sources = 2 if self.kind == "joined" else draw.choice([1, 1, 2])
        self.delay_s = draw.choice([None, None, 5, 60])
        self.triggers = [draw.choice(["availableNow", "availableNow", "once"]) for _ in range(draw.choice([1, 1, 2]))]
        self.options = [self._options() for _ in range(self.sources)]
        self.write()

    def _options(self) -> dict[str, str]:
        draw = self.draw
        # By the clock, idleness would be another in a slower run.
        found = {"eventTimeColumn": "ts", "idleTimeout": "none", "maxOutOfOrderness": draw.choice(["0 s", "5 seconds"])}
        if (rows := draw.choice([None, None, 40])) is not None:
            found["maxRowsPerTrigger"] = str(rows)
        if draw.random() < 0.3:
            found["maxDrift"] = "30 seconds"
        if draw.random() < 0.3:
            found["bounded"] = "true"
        return found | {"splitBy": draw.choice(["directory", "file"])}

    def write(self) -> None:
        """More files: some records are late, some twice."""
        for source in range(self.sources):
            for split in range(self.draw.choice([1, 2, 3])):
                rows, ahead_s = self.draw.randint(1, 40), self.draw.choice([0, 20, 200])
                seconds = (
                    self.parts * 30
                    + ahead_s
                    + np.arange(rows)
                    - self.draw.choice([0, 3, 40]) * (np.arange(rows) % 7 == 5)
                )
                name = f"{source}/s{split}/part-{self.parts:03}.parquet"
                write_file(self.folder / "in" / name, T0 + seconds * SECOND, "one")
        self.parts += 1

    # ---- by both -----------------------------------------------------------------------------------------------------

    def by_twin(self) -> Twin:
        frames: list[Frame] = []
        for source, options in enumerate(self.options):
            path = self.folder / "in" / str(source)
            plain = self.delay_s is not None
            frames.append(plain_frame(path, 1000 * (self.delay_s or 0), **options) if plain else frame(path, **options))
        answers = {"windows": Windows(MINUTE), "distinct": Distinct(), "joined": Joined(APART_US), "rows": Rows("ts")}
        return Twin(self.folder / "twin", *frames, answer=answers[self.kind])

    def by_spark(self, spark: SparkSession, trigger: str) -> list[Row]:
        frames = [self._loaded(spark, source) for source in range(self.sources)]
        checkpoint = self.folder / "spark"
        run = Run(spark, self._answer(frames), checkpoint, "append", {trigger: True}, self.folder / "out")
        return run.finished(300).rows

    def _loaded(self, spark: SparkSession, source: int) -> DataFrame:
        path = str(self.folder / "in" / str(source))
        reader = read_stream(spark) if self.delay_s is None else spark.readStream
        loaded = reader.format("aligned_files").options(**self.options[source]).load(path)
        return loaded if self.delay_s is None else loaded.withWatermark("ts", f"{self.delay_s} seconds")

    def _answer(self, frames: list[DataFrame]) -> DataFrame:
        if self.kind == "joined":
            left, right = (one.select(F.col("ts").alias(name), "s") for one, name in zip(frames, "lr", strict=True))
            near = F.expr("l >= r - interval 3 seconds and l <= r + interval 3 seconds")
            both = left.withColumnRenamed("s", "ls").join(right, near & (F.col("ls") == F.col("s")))
            return both.select(F.unix_micros("l").alias("l"), F.unix_micros("r").alias("r"), "s")
        both = frames[0] if len(frames) == 1 else frames[0].union(frames[1])
        if self.kind == "windows":
            return windows(both)
        rows = both.select("ts")
        rows = rows.dropDuplicates(["ts"]) if self.kind == "distinct" else rows
        return rows.select(F.unix_micros("ts").alias("t"))


def logged(checkpoint: Path) -> dict[int, tuple[int, list[Any]]]:
    """Of each micro-batch in an offset log the watermark, and how far each source is."""
    found = {}
    for file in (checkpoint / "offsets").iterdir():
        if file.name.isdigit():
            _, metadata, *offsets = file.read_text().splitlines()
            found[int(file.name)] = json.loads(metadata)["batchWatermarkMs"], list(map(reached, offsets))
    return found


def reached(text: str) -> list[Any]:
    """What an offset says whatever the clock; of each split its place, watermark, status and late records."""
    offset = json.loads(text)
    splits = [[*entry[:3], sum(entry[3:4])] for entry in offset["splits"]]
    return [offset["n"], offset["watermark"], sorted(splits, key=str)]


def differs(spark: SparkSession, seed: int, folder: Path) -> str:
    """Where the two differ; empty where they do not."""
    program = Program(seed, folder)
    twin = program.by_twin()
    for number, trigger in enumerate(program.triggers):
        if number:
            program.write()
        expected = program.by_spark(spark, trigger)
        found = twin.run(trigger).rows
        if found != expected:
            return f"seed {seed}, run {number}: rows {found} are not {expected}"
        plans, planned = logged(folder / "twin"), logged(folder / "spark")
        if plans != planned:
            return f"seed {seed}, run {number}: micro-batches {plans} are not {planned}"
    return ""


@pytest.mark.spark
@pytest.mark.skipif(
    IS_BEFORE_4_2, reason="the twin calls as Spark 4.2; test_before_4_2.py has a player of earlier ones"
)
@pytest.mark.parametrize(
    "seeds", [range(30), pytest.param(range(30, 1030), marks=pytest.mark.soak)], ids=["few", "many"]
)
def test_a_program_that_is_drawn_runs_alike_on_spark_and_on_the_twin(
    spark: SparkSession, tmp_path: Path, seeds: range
) -> None:
    # A query waits for its processes most of its time; more at once would let Spark wait for theirs too long.
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda seed: differs(spark, seed, tmp_path / str(seed)), seeds))
    assert not any(found), "\n".join(filter(None, found))


# ---- the order of its calls ------------------------------------------------------------------------------------------

PLANS = ["latestOffset", "reportLatestOffset"]


def a_log(folder: Path, rows: int = 60, name: str = "a") -> Path:
    write_file(folder / "in" / name / "f.parquet", T0 + np.arange(rows) * SECOND)
    return folder / "in"


def test_a_new_query_and_one_that_is_started_again_call_in_sparks_order(tmp_path: Path) -> None:
    twin = Twin(tmp_path / "cp", frame(a_log(tmp_path), numReaders=1), answer=Windows(MINUTE))
    begun = ["prepareForTriggerAvailableNow", "getDefaultReadLimit"]
    reads = ["partitions", "read", "sink"]
    assert twin.run().calls == [*begun, "initialOffset", *PLANS, *reads, *PLANS, "commit", "sink", *PLANS]
    write_file(tmp_path / "in" / "a" / "g.parquet", T0 + np.arange(60, 200) * SECOND)
    assert twin.run().calls == [*begun, *PLANS, "commit", *reads, *PLANS, "commit", "sink", *PLANS]
    # After a restart the watermark is announced again.
    assert twin.run("processingTime", looks=1).calls == ["getDefaultReadLimit", *PLANS, "commit", *reads, *PLANS]


def test_a_micro_batch_that_was_planned_is_read_first_by_the_next_run(tmp_path: Path) -> None:
    twin = Twin(tmp_path / "cp", frame(a_log(tmp_path), numReaders=1), answer=Rows("k"))
    assert twin.dies(6)
    assert twin.calls[-1] == "partitions"
    assert twin.rows == []
    assert twin.run().calls[2:5] == ["partitions", "read", "sink"]
    assert len(twin.rows) == 60


@pytest.mark.parametrize(
    "answer",
    [Windows(MINUTE), *(pytest.param(one, marks=pytest.mark.soak) for one in (Rows("k"), Distinct()))],
    ids=["windows", "rows", "distinct"],
)
def test_whatever_call_a_query_dies_before_it_gives_what_it_gives_undisturbed(tmp_path: Path, answer: Rows) -> None:
    path = tmp_path / "in"
    for split, ahead in (("a", 0), ("b", 100)):
        write_file(path / split / "f.parquet", T0 + (ahead + np.arange(150)) * SECOND, split)
    options: dict[str, Any] = {"maxRowsPerTrigger": 120, "bounded": "true", "numReaders": 1}
    whole = Twin(tmp_path / "whole", frame(path, **options), answer=answer).run()
    assert len(whole.batches) > 2
    for at in range(len(whole.calls)):
        twin = Twin(tmp_path / f"dies-{at}", frame(path, **options), answer=answer)
        assert twin.dies(at)
        # And once more in the run that goes on.
        twin.dies(at // 2 + 1)
        assert twin.run().rows == whole.rows, f"died before {whole.calls[at]}, call {at}"

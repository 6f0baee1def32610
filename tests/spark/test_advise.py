"""What a delay would have covered, of a frame's or a query's source, and what Spark's own stream would have dropped."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

from alignment.disorder import PACES
from streaming_source import advise
from streaming_source.exceptions import OptionError
from tests.spark.conftest import Loader
from tests.spark.support import SECOND, SKEWS, T0, Run, available_now, windows, write_file, write_logs

pytestmark = pytest.mark.spark


def test_a_query_and_a_frame_with_operations_on_it_are_advised_of_their_source(
    spark: SparkSession, exact: Loader, stream: Loader, tmp_path: Path
) -> None:
    logs = SKEWS["one-ahead"]
    write_logs(tmp_path / "in", logs)
    run = Run(spark, windows(exact(tmp_path / "in")), tmp_path / "cp")
    advice = advise(run.query)
    run.query.stop()
    assert advice.rows == sum(map(len, logs.values()))
    assert (advice.delays[-1].delay_us, advice.delays[-1].late) == (5 * SECOND, 0)
    frame = stream(tmp_path / "in")
    assert advise(frame.where("k > ''")) == advice
    for other, message in (
        (frame.join(frame, "k"), "this has 2. Where there are several"),
        (spark.readStream.format("rate").load(), "advise needs one source of aligned_datagen.*this has 0"),
        (spark.range(3), "advise needs a streaming frame or a query"),
    ):
        with pytest.raises(OptionError, match=message):
            advise(other)


@pytest.mark.soak
def test_sparks_own_stream_drops_what_is_said_when_it_reads_at_one_pace(
    spark: SparkSession, stream: Loader, tmp_path: Path
) -> None:
    rng = np.random.default_rng(5)
    logs = {
        split: T0 + (begin + np.arange(300) * step + rng.integers(0, 4000, 300)) * 1000
        for split, begin, step in (("a", 0, 1000), ("b", 60_000, 1000), ("c", 0, 900))
    }
    write_logs(tmp_path / "logs", logs)
    for pace in range(PACES):
        times = np.concatenate([log[pace * 3 : pace * 3 + 3] for log in logs.values()])
        write_file(tmp_path / "paced" / f"f{pace:03}.parquet", times)
        os.utime(tmp_path / "paced" / f"f{pace:03}.parquet", (pace + 1, pace + 1))
    advice = advise(stream(tmp_path / "logs"))
    delay = advice.delays[-1]
    assert 0 < delay.behind < advice.rows
    own = spark.readStream.schema("ts timestamp, k string, s string").option("maxFilesPerTrigger", 1)
    # A row at the watermark is dropped, too: all times are of whole milliseconds.
    frame = own.parquet(str(tmp_path / "paced")).withWatermark("ts", f"{delay.delay_us // 1000 + 1} milliseconds")
    run = available_now(spark, frame.dropDuplicates(["k", "ts"]), tmp_path / "cp")
    assert len(run.rows) == advice.rows - delay.behind

"""A source of a union that gets no more records, and is not bounded: what `explain` says of the query."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from alignment.combine import SplitStatus
from alignment.explain import Explanation, SplitExplanation, WaitsFor
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK
from streaming_source import explain, read_stream
from streaming_source.monitoring.query_advice import on_silent_source
from streaming_source.monitoring.report import WatermarkReport
from tests.spark.support import SECOND, T0, eventually, write_file


def report(
    name: str, watermark: int, *statuses: SplitStatus, behind: int = 0, draining: bool = False
) -> WatermarkReport:
    splits = tuple(
        SplitExplanation(f"{name}-{i}", status, watermark, watermark, 9, behind, WaitsFor.RECORDS)
        for i, status in enumerate(statuses)
    )
    return WatermarkReport(name, 1, Explanation(watermark, T0, T0, splits, is_draining=draining))


IDLE, ACTIVE = SplitStatus.IDLE, SplitStatus.ACTIVE


def test_the_slowest_source_is_named_where_all_of_it_is_idle_or_read_to_the_end() -> None:
    live = report("aligned_kafka", T0 + 10 * SECOND, ACTIVE)
    for history in (report("aligned_files", T0, IDLE, IDLE), report("aligned_files", T0)):
        advice = on_silent_source([live, None, history])
        assert advice is not None
        assert advice.option == "bounded"
        assert "That is aligned_files, at 2023-11-14 22:14:00 UTC: all that it has was read" in advice.text
        assert (
            "though aligned_kafka is at 2023-11-14 22:14:10 UTC. If it gets no more records give it bounded"
            in advice.text
        )
    ended = on_silent_source([report("aligned_datagen", MAX_WATERMARK), report("aligned_files", T0, IDLE)])
    assert ended is not None
    assert "though aligned_datagen has ended" in ended.text


@pytest.mark.parametrize(
    "others",
    [
        (),
        (None,),
        (report("aligned_kafka", T0, IDLE),),
        (report("aligned_kafka", MIN_WATERMARK, ACTIVE),),
        (report("aligned_kafka", T0 - SECOND, ACTIVE),),
    ],
    ids=["alone", "beside another library's", "as far", "beside one without a watermark", "further"],
)
def test_nothing_is_said_where_it_holds_no_other(others: tuple[WatermarkReport | None, ...]) -> None:
    assert on_silent_source([report("aligned_files", T0, IDLE), *others]) is None


def test_nothing_is_said_of_one_that_is_read_or_whose_run_ends() -> None:
    live = report("aligned_kafka", T0 + SECOND, ACTIVE)
    assert on_silent_source([live, report("aligned_files", T0, IDLE, behind=3)]) is None
    assert on_silent_source([live, report("aligned_files", T0, IDLE, draining=True)]) is None


@pytest.mark.spark
def test_explain_names_a_history_that_is_silent_and_not_bounded(spark: SparkSession, tmp_path: Path) -> None:
    write_file(tmp_path / "history" / "f.parquet", T0 + np.arange(10) * SECOND)
    write_file(tmp_path / "live" / "f.parquet", T0 + np.arange(10, 500) * SECOND)

    def side(name: str) -> DataFrame:
        options = {"eventTimeColumn": "ts", "idleTimeout": "300 ms", "maxOutOfOrderness": "0 seconds"}
        return read_stream(spark).format("aligned_files").options(**options).load(str(tmp_path / name))

    counts = side("history").unionByName(side("live")).groupBy(F.window("ts", "1 minute")).count()
    query = counts.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "cp")).start()
    try:
        eventually(lambda: "Advice (bounded)" in str(explain(query)), "the advice")
        text = " ".join(str(explain(query)).split())
    finally:
        query.stop()
    assert f"That is aligned_files {tmp_path}/history, at 2023-11-14 22:14:08" in text
    assert "If it gets no more records give it bounded = true: it then ends, and the query goes by the others." in text

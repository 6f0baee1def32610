"""What commands and programs print on the pages is what they print, where no other test of their page compares it."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from streaming_source import cut_from
from streaming_source.tools.cli import demo
from streaming_source.tools.cli.main import app
from tests.docs.pages import ROOT, blocks, printed


def output(*command: str) -> str:
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_bound_md_has_what_advise_prints_of_the_flights(tmp_path: Path) -> None:
    demo.write_logs(demo.load_flights(), tmp_path, demo._ROWS_PER_FILE)
    shown = output("advise", str(tmp_path), "-o", "eventTimeColumn=departure").splitlines()
    expected = printed(ROOT / "docs" / "bound.md")
    assert shown[: len(expected)] == expected


def test_history_md_has_what_the_cut_of_a_history_prints(tmp_path: Path) -> None:
    names, rows = count(), 12_500
    for partition in range(5):
        for first in range(0, 600_000, rows):
            columns = {"topic": ["flights"] * rows, "partition": pa.array(np.full(rows, partition, np.int32))}
            table = pa.table({**columns, "offset": pa.array(np.arange(first, first + rows))})
            pq.write_table(table, tmp_path / f"{next(names)}.parquet")
    assert str(cut_from(tmp_path, partitions={"flights": 6})).splitlines() == printed(ROOT / "docs" / "history.md")


@pytest.mark.soak
@pytest.mark.spark
def test_audit_md_has_what_the_audit_of_the_demo_prints(spark: SparkSession, tmp_path: Path) -> None:
    flights = demo.load_flights()
    demo.write_logs(flights, tmp_path / "logs", demo._ROWS_PER_FILE)
    bound = f"{-(-demo.out_of_orderness_us(flights) // demo._HOUR_US)} hours"
    demo._count_with_spark(spark, tmp_path, bound)
    (on_page,) = [block.text for block in blocks(ROOT / "docs" / "audit.md") if block.language == "console"]
    before, _, after = on_page.partition("\n")[2].partition("...\n")
    shown = output("audit", str(tmp_path / "spark"), "--mode", "update").replace(
        str(tmp_path / "logs"), "/data/flights"
    )
    assert shown.startswith(before)
    assert shown.strip().endswith(after.strip())

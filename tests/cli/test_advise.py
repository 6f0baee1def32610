"""`streaming-source advise`, as a user runs it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from streaming_source.tools.cli.main import app
from tests.spark.reading import SECOND, T0, put


def put_log(root: Path, split: str, times: list[int | None]) -> None:
    put(root / split / "f.parquet", {"t": pa.array(times, pa.timestamp("us", "UTC"))}, row_group_size=3)


def seconds(*values: float) -> list[int | None]:
    return [T0 + round(value * SECOND) for value in values]


def advised(root: Path, *options: str) -> tuple[str, dict[str, Any]]:
    result = CliRunner().invoke(app, ["advise", str(root), "-o", "eventTimeColumn=t", *options])
    assert result.exit_code == 0, result.output
    *text, numbers = result.stdout.splitlines()
    return "\n".join(text), json.loads(numbers)


def test_the_bound_is_what_the_records_of_each_split_need_and_sparks_delay_what_all_need(tmp_path: Path) -> None:
    put_log(tmp_path, "ahead", seconds(*range(1000, 1200)))
    # One record is 7 seconds behind, another one 3.
    put_log(tmp_path, "behind", [*seconds(*range(100), 92, *range(101, 150), 146, *range(151, 200))])
    text, numbers = advised(tmp_path)
    assert (numbers["rows"], numbers["invalid"], numbers["in_future"]) == (400, 0, 0)
    assert [delay["delay_us"] for delay in numbers["delays"]] == [0, 7 * SECOND, 7 * SECOND]
    assert [delay["late"] for delay in numbers["delays"]] == [2, 0, 0]
    # All of it but what is read in the first two of a hundred micro-batches.
    assert [delay["behind"] for delay in numbers["delays"]] == [196, 196, 196]
    ahead, behind = numbers["splits"]
    assert (ahead["split_id"], ahead["rows"], ahead["disorder_us"]) == ("ahead", 200, [0, 0, 0])
    assert (behind["earliest_us"], behind["latest_us"]) == (T0, T0 + 199 * SECOND)
    assert numbers["skew_us"] == 1000 * SECOND
    assert "400 records of 2 splits, all that there was when the scan began." in text
    assert "splits are up to 16 minutes 40 seconds apart" in text
    lines = [line.split("  ") for line in text.splitlines()]
    assert ["100%", "7 seconds", "0", "196 (49.00%)", "16 minutes 50 seconds"] in [
        [part.strip() for part in line if part.strip()] for line in lines
    ]


def test_records_without_a_time_and_those_of_the_future_are_told(tmp_path: Path) -> None:
    future = int(datetime(2100, 1, 1, tzinfo=UTC).timestamp()) * SECOND
    put_log(tmp_path, "a", [*seconds(1, 2), None, future, *seconds(3), None])
    text, numbers = advised(tmp_path, "-o", "invalidTimestamp=fail")
    assert (numbers["rows"], numbers["invalid"], numbers["in_future"]) == (6, 2, 1)
    assert "2 of them have no valid event time" in text
    assert "1 of them were in the future" in text
    assert "The first: " in text
    assert "f.parquet, record 2: split 'a', position 2: no valid event time in t = None" in text
    put_log(tmp_path / "none", "a", [None])
    assert "There is nothing to advise on." in advised(tmp_path / "none")[0]


def test_logs_of_text_are_advised_on_by_the_part_that_is_the_time(tmp_path: Path) -> None:
    lines = [f"2015-10-18 18:{minute:02}:47,978 INFO [main] started" for minute in (1, 2, 0, 3)]
    (tmp_path / "a.log").write_text("\n".join([*lines, "\tat java.lang.Thread.run"]), encoding="utf-8")
    arguments = ["-o", "fileFormat=text", "-o", "eventTimeColumn=value", "-o", "timePattern=^(\\S+ \\S+) "]
    result = CliRunner().invoke(app, ["advise", str(tmp_path), *arguments])
    assert result.exit_code == 0, result.output
    assert "5 records of 1 splits" in result.stdout
    assert "100%    2 minutes" in result.stdout
    assert "in which timePattern finds no time" in result.stdout.replace("\n", " ")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["-o", "maxOutOfOrderness"], "-o 'maxOutOfOrderness': must be key=value, as in -o fileFormat=json"),
        (["-o", "eventTimeColum=t"], "unknown option 'eventTimeColum'; did you mean eventTimeColumn?"),
        (["-o", "eventTimeColumn=u"], "'u'"),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_code_2(tmp_path: Path, arguments: list[str], error: str) -> None:
    put_log(tmp_path, "a", seconds(1))
    result = CliRunner().invoke(app, ["advise", str(tmp_path), *arguments])
    assert result.exit_code == 2
    assert error in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_the_folder_of_a_delta_table_is_read_as_that(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    for second in (7, 3):
        rows = pa.table({"t": pa.array([second * 1_000_000], pa.timestamp("us", "UTC"))})
        deltalake.write_deltalake(str(tmp_path), rows, mode="append")
    deltalake.DeltaTable(str(tmp_path)).optimize.compact()

    _, numbers = advised(tmp_path)

    assert numbers["rows"] == 2
    refused = CliRunner().invoke(app, ["advise", str(tmp_path), "--format", "delta"])
    assert "--format delta: must be one of aligned_datagen, aligned_delta" in refused.output


def test_a_table_with_a_catalog_is_read_as_an_iceberg_table(tmp_path: Path) -> None:
    pytest.importorskip("pyiceberg")
    from tests.iceberg.commits import delete_rows, files_of_table
    from tests.iceberg.tables import append, catalog_options, create

    table = create(tmp_path)
    for second in (7, 3):
        append(table, [second * SECOND, (second + 20) * SECOND, (second + 5) * SECOND])
    delete_rows(table, {files_of_table(table)[0].file_path: [2]})
    catalog = [f"catalog.{name}={value}" for name, value in {"name": "tests", **catalog_options(tmp_path)}.items()]
    options = [part for text in ("eventTimeColumn=ts", "timeZone=UTC", *catalog) for part in ("-o", text)]

    result = CliRunner().invoke(app, ["advise", "db.t", *options])

    assert result.exit_code == 0, result.output
    numbers = json.loads(result.stdout.splitlines()[-1])
    assert (numbers["rows"], len(numbers["splits"])) == (5, 2)
    assert sorted(split["disorder_us"][-1] for split in numbers["splits"]) == [0, 15 * SECOND]


def test_columns_are_new_that_the_first_file_lacks_and_not_those_that_advise_does_not_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    times = pa.array(seconds(1, 2), pa.timestamp("us", "UTC"))
    for split in ("a", "b"):
        put(tmp_path / split / "1.parquet", {"t": times, "id": [1, 2], "n": [3, 4]})
    advised(tmp_path, "-o", "schemaEvolution=fail")
    assert "has new columns that the query does not read" not in caplog.text
    put(tmp_path / "b" / "2.parquet", {"t": times, "id": [1, 2], "more": [3, 4]})
    advised(tmp_path)
    assert "b/2.parquet has new columns that the query does not read: more. They are ignored" in caplog.text


def test_a_bound_for_files_is_advised_by_when_they_came_and_their_inner_order_by_what_it_costs(tmp_path: Path) -> None:
    # Each file is in no order, and the second one begins 20 seconds before the first one ends.
    put(tmp_path / "log" / "1.parquet", {"t": pa.array(seconds(*range(100, 0, -1)), pa.timestamp("us", "UTC"))})
    put(tmp_path / "log" / "2.parquet", {"t": pa.array(seconds(*range(200, 80, -1)), pa.timestamp("us", "UTC"))})
    text, numbers = advised(tmp_path)
    disorder_us = [18_100_000, 19 * SECOND, 19 * SECOND]
    assert numbers["arrival"] == {"by": "names in each directory", "times": 1, "disorder_us": disorder_us}
    assert (
        "How far a record that arrived later was behind the latest one of its split, by names in each directory:"
        in text
    )
    assert "19 seconds (100%)" in text
    assert numbers["delays"][-1]["delay_us"] == 119 * SECOND
    state = numbers["state"]
    assert (state["splits"], state["open_at_once"]) == (1, 1)
    assert 119 <= state["rows"] <= 220
    assert "are kept as state until what is stored after them is read. None of them is late for it." in text


def test_a_bound_for_a_table_is_advised_by_its_commits_as_long_as_it_knows_them(tmp_path: Path) -> None:
    for first in (0, 100, 70):
        rows = pa.table({"t": pa.array(seconds(*range(first, first + 50)), pa.timestamp("us", "UTC"))})
        deltalake.write_deltalake(str(tmp_path), rows, mode="append")
    text, numbers = advised(tmp_path)
    assert numbers["arrival"] == {"by": "commits", "times": 2, "disorder_us": [78_200_000, 79 * SECOND, 79 * SECOND]}
    assert numbers["state"]["open_at_once"] == 2
    deltalake.DeltaTable(str(tmp_path)).optimize.compact()
    text, numbers = advised(tmp_path)
    assert numbers["arrival"]["times"] == 0
    assert "All records came at once, so nothing is known of those that arrive later" in text

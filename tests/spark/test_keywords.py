"""`from_source` takes the options of the frame as keywords, which editors complete and type checkers check."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructType

import streaming_source
import streaming_source.connectors
from streaming_source import FileSource, read_stream
from streaming_source.exceptions import OptionError
from streaming_source.spark.option_text import FrameKeywords, keyword_options, option_text, path_text
from streaming_source.spark.options import FRAME_OPTIONS, SOURCE_OPTIONS
from tests.spark.support import T0, write_file

ROOT = Path(__file__).parents[2]


def test_there_is_a_keyword_for_each_option_with_the_values_that_it_takes() -> None:
    options = {option.name.lower(): option for option in FRAME_OPTIONS | SOURCE_OPTIONS}
    hints = {name.replace("_", ""): hint for name, hint in get_type_hints(FrameKeywords).items()}
    # `from_source` and `late_records` see to these.
    assert {*options} - {*hints} == {
        *("watermarkrows", "laterecordsof", "laterecordsfrom", "repairdelay", "repairread"),
    }
    assert {*hints} <= {*options}
    given = {str: "5 seconds", int: 1, bool: True}
    for name, hint in hints.items():
        values = {*(get_args(hint) or [hint])} - {timedelta, type(None)}
        for value in ["2024-01-31"] if datetime in values else values:
            options[name].parse(name, str(given.get(value, value)).lower())


def test_keywords_are_options_whatever_their_type() -> None:
    given = {"max_rows_per_trigger": 5, "include_metadata": True, "max_trigger_delay": timedelta(hours=1)}
    values = FRAME_OPTIONS.parse(keyword_options(given))
    assert (values["maxRowsPerTrigger"], values["includeMetadata"]) == (5, True)
    assert values["maxTriggerDelay"] == 3600 * 10**6
    assert keyword_options({"max_rows_per_trigger": None}) == {}
    assert keyword_options({"maxRowsPerTrigger": 5}) == keyword_options({"max_rows_per_trigger": 5})
    with pytest.raises(OptionError, match="no keyword 'max_row_per_trigger'; did you mean max_rows_per_trigger"):
        keyword_options({"max_row_per_trigger": 5})


def test_a_type_checker_refuses_a_keyword_that_there_is_not(tmp_path: Path) -> None:
    program = """
        from streaming_source import FileSource, WatermarkStrategy, from_source
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("ts", unit="us")
        from_source(spark, FileSource("/data"), strategy, "a", max_rows_per_trigger=5, late="drop", indexing="off")
        from_source(spark, FileSource("/data"), strategy, "a", maxRowPerTrigger=5)
        from_source(spark, FileSource("/data"), strategy, "a", max_rows_per_trigger="5")
        from_source(spark, FileSource("/data"), strategy, "a", late="dropped")
        from_source(spark, strategy, FileSource("/data"), "a")
        strategy.with_timestamp_assigner("ts", unit="minutes")
    """
    lines = ["from pyspark.sql import SparkSession", "def f(spark: SparkSession) -> None:", *program.split("\n")]
    (tmp_path / "program.py").write_text("\n".join(line.replace("        ", "    ", 1) for line in lines), "utf-8")
    command = [sys.executable, "-m", "mypy", str(tmp_path / "program.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    errors = [line.split(": error: ") for line in done.stdout.splitlines() if ": error: " in line]
    assert [int(where.split(":")[-1]) for where, _ in errors] == [7, 8, 9, 10, 10, 11], done.stdout
    assert 'Unexpected keyword argument "maxRowPerTrigger"' in errors[0][1]


def test_all_that_a_program_needs_is_exported() -> None:
    assert {name for name in streaming_source.__all__ if getattr(streaming_source, name) is None} == set()
    assert {*streaming_source.__all__} <= {*dir(streaming_source)}


def test_dir_lists_public_names_and_packages_for_connectors() -> None:
    others = {name for name in dir(streaming_source) if name not in streaming_source.__all__}
    assert {name for name in others if not name.startswith("__")} <= {"api", "connectors", "reader", "testing"}


def test_dir_of_the_connectors_lists_public_names_submodules_and_nothing_that_was_imported() -> None:
    module = streaming_source.connectors
    others = {name for name in dir(module) if name not in module.__all__ and not name.startswith("__")}
    assert {name for name in others if f"{module.__name__}.{name}" not in sys.modules} == set()


def test_help_of_read_stream_leads_to_the_options_and_names_those_that_matter_first() -> None:
    text = inspect.getdoc(read_stream) or ""
    assert "docs/options.md" in text
    page = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    first = re.findall(r"^\| `(\w+)` \|", page.partition("## ")[0], re.MULTILINE)
    assert len(first) == 5
    assert [name for name in first if f"`{name}`" in text] == first


@pytest.mark.spark
def test_files_are_loaded_by_the_names_that_sparks_reader_has(spark: SparkSession, tmp_path: Path) -> None:
    write_file(tmp_path / "parquet" / "a" / "1.parquet", [T0])
    for kind, text in {"csv": "ts\n2024-01-01T00:00:00Z\n", "json": '{"ts": "2024-01-01T00:00:00Z"}\n'}.items():
        (tmp_path / kind / "a").mkdir(parents=True)
        (tmp_path / kind / "a" / f"1.{kind}").write_text(text)
    reader = read_stream(spark).option("eventTimeColumn", "ts")
    parquet = reader.parquet(tmp_path / "parquet", splitBy="file")
    assert parquet.isStreaming
    assert parquet.columns == ["ts", "k", "s"]
    assert read_stream(spark).csv(tmp_path / "csv", header=True, schema="ts timestamp", eventTimeColumn="ts").columns
    assert read_stream(spark).schema("ts timestamp").json(tmp_path / "json", eventTimeColumn="ts").columns == ["ts"]
    with pytest.raises(OptionError, match=r"option\('table', 'db.clicks'\)"):
        read_stream(spark).table("db.clicks")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (5, "5"),
        (timedelta(minutes=1, milliseconds=5), "1 minute 5 milliseconds"),
        (datetime(2024, 1, 31, 12), "2024-01-31T12:00:00"),
        (Path("/data/logs"), "/data/logs"),
        (StructType().add("a b", LongType()), "`a b` bigint"),
    ],
)
def test_a_value_is_written_as_the_parser_of_its_option_reads_it(value: Any, text: str) -> None:
    assert option_text("x", value) == text


def test_several_paths_are_a_json_list() -> None:
    assert FileSource(["/a", Path("/b")]) == FileSource('["/a", "/b"]')  # type: ignore[arg-type]
    assert FileSource(Path("/a")) == FileSource("/a")  # type: ignore[arg-type]
    assert path_text(Path("/a")) == "/a"
    assert path_text(["/a", Path("/b")]) == '["/a", "/b"]'

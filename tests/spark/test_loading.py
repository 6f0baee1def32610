"""Where the columns of a frame come from while Spark allows no analysis, and what is refused then; without Spark."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from pyspark.errors import AnalysisException

from alignment.exceptions import InvalidArgumentError
from streaming_source import DataGeneratorSource, register
from streaming_source.exceptions import OptionError, SchemaError
from streaming_source.spark.datasource import AlignedDataSource
from streaming_source.spark.loading import _columns
from streaming_source.spark.registration import REFUSED_IN_PIPELINES

OPTIONS = {"eventTimeColumn": "ts", "watermarkRows": "emitted"}


class Refused(AnalysisException):
    def __init__(self) -> None:
        super().__init__("not in a function of a pipeline")

    def getCondition(self) -> str:
        return REFUSED_IN_PIPELINES


def refuse(*_: object) -> NoReturn:
    raise Refused


def files(path: Path, **options: str) -> AlignedDataSource:
    return AlignedDataSource.of_format("aligned_files", {**OPTIONS, "path": str(path), **options})


def test_what_the_client_does_not_reach_is_looked_up_by_the_server(tmp_path: Path) -> None:
    answer: Any = object()
    assert _columns(files(tmp_path / "elsewhere"), lambda: answer) is answer


def test_in_a_pipeline_it_is_what_the_user_names_or_an_error_with_the_fix(tmp_path: Path) -> None:
    named = files(tmp_path / "elsewhere", dataSchema="ts string, n bigint")
    assert _columns(named, refuse).names == ["ts", "n", "event_time"]
    with pytest.raises(SchemaError, match=r"elsewhere.*name them with \.schema\(\.\.\.\)"):
        _columns(files(tmp_path / "elsewhere"), refuse)


def test_a_wrong_column_is_an_error_of_the_client(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="column 'ts' is not in the data"):
        _columns(files(tmp_path, dataSchema="n bigint"), lambda: pytest.fail("the server was called"))


def test_a_source_that_cannot_be_registered_in_a_pipeline_says_where_it_can() -> None:
    class Session(SimpleNamespace):
        __hash__ = object.__hash__

    spark: Any = Session(readStream=None, conf={}, dataSource=SimpleNamespace(register=refuse))
    with pytest.raises(OptionError, match="at the top of the pipeline's file"):
        register(spark, type("Own", (DataGeneratorSource,), {"name": "of_this_test"}))

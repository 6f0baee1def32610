"""No query outlives its test; frames as the tests here load them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import streaming_source

Loader = Callable[..., DataFrame]


@pytest.fixture(autouse=True)
def _stopped(request: pytest.FixtureRequest) -> Iterator[None]:
    session = request.getfixturevalue("spark") if "spark" in request.fixturenames else None
    yield
    for query in session.streams.active if session else ():
        query.stop()


@pytest.fixture
def stream(spark: SparkSession) -> Loader:
    """`stream(path, **options)`: a streaming frame over `ts` as it is loaded."""

    def load(path: Path | str, **options: Any) -> DataFrame:
        given = {"eventTimeColumn": "ts", **{name: str(value) for name, value in options.items()}}
        return spark.readStream.format("aligned_files").options(**given).load(str(path))

    return load


@pytest.fixture
def exact(stream: Loader) -> Loader:
    """`exact(path, **options)`: the same with the exact watermark."""

    def load(path: Path | str, **options: Any) -> DataFrame:
        return streaming_source.with_exact_watermark(stream(path, **options))

    return load


@pytest.fixture
def batch(spark: SparkSession) -> Loader:
    """`batch(path, **options)`: the same data as a batch frame."""

    def load(path: Path | str, **options: Any) -> DataFrame:
        given = {"eventTimeColumn": "ts", **{name: str(value) for name, value in options.items()}}
        return spark.read.format("aligned_files").options(**given).load(str(path))

    return load

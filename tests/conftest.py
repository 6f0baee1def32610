"""What all tests share: one Spark session a run, the hypothesis profile, a time limit for every test."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# No deadline: under load it measures the load. Not derandomized: every run looks at new cases.
settings.register_profile("ci", deadline=None, print_blob=True, derandomize=False)
settings.load_profile("ci")

_LIMIT_S = 60
_LIMIT_WITH_SERVICE_S = 300
_LIMIT_SLOW_S = 900


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give each test that sets none a time limit, by its markers."""
    if not config.pluginmanager.hasplugin("timeout"):
        return
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_limit_s(item)))


def _limit_s(item: pytest.Item) -> int:
    if item.get_closest_marker("slow"):
        return _LIMIT_SLOW_S
    if item.get_closest_marker("spark") or item.get_closest_marker("kafka"):
        return _LIMIT_WITH_SERVICE_S
    return _LIMIT_S


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One local Spark session, started when the first test asks for it and stopped at the end of the run."""
    # Before the JVM starts: it is handed this environment, and starts the Python workers from it.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .appName("spark-watermark-alignment tests")
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("spark-warehouse")))
        # A query that does not stop fails its test; the default waits for ever.
        .config("spark.sql.streaming.stopTimeout", "60s")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()

"""What all tests share: one Spark session a run, the hypothesis profile, a time limit for every test."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tests.kafka.artifacts import SPARK_CONNECTOR, ArtifactsMissingError

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
    if item.get_closest_marker("soak"):
        return 0
    if item.get_closest_marker("slow"):
        return _LIMIT_SLOW_S
    if item.get_closest_marker("spark") or item.get_closest_marker("kafka"):
        return _LIMIT_WITH_SERVICE_S
    return _LIMIT_S


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """Name what was skipped for want of a broker, below all else: such a run must not look like a full one."""
    yield
    missing: dict[str, str] = getattr(terminalreporter.config, "kafka_missing", {})
    if not missing:
        return
    terminalreporter.section("Kafka", yellow=True, bold=True)
    for what, why in missing.items():
        terminalreporter.write_line(f"NOT TESTED against {what}: {why}", yellow=True)
    skipped = Counter(
        report.nodeid.split("::")[0]
        for report in terminalreporter.stats.get("skipped", ())
        if "kafka" in report.keywords
    )
    for file, number in sorted(skipped.items()):
        terminalreporter.write_line(f"  {file}: {number} skipped")


@pytest.fixture(autouse=True, scope="session")
def _engines_validate() -> Iterator[None]:
    """After each event, plan and commit of an engine in this process its invariants are asserted."""
    from alignment.engine import Engine

    with pytest.MonkeyPatch.context() as patch:
        for name in ("apply", "plan", "commit"):
            patch.setattr(Engine, name, _validated(getattr(Engine, name)))
        yield


def _validated(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def checked(engine: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(engine, *args, **kwargs)
        engine.validate()
        return result

    return checked


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
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
        .config("spark.local.dir", str(tmp_path_factory.mktemp("spark-local")))
        # A query that does not stop fails its test; the default waits for ever.
        .config("spark.sql.streaming.stopTimeout", "60s")
        .config("spark.jars", ",".join(_jars(request)))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def _jars(request: pytest.FixtureRequest) -> list[str]:
    """Spark's own Kafka source, where a test of this run may compare with it."""
    if not any(item.get_closest_marker("kafka") for item in request.session.items):
        return []
    try:
        return list(map(str, SPARK_CONNECTOR.jars()))
    except ArtifactsMissingError:
        return []  # the tests that need them say so

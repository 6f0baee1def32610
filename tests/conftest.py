"""What all tests share: one Spark session a worker, the hypothesis profiles, the time limit of every test."""

from __future__ import annotations

import atexit
import gc
import operator
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, reduce, wraps
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tests.class_archives import java_options
from tests.forked_planners import PLACE
from tests.kafka.artifacts import SPARK_CONNECTOR, ArtifactsMissingError
from tests.nightly import is_nightly
from tests.spark_home import FILE_MANAGER, use_spark_home
from tests.wide import is_wide

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Services that tests of several folders use.
pytest_plugins = [
    "tests.rooms",
    "tests.project.rule_calls",
    "tests.files.fixtures",
    "tests.kafka.fixtures",
    "tests.monitoring.browser",
]

# No deadline: under load it measures the load. CI judges a change, so it looks at the same cases each time; the other
# runs look at new ones. The number is that of tests that name none; those that do name a share of it, see
# `tests.examples`.
for _profile, _examples in {"quick": 12, "ci": 12, "soak": 1_000}.items():
    settings.register_profile(
        _profile, max_examples=_examples, deadline=None, print_blob=True, derandomize=_profile == "ci"
    )
settings.load_profile("quick")

os.environ.setdefault("JAVA_TOOL_OPTIONS", java_options())
use_spark_home()
# As where it is installed: Spark's workers find the formats also in a checkout that is on their path.
_FORMATS = Path(__file__).parents[1] / "streaming_source" / "spark" / "formats"
os.environ["PYTHONPATH"] = os.pathsep.join([str(_FORMATS), *filter(None, [os.environ.get("PYTHONPATH")])])
# Each query starts a planner process, which would compile all modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

_LIMIT_S = 60
_LIMIT_WITH_SERVICE_S = 300
_LIMIT_SLOW_S = 900

_MEMORY = Path("/dev/shm")
_ENOUGH_MEMORY = 4 << 30
"""So much must be free in memory for the tests to write their files there."""

_SAMPLE = 16
"""One of so many calls of an engine is checked."""
_checked_calls = [1]

_MORE_OPEN = 200
"""How many more descriptors a worker may open: Py4J fails at 1,024, as it waits for Spark's calls by `select`."""
_open_since = [0]
"""How many were open behind the last collection: most of them stay so."""


def pytest_configure(config: pytest.Config) -> None:
    """Let Spark run its plans as they are, in short runs; in `make soak` it generates code, as for users.

    Files of tests are in memory, where there is room: they make and remove a hundred thousand, and wait for many.
    """
    if not _in_soak(config):
        os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parent / "spark_conf"))
        if PLACE not in os.environ:
            folder = tempfile.mkdtemp(prefix="planners-")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            os.environ[PLACE] = f"{os.getpid()}:{folder}"
        if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ENOUGH_MEMORY and os.access(_MEMORY, os.W_OK):
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Collect no garbage meanwhile: all that comes stays to the end, and is not looked through afterwards either."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test by the services that it takes; give each that sets none a time limit, by its markers."""
    for item in items:
        for fixture, mark in (("spark", "spark"), ("kafka_jars", "kafka"), ("s3_endpoint", "wide")):
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(mark)
        if is_wide(item.nodeid):
            item.add_marker("wide")
        if is_nightly(item.nodeid):
            item.add_marker("soak")
    if config.pluginmanager.hasplugin("timeout"):
        for item in items:
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(0 if _in_soak(config) else _limit_s(item)))


def _in_soak(config: pytest.Config) -> bool:
    return bool(config.getoption("--hypothesis-profile") == "soak")


def _limit_s(item: pytest.Item) -> int:
    if item.get_closest_marker("soak"):
        return 0
    if item.get_closest_marker("slow"):
        return _LIMIT_SLOW_S
    if item.get_closest_marker("spark") or item.get_closest_marker("kafka"):
        return _LIMIT_WITH_SERVICE_S
    return _LIMIT_S


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Close what planners had open that a test let die: Python collects them late, as in a planner's process."""
    if len(os.listdir("/dev/fd")) > _open_since[0] + _MORE_OPEN:
        gc.collect()
        _open_since[0] = len(os.listdir("/dev/fd"))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let the run know what this worker missed."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["kafka_missing"] = getattr(session.config, "kafka_missing", {})


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a worker missed."""
    missing = getattr(node, "workeroutput", {}).get("kafka_missing", {})
    node.config.kafka_missing = {**getattr(node.config, "kafka_missing", {}), **missing}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """Name what was skipped for want of a broker or a browser, below all else: such a run is not a full one."""
    yield
    unseen = sum("browser" in report.keywords for report in terminalreporter.stats.get("skipped", ()))
    if unseen:
        terminalreporter.section("Browser", yellow=True, bold=True)
        text = (
            f"NOT LOOKED AT: {unseen} tests of pages were skipped for want of Chromium or Chrome (apt install chromium)"
        )
        terminalreporter.write_line(text, yellow=True)
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
def _notes_are_of_this_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Each planner looks through the notes of all others of its user, of which earlier runs have left thousands."""
    folder = str(tmp_path_factory.mktemp("tmp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr("tempfile.tempdir", folder)
        yield


@pytest.fixture(autouse=True, scope="session")
def _messages_in_one_line() -> Iterator[None]:
    """So `match` need not know where a message is broken; `tests/spark/test_misuse.py` sees what users see."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("alignment.exceptions.WIDTH", 10_000)
        yield


def pytest_runtest_setup(item: pytest.Item) -> None:
    """In the tests of the engine each call of one is checked, elsewhere a sample."""
    _checked_calls[0] = 1 if item.path.parent.name == "alignment" else _SAMPLE


@pytest.fixture(autouse=True, scope="session")
def _engines_validate() -> Iterator[None]:
    """After events, plans and commits of an engine in this process its invariants are asserted."""
    from alignment.engine import Engine

    with pytest.MonkeyPatch.context() as patch:
        for name in ("apply", "plan", "commit"):
            patch.setattr(Engine, name, _validated(getattr(Engine, name)))
        yield


@pytest.fixture(autouse=True, scope="session")
def _command_line_is_built_once() -> Iterator[None]:
    """Typer reads the signatures of all commands each time a test runs one."""
    with pytest.MonkeyPatch.context() as patch:
        if "typer.testing" in sys.modules:
            patch.setattr("typer.testing._get_command", cache(sys.modules["typer.testing"]._get_command))
        yield


@pytest.fixture(autouse=True, scope="session")
def _looks_rest_not() -> Iterator[None]:
    """A query in this process looks for new records at each trigger: else after nine times as long as a look takes."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_REST", "_IDLE_REST"):
            patch.setattr(f"streaming_source.coordinator.calls.{name}", 0)
        yield


def _validated(method: Callable[..., Any]) -> Callable[..., Any]:
    calls = count()

    @wraps(method)
    def checked(engine: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(engine, *args, **kwargs)
        if not next(calls) % _checked_calls[0]:
            engine.validate()
        return result

    return checked


@pytest.fixture(scope="module")
def killed(request: pytest.FixtureRequest) -> Iterator[list[Any]]:
    """Takes the kills that each test of a module has counted; their sum is printed behind the last one."""
    found: list[Any] = []
    yield found
    if found:
        print(f"\n{request.module.__name__}: {reduce(operator.add, found)}")


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
        # Each costs a tenth of a query's work.
        .config("spark.sql.shuffle.partitions", "2" if _in_soak(request.config) else "1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("spark-warehouse")))
        .config("spark.local.dir", str(tmp_path_factory.mktemp("spark-local")))
        .config("spark.sql.streaming.checkpointFileManagerClass", FILE_MANAGER)
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

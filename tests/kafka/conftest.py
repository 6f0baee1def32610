"""One broker a run for all tests here; where none can be had they are skipped, and the run ends by saying so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from streaming_source.api.clients import KEPT_CLIENTS
from tests.kafka.artifacts import BROKER, SPARK_CONNECTOR, ArtifactsMissingError
from tests.kafka.broker import KafkaBroker
from tests.kafka.topics import Topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder, so that no file can forget it."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.kafka)


def _missing(config: pytest.Config, what: str, why: object) -> NoReturn:
    """Remember it for the end of the run, and skip."""
    config.kafka_missing = {**getattr(config, "kafka_missing", {}), what: str(why)}  # type: ignore[attr-defined]
    pytest.skip(f"no {what}: {why}")


@pytest.fixture(scope="session")
def kafka_jars(pytestconfig: pytest.Config) -> list[Path]:
    """Kafka's jars."""
    try:
        return BROKER.jars()
    except ArtifactsMissingError as error:
        _missing(pytestconfig, "Apache Kafka", error)


@pytest.fixture(scope="session")
def broker(kafka_jars: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """The broker that all tests share. A test that stops or pauses it takes `own_broker`."""
    yield from _running(kafka_jars, tmp_path_factory)


@pytest.fixture
def own_broker(kafka_jars: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker that this test may mistreat."""
    yield from _running(kafka_jars, tmp_path_factory)


def _running(jars: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    started = KafkaBroker(tmp_path_factory.mktemp("kafka"), jars)
    try:
        started.start()
        yield started
    finally:
        started.stop()


@pytest.fixture
def topic(broker: KafkaBroker) -> Iterator[Topic]:
    """A topic name that no other test has; not created yet."""
    made = Topic(broker)
    yield made
    # A consumer that was kept learns of the next test's topic up to a second later.
    KEPT_CLIENTS.close()
    made.close()


@pytest.fixture
def spark_kafka(spark: SparkSession, pytestconfig: pytest.Config) -> SparkSession:
    """The shared session, which has Spark's own Kafka source."""
    try:
        SPARK_CONNECTOR.jars()
    except ArtifactsMissingError as error:
        _missing(pytestconfig, "Spark's own Kafka source", error)
    return spark


@pytest.fixture(autouse=True)
def _stopped(request: pytest.FixtureRequest) -> Iterator[None]:
    """No query outlives a test on Spark."""
    session = request.getfixturevalue("spark") if request.node.get_closest_marker("spark") else None
    yield
    for query in session.streams.active if session else ():
        query.stop()

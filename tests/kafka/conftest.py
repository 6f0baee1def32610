"""Topics, and Spark with its own Kafka source; the broker comes from `tests.kafka.fixtures`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from streaming_source.api.clients import KEPT_CLIENTS
from tests.kafka.artifacts import SPARK_CONNECTOR, ArtifactsMissingError
from tests.kafka.broker import KafkaBroker
from tests.kafka.fixtures import missing
from tests.kafka.topics import Topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder, so that no file can forget it."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.kafka)


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
        missing(pytestconfig, "Spark's own Kafka source", error)
    return spark


@pytest.fixture(autouse=True)
def _stopped(request: pytest.FixtureRequest) -> Iterator[None]:
    """No query outlives a test on Spark."""
    session = request.getfixturevalue("spark") if request.node.get_closest_marker("spark") else None
    yield
    for query in session.streams.active if session else ():
        query.stop()

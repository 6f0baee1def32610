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
NEEDED = {"kafka_jars", "spark_kafka"}
"""Fixtures of which every test takes one that does not run by itself."""


REPEATED = {
    *("test_many_splits_are_read_each_in_its_order", "test_idle_splits_are_still_idle_after_a_restart"),
    *(f"test_a_read_limit_changes_the_batches_and_not_the_records[{rows}]" for rows in (1, 3, 1000)),
    *(
        f"test_scaling_changes_who_reads_and_not_what_is_read[{how}]"
        for how in ("up-between two micro-batches", "down-between two micro-batches", "up-with one that is planned")
    ),
    *(
        f"test_a_restart_at_any_step_of_a_micro_batch_changes_nothing[{step}-bounded]"
        for step in ("before its offset is written", "before it is read", "after it was read", "after it is committed")
    ),
    *(f"test_splits_that_are_far_ahead_lose_nothing_and_starve_nobody[ahead{n}]" for n in range(3)),
    "test_records_that_come_later_are_read[in one run]",
    "test_splits_that_come_later_are_read[in one run]",
}
"""Of the suite for connectors: what a broker answers in no other way than in those tests that are left."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder that need a broker or Spark's own source, so that no file can forget it."""
    for item in items:
        if HERE in item.path.parents and not NEEDED.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.kafka)
            if item.name in REPEATED or getattr(item, "originalname", None) in REPEATED:
                item.add_marker(pytest.mark.soak)


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

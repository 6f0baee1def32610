"""One broker a run for all tests that take it; without one they are skipped, and the run ends by saying so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from tests.kafka.artifacts import BROKER, ArtifactsMissingError
from tests.kafka.broker import KafkaBroker


def missing(config: pytest.Config, what: str, why: object) -> NoReturn:
    """Remember it for the end of the run, and skip."""
    config.kafka_missing = {**getattr(config, "kafka_missing", {}), what: str(why)}  # type: ignore[attr-defined]
    pytest.skip(f"no {what}: {why}")


@pytest.fixture(scope="session")
def kafka_jars(pytestconfig: pytest.Config) -> list[Path]:
    """Kafka's jars."""
    try:
        return BROKER.jars()
    except ArtifactsMissingError as error:
        missing(pytestconfig, "Apache Kafka", error)


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

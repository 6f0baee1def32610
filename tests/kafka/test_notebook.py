"""The notebooks on Kafka run against the broker, and print and draw what is stored in them."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.kafka.broker import KafkaBroker
from tests.notebooks.executed import run_cells
from tests.notebooks.test_notebooks import KAFKA


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.parametrize("name", KAFKA)
def test_a_notebook_on_kafka_prints_and_draws_what_is_stored(
    name: str,
    spark: SparkSession,
    broker: KafkaBroker,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("KAFKA_BOOTSTRAP", broker.bootstrap)
    run_cells(name, monkeypatch, capsys)

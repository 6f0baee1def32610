"""The notebook on Kafka runs against the broker, and prints and draws what is stored in it."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.kafka.broker import KafkaBroker
from tests.notebooks.executed import run_cells


@pytest.mark.spark
@pytest.mark.soak
def test_a_query_that_comes_back_after_an_outage(
    spark: SparkSession, broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KAFKA_BOOTSTRAP", broker.bootstrap)
    run_cells("kafka_after_outage", monkeypatch, capsys)

"""A Kafka broker for a benchmark, with the jars of Spark's own Kafka source."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tests.kafka.artifacts import BROKER, SPARK_CONNECTOR, ArtifactsMissingError
from tests.kafka.broker import KafkaBroker

__all__ = ["start_broker"]


def start_broker(stack: ExitStack, folder: Path, **options: int) -> tuple[KafkaBroker, list[Path]] | None:
    """Start a broker that stops with `stack`; return it and the jars for Spark's session.

    None, and a line that gives the reason, where the jars cannot be had. `options` are those of `KafkaBroker`.
    """
    try:
        jars, connector = BROKER.jars(), SPARK_CONNECTOR.jars()
    except ArtifactsMissingError as error:
        print(f"\nKafka is not measured: {error}", flush=True)
        return None
    broker = KafkaBroker(folder, jars, **options)
    stack.callback(broker.stop)
    broker.start()
    return broker, connector

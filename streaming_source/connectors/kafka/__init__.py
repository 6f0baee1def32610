"""Kafka: partitions as splits."""

from streaming_source.connectors.kafka.source import KafkaSource

__all__ = ["KafkaSource"]

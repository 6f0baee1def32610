"""Iceberg tables by event time."""

from streaming_source.connectors.iceberg.source import IcebergSource

__all__ = ["IcebergSource"]

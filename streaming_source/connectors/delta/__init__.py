"""Delta tables by event time."""

from streaming_source.connectors.delta.source import DeltaSource

__all__ = ["DeltaSource"]

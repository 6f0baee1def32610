"""Records that are computed instead of stored: splits with chosen skew, disorder, idleness and end."""

from streaming_source.connectors.datagen.source import DataGeneratorSource

__all__ = ["DataGeneratorSource"]

"""What connectors' readers are built on (FLIP-27)."""

from streaming_source.reader.base import SourceReaderBase

__all__ = ["SourceReaderBase"]

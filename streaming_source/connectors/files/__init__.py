"""Directories and files of Parquet as splits."""

from streaming_source.connectors.files.source import FileSource

__all__ = ["FileSource"]

"""Directories and files as splits, in any of several formats."""

from streaming_source.connectors.files.formats import (
    ArrowFormat,
    CsvFormat,
    FileFormat,
    JsonFormat,
    OrcFormat,
    ParquetFormat,
    TextFormat,
)
from streaming_source.connectors.files.source import FileSource

__all__ = [
    "ArrowFormat",
    "CsvFormat",
    "FileFormat",
    "FileSource",
    "JsonFormat",
    "OrcFormat",
    "ParquetFormat",
    "TextFormat",
]

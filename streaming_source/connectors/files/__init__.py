"""Directories and files as splits, in any of several formats."""

from streaming_source.connectors.files.source import FileSource
from streaming_source.data_files.formats import ArrowFormat, CsvFormat, JsonFormat, OrcFormat, ParquetFormat, TextFormat
from streaming_source.data_files.formats.base import FileFormat

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

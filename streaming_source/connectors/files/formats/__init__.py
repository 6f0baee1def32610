"""Formats of files: what each can tell ahead of reading, and how its rows are read."""

from streaming_source.connectors.files.formats.base import (
    NO_BLOCKS,
    FileBlocks,
    FileFormat,
    FileRows,
    Place,
    StoredFile,
)
from streaming_source.connectors.files.formats.csv import CsvFormat
from streaming_source.connectors.files.formats.ipc import ArrowFormat
from streaming_source.connectors.files.formats.json import JsonFormat
from streaming_source.connectors.files.formats.options import FORMAT_OPTIONS, format_of
from streaming_source.connectors.files.formats.orc import OrcFormat
from streaming_source.connectors.files.formats.parquet import ParquetFormat
from streaming_source.connectors.files.formats.text import TextFormat

__all__ = [
    "FORMAT_OPTIONS",
    "NO_BLOCKS",
    "ArrowFormat",
    "CsvFormat",
    "FileBlocks",
    "FileFormat",
    "FileRows",
    "JsonFormat",
    "OrcFormat",
    "ParquetFormat",
    "Place",
    "StoredFile",
    "TextFormat",
    "format_of",
]

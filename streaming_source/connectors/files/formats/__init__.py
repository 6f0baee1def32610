"""Formats of files: what each knows ahead of reading, and how its rows are read. Those of lines load when used."""

from streaming_source.connectors.files.formats.base import (
    NO_BLOCKS,
    FileBlocks,
    FileFormat,
    FileRows,
    Place,
    StoredFile,
    Tolerance,
)
from streaming_source.connectors.files.formats.options import FORMAT_MODULES, FORMAT_OPTIONS, format_class, format_of
from streaming_source.connectors.files.formats.parquet import ParquetFormat

__all__ = [
    "FORMAT_MODULES",
    "FORMAT_OPTIONS",
    "NO_BLOCKS",
    "FileBlocks",
    "FileFormat",
    "FileRows",
    "ParquetFormat",
    "Place",
    "StoredFile",
    "Tolerance",
    "format_class",
    "format_of",
]

"""Formats of files: what each can tell ahead of reading, and how its rows are read.

The format of a query is imported when it is used, and no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from streaming_source.connectors.files.formats.chunks import ArrowFormat, OrcFormat
    from streaming_source.connectors.files.formats.csv import CsvFormat
    from streaming_source.connectors.files.formats.json import JsonFormat
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
    "Tolerance",
    "format_of",
]


def __getattr__(name: str) -> Any:
    if name not in FORMAT_MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return format_class(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

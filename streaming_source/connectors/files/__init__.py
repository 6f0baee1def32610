"""Directories and files as splits, in any of several formats. Those of lines load when they are used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streaming_source.connectors.files.formats import FORMAT_MODULES, FileFormat, ParquetFormat, format_class
from streaming_source.connectors.files.source import FileSource

if TYPE_CHECKING:
    from streaming_source.connectors.files.formats.chunks import ArrowFormat, OrcFormat
    from streaming_source.connectors.files.formats.csv import CsvFormat
    from streaming_source.connectors.files.formats.json import JsonFormat
    from streaming_source.connectors.files.formats.text import TextFormat

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


def __getattr__(name: str) -> Any:
    if name not in FORMAT_MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return format_class(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

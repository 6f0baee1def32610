"""Directories and files as splits, in any of several formats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streaming_source.connectors.files import formats
from streaming_source.connectors.files.formats import FileFormat
from streaming_source.connectors.files.source import FileSource

if TYPE_CHECKING:
    from streaming_source.connectors.files.formats import (
        ArrowFormat,
        CsvFormat,
        JsonFormat,
        OrcFormat,
        ParquetFormat,
        TextFormat,
    )

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
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(formats, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Directories and files as splits, in any of several formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alignment import lazy_names

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

if TYPE_CHECKING:
    from streaming_source.connectors.files.source import FileSource
    from streaming_source.data_files.formats import (
        ArrowFormat,
        CsvFormat,
        FileFormat,
        JsonFormat,
        OrcFormat,
        ParquetFormat,
        TextFormat,
    )

if not TYPE_CHECKING:  # A type checker knows the names above, and refuses others.
    _HOMES = {
        ".source": ["FileSource"],
        "streaming_source.data_files.formats": [name for name in __all__ if name.endswith("Format")],
    }
    __getattr__ = lazy_names(__name__, _HOMES)

"""Formats of files: how each describes event times ahead of reading, and how it decodes rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alignment import lazy_names

__all__ = ["ArrowFormat", "CsvFormat", "FileFormat", "JsonFormat", "OrcFormat", "ParquetFormat", "TextFormat"]

if TYPE_CHECKING:
    from streaming_source.data_files.formats.base import FileFormat
    from streaming_source.data_files.formats.columnar import ArrowFormat, ParquetFormat
    from streaming_source.data_files.formats.csv import CsvFormat
    from streaming_source.data_files.formats.json import JsonFormat
    from streaming_source.data_files.formats.lines import TextFormat
    from streaming_source.data_files.formats.orc import OrcFormat

if not TYPE_CHECKING:  # A type checker knows the names above, and refuses others.
    _HOMES = {
        ".base": ["FileFormat"],
        ".csv": ["CsvFormat"],
        ".json": ["JsonFormat"],
        ".lines": ["TextFormat"],
        ".orc": ["OrcFormat"],
        ".columnar": ["ArrowFormat", "ParquetFormat"],
    }
    __getattr__ = lazy_names(__name__, _HOMES)

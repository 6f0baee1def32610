"""Formats of files: how each describes event times ahead of reading, and how it decodes rows."""

from streaming_source.data_files.formats.base import FileFormat
from streaming_source.data_files.formats.columnar import ArrowFormat, OrcFormat, ParquetFormat
from streaming_source.data_files.formats.csv import CsvFormat
from streaming_source.data_files.formats.json import JsonFormat
from streaming_source.data_files.formats.lines import TextFormat

__all__ = ["ArrowFormat", "CsvFormat", "FileFormat", "JsonFormat", "OrcFormat", "ParquetFormat", "TextFormat"]

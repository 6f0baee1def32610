"""Formats of files: what each knows ahead of reading, and how its rows are decoded."""

from streaming_source.data_files.formats.base import FileFormat
from streaming_source.data_files.formats.columnar import ArrowFormat, OrcFormat, ParquetFormat
from streaming_source.data_files.formats.csv import CsvFormat
from streaming_source.data_files.formats.json import JsonFormat
from streaming_source.data_files.formats.lines import TextFormat

__all__ = ["ArrowFormat", "CsvFormat", "FileFormat", "JsonFormat", "OrcFormat", "ParquetFormat", "TextFormat"]

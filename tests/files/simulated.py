"""A great many small files that are nowhere: listed by a file system of Python, described by arithmetic."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import fs

from alignment.timestamps import TimestampAssigner
from streaming_source.api import RecordBlock
from streaming_source.connectors.files import FileSource
from streaming_source.connectors.files.selection import Selection
from streaming_source.data_files.file import FileBlocks, FileRows, StoredFile
from streaming_source.data_files.formats.base import FileFormat

ROOT = "simulated"
SECOND = 1_000_000
ROWS = 10


@dataclass(frozen=True)
class ManyFiles(fs.FileSystemHandler):  # type: ignore[misc]
    """`files` files in directories of `per_directory`, one modified a second.

    Attributes
    ----------
    shuffled
        Event times follow no order of names: file `i` begins at second `i * 7919 % files`.
    """

    files: int
    per_directory: int = 1000
    shuffled: bool = False

    def get_type_name(self) -> str:
        return "simulated"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        return [self._info(path) for path in paths]

    def _info(self, path: str) -> fs.FileInfo:
        relative = posixpath.relpath(path, ROOT)
        if relative == ".":
            return fs.FileInfo(path, fs.FileType.Directory)
        if relative.startswith(("_", ".")):
            return fs.FileInfo(path, fs.FileType.NotFound)
        if not relative.endswith(".parquet"):
            return fs.FileInfo(path, fs.FileType.Directory)
        return self._file(number_of(path))

    def _file(self, number: int) -> fs.FileInfo:
        path = f"{ROOT}/{number // self.per_directory:06d}/{number:09d}.parquet"
        return fs.FileInfo(path, fs.FileType.File, mtime_ns=(1_600_000_000 + number) * 10**9, size=100)

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        if selector.recursive:
            return [self._file(number) for number in range(self.files)]
        if selector.base_dir == ROOT:
            directories = range(-(-self.files // self.per_directory))
            return [fs.FileInfo(f"{ROOT}/{n:06d}", fs.FileType.Directory) for n in directories]
        first = int(posixpath.basename(selector.base_dir)) * self.per_directory
        return [self._file(number) for number in range(first, min(first + self.per_directory, self.files))]

    def begin_s(self, number: int) -> int:
        return number * 7919 % self.files if self.shuffled else number

    def _not_there(self, *_: Any) -> Any:
        raise NotImplementedError

    open_input_stream = open_input_file = open_output_stream = open_append_stream = _not_there
    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _not_there
    delete_file = move = copy_file = _not_there


def number_of(path: str) -> int:
    return int(posixpath.basename(path).removesuffix(".parquet"))


@dataclass(frozen=True)
class Arithmetic(FileFormat):
    """A file has `ROWS` rows, a second apart, from the second on at which it begins."""

    name: ClassVar[str] = "arithmetic"
    has_statistics: ClassVar[bool] = True

    files: ManyFiles

    def schema_of(self, file: StoredFile) -> pa.Schema:
        return pa.schema([("t", pa.int64())])

    def _opened(self, file: StoredFile, schema: pa.Schema) -> Any:
        raise NotImplementedError

    def describe(self, file: StoredFile, schema: pa.Schema, assigner: TimestampAssigner, indexing: str) -> FileBlocks:
        times = self.times(file.path)
        low, high = times[:1], times[-1:]
        return FileBlocks(np.array([ROWS]), low, high, low)

    def event_times(self, rows: FileRows, schema: pa.Schema, assigner: TimestampAssigner) -> npt.NDArray[np.int64]:
        return self.times(rows.file.path)[rows.start : rows.stop]

    def read_rows(self, rows: FileRows, schema: pa.Schema) -> Iterator[RecordBlock]:
        times = self.times(rows.file.path)[rows.start : rows.stop]
        yield RecordBlock(pa.record_batch([pa.array(times)], schema=schema), rows.start)

    def times(self, path: str) -> npt.NDArray[np.int64]:
        return (self.files.begin_s(number_of(path)) + np.arange(ROWS, dtype=np.int64)) * SECOND


@dataclass(frozen=True)
class SimulatedRoot(Selection):
    """Where the files are said to be."""

    files: ManyFiles = field(default_factory=lambda: ManyFiles(0))

    def _parsed(self) -> list[tuple[fs.FileSystem, str, list[str]]]:
        return [(fs.PyFileSystem(self.files), ROOT, [])]


@dataclass(frozen=True)
class SimulatedSource(FileSource):
    """A `FileSource` over files that are nowhere."""

    @property
    def root(self) -> Selection:
        assert isinstance(self.format, Arithmetic)
        return SimulatedRoot((self.path,), files=self.format.files)


def simulated_source(files: ManyFiles, **arguments: Any) -> SimulatedSource:
    return SimulatedSource(ROOT, "file", bounded=True, format=Arithmetic(files), **arguments)

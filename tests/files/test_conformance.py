"""The suite for connectors, over directories of files and over single files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from alignment import WatermarkStrategy
from streaming_source.connectors.files import FileSource
from streaming_source.connectors.files.split import FileSplit
from streaming_source.testing.conformance import SourceConformance


class Files(SourceConformance):
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("3 seconds").with_timestamp_assigner("t")

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.path = tmp_path

    def write(self, split: int, times_us: Sequence[int]) -> None:
        path = self.next_path(split)
        path.parent.mkdir(exist_ok=True)
        times = pa.array(times_us).cast(pa.timestamp("us", "UTC"))
        table = pa.table({"name": ["x"] * len(times), "t": times, "n": list(range(len(times)))})
        pq.write_table(table, path, row_group_size=4)

    def next_path(self, split: int) -> Path:
        raise NotImplementedError


class TestDirectories(Files):
    """Each directory is a log."""

    def create_source(self, bounded: bool) -> FileSource:
        return FileSource(str(self.path), bounded=bounded)

    def next_path(self, split: int) -> Path:
        directory = self.path / self.split_id(split)
        return directory / f"{len(list(directory.glob('*'))):04}.parquet"

    def serialized_before(self) -> Iterable[tuple[int, bytes, Any]]:
        yield 1, b'["a",120,"part-03",20,4]', FileSplit("a", 120, "part-03", 20, 4)
        yield 1, b'["a",120,"part-03",null,4]', FileSplit("a", 120, "part-03", None, 4)


@pytest.mark.soak
class TestFilesOneByOne(Files):
    """Each file is finite."""

    can_append = False

    def create_source(self, bounded: bool) -> FileSource:
        return FileSource(str(self.path), "file", bounded)

    def next_path(self, split: int) -> Path:
        return self.path / self.split_id(split)

    def split_id(self, split: int) -> str:
        return f"{split}.parquet"

    def serialized_before(self) -> Iterable[tuple[int, bytes, Any]]:
        yield 1, b'["a.parquet",120,1700000000000]', FileSplit("a.parquet", 120, modified_ms=1_700_000_000_000)

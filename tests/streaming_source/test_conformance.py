"""The suite for connectors, over the shipped ones and the source for tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from alignment import WatermarkStrategy
from streaming_source.api import Fetching, RecordSplit
from streaming_source.connectors.datagen import DataGeneratorSource
from streaming_source.connectors.files import FileSource
from streaming_source.connectors.files.split import FileSplit
from streaming_source.testing import Gap, TestingSource
from streaming_source.testing.conformance import Expected, SourceConformance
from streaming_source.testing.source import Element

OUT_OF_ORDERNESS = "3 seconds"


class Files(SourceConformance):
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(OUT_OF_ORDERNESS).with_timestamp_assigner("t")

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


class TestGenerator(SourceConformance):
    def fill(self, splits: int, rows: int = 12) -> Expected:
        self.shape = {"splits": splits, "rows_per_split": rows}
        source = self.create_source(bounded=True)
        times = {n: source.generator.times(n, np.arange(rows)).tolist() for n in range(splits)}
        return {self.split_id(n): list(enumerate(of_split)) for n, of_split in times.items()}

    def create_source(self, bounded: bool) -> DataGeneratorSource:
        return DataGeneratorSource(**self.shape, bounded=bounded, rows_per_second=1, skew=2, disorder=OUT_OF_ORDERNESS)


class TestScripted(SourceConformance):
    """A source without an index."""

    fetching = Fetching.single_thread()
    pausable = True

    @pytest.fixture(autouse=True)
    def _script(self) -> None:
        self.script: dict[str, list[Element]] = {}
        self.sources: list[TestingSource] = []

    def create_source(self, bounded: bool) -> TestingSource:
        source = TestingSource(
            self.script, clock=self.clock, bounded=bounded, fetching=self.fetching, pausable=self.pausable
        )
        self.sources.append(source)
        return source

    def write(self, split: int, times_us: Sequence[int]) -> Sequence[int] | None:
        self.append(self.split_id(split), list(times_us))
        return None

    def append(self, split_id: str, elements: list[Element]) -> None:
        self.script.setdefault(split_id, []).extend(elements)
        for source in self.sources:
            source.go_on(split_id, *elements)

    def serialized_before(self) -> Iterable[tuple[int, bytes, Any]]:
        yield 1, b'{"position":7,"split_id":"a","start":5,"stop":null}', RecordSplit("a", 7, None, 5)


class TestScriptedWithAFetcherForEachSplit(TestScripted):
    """A split that is far ahead is not fetched, whether or not its `SplitReader` can pause."""

    fetching = Fetching.per_split()
    pausable = False


class TestScriptedWithGaps(TestScripted):
    """Positions as those of a log from which records are deleted."""

    fetching = Fetching.fixed_size(2)

    def write(self, split: int, times_us: Sequence[int]) -> Sequence[int]:
        before = self.script.get(self.split_id(split), [])
        first = sum(element.positions if isinstance(element, Gap) else 1 for element in before)
        self.append(self.split_id(split), [mark for time_us in times_us for mark in (Gap(3), time_us)])
        return range(first + 3, first + 4 * len(times_us), 4)

"""The suite for connectors, over the source for tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from streaming_source.api import Fetching, RecordSplit
from streaming_source.testing import Gap, TestingSource
from streaming_source.testing.conformance import SourceConformance
from streaming_source.tools.testing.source import Element


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


@pytest.mark.soak
class TestScriptedWithAFetcherForEachSplit(TestScripted):
    """A split that is far ahead is not fetched, whether or not its `SplitReader` can pause."""

    fetching = Fetching.per_split()
    pausable = False


@pytest.mark.soak
class TestScriptedWithGaps(TestScripted):
    """Positions as those of a log from which records are deleted."""

    fetching = Fetching.fixed_size(2)

    def write(self, split: int, times_us: Sequence[int]) -> Sequence[int]:
        before = self.script.get(self.split_id(split), [])
        first = sum(element.positions if isinstance(element, Gap) else 1 for element in before)
        self.append(self.split_id(split), [mark for time_us in times_us for mark in (Gap(3), time_us)])
        return range(first + 3, first + 4 * len(times_us), 4)

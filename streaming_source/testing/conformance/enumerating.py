"""Splits are found, given to readers, and taken back; an index tells what is read."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pytest

from alignment.watermarks import MAX_WATERMARK
from streaming_source.api import Source, SourceSplit, SplitEnumerator, SupportsEventTimeIndex
from streaming_source.testing.conformance.connector import ConnectorUnderTest
from streaming_source.testing.fakes import TestingEnumeratorContext

__all__ = ["EnumeratingSuite"]

_READERS = 2


class EnumeratingSuite(ConnectorUnderTest):
    """The enumerator alone, in a context that notes what it is told."""

    def test_every_split_is_assigned_once_and_then_there_are_no_more(self) -> None:
        expected = self.fill(5)
        context, enumerator = self._started(self.bounded_source())
        _ask(context, enumerator, range(_READERS))
        assert _assigned_ids(context) == sorted(expected)
        assert context.without_more == set(range(_READERS))
        enumerator.close()

    def test_no_split_is_assigned_to_a_reader_that_is_not_there(self) -> None:
        self.fill(5)
        context, enumerator = self._started(self.bounded_source(), readers=1)
        _ask(context, enumerator, [0])
        assert set(context.assigned) <= {0}
        enumerator.close()

    def test_splits_that_a_reader_lost_are_assigned_again_and_no_others(self) -> None:
        expected = self.fill(5)
        context, enumerator = self._started(self.bounded_source())
        if isinstance(enumerator, SupportsEventTimeIndex):
            pytest.skip("the enumerator has an index: it takes no splits back, a new one is restored")
        _ask(context, enumerator, range(_READERS))
        lost = context.assigned.pop(1)
        del context.readers[1]
        context.without_more.discard(1)
        enumerator.add_splits_back(lost, 1)
        context.register_reader(1)
        enumerator.add_reader(1)
        _ask(context, enumerator, [1])
        assert sorted(context.assigned.get(1, []), key=_id_of) == sorted(lost, key=_id_of)
        assert _assigned_ids(context) == sorted(expected)
        enumerator.close()

    @pytest.mark.parametrize("bounded", [True, False], ids=["bounded", "unbounded"])
    def test_a_restored_enumerator_assigns_the_rest_and_nothing_twice(self, bounded: bool) -> None:
        expected = self.fill(5)
        source = self.bounded_source() if bounded else self.growing_source()
        context, enumerator = self._started(source)
        # One of the readers asks once: what it was given is in work, the rest is the enumerator's to remember.
        enumerator.handle_split_request(0)
        in_work = [split for splits in context.assigned.values() for split in splits]
        serializer = source.enumerator_checkpoint_serializer
        written = serializer.serialize(enumerator.snapshot_state(1))
        enumerator.close()

        restored_context = self._context(source)
        restored = source.restore_enumerator(restored_context, serializer.deserialize(serializer.version, written))
        if isinstance(restored, SupportsEventTimeIndex):
            restored.restore_splits(in_work)
        self._start(restored_context, restored, _READERS, tuple(map(_id_of, in_work)))
        _ask(restored_context, restored, range(_READERS))
        assert sorted([*map(_id_of, in_work), *_assigned_ids(restored_context)]) == sorted(expected)
        assert not bounded or restored_context.without_more == set(range(_READERS))
        restored.close()

    def test_the_index_tells_what_is_read(self) -> None:
        expected = self.fill(3)
        context, enumerator = self._started(self.bounded_source())
        if not isinstance(enumerator, SupportsEventTimeIndex):
            pytest.skip("the enumerator has no index: the planner reads ahead")
        _ask(context, enumerator, range(_READERS))
        assert sorted(context.blocks) == sorted(expected)
        assert set(context.complete) == set(expected)
        for split_id, records in expected.items():
            assert [position for position, _ in records] == list(range(len(records)))
            times = np.array([time_us for _, time_us in records])
            start = 0
            for rows, low, high in context.blocks[split_id]:
                stop = start + rows
                told = enumerator.event_times(split_id, start, stop)
                assert told.tolist() == times[start:stop].tolist()
                assert low <= told.min() <= told.max() <= high
                start = stop
            assert start == len(records)
            for position in range(len(records) + 1):
                split = enumerator.split_at(split_id, position)
                assert (split.split_id, split.position) == (split_id, position)
        enumerator.close()

    # ---- inside --------------------------------------------------------------------------------------------------

    def _context(self, source: Source[Any, Any]) -> TestingEnumeratorContext[Any]:
        return TestingEnumeratorContext(_READERS, source.schema(), self.strategy.timestamp_assigner)

    def _started(
        self, source: Source[Any, Any], readers: int = _READERS
    ) -> tuple[TestingEnumeratorContext[Any], SplitEnumerator[Any, Any]]:
        context = self._context(source)
        enumerator = source.create_enumerator(context)
        self._start(context, enumerator, readers)
        return context, enumerator

    def _start(
        self,
        context: TestingEnumeratorContext[Any],
        enumerator: SplitEnumerator[Any, Any],
        readers: int,
        restored_splits: tuple[str, ...] = (),
    ) -> None:
        enumerator.start()
        for subtask_id in range(readers):
            context.register_reader(subtask_id, restored_splits[subtask_id::readers])
            enumerator.add_reader(subtask_id)
        context.run_calls()


def _ask(
    context: TestingEnumeratorContext[Any], enumerator: SplitEnumerator[Any, Any], readers: Collection[int]
) -> None:
    """Let readers ask for splits, one after another, as long as they are given some, and let all that wait join."""
    asking = list(readers)
    while asking:
        subtask_id = asking.pop(0)
        known = len(context.assigned.get(subtask_id, []))
        if subtask_id not in context.without_more:
            enumerator.handle_split_request(subtask_id)
            if len(context.assigned.get(subtask_id, [])) > known:
                asking.append(subtask_id)
    while isinstance(enumerator, SupportsEventTimeIndex) and context.horizon_us is not None:
        assert enumerator.assign_waiting(0, MAX_WATERMARK), "splits wait, and nothing else can be read"


def _id_of(split: SourceSplit) -> str:
    return split.split_id


def _assigned_ids(context: TestingEnumeratorContext[Any]) -> list[str]:
    return sorted(split.split_id for splits in context.assigned.values() for split in splits)

"""Splits are found, given to readers, taken back and written down; nothing is lost or comes twice, whatever fails."""

from __future__ import annotations

import pickle
from collections.abc import Collection
from typing import Any, Final

import numpy as np
import pytest

from alignment.watermarks import MAX_WATERMARK
from streaming_source.api import (
    SimpleVersionedSerializer,
    Source,
    SourceReader,
    SourceSplit,
    SplitEnumerator,
    SupportsEventTimeIndex,
)
from streaming_source.api.serializer import bytes_to_json, json_to_bytes
from streaming_source.exceptions import OffsetError
from streaming_source.tools.testing.conformance.connector import ConnectorUnderTest, records_by_batch
from streaming_source.tools.testing.fakes import TestingEnumeratorContext
from streaming_source.tools.testing.harness import SourceHarness
from streaming_source.tools.testing.micro_batch import EmittedRecord

_MAX_ROWS: Final = 5

_MOMENTS: Final = ("before its offset is written", "before it is read", "after it was read", "after it is committed")


class _TaskFailed(Exception):  # noqa: N818 (not an error of anybody's)
    """Raised by a test in the middle of a read."""


class RecoverySuite(ConnectorUnderTest):
    """Restarts, failures, and other numbers of readers."""

    @pytest.mark.parametrize("bounded", [True, False], ids=["bounded", "unbounded"])
    @pytest.mark.parametrize("moment", _MOMENTS)
    def test_a_restart_at_any_step_of_a_micro_batch_changes_nothing(self, moment: str, bounded: bool) -> None:
        expected = self.fill(3)
        source = self.bounded_source() if bounded else self.growing_source()
        undisturbed = self._undisturbed(source)
        harness = self.harness(source, max_rows=_MAX_ROWS)
        while harness.records() != expected:
            self._plan(harness)
            if moment == "before its offset is written":
                harness.restart(loses_plan=True)
                self._plan(harness)
            elif moment == "before it is read":
                harness.restart()
            batch = harness.read()
            if moment == "after it was read":
                harness.restart()
                again = harness.read()
                assert sorted(again.all_records) == sorted(batch.all_records)
                batch = again
            harness.commit(batch)
            if moment == "after it is committed":
                harness.restart()
        assert records_by_batch(harness.batches) == undisturbed

    def test_nothing_is_remembered_of_splits_that_were_read_to_their_ends(self) -> None:
        expected = self.fill(5)
        harness = self.harness(self.bounded_source(), max_rows=_MAX_ROWS)
        while harness.run_batch() is not None:
            # After each plan the harness asserts that nothing is remembered of what left.
            pass
        assert harness.records() == expected
        assert harness.state.unfinished() == []
        assert harness.coordinator.runtime.engine.index.split_ids == ()

    def test_a_plan_that_was_given_up_is_made_again(self) -> None:
        expected = self.fill(3)
        source = self.bounded_source()
        undisturbed = self._undisturbed(source)
        harness = self.harness(source, max_rows=_MAX_ROWS)
        while harness.records() != expected:
            self._plan(harness)
            harness.rewind()
            self._plan(harness)
            harness.commit(harness.read())
        assert records_by_batch(harness.batches) == undisturbed

    @pytest.mark.parametrize("planned", [False, True], ids=["between two micro-batches", "with one that is planned"])
    @pytest.mark.parametrize("readers", [(1, 2, 3, 8), (8, 3, 2, 1)], ids=["up", "down"])
    def test_scaling_changes_who_reads_and_not_what_is_read(self, readers: tuple[int, ...], planned: bool) -> None:
        expected = self.fill(4)
        source = self.bounded_source()
        undisturbed = self._undisturbed(source)
        harness = self.harness(source, readers=readers[0], max_rows=_MAX_ROWS)
        step = 0
        while harness.records() != expected:
            if planned:
                self._plan(harness)
            harness.restart(readers=readers[min(step, len(readers) - 1)])
            self._plan(harness)
            batch = harness.read()
            assert len(batch.records) <= harness.readers
            harness.commit(batch)
            step += 1
        assert step >= len(readers)
        assert records_by_batch(harness.batches) == undisturbed

    def test_a_reader_that_fails_anywhere_is_replaced_by_one_that_reads_the_same(self) -> None:
        expected = self.fill(3)
        harness = self.harness(self.bounded_source(), max_rows=2 * _MAX_ROWS)
        failures = 0
        while harness.plan():
            counter = _Counter()
            batch = harness.read(counter)
            # Each split in its order, which is checked as it is read; the splits of one reader in any.
            planned = [sorted(of_reader) for of_reader in batch.records]
            for poll in range(counter.polls):
                with pytest.raises(_TaskFailed):
                    harness.read(_Counter(fails_at=poll))
                failures += 1
                assert [sorted(of_reader) for of_reader in harness.read().records] == planned
            harness.commit(batch)
        assert harness.records() == expected
        assert failures > len(expected)

    def _undisturbed(self, source: Source[Any, Any]) -> list[list[EmittedRecord]]:
        return records_by_batch(self.harness(source, max_rows=_MAX_ROWS).run())

    def _plan(self, harness: SourceHarness) -> None:
        """Go on, or say that nothing goes on."""
        if not (harness.is_planned or harness.plan()):
            self.clock.advance("1 minute")
            assert harness.plan(), f"there is nothing more to read, but only {harness.records()} was"


class _Counter:
    """Counts the polls of all readers; fails at one of them."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.polls = 0
        self._fails_at = fails_at

    def __call__(self, reader: SourceReader[Any], poll: int) -> None:
        if self.polls == self._fails_at:
            raise _TaskFailed
        self.polls += 1


_GARBAGE: Final = (b"", b"\x00\xff\xfe", b"{}", b"[]", b"null", b"7", b'"x"', b"[1]", b"[[]]", b'{"x": 1}', b"{")

_each_serializer = pytest.mark.parametrize(
    "which", ["split_serializer", "enumerator_checkpoint_serializer"], ids=["splits", "checkpoint"]
)


def _is_refused(serializer: SimpleVersionedSerializer[Any], data: bytes) -> bool:
    try:
        serializer.deserialize(serializer.version, data)
    except OffsetError:
        return True
    return False


class SerializingSuite(ConnectorUnderTest):
    """The serializers of splits and of the enumerator's checkpoint, with all that a run hands out."""

    @_each_serializer
    def test_what_is_written_is_read_as_it_was(self, which: str) -> None:
        serializer, values = self._handed_out(which)
        for value in values:
            written = serializer.serialize(value)
            assert serializer.deserialize(serializer.version, written) == value
            in_an_offset = json_to_bytes(bytes_to_json(written))
            assert serializer.deserialize(serializer.version, in_an_offset) == value

    @_each_serializer
    def test_equal_values_are_written_as_equal_bytes(self, which: str) -> None:
        serializer, values = self._handed_out(which)
        for value in values:
            written = serializer.serialize(value)
            assert serializer.serialize(serializer.deserialize(serializer.version, written)) == written
            assert serializer.serialize(pickle.loads(pickle.dumps(value))) == written

    def test_splits_in_different_states_are_written_as_different_bytes(self) -> None:
        serializer, values = self._handed_out("split_serializer")
        assert len({serializer.serialize(split) for split in values}) == len(set(values))

    @_each_serializer
    def test_a_newer_version_is_refused(self, which: str) -> None:
        serializer, values = self._handed_out(which)
        written = serializer.serialize(values[0])
        with pytest.raises(OffsetError):
            serializer.deserialize(serializer.version + 1, written)

    @_each_serializer
    def test_garbage_is_refused(self, which: str) -> None:
        serializer, values = self._handed_out(which)
        written = {serializer.serialize(value) for value in values}
        taken_for_values = [data for data in _GARBAGE if data not in written and not _is_refused(serializer, data)]
        assert not taken_for_values

    def test_what_older_versions_wrote_is_read(self) -> None:
        before = list(self.serialized_before())
        if not before:
            pytest.skip("nothing of older versions is known: serialized_before() gives nothing")
        self.fill(1)
        serializer = self.bounded_source().split_serializer
        for version, written, split in before:
            assert serializer.deserialize(version, written) == split

    def test_splits_are_values(self) -> None:
        for split in self._handed_out("split_serializer")[1]:
            copy = pickle.loads(pickle.dumps(split))
            assert copy == split
            assert hash(copy) == hash(split)
            origin = split.origin()
            assert (origin.split_id, origin.origin()) == (split.split_id, origin)
            assert origin.position <= split.position

    def _handed_out(self, which: str) -> tuple[SimpleVersionedSerializer[Any], list[Any]]:
        """A serializer of a source, and what it has to write in a run over that."""
        self.fill(3)
        source = self.bounded_source()
        harness = self.harness(source, max_rows=5)
        splits: list[Any] = []
        checkpoints: list[Any] = []
        while harness.run_batch() is not None:
            splits += harness.state.splits
            checkpoints.append(harness.state.checkpoint)
        return getattr(source, which), splits if which == "split_serializer" else checkpoints


_READERS = 2


class EnumeratingSuite(ConnectorUnderTest):
    """The enumerator alone, in a context that notes its calls."""

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
                times_us = enumerator.event_times(split_id, start, stop)
                assert times_us.tolist() == times[start:stop].tolist()
                assert low <= times_us.min() <= times_us.max() <= high
                start = stop
            assert start == len(records)
            for position in range(len(records) + 1):
                split = enumerator.split_at(split_id, position)
                assert (split.split_id, split.position) == (split_id, position)
        enumerator.close()

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

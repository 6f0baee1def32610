"""Nothing is lost and nothing comes twice, whatever fails; what is written into offsets is read again as it was."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, Final

import pytest

from streaming_source.api import SimpleVersionedSerializer, Source, SourceReader
from streaming_source.api.serializer import bytes_to_json, json_to_bytes
from streaming_source.exceptions import OffsetError
from streaming_source.testing.conformance.connector import ConnectorUnderTest, records_by_batch
from streaming_source.testing.harness import SourceHarness
from streaming_source.testing.output import EmittedRecord

__all__ = ["RecoverySuite", "SerializingSuite"]

_MAX_ROWS: Final = 5

_MOMENTS: Final = (
    "before its offset is written",
    "before it is read",
    "after it was read",
    "after it is committed",
)


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

    # ---- inside --------------------------------------------------------------------------------------------------

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

Serializer = SimpleVersionedSerializer[Any]


def _splits_of(source: Source[Any, Any]) -> Serializer:
    return source.split_serializer


def _checkpoints_of(source: Source[Any, Any]) -> Serializer:
    return source.enumerator_checkpoint_serializer


_each_serializer = pytest.mark.parametrize("of", [_splits_of, _checkpoints_of], ids=["splits", "checkpoint"])


def _is_refused(serializer: Serializer, data: bytes) -> bool:
    try:
        serializer.deserialize(serializer.version, data)
    except OffsetError:
        return True
    return False


class SerializingSuite(ConnectorUnderTest):
    """The serializers of splits and of the enumerator's checkpoint, with all that a run hands out."""

    @_each_serializer
    def test_what_is_written_is_read_as_it_was(self, of: Callable[[Source[Any, Any]], Serializer]) -> None:
        source, values = self._handed_out(of)
        for value in values:
            written = of(source).serialize(value)
            assert of(source).deserialize(of(source).version, written) == value
            in_an_offset = json_to_bytes(bytes_to_json(written))
            assert of(source).deserialize(of(source).version, in_an_offset) == value

    @_each_serializer
    def test_equal_values_are_written_as_equal_bytes(self, of: Callable[[Source[Any, Any]], Serializer]) -> None:
        source, values = self._handed_out(of)
        for value in values:
            written = of(source).serialize(value)
            read = of(source).deserialize(of(source).version, written)
            assert of(source).serialize(read) == written
            assert of(source).serialize(pickle.loads(pickle.dumps(value))) == written

    def test_splits_in_different_states_are_written_as_different_bytes(self) -> None:
        source, values = self._handed_out(_splits_of)
        assert len({source.split_serializer.serialize(split) for split in values}) == len(set(values))

    @_each_serializer
    def test_a_newer_version_is_refused(self, of: Callable[[Source[Any, Any]], Serializer]) -> None:
        source, values = self._handed_out(of)
        written = of(source).serialize(values[0])
        with pytest.raises(OffsetError):
            of(source).deserialize(of(source).version + 1, written)

    @_each_serializer
    def test_garbage_is_refused(self, of: Callable[[Source[Any, Any]], Serializer]) -> None:
        source, values = self._handed_out(of)
        written = {of(source).serialize(value) for value in values}
        taken_for_values = [data for data in _GARBAGE if data not in written and not _is_refused(of(source), data)]
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
        _, splits = self._handed_out(_splits_of)
        for split in splits:
            copy = pickle.loads(pickle.dumps(split))
            assert copy == split
            assert hash(copy) == hash(split)
            origin = split.origin()
            assert (origin.split_id, origin.origin()) == (split.split_id, origin)
            assert origin.position <= split.position

    # ---- inside --------------------------------------------------------------------------------------------------

    def _handed_out(self, of: Callable[[Source[Any, Any]], Serializer]) -> tuple[Source[Any, Any], list[Any]]:
        """A source, and all splits or checkpoints of the states of a run over it."""
        self.fill(3)
        source = self.bounded_source()
        harness = self.harness(source, max_rows=5)
        splits: list[Any] = []
        checkpoints: list[Any] = []
        while harness.run_batch() is not None:
            splits += harness.state.splits
            checkpoints.append(harness.state.checkpoint)
        return source, splits if of is _splits_of else checkpoints

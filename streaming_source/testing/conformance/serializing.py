"""What is written into offsets is read again as it was, or refused."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, Final

import pytest

from streaming_source.api import SimpleVersionedSerializer, Source
from streaming_source.api.serializer import bytes_to_json, json_to_bytes
from streaming_source.exceptions import OffsetError
from streaming_source.testing.conformance.connector import ConnectorUnderTest

__all__ = ["SerializingSuite"]

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

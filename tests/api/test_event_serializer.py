"""Source events as bytes, checked when they are read."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle

from streaming_source.api import DataclassEventSerializer, SourceEvent
from streaming_source.exceptions import MalformedDataError
from streaming_source.testing import TestingSource


@dataclass(frozen=True)
class Progress(SourceEvent):
    split_id: str
    rows: int
    share: float = 0.0
    done: bool = False
    note: str | None = None
    ranges: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Stop(SourceEvent):
    pass


SERIALIZER = DataclassEventSerializer(Progress, Stop)


def read(name: str, **values: Any) -> SourceEvent:
    return SERIALIZER.deserialize(1, json.dumps({"event": name, "fields": values}).encode())


PROGRESS = {"split_id": "a", "rows": 1, "share": 0.5, "done": True, "note": None, "ranges": [[0, 1]]}


@given(
    st.builds(
        Progress,
        split_id=st.text(),
        rows=st.integers(-(2**63), 2**63),
        share=st.floats(allow_nan=False, allow_infinity=False),
        done=st.booleans(),
        note=st.none() | st.text(),
        ranges=st.lists(st.tuples(st.integers(), st.integers())).map(tuple),
    )
)
def test_an_event_is_read_as_it_was_written(event: Progress) -> None:
    assert SERIALIZER.deserialize(SERIALIZER.version, SERIALIZER.serialize(event)) == event


def test_events_are_told_apart_by_the_names_of_their_classes() -> None:
    assert SERIALIZER.serialize(Stop()) == b'{"event":"Stop","fields":{}}'
    assert read("Stop") == Stop()
    assert read("Progress", **PROGRESS) == Progress("a", 1, 0.5, True, None, ((0, 1),))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rows": True}, "field rows of Progress: must be int, not bool"),
        ({"rows": 1.0}, "field rows of Progress: must be int, not float"),
        ({"split_id": None}, "field split_id of Progress: must be str, not NoneType"),
        ({"share": "0"}, "field share of Progress: must be a number, not str"),
        ({"share": float("nan")}, "must be a finite number"),
        ({"share": 10**400}, "must be a number that a float holds"),
        ({"note": 7}, "must be str, not int, or must be NoneType, not int"),
        ({"ranges": [[0, 1, 2]]}, "must have 2 items, not 3"),
        ({"ranges": {"0": 1}}, "must be a list, not dict"),
        ({"more": 1}, "has the fields"),
    ],
)
def test_a_field_of_another_type_is_refused_without_its_value(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(MalformedDataError, match=message):
        read("Progress", **{**PROGRESS, **wrong})


def test_a_field_that_is_missing_is_refused() -> None:
    with pytest.raises(MalformedDataError, match="has the fields"):
        read("Progress", **{name: value for name, value in PROGRESS.items() if name != "note"})


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b'{"event":"Stop"}', b'{"event":["Stop"],"fields":{}}', b"[" * 100_000, b"\xff", b"9" * 5_000],
)
def test_what_is_no_event_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedDataError):
        SERIALIZER.deserialize(1, data)


def test_a_class_that_was_not_registered_is_neither_written_nor_read() -> None:
    @dataclass(frozen=True)
    class Stranger(SourceEvent):
        pass

    with pytest.raises(TypeError, match="Stranger is no event of this serializer, which knows Progress, Stop"):
        SERIALIZER.serialize(Stranger())
    with pytest.raises(MalformedDataError, match="known are Progress, Stop"):
        read("Stranger")


def test_another_version_is_refused() -> None:
    with pytest.raises(MalformedDataError, match="version 2"):
        SERIALIZER.deserialize(2, SERIALIZER.serialize(Stop()))


def test_a_field_of_another_type_is_not_written() -> None:
    with pytest.raises(TypeError, match="field rows of Progress: must be int, not str"):
        SERIALIZER.serialize(Progress("a", "1"))  # type: ignore[arg-type]


def test_an_event_that_refuses_its_own_values_is_malformed() -> None:
    @dataclass(frozen=True)
    class Positive(SourceEvent):
        rows: int

        def __post_init__(self) -> None:
            if self.rows < 1:
                raise ValueError("rows must be positive")

    # Its annotations are read where the class stands: they name nothing of this function.
    with pytest.raises(MalformedDataError, match="rows must be positive"):
        DataclassEventSerializer(Positive).deserialize(1, b'{"event":"Positive","fields":{"rows":0}}')


class NotADataclass(SourceEvent):
    pass


@dataclass
class NotFrozen(SourceEvent):
    pass


@dataclass(frozen=True)
class NotAnEvent:
    pass


@dataclass(frozen=True)
class WithAMapping(SourceEvent):
    rows: dict[str, int]


@pytest.mark.parametrize("kind", [NotADataclass, NotFrozen, NotAnEvent, WithAMapping])
def test_a_class_that_cannot_be_checked_is_refused_at_once(kind: type[SourceEvent]) -> None:
    with pytest.raises(TypeError, match=kind.__name__):
        DataclassEventSerializer(kind)


def test_two_classes_of_one_name_are_refused() -> None:
    with pytest.raises(TypeError, match="two events are named Stop"):
        DataclassEventSerializer(Stop, Stop)


def test_a_serializer_is_picklable_as_its_source_is() -> None:
    copied = pickle.loads(pickle.dumps(SERIALIZER))
    assert copied.deserialize(1, SERIALIZER.serialize(Stop())) == Stop()


def test_the_readers_of_a_source_send_no_events_unless_it_has_one() -> None:
    assert TestingSource({"a": [1]}).source_event_serializer is None


def test_events_of_a_class_that_came_pickled_by_value_are_read_and_written(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Sent(SourceEvent):
        split_id: str
        rows: int = 7

    pickled = cloudpickle.dumps(Sent)
    # As in another process, which does not know the class.
    monkeypatch.setattr(cloudpickle.cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_ID", {})
    came = pickle.loads(pickled)
    assert came is not Sent
    serializer = DataclassEventSerializer(came)
    event = came("a")
    assert serializer.deserialize(1, serializer.serialize(event)) == event
    with pytest.raises(MalformedDataError, match="a Sent has the fields"):
        serializer.deserialize(1, b'{"event": "Sent", "fields": {"rows": 7}}')

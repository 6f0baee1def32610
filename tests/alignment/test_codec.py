"""Values are written as their classes declare, and what is read is checked by the same declaration."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Literal, NamedTuple

import pytest

from alignment.codec import Codec, Form, NotAsDeclaredError, Wire


class Colour(StrEnum):
    RED = "red"


class Pair(NamedTuple):
    name: str
    number: int = 0


@dataclass(frozen=True)
class Inner:
    marks: bytes = b""
    upto: Annotated[int | None, Wire("until", least=0)] = None


@dataclass(frozen=True)
class Holder:
    other: Inner | None = None


@dataclass(frozen=True)
class Unwritable:
    own: object


HEX = Form(hex, lambda text: int(text, 16))


@dataclass(frozen=True)
class Outer:
    path: str
    rows: Annotated[int, Wire("n", least=0)] = 0
    pairs: tuple[Pair, ...] = ()
    by_name: dict[str, tuple[int, int]] = field(default_factory=dict)
    inner: Annotated[Inner, Wire(flat=True)] = Inner()
    other: Inner | None = None
    colour: Colour = Colour.RED
    kind: Annotated[Literal["a", "b"], Wire(always=True)] = "a"
    address: Annotated[int | None, Wire(form=HEX)] = None
    own: Annotated[object, Wire("-")] = None


CODEC = Codec(Outer)
FULL = Outer("p", 9, (Pair("x", 1), Pair("y")), {"z": (1, 2)}, Inner(b"\0", 7), Inner(), Colour.RED, "b", 255)


@pytest.mark.parametrize("value", [Outer("p"), FULL])
def test_a_value_comes_back_from_json_as_it_was(value: Outer) -> None:
    assert CODEC.read(json.loads(json.dumps(CODEC.write(value)))) == value


def test_defaults_are_left_out_and_a_flat_field_has_its_own_fields_here() -> None:
    assert CODEC.write(Outer("p")) == {"path": "p", "kind": "a"}
    assert CODEC.write(FULL) == {
        "path": "p",
        "n": 9,
        "pairs": [["x", 1], ["y"]],
        "by_name": {"z": (1, 2)},
        "marks": "AA==",
        "until": 7,
        "other": {},
        "kind": "b",
        "address": "0xff",
    }


def test_a_row_ends_with_the_last_field_that_is_no_default() -> None:
    row = Codec(Outer, ("path", "rows", "colour", "address"))
    assert [row.write(Outer("p")), row.write(Outer("p", address=1))] == [["p"], ["p", 0, "red", "0x1"]]
    assert row.read(["p", 3]) == Outer("p", 3)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({}, "Outer.path = None: must be given"),
        ([], "Outer = []: must be an object"),
        ({"n": -1}, "Outer.n = -1: must be at least 0"),
        ({"n": True}, "Outer.n = True: must be an int of 64 bits"),
        ({"n": 2**63}, "Outer.n = 9223372036854775808: must be an int of 64 bits"),
        ({"until": -1}, "Outer.until = -1: must be at least 0"),
        ({"until": "1"}, "Outer.until = '1': must be an int of 64 bits, or must be NoneType, not str"),
        ({"marks": "!"}, "Outer.marks = '!': must be in base 64"),
        ({"pairs": [["x", "1"]]}, "Outer.pairs.number = '1': must be an int of 64 bits"),
        ({"pairs": [["x", 1, 2]]}, "must be a list of at most 2 items"),
        ({"pairs": 7}, "Outer.pairs = 7: must be a list, not int"),
        ({"by_name": {"z": [1]}}, "Outer.by_name = [1]: must have 2 items, not 1"),
        ({"by_name": []}, "Outer.by_name = []: must be an object, not list"),
        ({"other": {"until": []}}, "Outer.other.until = []: must be an int"),
        ({"colour": "blue"}, "Outer.colour = 'blue': cannot be read ('blue' is not a valid Colour)"),
        ({"kind": "c"}, "Outer.kind = 'c': must be one of a, b"),
        ({"address": "g"}, "Outer.address = 'g': cannot be read"),
    ],
)
def test_what_is_not_as_declared_is_refused_with_field_value_and_rule(found: Any, message: str) -> None:
    given = {"path": "p", **found} if found and isinstance(found, dict) else found
    with pytest.raises(NotAsDeclaredError) as caught:
        CODEC.read(given)
    assert message in str(caught.value)


def test_unknown_fields_are_those_of_newer_versions_and_refused_where_it_is_strict() -> None:
    assert CODEC.read({"path": "p", "later": 1}) == Outer("p")
    strict = Codec(Holder, strict=True)
    with pytest.raises(NotAsDeclaredError, match=r"Holder.later = None: is no field of it"):
        strict.read({"later": 1})
    with pytest.raises(NotAsDeclaredError, match=r"Holder.other.later = None: is no field of it"):
        strict.read({"other": {"later": 1}})


def test_a_codec_that_is_whole_writes_defaults_inside_too() -> None:
    assert Codec(Pair, whole=True).write(Pair("x")) == ["x", 0]
    assert Codec(Outer, whole=True).write(Outer("p", other=Inner()))["other"] == {"marks": "", "until": None}


def test_a_field_of_a_type_that_json_has_not_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="is no type that JSON has"):
        Codec(Unwritable)
    with pytest.raises(TypeError, match="is no plain type"):
        Codec(Holder, plain=True)


def test_a_class_that_refuses_its_values_is_refused_where_it_stands() -> None:
    @dataclass(frozen=True)
    class Positive:
        rows: int

        def __post_init__(self) -> None:
            if self.rows < 1:
                raise ValueError("rows must be positive")

    with pytest.raises(NotAsDeclaredError, match=r"Positive = {'rows': 0}: rows must be positive"):
        Codec(Positive).read({"rows": 0})

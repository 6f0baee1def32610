"""Values as JSON and back, by what their classes declare: of each field its type and, beside it, a `Wire`.

The fields of a dataclass are an object of their names; those of a `NamedTuple`, or of a class that a `Codec` writes as
a row, a list. A field that has its default is left out, in a row with all that follow it. Types are `str`, `int` of 64
bits, `float`, `bool`, `bytes` (base 64), enumerations (their values), tuples, sets (sorted), mappings, arrays of
numbers, such classes, and unions with None; `Annotated[int, Wire("lateBy", least=0)]` says more. `Codec.read` checks
all of that: a value that is not as declared is a `NotAsDeclaredError`, of the field, the rule and the value.

This is written here, and not left to a library, since a planner is a process of its own for each query: to import
msgspec takes 15 ms of its processor, cattrs with attrs 56 ms, and this 7 ms, beside numpy and pyarrow.
"""

from __future__ import annotations

import types
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache, partial
from itertools import compress
from operator import attrgetter, is_not
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from alignment.exceptions import AlignmentError
from alignment.shown import shown

T = TypeVar("T")
Convert = Callable[[Any], Any]

_MOST: Final = 2**63
_SHOWN: Final = 80
"""Characters of a value in an error."""


class NotAsDeclaredError(AlignmentError, ValueError):
    """A value that was read is not as its field declares; `rule` says so without the value, which may be secret."""

    def __init__(self, where: str, rule: str, value: object = None) -> None:
        super().__init__(where, rule, value)
        self.where, self.rule, self.value = where, rule, value

    def __str__(self) -> str:
        value = repr(self.value)
        return shown(f"{self.where} = {value if len(value) <= _SHOWN else f'{value[:_SHOWN]}...'}: {self.rule}")

    def within(self, where: str) -> NotAsDeclaredError:
        """The same, of a field in another."""
        return NotAsDeclaredError(f"{where}{self.where}", self.rule, self.value)


class Form(NamedTuple):
    """The form of a value beside its type: `write` gives what JSON has, and `read` raises a `ValueError`."""

    write: Convert
    read: Convert


@dataclass(frozen=True, slots=True)
class Wire:
    """The way a field is written, beside its type.

    Attributes
    ----------
    name
        Its name in an object, by default that of the field; `-` for a field that is not written.
    form
        Another way to write it than its type's.
    least
        The smallest that its number may be.
    absent
        The value that is left out, and which a missing one is read as: by default that of the field.
    always, needed
        It is written if it has that value too; if it is needed, an object or row without it is refused.
    flat
        The fields of its class are written in this object, as if they were its own.
    """

    name: str = ""
    form: Form | None = None
    least: int | None = None
    absent: Any = ...
    always: bool = False
    needed: bool = False
    flat: bool = False


class _Mode(NamedTuple):
    whole: bool = False
    strict: bool = False
    plain: bool = False
    objects: bool = False


class _Field(NamedTuple):
    attribute: str
    name: str
    absent: Any
    always: bool
    flat: bool
    needs: frozenset[str]
    write: Convert | None
    read: Convert


class Codec(Generic[T]):
    """Writes and reads the values of one class.

    Parameters
    ----------
    kind
        A dataclass or a `NamedTuple`.
    row
        The fields that are written as a list, in this order, and not as an object; all those of a `NamedTuple`.
    whole
        Defaults are written too.
    objects
        Each `NamedTuple` is an object too, here and inside.
    strict
        An object with other fields is refused, here and inside; not with `Wire.flat`. By default they are ignored, as
        those of newer versions.
    plain
        Types are `str`, `int` of any size, `float`, `bool`, None, and tuples and unions of these alone.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Known:
    ...     path: str
    ...     rows: Annotated[int, Wire("n", least=0)] = 0
    >>> codec = Codec(Known)
    >>> codec.write(Known("a", 7)), codec.write(Known("a"))
    ({'path': 'a', 'n': 7}, {'path': 'a'})
    >>> codec.read({"path": "a", "n": -1})
    Traceback (most recent call last):
    alignment.codec.NotAsDeclaredError: Known.n = -1: must be at least 0
    """

    def __init__(
        self,
        kind: type[T],
        row: Sequence[str] = (),
        *,
        whole: bool = False,
        strict: bool = False,
        objects: bool = False,
        plain: bool = False,
    ) -> None:
        self._kind = kind
        self._strict = strict
        self._as_row = bool(row) or (issubclass(kind, tuple) and not objects)
        self._fields = _fields_of(kind, row, _Mode(whole, strict, plain, objects))
        self.names = {one.name for one in self._fields}
        names = [one.attribute for one in self._fields]
        self._values = attrgetter(*names) if names[1:] else lambda value: [getattr(value, name) for name in names]
        # The last field that is always written ends the shortest row.
        self._shortest = max((at for at, one in enumerate(self._fields, 1) if one.always), default=0)
        self._flat = [one for one in self._fields if one.flat]
        self._absent = [MISSING if one.always else one.absent for one in self._fields]
        self._is_plain = all(one.write is None for one in self._fields)

    def write(self, value: T) -> Any:
        """Return the value for JSON. O(fields)."""
        return self._row(value) if self._as_row else self._object(value)

    def read(self, found: Any) -> T:
        """Return the value of what `write` returned; a `NotAsDeclaredError` if it is none."""
        try:
            return self._read(found)
        except NotAsDeclaredError as error:
            raise error.within(self._kind.__name__) from None

    def _object(self, value: Any) -> dict[str, Any]:
        written: dict[str, Any] = {}
        values = self._values(value)
        # Most fields have their defaults, which are found without a step of Python for each.
        for field, given in compress(zip(self._fields, values, strict=True), map(is_not, values, self._absent)):
            _, name, absent, always, flat, _, write, _ = field
            if always or given != absent:
                if flat:
                    assert write is not None
                    written |= write(given)
                else:
                    written[name] = given if write is None else write(given)
        return written

    def _row(self, value: Any) -> list[Any]:
        given = [*self._values(value)]
        while len(given) > self._shortest and given[-1] == self._fields[len(given) - 1].absent:
            given.pop()
        if self._is_plain:
            return given
        pairs = zip(self._fields, given, strict=False)
        return [one if field.write is None else field.write(one) for field, one in pairs]

    def _of_object(self, found: Any) -> Mapping[str, Any]:
        if type(found) is not dict and not isinstance(found, Mapping):
            raise NotAsDeclaredError("", "must be an object", found)
        if self._strict and (strange := found.keys() - self.names):
            raise NotAsDeclaredError(f".{sorted(map(str, strange))[0]}", "is no field of it")
        # One without all that its class always has, as where it is None, has its default.
        flat = {one.name: found for one in self._flat if one.needs <= found.keys()}
        return {**found, **flat} if flat else found

    def _of_row(self, found: Any) -> dict[str, Any]:
        if not isinstance(found, list | tuple) or len(found) > len(self._fields):
            raise NotAsDeclaredError("", f"must be a list of at most {len(self._fields)} items", found)
        return {one.name: given for one, given in zip(self._fields, found, strict=False)}

    def _read(self, found: Any) -> T:
        given = self._of_row(found) if self._as_row else self._of_object(found)
        made: dict[str, Any] = {}
        name, is_flat = "", False
        try:
            for attribute, name, absent, _, is_flat, _, _, read in self._fields:  # noqa: B007 (of where it failed)
                if name in given:
                    made[attribute] = read(given[name])
                elif absent is not MISSING:
                    made[attribute] = absent
                else:
                    raise NotAsDeclaredError("", "must be given")
        except NotAsDeclaredError as error:
            raise (error if is_flat else error.within(f".{name}")) from None
        try:
            return self._kind(**made)
        except (ValueError, TypeError) as error:
            # The class itself has a rule for its fields.
            raise NotAsDeclaredError("", str(error), found) from error


def _fields_of(kind: type[Any], row: Sequence[str], mode: _Mode) -> tuple[_Field, ...]:
    hints = get_type_hints(kind, include_extras=True)
    if is_dataclass(kind):
        defaults = {one.name: _default_of(one) for one in fields(kind) if one.init}
    else:
        known: Mapping[str, Any] = kind._field_defaults
        defaults = {name: known.get(name, MISSING) for name in kind._fields}
    found = []
    for attribute in row or defaults:
        declared, default = hints[attribute], defaults[attribute]
        wire = next((one for one in getattr(declared, "__metadata__", ()) if isinstance(one, Wire)), Wire())
        if wire.name == "-":
            continue
        write, read = _converters(declared, mode)
        absent = default if wire.absent is ... else wire.absent
        absent = MISSING if wire.needed else absent
        always = absent is MISSING or mode.whole or wire.always
        name = wire.name or attribute
        needs = _needed_by(declared) if wire.flat else frozenset()
        found.append(_Field(attribute, name, absent, always, flat=wire.flat, needs=needs, write=write, read=read))
    return tuple(found)


def _default_of(field: Any) -> Any:
    # A class that came pickled by value has another object of the type of MISSING.
    if not isinstance(field.default_factory, type(MISSING)):
        return field.default_factory()
    return MISSING if isinstance(field.default, type(MISSING)) else field.default


def _needed_by(declared: Any) -> frozenset[str]:
    """The fields that an object always has of the class of a flat field, which may be None."""
    inner = get_args(declared)[0]
    kind = next(iter(get_args(inner)), inner)
    return frozenset(one.name for one in Codec(kind)._fields if one.always)


@cache
def _converters(declared: Any, mode: _Mode) -> tuple[Convert | None, Convert]:
    """Return what writes a value of a declared type, None for what JSON has itself, and what reads it."""
    origin, parts = get_origin(declared), get_args(declared)
    if origin is Annotated:
        return _annotated(parts[0], next((one for one in parts[1:] if isinstance(one, Wire)), Wire()), mode)
    if origin is tuple:
        inner = [_converters(part, mode) for part in parts if part is not ...]
        writes, reads = [write for write, _ in inner], [read for _, read in inner]
        repeats = parts[-1:] == (...,)
        plain = all(write is None for write in writes)
        return None if plain else partial(_write_tuple, writes, repeats), partial(_read_tuple, reads, repeats)
    if origin is frozenset:
        read_items = _converters(tuple[parts[0], ...], mode)[1]  # type: ignore[valid-type]
        return sorted, lambda value: frozenset(read_items(value))
    if origin is np.ndarray:
        return _write_array, partial(_read_by, _read_array)
    if origin in (Union, types.UnionType):
        inner = [_converters(part, mode) for part in parts]
        own = [partial(_unless_none, one) for one, _ in inner if one is not None]
        return own[0] if own else None, partial(_read_union, [read for _, read in inner])
    if mode.plain and declared not in (None, type(None), str, int, bool, float):
        raise TypeError(f"{declared!r} is no plain type")
    if origin is Literal:
        return None, partial(_read_choice, parts)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        write, read = _converters(parts[1], mode)
        return partial(_write_mapping, write), partial(_read_mapping, parts[0], read)
    if declared is bytes:
        return lambda value: b64encode(value).decode("ascii"), _read_bytes
    if isinstance(declared, type) and issubclass(declared, Enum):
        # Not `value`, which Python is slow to look up.
        return attrgetter("_value_"), partial(_read_by, declared)
    if isinstance(declared, type) and (is_dataclass(declared) or hasattr(declared, "_fields")):
        codec: Codec[Any] = Codec(declared, whole=mode.whole, strict=mode.strict, objects=mode.objects)
        return codec.write, codec._read
    if declared is float:
        return None, _read_float
    if declared is int and not mode.plain:
        return None, _read_int
    if declared not in (None, type(None), str, int, bool):
        raise TypeError(f"{declared!r} is no type that JSON has")
    return None, partial(_read_exactly, type(None) if declared is None else declared)


def _annotated(inner: Any, wire: Wire, mode: _Mode) -> tuple[Convert | None, Convert]:
    if wire.form is not None:
        write, read_form = wire.form.write, partial(_read_by, wire.form.read)
        may_be_none = type(None) in get_args(inner)
        return (partial(_unless_none, write), partial(_unless_none, read_form)) if may_be_none else (write, read_form)
    plain, read = _converters(inner, mode)
    return plain, read if wire.least is None else partial(_read_at_least, read, wire.least)


def _unless_none(convert: Convert, value: Any) -> Any:
    return None if value is None else convert(value)


def _write_tuple(writes: list[Convert | None], repeats: bool, value: Any) -> list[Any]:
    writes = writes * len(value) if repeats else writes
    return [item if write is None else write(item) for write, item in zip(writes, value, strict=True)]


def _write_array(value: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {"dtype": value.dtype.name, "values": value.tolist()}


def _read_array(value: Any) -> np.ndarray[Any, Any]:
    if np.dtype(value["dtype"]).kind not in "biuf":
        raise ValueError(f"no array has the type {value['dtype']!r}")
    return np.array(value["values"], value["dtype"])


def _write_mapping(write: Convert | None, value: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key): item if write is None else write(item) for key, item in value.items()}


def _read_bytes(value: Any) -> bytes:
    try:
        return b64decode(_read_exactly(str, value), validate=True)
    except ValueError as error:
        raise NotAsDeclaredError("", "must be in base 64", value) from error


def _read_by(read: Convert, value: Any) -> Any:
    try:
        return read(value)
    except NotAsDeclaredError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise NotAsDeclaredError("", f"cannot be read ({error})", value) from error


def _read_at_least(read: Convert, least: int, value: Any) -> Any:
    made = read(value)
    if made is not None and made < least:
        raise NotAsDeclaredError("", f"must be at least {least}", value)
    return made


def _read_tuple(reads: list[Convert], repeats: bool, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise NotAsDeclaredError("", f"must be a list, not {type(value).__name__}", value)
    reads = reads * len(value) if repeats else reads
    if len(value) != len(reads):
        raise NotAsDeclaredError("", f"must have {len(reads)} items, not {len(value)}", value)
    return tuple([read(item) for read, item in zip(reads, value, strict=True)])


def _read_union(reads: list[Convert], value: Any) -> Any:
    rules: list[NotAsDeclaredError] = []
    for read in reads:
        try:
            return read(value)
        except NotAsDeclaredError as error:
            rules.append(error)
    nearest = next((error for error in rules if error.where), rules[0])
    raise nearest if nearest.where else NotAsDeclaredError("", ", or ".join(one.rule for one in rules), value)


def _read_mapping(key: type[Any], read: Convert, value: Any) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise NotAsDeclaredError("", f"must be an object, not {type(value).__name__}", value)
    return {_read_by(key, name): read(item) for name, item in value.items()}


def _read_choice(choices: tuple[Any, ...], value: Any) -> Any:
    if value not in choices:
        raise NotAsDeclaredError("", f"must be one of {', '.join(map(str, choices))}", value)
    return value


def _read_exactly(kind: type, value: Any) -> Any:
    # Not isinstance: True is an int.
    if type(value) is not kind:
        raise NotAsDeclaredError("", f"must be {kind.__name__}, not {type(value).__name__}", value)
    return value


def _read_int(value: Any) -> int:
    # Not isinstance: True is an int.
    if type(value) is not int or not -_MOST <= value < _MOST:
        raise NotAsDeclaredError("", "must be an int of 64 bits", value)
    return value


def _read_float(value: Any) -> float:
    if type(value) not in (int, float):
        raise NotAsDeclaredError("", f"must be a number, not {type(value).__name__}", value)
    try:
        number = float(value)
    except OverflowError:
        raise NotAsDeclaredError("", "must be a number that a float holds", value) from None
    if number - number != 0:
        raise NotAsDeclaredError("", "must be a finite number", value)
    return number

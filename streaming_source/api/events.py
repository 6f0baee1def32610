"""Messages between an enumerator and its readers (FLIP-27), and how they are written down for their way."""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from streaming_source.api.serializer import SimpleVersionedSerializer
from streaming_source.exceptions import MalformedDataError

__all__ = ["DataclassEventSerializer", "SourceEvent"]

_Check = Callable[[Any], Any]
"""The value of a field, made of a JSON value; raises a TypeError if it has another type."""

_VERSION: Final = 1


class SourceEvent:
    """A message of a connector's own, from its enumerator to its readers or back.

    Subclass it with what the message carries, best as a frozen dataclass. Events travel between processes: they are
    picklable, and their classes are importable by name.
    """

    __slots__ = ()


class DataclassEventSerializer(SimpleVersionedSerializer[SourceEvent]):
    """Writes events that are frozen dataclasses as JSON objects: the name of the class, and its fields.

    What is read is checked: the class is one of those registered, its fields are exactly those of the class, and each
    value has the type that the class declares. Nothing else is made of what came over the wire.

    Parameters
    ----------
    kinds
        Classes of the events, each a frozen dataclass with a name of its own. Their fields are declared as `str`,
        `int`, `float`, `bool`, `None`, a tuple of these (`tuple[int, ...]`, `tuple[str, int]`), or a union of them.

    Raises
    ------
    TypeError
        If a class is no frozen dataclass and `SourceEvent`, two have one name, or a field is declared as anything else.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from streaming_source.api import SourceEvent
    >>> @dataclass(frozen=True)
    ... class AskForMore(SourceEvent):
    ...     split_id: str
    ...     rows: int
    >>> serializer = DataclassEventSerializer(AskForMore)
    >>> serializer.serialize(AskForMore("orders", 7))
    b'{"event":"AskForMore","fields":{"rows":7,"split_id":"orders"}}'
    """

    def __init__(self, *kinds: type[SourceEvent]) -> None:
        self._kinds: dict[str, type[SourceEvent]] = {}
        self._checks: dict[str, dict[str, _Check]] = {}
        for kind in kinds:
            name = kind.__name__
            _require_frozen_event(kind)
            if name in self._kinds:
                raise TypeError(f"two events are named {name}: {self._kinds[name]!r} and {kind!r}; rename one")
            self._kinds[name] = kind
            self._checks[name] = _checks_of(kind)

    def __reduce__(self) -> tuple[type[DataclassEventSerializer], tuple[type[SourceEvent], ...]]:
        """Copy it by its classes."""
        return type(self), tuple(self._kinds.values())

    @property
    def version(self) -> int:
        """See `SimpleVersionedSerializer`."""
        return _VERSION

    def serialize(self, value: SourceEvent) -> bytes:
        """See `SimpleVersionedSerializer`.

        Raises
        ------
        TypeError
            If the event's class was not registered, or a field has another type than it declares.
        ValueError
            If a number is not finite.
        """
        name = type(value).__name__
        if self._kinds.get(name) is not type(value):
            raise TypeError(f"{name} is no event of this serializer, which knows {self._known}: register it")
        written = {field: getattr(value, field) for field in self._checks[name]}
        for field, check in self._checks[name].items():
            _checked(name, field, check, written[field])
        event = {"event": name, "fields": written}
        return json.dumps(event, separators=(",", ":"), sort_keys=True, allow_nan=False).encode()

    def deserialize(self, version: int, data: bytes) -> SourceEvent:
        """See `SimpleVersionedSerializer`.

        Raises
        ------
        streaming_source.exceptions.MalformedDataError
            If the version is another one, or the bytes are no event that was registered.
        """
        if version != _VERSION:
            raise MalformedDataError(f"a source event was written with version {version}, this code reads {_VERSION}")
        try:
            read = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise MalformedDataError("a source event is no JSON text") from error
        if not isinstance(read, dict) or read.keys() != {"event", "fields"}:
            raise MalformedDataError("a source event is a JSON object of `event` and `fields`")
        name, values = read["event"], read["fields"]
        if not isinstance(name, str) or name not in self._kinds:
            raise MalformedDataError(f"a source event is of an unknown class; known are {self._known}")
        checks = self._checks[name]
        if not isinstance(values, dict) or values.keys() != checks.keys():
            raise MalformedDataError(f"a {name} has the fields {sorted(checks)}, and no others")
        try:
            made = {field: _checked(name, field, check, values[field]) for field, check in checks.items()}
            return self._kinds[name](**made)
        except (TypeError, ValueError, RecursionError) as error:
            raise MalformedDataError(f"this is no {name}: {error}") from error

    @property
    def _known(self) -> str:
        return ", ".join(self._kinds) or "none"


def _require_frozen_event(kind: type) -> None:
    frozen = is_dataclass(kind) and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    if not frozen or not issubclass(kind, SourceEvent):
        raise TypeError(f"{kind!r}: an event of this serializer is a frozen dataclass and a SourceEvent")


def _checks_of(kind: type) -> dict[str, _Check]:
    declared = get_type_hints(kind)
    return {
        field.name: _check_of(declared[field.name], f"{kind.__name__}.{field.name}")
        for field in fields(kind)
        if field.init
    }


def _checked(name: str, field: str, check: _Check, value: Any) -> Any:
    try:
        return check(value)
    except TypeError as error:
        # Without the value: events may carry what is nobody else's business.
        raise TypeError(f"field {field} of {name}: {error}") from None


def _check_of(declared: Any, where: str) -> _Check:
    """What checks a value against a declared type."""
    if declared is None or declared is type(None):
        return _exactly(type(None))
    if declared in (str, int, bool):
        return _exactly(declared)
    if declared is float:
        return _number
    if get_origin(declared) in (Union, types.UnionType):
        return _any_of([_check_of(part, where) for part in get_args(declared)])
    if get_origin(declared) is tuple:
        parts = get_args(declared)
        if len(parts) == 2 and parts[1] is Ellipsis:
            return _tuple_of_any_length(_check_of(parts[0], where))
        return _tuple_of([_check_of(part, where) for part in parts])
    raise TypeError(
        f"{where} is declared as {declared!r}: a field of an event is a str, int, float, bool, None, "
        "a tuple of these, or a union"
    )


def _exactly(kind: type) -> _Check:
    def check(value: Any) -> Any:
        # Not isinstance: True is an int.
        if type(value) is not kind:
            raise TypeError(f"must be {kind.__name__}, not {type(value).__name__}")
        return value

    return check


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise TypeError(f"must be a number, not {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        raise TypeError("must be a number that a float holds") from None
    if number - number != 0:
        raise TypeError("must be a finite number")
    return number


def _any_of(checks: list[_Check]) -> _Check:
    def check(value: Any) -> Any:
        problems = []
        for one in checks:
            try:
                return one(value)
            except TypeError as error:
                problems.append(str(error))
        raise TypeError(", or ".join(problems))

    return check


def _tuple_of_any_length(one: _Check) -> _Check:
    def check(value: Any) -> tuple[Any, ...]:
        return tuple(map(one, _items(value)))

    return check


def _tuple_of(checks: list[_Check]) -> _Check:
    def check(value: Any) -> tuple[Any, ...]:
        items = _items(value)
        if len(items) != len(checks):
            raise TypeError(f"must have {len(checks)} items, not {len(items)}")
        return tuple(one(item) for one, item in zip(checks, items, strict=True))

    return check


def _items(value: Any) -> list[Any] | tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"must be a list, not {type(value).__name__}")
    return value

"""Serializers: splits, checkpoints and events are written so that they outlive the code that wrote them (FLIP-27)."""

from __future__ import annotations

import base64
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar, Generic, TypeVar

from alignment.codec import Codec, NotAsDeclaredError
from streaming_source.exceptions import MalformedDataError, OffsetError
from streaming_source.from_data import as_json

T = TypeVar("T")


class SimpleVersionedSerializer(ABC, Generic[T]):
    """Writes a value with a version.

    Bytes that are a JSON text appear as JSON in Spark's offsets, where a person can read them; any others as base64.
    """

    @property
    @abstractmethod
    def version(self) -> int:
        """Version that `serialize` writes."""

    @abstractmethod
    def serialize(self, value: T) -> bytes:
        """The value in bytes. Equal values give equal bytes."""

    def to_json(self, value: T) -> Any:
        """Return the JSON of a value in an offset. Override it where no bytes are needed for that."""
        return bytes_to_json(self.serialize(value))

    @abstractmethod
    def deserialize(self, version: int, data: bytes) -> T:
        """The value that was written with `version`.

        An `OffsetError` if the version is newer than this code, or the bytes are not such a value. For source events,
        which are in no offset: `MalformedDataError`.
        """


class JsonSerializer(SimpleVersionedSerializer[T]):
    """Writes a dataclass as a JSON object of its fields.

    Parameters
    ----------
    kind
        The dataclass. Its fields hold what JSON has: text, numbers, booleans, None, and tuples of these.
    version
        Version of its fields as they are now: to be raised when they change their names or meanings.
    upgrades
        For each older version what makes the next version's JSON object of its own.

    Examples
    --------
    >>> from streaming_source.api import RecordSplit
    >>> serializer = JsonSerializer(RecordSplit)
    >>> serializer.serialize(RecordSplit("orders", 7))
    b'{"position":7,"split_id":"orders","start":7,"stop":null}'
    """

    def __init__(
        self,
        kind: type[T],
        version: int = 1,
        upgrades: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] | None = None,
    ) -> None:
        if not is_dataclass(kind):
            raise TypeError(f"kind = {kind!r}: must be a dataclass")
        self._kind = kind
        self._names = tuple(sorted(field.name for field in fields(kind) if field.init))
        self._version = version
        self._upgrades = dict(upgrades or {})

    @property
    def version(self) -> int:
        return self._version

    def to_json(self, value: T) -> dict[str, Any]:
        return {name: getattr(value, name) for name in self._names}

    def serialize(self, value: T) -> bytes:
        return json.dumps(self.to_json(value), separators=(",", ":"), sort_keys=True).encode()

    def deserialize(self, version: int, data: bytes) -> T:
        kind = self._kind.__name__
        if not isinstance(version, int) or version > self._version:
            raise OffsetError(
                f"a {kind} was written with version {version}, this code reads up to {self._version}: it was written "
                "by a newer one; upgrade"
            )
        unknown = next((old for old in range(version, self._version) if old not in self._upgrades), None)
        if unknown is not None:
            raise OffsetError(
                f"a {kind} was written with version {version}, and this code of version {self._version} has no upgrade "
                f"from version {unknown}; write one, or use a new checkpointLocation"
            )
        try:
            value = json.loads(data)
            for old in range(version, self._version):
                value = self._upgrades[old](value)
            if not value.keys() <= {*self._names}:
                raise ValueError(f"unknown fields {sorted(value.keys() - {*self._names})}")
            return self._kind(**{name: _with_tuples(field) for name, field in value.items()})
        except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise OffsetError(f"damaged offset: {data!r} is no {kind}: {error!r}") from error


class CodecSerializer(SimpleVersionedSerializer[T]):
    """Writes a value of this library by the `codec` of its class; `what` an offset has there, for errors."""

    version = 1
    codec: ClassVar[Codec[Any]]
    what: ClassVar[str] = "splits"

    def to_json(self, value: T) -> Any:
        written = self._codec_for(value).write(value)
        return written if isinstance(written, list) else bytes_to_json(self.serialize(value))

    def serialize(self, value: T) -> bytes:
        return json.dumps(self._codec_for(value).write(value), separators=(",", ":"), sort_keys=True).encode()

    def deserialize(self, version: int, data: bytes) -> T:
        check_version(version, self.version, self.what)
        try:
            found = as_json(data)
            read: T = self._codec_of(found).read(found)
            self.check(read)
        except ValueError as error:
            raise OffsetError(f"damaged offset: {data!r} in the place of its {self.what}: {error}") from error
        return read

    def check(self, value: T) -> None:
        """Raise a `ValueError` for a value whose fields are as declared, and that cannot be."""

    def _codec_for(self, value: T) -> Codec[Any]:
        """The codec that writes this value; another one where a class has two layouts."""
        return self.codec

    def _codec_of(self, found: Any) -> Codec[Any]:
        """The codec that has written this."""
        return self.codec


def check_version(version: int, known: int, what: str) -> None:
    """Refuse what a newer version of this library wrote into an offset; an `OffsetError` that names it."""
    if not isinstance(version, int) or version > known:
        raise OffsetError(
            f"the offset's {what} have version {version}, this library reads up to {known}: they were written by a "
            "newer one; upgrade spark-watermark-alignment"
        )


def bytes_to_json(data: bytes) -> Any:
    """Return what a serializer wrote, as a value for JSON: its own where the bytes are a JSON text, else base64."""
    try:
        return json.loads(data)
    except ValueError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def json_to_bytes(value: Any) -> bytes:
    """The bytes of which `bytes_to_json` made the value; a JSON text in its shortest form, keys sorted."""
    if isinstance(value, dict) and value.keys() == {"base64"}:
        return base64.b64decode(value["base64"])
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def _with_tuples(value: Any) -> Any:
    return tuple(_with_tuples(item) for item in value) if isinstance(value, list) else value


class SourceEvent:
    """A message of a connector's own, from its enumerator to its readers or back.

    Subclass it with what the message carries, best as a frozen dataclass. Events travel between processes: they are
    picklable, and their classes are importable by name.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Progress(SourceEvent):
    ...     split_id: str
    ...     position: int
    """

    __slots__ = ()


class DataclassEventSerializer(SimpleVersionedSerializer[SourceEvent]):
    """Writes events that are frozen dataclasses as JSON objects: the name of the class, and its fields.

    What is read is checked: the class is one of those registered, its fields are exactly those of the class, and each
    value has the type that the class declares. Nothing else is made of what came over the wire.

    The classes have names of their own. Their fields are declared as `str`, `int`, `float`, `bool`, `None`, a tuple of
    these (`tuple[int, ...]`, `tuple[str, int]`), or a union of them; anything else is a TypeError.

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

    version = 1

    def __init__(self, *kinds: type[SourceEvent]) -> None:
        self._codecs: dict[type[SourceEvent], Codec[Any]] = {}
        self._kinds: dict[str, type[SourceEvent]] = {}
        for kind in kinds:
            name = kind.__name__
            frozen = is_dataclass(kind) and kind.__dataclass_params__.frozen
            if not frozen or not issubclass(kind, SourceEvent):
                raise TypeError(f"{kind!r}: an event of this serializer is a frozen dataclass and a SourceEvent")
            if name in self._kinds:
                raise TypeError(f"two events are named {name}: {self._kinds[name]!r} and {kind!r}; rename one")
            self._kinds[name] = kind
            try:
                self._codecs[kind] = Codec(kind, whole=True, strict=True, plain=True)
            except TypeError as error:
                raise TypeError(
                    f"{name}: {error}: a field of an event is a str, int, float, bool, None, a tuple of these, or a "
                    "union"
                ) from None

    def __reduce__(self) -> tuple[type[DataclassEventSerializer], tuple[type[SourceEvent], ...]]:
        return type(self), tuple(self._codecs)

    def serialize(self, value: SourceEvent) -> bytes:
        name = type(value).__name__
        if type(value) not in self._codecs:
            raise TypeError(f"{name} is no event of this serializer, which knows {self._known}: register it")
        codec = self._codecs[type(value)]
        written = codec.write(value)
        try:
            codec.read(written)
        except NotAsDeclaredError as error:
            raise TypeError(_rule_of(error)) from None
        event = {"event": name, "fields": written}
        return json.dumps(event, separators=(",", ":"), sort_keys=True, allow_nan=False).encode()

    def deserialize(self, version: int, data: bytes) -> SourceEvent:
        if version != self.version:
            raise MalformedDataError(
                f"a source event was written with version {version}, this code reads {self.version}"
            )
        try:
            read = as_json(data, any_number=True)
        except ValueError as error:
            raise MalformedDataError("a source event is no JSON text") from error
        if not isinstance(read, dict) or read.keys() != {"event", "fields"}:
            raise MalformedDataError("a source event is a JSON object of `event` and `fields`")
        name, values = read["event"], read["fields"]
        if not isinstance(name, str) or name not in self._kinds:
            raise MalformedDataError(f"a source event is of an unknown class; known are {self._known}")
        codec = self._codecs[self._kinds[name]]
        if not isinstance(values, dict) or values.keys() != codec.names:
            raise MalformedDataError(f"a {name} has the fields {sorted(codec.names)}, and no others")
        try:
            event: SourceEvent = codec.read(values)
            return event
        except NotAsDeclaredError as error:
            raise MalformedDataError(f"this is no {name}: {_rule_of(error)}") from error

    @property
    def _known(self) -> str:
        return ", ".join(self._kinds) or "none"


def _rule_of(error: NotAsDeclaredError) -> str:
    """The rule without the value: events may carry secrets."""
    name, _, field = error.where.partition(".")
    return f"field {field} of {name}: {error.rule}" if field else error.rule

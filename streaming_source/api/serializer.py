"""How splits and checkpoints are written down, so that they outlive the code that wrote them (FLIP-27)."""

from __future__ import annotations

import base64
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Generic, TypeVar

from streaming_source.exceptions import OffsetError

__all__ = ["JsonSerializer", "SimpleVersionedSerializer", "bytes_to_json", "json_to_bytes"]

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

    @abstractmethod
    def deserialize(self, version: int, data: bytes) -> T:
        """The value that was written with `version`.

        Raises
        ------
        streaming_source.exceptions.OffsetError
            If the version is newer than this code, or the bytes are not such a value. For source events, which stand
            in no offset: `MalformedDataError`.
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

    Raises
    ------
    TypeError
        If `kind` is no dataclass.

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
        self._names = tuple(field.name for field in fields(kind) if field.init)
        self._version = version
        self._upgrades = dict(upgrades or {})

    @property
    def version(self) -> int:
        """See `SimpleVersionedSerializer`."""
        return self._version

    def serialize(self, value: T) -> bytes:
        """See `SimpleVersionedSerializer`."""
        written = {name: getattr(value, name) for name in self._names}
        return json.dumps(written, separators=(",", ":"), sort_keys=True).encode()

    def deserialize(self, version: int, data: bytes) -> T:
        """See `SimpleVersionedSerializer`."""
        kind = self._kind.__name__
        if version > self._version:
            raise OffsetError(
                f"a {kind} was written with version {version}, this code reads up to {self._version}: it was written "
                "by a newer one; upgrade"
            )
        unknown = [old for old in range(version, self._version) if old not in self._upgrades]
        if unknown:
            raise OffsetError(
                f"a {kind} was written with version {version}, and this code of version {self._version} has no upgrade "
                f"from version {unknown[0]}; write one, or use a new checkpointLocation"
            )
        try:
            value = json.loads(data)
            for old in range(version, self._version):
                value = self._upgrades[old](value)
            if not value.keys() <= {*self._names}:
                raise ValueError(f"unknown fields {sorted(value.keys() - {*self._names})}")
            return self._kind(**{name: _with_tuples(field) for name, field in value.items()})
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise OffsetError(f"damaged offset: {data!r} is no {kind}: {error!r}") from error


def bytes_to_json(data: bytes) -> Any:
    """What a serializer wrote, as a value for JSON: its own where the bytes are a JSON text, else base64."""
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

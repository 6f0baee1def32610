"""The unit of work and of state: a split, and how it is written down."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, Self, TypeVar

__all__ = ["SimpleVersionedSerializer", "SourceSplit"]

T = TypeVar("T")


class SourceSplit(ABC):
    """A part of a source that is read in order by one reader at a time: a Kafka partition, a directory, a file.

    A split carries all state of its reading. Its *position* numbers its records: the record at `position` is the next
    one to read. Splits are values: immutable, picklable, equal when they are the same state of the same split.
    """

    @property
    @abstractmethod
    def split_id(self) -> str:
        """Stable over the life of the source; unique in it."""

    @property
    @abstractmethod
    def position(self) -> int:
        """Number of the next record, never negative, never going back."""

    @abstractmethod
    def origin(self) -> Self:
        """The split before its first record was read."""


class SimpleVersionedSerializer(ABC, Generic[T]):
    """Writes a value with a version, so that states outlive the code that wrote them (FLIP-27).

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
            If the version is newer than this code, or the bytes are not such a value.
        """

"""The unit of work and of state: a split."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any, ClassVar, Self, cast

from streaming_source.exceptions import UnsupportedOperationError

__all__ = ["RecordSplit", "SourceSplit"]


class SourceSplit(ABC):
    """A part of a source that is read in order: a Kafka partition, a directory, a table.

    A split carries all state of its reading. Its *position* is where reading goes on: at the first record at or after
    it. Records have rising positions, not necessarily without gaps; after the record at `p` the position is `p + 1`.
    Splits are values: immutable, picklable, equal when they are the same state of the same split.

    Attributes
    ----------
    is_divisible
        Whether reading may begin at any position: then several tasks can share what is read of one split at once.
    """

    is_divisible: ClassVar[bool] = False

    @property
    @abstractmethod
    def split_id(self) -> str:
        """Stable over the life of the source; unique in it."""

    @property
    @abstractmethod
    def position(self) -> int:
        """Where reading goes on, never negative, never going back."""

    @property
    def place(self) -> str:
        """Where that is, in words that lead a person there: override it where records have other names."""
        return f"position {self.position}"

    @property
    def stop(self) -> int | None:
        """Where reading ends: at the first record at or after it. None if only the source says where the end is.

        A `SplitReader` need not look at it: the base reader passes on no record from there on, and ends the split when
        it has passed on the one before, or sees one behind. Where neither may come, since records can be deleted, the
        `SplitReader` ends the split itself.
        """
        return None

    def at(self, position: int) -> Self:
        """The split in the state in which `position` is next. Override it unless that is a field of a dataclass."""
        return self._with("at", "position", position)

    def until(self, stop: int) -> Self:
        """The split for a reader that shall stop there. Override it unless `stop` is a field of a dataclass."""
        return self._with("until", "stop", stop)

    def origin(self) -> Self:
        """The split before its first record was read: at position 0, unless this is overridden."""
        return self.at(0)

    def _with(self, method: str, field: str, value: int) -> Self:
        if is_dataclass(self) and field in self.__dataclass_fields__:
            return cast("Self", replace(cast("Any", self), **{field: value}))
        raise UnsupportedOperationError(
            f"split {self.split_id!r} of type {type(self).__name__} is no dataclass with a field {field}: override "
            f"{type(self).__name__}.{method}"
        )


@dataclass(frozen=True, slots=True)
class RecordSplit(SourceSplit):
    """A split that is described by its name alone: enough for most sources. Subclass it to add fields.

    Attributes
    ----------
    split_id, position, stop
        See `SourceSplit`.
    start
        Where reading began; by default where it goes on.

    Examples
    --------
    >>> split = RecordSplit("orders", 100)
    >>> split.at(250).until(300)
    RecordSplit(split_id='orders', position=250, stop=300, start=100)
    >>> split.at(250).origin() == split
    True
    """

    split_id: str = field()  # said to be a field: else the property of the base class is taken for its default
    position: int = 0
    stop: int | None = None
    start: int | None = None

    def __post_init__(self) -> None:
        if self.start is None:
            object.__setattr__(self, "start", self.position)

    def origin(self) -> Self:
        """See `SourceSplit`."""
        return self.at(self.start or 0)

"""What a fetch brings: blocks of records, by split (FLIP-27)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

__all__ = ["RecordBlock", "RecordsBySplits", "RecordsWithSplitIds"]

ElementT = TypeVar("ElementT")


@dataclass(frozen=True, slots=True)
class RecordBlock:
    """Consecutive records of one split: the element that readers hand on, unless a connector has one of its own.

    Attributes
    ----------
    batch
        `n` records.
    positions
        Position of the first if the others follow it without a gap, else `int64[n]`, rising.
    source_timestamps
        `int64[n]` microseconds since the epoch, or None.
    """

    batch: pa.RecordBatch
    positions: int | npt.NDArray[np.int64]
    source_timestamps: npt.NDArray[np.int64] | None = None

    @property
    def next_position(self) -> int | None:
        """Position after the last record; None if there is no record."""
        rows: int = self.batch.num_rows
        if not rows:
            return None
        first = self.positions if isinstance(self.positions, int) else int(self.positions[-1]) + 1 - rows
        return first + rows


class RecordsWithSplitIds(ABC, Generic[ElementT]):
    """What one fetch brought, read once from front to back: split after split, element after element.

    A connector returns `RecordsBySplits` unless its elements live in buffers that it wants back.
    """

    @abstractmethod
    def next_split(self) -> str | None:
        """Go on to the next split and return its id; None after the last. The first call goes to the first split."""

    @abstractmethod
    def next_record_from_split(self) -> ElementT | None:
        """The next element of the split that `next_split` went to; None after its last.

        Raises
        ------
        RuntimeError
            If `next_split` was not called yet, or returned None.
        """

    @property
    @abstractmethod
    def finished_splits(self) -> Set[str]:
        """Ids of the splits of which nothing more will come after these records."""

    def recycle(self) -> None:
        """All elements are out, and none is referred to any more: buffers may be used again.

        Called once, on the reader's thread. Elements of a split that was paused meanwhile come out when it is resumed,
        and delay this.
        """


class RecordsBySplits(RecordsWithSplitIds[ElementT]):
    """Elements in memory, by split.

    Parameters
    ----------
    elements
        By split id, each split's in their order.
    finished_splits
        Ids of the splits that end with these elements; they need not have any.

    Examples
    --------
    >>> records = RecordsBySplits({"a": [1, 2]}, finished_splits={"b"})
    >>> records.next_split(), records.next_record_from_split(), records.next_record_from_split()
    ('a', 1, 2)
    >>> records.next_record_from_split(), records.next_split(), sorted(records.finished_splits)
    (None, None, ['b'])
    """

    __slots__ = ("_elements", "_finished", "_splits")

    def __init__(
        self, elements: Mapping[str, Iterable[ElementT]] | None = None, finished_splits: Iterable[str] = ()
    ) -> None:
        self._splits: Iterator[tuple[str, Iterable[ElementT]]] = iter((elements or {}).items())
        self._elements: Iterator[ElementT] | None = None
        self._finished = frozenset(finished_splits)

    def next_split(self) -> str | None:
        """See `RecordsWithSplitIds`."""
        split_id, elements = next(self._splits, (None, None))
        self._elements = None if elements is None else iter(elements)
        return split_id

    def next_record_from_split(self) -> ElementT | None:
        """See `RecordsWithSplitIds`."""
        if self._elements is None:
            raise RuntimeError("next_record_from_split() needs a split: call next_split() until it returns None")
        return next(self._elements, None)

    @property
    def finished_splits(self) -> Set[str]:
        """See `RecordsWithSplitIds`."""
        return self._finished

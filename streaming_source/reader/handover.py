"""What travels through the hand-over queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from streaming_source.api import RecordsWithSplitIds

if TYPE_CHECKING:
    from streaming_source.reader.fetcher import SplitFetcher

__all__ = ["Handover"]

ElementT = TypeVar("ElementT")


@dataclass(slots=True, eq=False)
class Handover(Generic[ElementT]):
    """What one fetch brought, and from whom.

    Attributes
    ----------
    fetcher
        Whose fetch it was.
    records
        What it brought.
    finished
        Splits of this fetcher that are read to their end with these records.
    removed
        Splits that this fetcher has let go of, and of which nothing comes after these records.
    seconds
        How long the fetch took.
    held
        Elements that were taken out of the records and wait for their split to be resumed.
    """

    fetcher: SplitFetcher[Any, ElementT]
    records: RecordsWithSplitIds[ElementT]
    finished: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()
    seconds: float = 0.0
    held: int = 0

    def recycle(self) -> None:
        """Every element is out: give back the buffers, and tell the fetcher."""
        try:
            self.records.recycle()
        finally:
            self.fetcher.notify_recycled()

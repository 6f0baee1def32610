"""Elements that were fetched of splits that are paused."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Set
from typing import Generic, TypeVar

from streaming_source.reader.fetcher import Handover

__all__ = ["PausedElements"]

ElementT = TypeVar("ElementT")


class PausedElements(Generic[ElementT]):
    """Keeps elements of paused splits, each split's in order, until the split is resumed.

    How much that can be: what the queue and the fetchers had in hand when the split was paused.
    """

    def __init__(self) -> None:
        self._elements: dict[str, deque[tuple[ElementT, Handover[ElementT]]]] = {}
        self._resumed: deque[str] = deque()

    def __bool__(self) -> bool:
        return bool(self._elements)

    def __contains__(self, split_id: str) -> bool:
        return split_id in self._elements

    @property
    def has_resumed(self) -> bool:
        """Whether a split may have been resumed whose elements are still here."""
        return bool(self._resumed)

    def put(self, split_id: str, element: ElementT, handover: Handover[ElementT]) -> None:
        """Keep an element; what it was handed over with is not recycled before it is out. O(1)."""
        handover.held += 1
        self._elements.setdefault(split_id, deque()).append((element, handover))

    def resume(self, split_ids: Iterable[str]) -> None:
        """Let the elements of these splits out."""
        self._resumed.extend(split_id for split_id in split_ids if split_id in self._elements)

    def take(self, paused: Set[str]) -> tuple[str, ElementT, Handover[ElementT]] | None:
        """The next element of a split that was resumed, and was not paused again. Amortized O(1)."""
        while self._resumed:
            split_id = self._resumed[0]
            if split_id in paused or split_id not in self._elements:
                self._resumed.popleft()
                continue
            element, handover = self._elements[split_id].popleft()
            handover.held -= 1
            if not self._elements[split_id]:
                del self._elements[split_id]
            return split_id, element, handover
        return None

    def drop(self, split_id: str) -> set[Handover[ElementT]]:
        """Forget the elements of a split; the hand-overs that they came with."""
        touched = set()
        for _, handover in self._elements.pop(split_id, ()):
            handover.held -= 1
            touched.add(handover)
        return touched

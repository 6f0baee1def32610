"""The lowest of many numbers that come and go."""

from __future__ import annotations

import heapq
from collections import Counter

__all__ = ["ApproximateMinimum"]


class ApproximateMinimum:
    """A bound below all numbers of a bag, to within a width: numbers that are as near are counted as one.

    Parameters
    ----------
    width
        How far below the lowest number the bound may be, at least 1: the wider, the less is kept.

    Examples
    --------
    >>> lowest = ApproximateMinimum(width=10)
    >>> for number in (25, 38, 27):
    ...     lowest.add(number)
    >>> lowest.bound
    20
    >>> lowest.remove(25)
    >>> lowest.remove(27)
    >>> lowest.bound
    30
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._counts: Counter[int] = Counter()
        self._heap: list[int] = []

    def add(self, number: int) -> None:
        """One more. O(log n)."""
        floor = number // self._width
        if floor not in self._counts:
            heapq.heappush(self._heap, floor)
        self._counts[floor] += 1

    def remove(self, number: int) -> None:
        """One that was added leaves. O(log n) amortised."""
        self._counts[number // self._width] -= 1
        while self._heap and not self._counts[self._heap[0]]:
            del self._counts[heapq.heappop(self._heap)]

    @property
    def bound(self) -> int | None:
        """No number is below this; None if there is none. O(1)."""
        return self._heap[0] * self._width if self._heap else None

"""What happens in the splits of a `TestingSource`, written down as a list."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeAlias

from alignment.durations import parse_duration_us

__all__ = ["ABORT", "EOF", "Abort", "Element", "EndOfSplit", "Gap", "Pause", "ScriptedRecord", "SplitScript"]


@dataclass(frozen=True, slots=True)
class Abort:
    """A fetch that comes to this point fails, once.

    Attributes
    ----------
    encounter
        Which one: 1 is the first fetch to come here, as a rule the planner's as it reads ahead, 2 the next.
    """

    encounter: int = 1


@dataclass(frozen=True, slots=True)
class Pause:
    """What follows is there so much later than what stands before it.

    Attributes
    ----------
    duration
        By the clock of the source.
    """

    duration: timedelta | str


@dataclass(frozen=True, slots=True)
class Gap:
    """So many positions without a record.

    Attributes
    ----------
    positions
        At least 1.
    """

    positions: int


@dataclass(frozen=True, slots=True)
class EndOfSplit:
    """The split ends here. Without it, it does not end, unless the source is bounded."""


ABORT: Final = Abort()
EOF: Final = EndOfSplit()

Element: TypeAlias = "int | Abort | Pause | Gap | EndOfSplit | None"
"""A record, as its event time in microseconds or None for one without, or a mark."""


@dataclass(frozen=True, slots=True)
class ScriptedRecord:
    """One record.

    Attributes
    ----------
    position
        In its split.
    time_us
        Event time; None for none.
    arrival_us
        Time on the clock from which on it is there.
    """

    position: int
    time_us: int | None
    arrival_us: int


class SplitScript:
    """What happens in one split.

    Parameters
    ----------
    elements
        Records and marks, in order.
    appears_us
        When the split appears, by the clock.
    ends
        Whether the split ends with the last element, even if that is no `EOF`.

    Attributes
    ----------
    records
        In order.
    aborts
        Number of the record before which a mark stands, and the mark.
    end_us
        Time on the clock at which the split ends; None for never.

    Raises
    ------
    ValueError
        If something follows the end.
    """

    def __init__(self, elements: Iterable[Element], appears_us: int = 0, *, ends: bool = False) -> None:
        self.records: list[ScriptedRecord] = []
        self.aborts: list[tuple[int, Abort]] = []
        self.end_us: int | None = None
        self.appears_us = appears_us
        self._position = 0
        self._last_us = appears_us
        self.go_on(elements, appears_us)
        if ends and self.end_us is None:
            self.end_us = self._last_us

    def go_on(self, elements: Iterable[Element], now_us: int) -> None:
        """Append elements that happen from a time on, and not before what stands before them.

        Raises
        ------
        ValueError
            If something follows the end.
        """
        self._last_us = max(self._last_us, now_us)
        for element in elements:
            if self.end_us is not None:
                raise ValueError(f"{element!r} follows the end of its split")
            if isinstance(element, Pause):
                self._last_us += parse_duration_us(element.duration, name="duration")
            elif isinstance(element, Gap):
                self._position += element.positions
            elif isinstance(element, Abort):
                self.aborts.append((len(self.records), element))
            elif isinstance(element, EndOfSplit):
                self.end_us = self._last_us
            else:
                self.records.append(ScriptedRecord(self._position, element, self._last_us))
                self._position += 1

    def end_position(self, now_us: int) -> int:
        """Behind the last record that has arrived; 0 if none has."""
        arrived = bisect_right(self.records, now_us, key=lambda record: record.arrival_us)
        return self.records[arrived - 1].position + 1 if arrived else 0

"""Which rows of a micro-batch Spark's watermark drops: the rule as bounds of event time.

Verified on Spark 4.2 and 4.3. An operator drops late rows before it uses its state:

- windows: a row is dropped from a window whose end is at or below the watermark of the micro-batch *before*
  (SPARK-40925). Of several windows that a row is in, it may be dropped from the early ones and counted in the others.
- session windows: the same for the row's own session, which ends `gap` after the row.
- deduplication, joins, and aggregation by the event time itself: a row whose time is at or below that watermark.

In append mode a window is emitted by the micro-batch whose *own* watermark has reached its end. In update mode each
change is emitted at once. In complete mode nothing is dropped. Watermarks are whole milliseconds, event times
microseconds.

All of this is monotone in the event time. So a micro-batch has a few bounds, and a block of rows is classified by its
smallest and largest event time; it is read only if a bound lies between them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

import numpy as np

from alignment.durations import format_duration, parse_duration_us
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK, Int64Array
from streaming_source.exceptions import OptionError

NEVER: Final = MAX_WATERMARK


class Bounds(NamedTuple):
    """Event times, in microseconds, that divide the rows of one micro-batch.

    A row at `t` is dropped, from at least one of its windows, if `t < dropped`. Any other is emitted if `t < settled`,
    open if `t >= open`, and undecided in between.
    """

    dropped: int
    settled: int
    open: int

    def crosses(self, low_us: int, high_us: int) -> bool:
        """Return whether a bound lies between two times."""
        return any(low_us < bound <= high_us for bound in self)

    def parted(self, times: Int64Array) -> tuple[int, int, int, int]:
        """Return how many of these event times are dropped, emitted, open and undecided. O(n)."""
        late = times < self.dropped
        dropped, kept = int(np.count_nonzero(late)), times[~late]
        emitted = int(np.count_nonzero(kept < self.settled))
        waiting = int(np.count_nonzero(kept >= max(self.open, self.settled)))
        return dropped, emitted, waiting, len(kept) - emitted - waiting


class Rule(ABC):
    """Which rows an operator drops and emits, by event times. Watermarks are in microseconds, whole milliseconds."""

    __slots__ = ()

    @property
    def needs_time(self) -> bool:
        """True if a row without an event time is left out, because it is in no window."""
        return False

    @abstractmethod
    def bounds(self, late_us: int, emitted_us: int) -> Bounds:
        """Return the bounds of a micro-batch that drops by `late_us`, if all is emitted up to `emitted_us`."""


@dataclass(frozen=True, slots=True)
class NothingDropped(Rule):
    """No watermark drops rows: there is no stateful operator, its mode is complete, or it has no event time."""

    needs_time: bool = False

    def bounds(self, late_us: int, emitted_us: int) -> Bounds:
        """Return bounds by which all rows are emitted."""
        return Bounds(MIN_WATERMARK, NEVER, NEVER)


@dataclass(frozen=True, slots=True)
class Undecided(Rule):
    """A row whose drop depends on more than event times; `why` is the reason."""

    why: str

    def bounds(self, late_us: int, emitted_us: int) -> Bounds:
        """Return bounds by which all rows are undecided."""
        return Bounds(MIN_WATERMARK, MIN_WATERMARK, NEVER)


@dataclass(frozen=True, slots=True)
class RowTimes(Rule):
    """A row is late at or below the watermark. If it `waits`, it is emitted when the watermark has reached it.

    If `waits` is None, rows that the watermark has not reached are undecided.
    """

    waits: bool | None = False

    def bounds(self, late_us: int, emitted_us: int) -> Bounds:
        """Return the bounds: `late_us` and `emitted_us` are the last microseconds that are late, or emitted."""
        closed = NEVER if self.waits is False else emitted_us + 1
        return Bounds(late_us + 1, closed, NEVER if self.waits is None else closed)


@dataclass(frozen=True, slots=True)
class Windows(Rule):
    """Windows of `size_us`, one every `slide_us`; one of them begins at `start_us`.

    In update mode (`waits` is False) a row that is not dropped is emitted. If `waits` is None, the mode is append or
    update, and rows in windows that have not ended are undecided.
    """

    size_us: int
    slide_us: int
    start_us: int = 0
    waits: bool | None = True
    needs_time = True

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a size, optionally with a slide and a start: `1 hour`, `1 hour, 15 minutes, 5 minutes`.

        An `OptionError` if that is no such text, or the slide is longer than the size.
        """
        parts = [part.strip() for part in text.split(",")]
        if len(parts) > 3:
            raise OptionError(f"window = {text!r}: must be a size, a slide and a start; leave out the others")
        size, *others = (parse_duration_us(part, name="window") for part in parts)
        slide, start = [*others, size, 0][:2] if not others else [*others, 0][:2]
        if not 0 < slide <= size:
            raise OptionError(f"window = {text!r}: the slide must be positive and at most the size; correct it")
        return cls(size, slide, start)

    def __str__(self) -> str:
        parts = [self.size_us, self.slide_us, self.start_us]
        kept = 3 if self.start_us else 2 if self.is_sliding else 1
        return ", ".join(format_duration(us) for us in parts[:kept])

    @property
    def is_sliding(self) -> bool:
        """True if a row can be in several windows."""
        return self.slide_us < self.size_us

    def bounds(self, late_us: int, emitted_us: int) -> Bounds:
        """Return the first times whose earliest window is not late, and whose latest window is not emitted."""
        dropped, closed = self._first_after(late_us), NEVER
        if self.waits is not False:
            # The beginning of the first window that ends after `emitted_us`.
            closed = self._first_after(emitted_us) - self.size_us + self.slide_us
        return Bounds(dropped, closed, NEVER if self.waits is None else closed)

    def windows(self, times: Int64Array, ended_us: int) -> tuple[int, int]:
        """Return the sum of the windows of all rows, and how many of these end at or before `ended_us`. O(n)."""
        behind = (times - self.start_us) % self.slide_us
        each = -(-(self.size_us - behind) // self.slide_us)
        last_end = times - behind + self.size_us
        after = np.clip(-(-(last_end - ended_us) // self.slide_us), 0, each)
        return int(each.sum()), int((each - after).sum())

    def _first_after(self, ended_us: int) -> int:
        """Return the first time whose earliest window ends after `ended_us`: the end of the window before that."""
        return (ended_us - self.start_us - self.size_us) // self.slide_us * self.slide_us + self.start_us + self.size_us


@dataclass(frozen=True, slots=True)
class SessionWindows(Rule):
    """Sessions that end `gap_us` after their last row.

    A session is emitted when the watermark has reached its end, which later rows of its key move. Without the keys this
    is certain only for rows before `settled_us`: see `counting`.
    """

    gap_us: int
    settled_us: int = NEVER
    waits: bool = True
    needs_time = True

    def bounds(self, late_us: int, emitted_us: int) -> Bounds:
        """Return the bounds: a row's own session ends `gap_us` after it."""
        closed = emitted_us - self.gap_us + 1 if self.waits else NEVER
        return Bounds(late_us - self.gap_us + 1, min(self.settled_us, closed), closed)

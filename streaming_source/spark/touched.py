"""The parts of a function's result that late records touch: windows, sessions, or the rows of a join.

Each is a span of event times, from `start` to before `end`, in a column of the frame of what is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from alignment.arrow_times import format_timestamp
from alignment.durations import format_duration, parse_duration_us
from alignment.event_time_range import Ranges, covering, covering_sessions
from alignment.exceptions import InvalidArgumentError
from alignment.watermarks import MAX_WATERMARK, Int64Array
from streaming_source.exceptions import OptionError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SPAN: Final = "_span"
"""Column of what is touched: from `start` to before `end`."""

_MS: Final = 1_000


class Touching(Protocol):
    """The part of the result that late records touch, where it is, and which event times it needs.

    Attributes
    ----------
    columns : sequence of str
        Columns of the result by which what is touched is replaced, besides the keys.
    delays_us : sequence of int
        By frame that the function takes: how long after a late record of it all is closed that it touches.
    """

    @property
    def columns(self) -> Sequence[str]: ...

    @property
    def delays_us(self) -> Sequence[int]: ...

    def of(self, moment: str, frame: str) -> Column:
        """The spans that a late record touches; columns have its event time, and the number of its frame."""

    def among(self, result: DataFrame, touched: DataFrame, is_of_key: Column) -> DataFrame:
        """The rows of the result that are touched."""

    def ranges(self, touched: DataFrame, repaired: Callable[[Ranges], DataFrame], closed_us: int) -> Ranges:
        """The event times that these spans need. `repaired` reads what is written from these."""

    def read(self, ranges: Ranges, frame: int) -> Ranges:
        """The event times that a frame needs for ranges."""


@dataclass(frozen=True)
class Windows:
    """The arguments of `F.window`."""

    window: str
    slide: str | None
    start: str | None
    columns = ("window",)

    @property
    def delays_us(self) -> Sequence[int]:
        """A window ends at most its length after a record that it has."""
        if self.slide is not None:
            duration_us("slide", self.slide)
        return [duration_us("window", self.window)]

    def of(self, moment: str, frame: str) -> Column:
        from pyspark.sql import functions as F

        return F.window(moment, self.window, self.slide or self.window, self.start or "0 seconds")

    def among(self, result: DataFrame, touched: DataFrame, is_of_key: Column) -> DataFrame:
        from pyspark.sql import functions as F

        checked = result.where(F.when(self._has("window"), True).otherwise(F.raise_error(self._others)))
        return checked.join(touched, (F.col("window.start") == touched[f"{SPAN}.start"]) & is_of_key, "left_semi")

    def _has(self, column: str) -> Column:
        """Return whether a window is one of these: of others it is not known which are touched, and half was read."""
        from pyspark.sql import functions as F

        start_us, end_us = F.unix_micros(f"{column}.start"), F.unix_micros(f"{column}.end")
        length_us, offset_us = duration_us("window", self.window), duration_us("start", self.start or "0 s", -(2**62))
        slide_us = length_us if self.slide is None else duration_us("slide", self.slide)
        return (end_us - start_us == length_us) & (F.pmod(start_us - offset_us, F.lit(slide_us)) == 0)

    @property
    def _others(self) -> str:
        given = {"window": self.window, "slide": self.slide, "start": self.start}
        named = ", ".join(f"{name} = {value!r}" for name, value in given.items() if value is not None)
        return f"repair: {named}: the function's windows differ; give repair the arguments of its F.window"

    def ranges(self, touched: DataFrame, repaired: Callable[[Ranges], DataFrame], closed_us: int) -> Ranges:
        return covering(*_spans(touched, SPAN))

    def read(self, ranges: Ranges, frame: int) -> Ranges:
        return ranges


@dataclass(frozen=True)
class Sessions:
    """The gap of `F.session_window`, and how long a session is at most."""

    gap: str
    longest: str
    columns = ("session_window",)

    @property
    def delays_us(self) -> Sequence[int]:
        return [duration_us("longest", self.longest)]

    @property
    def _gap_us(self) -> int:
        return duration_us("gap", self.gap)

    def of(self, moment: str, frame: str) -> Column:
        return _span(moment, 0, self._gap_us)

    def among(self, result: DataFrame, touched: DataFrame, is_of_key: Column) -> DataFrame:
        from pyspark.sql import functions as F

        moment = touched[f"{SPAN}.start"]
        has_it = (F.col("session_window.start") <= moment) & (moment < F.col("session_window.end"))
        # Nothing is pushed through `observe`: Spark would filter records before it has merged them into sessions.
        return result.observe("sessions", F.count(F.lit(1))).join(touched, has_it & is_of_key, "left_semi")

    def ranges(self, touched: DataFrame, repaired: Callable[[Ranges], DataFrame], closed_us: int) -> Ranges:
        """They grow until the sessions in them do not."""
        times_us, _ = _spans(touched, SPAN)
        if not times_us.size:
            return []
        shortest_us = MAX_WATERMARK

        def sessions_in(ranges: Ranges) -> tuple[Int64Array, Int64Array]:
            starts_us, ends_us = _spans(repaired(ranges), "session_window")
            if (open_ones := ends_us > closed_us).any():
                start, end = (format_timestamp(int(side[open_ones][0])) for side in (starts_us, ends_us))
                raise OptionError(
                    f"repair: longest = {self.longest!r}, and a session goes from {start} to {end}, which is after the "
                    f"watermark {format_timestamp(closed_us)} of the query: it may still have it open. Give a longer "
                    "one, with a new checkpointLocation and from_batch"
                )
            nonlocal shortest_us
            shortest_us = int((ends_us - starts_us).min(initial=shortest_us))
            return starts_us, ends_us

        ranges = covering_sessions(times_us, self._gap_us, sessions_in)
        # No session is shorter than the function's gap: one that is as short as this gap shows that it is no longer.
        if self._gap_us < shortest_us < MAX_WATERMARK:
            self._check_gap(repaired([(int(times_us[0]), int(times_us[0]) + 1)]))
        return ranges

    def _check_gap(self, of_one_moment: DataFrame) -> None:
        """Refuse a gap that is less than the function's, which is as long as its session of one moment.

        Sessions that the function joins may lie beyond what was read.
        """
        starts_us, ends_us = _spans(of_one_moment, "session_window")
        of_function_us = int((ends_us - starts_us).max(initial=0))
        if of_function_us > self._gap_us:
            raise OptionError(
                f"repair: gap = {self.gap!r}, and the function's session_window has a gap of "
                f"{format_duration(of_function_us)}: give the function's"
            )

    def read(self, ranges: Ranges, frame: int) -> Ranges:
        return ranges


@dataclass(frozen=True)
class Joined:
    """The rows of a join, by the event time of the left frame, which is their column `moment`.

    A row of the right frame joins rows of the left one to which it is later by `low_us` to `high_us`.
    """

    moment: str
    low_us: int
    high_us: int
    has_keys: bool

    @property
    def columns(self) -> Sequence[str]:
        return [self.moment]

    @property
    def delays_us(self) -> Sequence[int]:
        """Until no row on time can join what is touched, and Spark has emitted rows that none has joined."""
        of_left, of_right = max(self.high_us, 0), max(self.high_us - self.low_us, -self.low_us)
        return [of_left + 2 * _MS, of_right + 2 * _MS]

    def of(self, moment: str, frame: str) -> Column:
        from pyspark.sql import functions as F

        of_right = _span(moment, -self.high_us, 1 - self.low_us)
        return F.when(F.col(frame) == 0, _span(moment, 0, 1)).otherwise(of_right)

    def among(self, result: DataFrame, touched: DataFrame, is_of_key: Column) -> DataFrame:
        from pyspark.sql import functions as F

        if result.schema[self.moment].nullable:
            raise OptionError(
                f"repair: the function may give rows whose {self.moment} is null, as right and full outer joins do: "
                "these belong to no event time of the first frame. Let it be an inner, left outer or left semi join "
                f"that leaves {self.moment} as it is; for a right outer join, swap the frames"
            )
        if not self.has_keys:
            # Nothing else was read.
            return result
        moment = F.col(quoted(self.moment))
        is_in = (touched[f"{SPAN}.start"] <= moment) & (moment < touched[f"{SPAN}.end"])
        return result.join(touched, is_in & is_of_key, "left_semi")

    def ranges(self, touched: DataFrame, repaired: Callable[[Ranges], DataFrame], closed_us: int) -> Ranges:
        """Those that are close are one: the right frame is read as far around them."""
        starts_us, ends_us = _spans(touched, SPAN)
        close_us = self.high_us - self.low_us
        return [(start, end - close_us) for start, end in covering(starts_us, ends_us + close_us)]

    def read(self, ranges: Ranges, frame: int) -> Ranges:
        if frame == 0:
            return ranges
        starts_us, ends_us = np.array(ranges, np.int64).T
        return covering(starts_us + self.low_us, ends_us + self.high_us)


def duration_us(name: str, value: timedelta | str, minimum_us: int = 1) -> int:
    """Return an argument of `repair` in microseconds; an `OptionError` if it has no fixed length, or is too short."""
    try:
        return parse_duration_us(value, name=name, minimum_us=minimum_us)
    except InvalidArgumentError as error:
        raise OptionError(f"repair: {error}") from None


def quoted(name: str) -> str:
    """Return the name of a column as Spark's functions take it, whatever is in it."""
    return f"`{name.replace('`', '``')}`"


def _span(moment: str, start_us: int, end_us: int) -> Column:
    from pyspark.sql import functions as F

    starts, ends = (F.col(quoted(moment)) + F.expr(f"INTERVAL '{us}' MICROSECOND") for us in (start_us, end_us))
    return F.struct(starts.alias("start"), ends.alias("end"))


def _spans(windows: DataFrame, column: str) -> tuple[Int64Array, Int64Array]:
    from pyspark.sql import functions as F

    ends = (F.unix_micros(f"{column}.{end}") for end in ("start", "end"))
    rows = windows.select(column).distinct().select(*ends).collect()
    starts_us, ends_us = np.array(rows, np.int64).reshape(-1, 2).T
    return starts_us, ends_us

"""What a source that computes its records is given."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from alignment.durations import format_duration, parse_duration_us
from streaming_source.api.options import duration_argument
from streaming_source.connectors.datagen.generator import RecordGenerator
from streaming_source.connectors.datagen.options import epoch_us, moment
from streaming_source.exceptions import OptionError

__all__ = ["OPTION_NAMES", "SHORTEST_US", "GeneratorConfig"]

_FIRST_US: Final = epoch_us(datetime(1, 1, 1, tzinfo=UTC))
_LAST_US: Final = epoch_us(datetime(9999, 12, 31, tzinfo=UTC))

OPTION_NAMES: Final = {
    "splits": "splits",
    "rows_per_second": "rowsPerSecond",
    "rows_per_split": "rowsPerSplit",
    "bounded": "bounded",
    "skew": "skew",
    "disorder": "disorder",
    "start_time": "startTime",
    "idle_splits": "idleSplits",
    "idle_after": "idleAfter",
    "idle_for": "idleFor",
    "seed": "seed",
    "num_keys": "numKeys",
    "discovery_interval": "discoveryInterval",
}
"""Attribute of `GeneratorConfig` -> option."""

_MANY: Final = 2**62
_RANGES: Final = {
    "splits": (1, _MANY),
    "rows_per_second": (1e-6, 1e9),
    "rows_per_split": (1, _MANY),
    "skew": (1, 1e6),
    "idle_after": (0, _MANY),
    "seed": (0, math.inf),
    "num_keys": (1, _MANY),
}
"""Smallest and largest value of an attribute, where it has one."""

SHORTEST_US: Final = {"disorder": 0, "idle_for": 1, "discovery_interval": 1000}
"""Smallest value of each duration."""

_YEAR_S: Final = 365 * 24 * 3600


@dataclass(frozen=True)
class GeneratorConfig:
    """How many records there are, of which event times, and when they arrive.

    Attributes
    ----------
    splits
        Number of splits.
    rows_per_second
        Records of each split a second: as they arrive, and in the event time of the first split. From 1e-6 to 1e9;
        the time from one to the next is rounded to the nanosecond.
    rows_per_split
        Records after which each split ends; None for no end.
    bounded
        All records are there at once, and the source ends with them. If not, they arrive while the query runs, counted
        from its first start, also while it is down; a split is finished when its last record has been read. A batch
        read takes what is there when it starts: of a source that is not bounded, the first record of each split.
    skew
        How many times as fast as in the first split event time passes in the last one, at least 1; in those between,
        evenly between.
    disorder
        How far records are displaced: the smallest bound on out-of-orderness with which none is late in its split.
    start_time
        Event time of the first record of each split: a `datetime` or ISO-8601 text, UTC if it has no zone. All event
        times (without an end, those of a year) must be of the years 1 to 9999.
    idle_splits, idle_after, idle_for
        Numbers of splits that stop delivering after `idle_after` records. They go on `idle_for` later by the clock,
        and as much later, times their speed, in event time; with None, never. A bounded source has the gap in event
        time alone.
    seed
        Another seed, other records; at least 0.
    num_keys
        Keys are from 0 to below this.
    discovery_interval
        How often to look what has arrived; at least a millisecond.

    Notes
    -----
    Durations are given as `timedelta` or text such as `"5 seconds"`. They are kept as `timedelta`, and `start_time` as
    a `datetime` in UTC, so that sources given the same ones in different words are equal.

    Raises
    ------
    OptionError
        If a value is out of range, or values contradict each other.
    """

    splits: int = 4
    rows_per_second: float = 1000.0
    rows_per_split: int | None = None
    bounded: bool = False
    skew: float = 1.0
    disorder: timedelta | str = "0 seconds"
    start_time: datetime | str = "2024-01-01T00:00:00Z"
    idle_splits: tuple[int, ...] = ()
    idle_after: int | None = None
    idle_for: timedelta | str | None = None
    seed: int = 0
    num_keys: int = 10
    discovery_interval: timedelta | str = "1 second"

    def __post_init__(self) -> None:
        for name, shortest_us in SHORTEST_US.items():
            if (name, getattr(self, name)) != ("idle_for", None):
                object.__setattr__(self, name, duration_argument(name, getattr(self, name), shortest_us))
        object.__setattr__(self, "start_time", moment("start_time", self.start_time))
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise self._error(name, f"must be from {least:g} to {most:g}")
        if self.bounded and self.rows_per_split is None:
            raise self._error("bounded", "the source must have an end; give rowsPerSplit too, or leave out bounded")
        self._check_idleness()
        self._check_event_times()

    def _check_idleness(self) -> None:
        if not self.idle_splits:
            for name in ("idle_after", "idle_for"):
                if getattr(self, name) is not None:
                    raise self._error(name, "needs idleSplits: the numbers of the splits that stop")
            return
        if len(set(self.idle_splits)) < len(self.idle_splits) or not set(self.idle_splits) <= set(range(self.splits)):
            raise self._error("idle_splits", f"must be different numbers of splits, from 0 to {self.splits - 1}")
        if self.idle_after is None:
            raise self._error("idle_splits", "needs idleAfter: after how many records these splits stop")
        if self.rows_per_split is not None and self.idle_after >= self.rows_per_split:
            raise self._error(
                "idle_after", f"must be below rowsPerSplit = {self.rows_per_split}: there the splits end anyway"
            )
        if self.bounded and self.idle_for is None:
            raise self._error("idle_splits", "splits that stop for ever never end, but bounded does; give idleFor too")

    def _check_event_times(self) -> None:
        # Without an end, what arrives in a year of running must fit.
        in_a_year = max(round(self.rows_per_second * _YEAR_S), self.idle_after or 0)
        last = in_a_year if self.rows_per_split is None else self.rows_per_split - 1
        latest_us = max(self.generator.base(split, last) for split in {0, self.splits - 1, *self.idle_splits})
        earliest_us = self.start_us - self.disorder_us
        if earliest_us < _FIRST_US or latest_us > _LAST_US:
            raise self._error(
                "start_time",
                f"event times are from {earliest_us} to {latest_us} us since 1970 (in a year, without rowsPerSplit); "
                "all must be of the years 1 to 9999. Change startTime, or make disorder, rowsPerSplit, skew or idleFor "
                "smaller",
            )

    def _error(self, name: str, rule: str) -> OptionError:
        option = OPTION_NAMES[name]
        also = "" if option == name else f" (option {option})"
        return OptionError(f"{name} = {_as_given(getattr(self, name))!r}{also}: {rule}")

    @property
    def disorder_us(self) -> int:
        """`disorder` in microseconds."""
        return parse_duration_us(self.disorder, name="disorder")

    @property
    def start_us(self) -> int:
        """`start_time` in microseconds since 1970."""
        return epoch_us(moment("start_time", self.start_time))

    @property
    def idle_for_us(self) -> int | None:
        """`idle_for` in microseconds."""
        return None if self.idle_for is None else parse_duration_us(self.idle_for, name="idle_for")

    @property
    def discovery_interval_us(self) -> int:
        """`discovery_interval` in microseconds."""
        return parse_duration_us(self.discovery_interval, name="discovery_interval")

    @property
    def generator(self) -> RecordGenerator:
        """What the records are."""
        return RecordGenerator(
            splits=self.splits,
            rows_per_second=self.rows_per_second,
            skew=self.skew,
            disorder_us=self.disorder_us,
            start_us=self.start_us,
            idle_splits=self.idle_splits,
            idle_after=self.idle_after or 0,
            idle_for_us=self.idle_for_us,
            seed=self.seed,
            num_keys=self.num_keys,
        )


def _as_given(value: object) -> object:
    """Times and durations as text that could be given for them."""
    if isinstance(value, timedelta):
        return format_duration(parse_duration_us(value, name="value"))
    return value.isoformat() if isinstance(value, datetime) else value

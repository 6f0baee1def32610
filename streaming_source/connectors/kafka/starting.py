"""Where partitions begin and end: `startingOffsets` and its like, in the order in which Spark heeds them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from streaming_source.connectors.kafka.subscription import WHOLE_TOPIC, Partition, parse_by_partition
from streaming_source.exceptions import OptionError

__all__ = ["EARLIEST", "LATEST", "MAX_TIMESTAMP", "Boundary", "Lookup", "ending", "starting"]

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3

Lookup: TypeAlias = Callable[[Mapping[Partition, int]], Mapping[Partition, int | None]]
"""Of each partition the offset at `EARLIEST`, at `LATEST`, or of the first record at or after a time in milliseconds;
None if there is no such record."""

WhenLater: TypeAlias = Literal["error", "latest"]
"""What to do where no record is as late."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """One offset for each partition, by the rule of an option; if it is not `is_given`, by its default.

    Attributes
    ----------
    kind
        `earliest`, `latest`, `offsets` (given), or `time`: the first record at or after one.
    numbers
        Offsets or times in milliseconds by partition; None if there is one time for all.
    time_ms
        The time for all.
    """

    option: str
    kind: Literal["earliest", "latest", "offsets", "time"]
    numbers: tuple[tuple[Partition, int], ...] | None = None
    time_ms: int | None = None
    when_later: WhenLater = "error"
    is_given: bool = True

    @property
    def begins_at_end(self) -> bool:
        """Whether a partition that begins here begins at its present end: `latest`, or -1 as its offset."""
        return self.kind == "latest" or (self.kind == "offsets" and LATEST in dict(self.numbers or ()).values())

    @property
    def description(self) -> str:
        """Tells this boundary from others in a few characters."""
        if self.numbers is not None:
            return f"{self.option} {zlib.crc32(repr(self.numbers).encode()):08x}"
        return self.kind if self.time_ms is None else f"{self.option} {self.time_ms}"

    def resolve(self, partitions: Iterable[Partition], look_up: Lookup) -> dict[Partition, int]:
        """The offset of each partition that is still there; one `look_up`, two where it falls back to the latest.

        Raises
        ------
        OptionError
            If the option names other partitions than there are, or no record is as late as it wants.
        """
        there = list(partitions)
        wanted = self._wanted(there)
        asked = {part: number for part, number in wanted.items() if self.kind == "time" or number < 0}
        answers = look_up(asked) if asked else {}
        found = {part: wanted[part] for part in there if part not in asked} | dict(answers)
        later = [part for part, offset in found.items() if offset is None]
        if later and self.when_later == "error":
            raise OptionError(
                f"option {self.option}: partition {later[0]} has no record at or after {wanted[later[0]]} ms; give an "
                "earlier time, or set startingOffsetsByTimestampStrategy = latest to start at its end"
            )
        if later:
            at_end = look_up(dict.fromkeys(later, LATEST))
            found = {
                part: offset for part, offset in (found | dict(at_end)).items() if offset is not None or part in at_end
            }
        return {part: offset or 0 for part, offset in found.items()}

    def before_the_end(self) -> Boundary:
        """The same boundary, for what is read to an end.

        Raises
        ------
        OptionError
            If it begins at the present end.
        """
        if self.begins_at_end:
            raise OptionError(
                f"option {self.option}: what is read to an end cannot start at latest (-1); start at earliest, at "
                "offsets or at a time"
            )
        return self

    def _wanted(self, there: list[Partition]) -> dict[Partition, int]:
        if self.kind in ("earliest", "latest"):
            return dict.fromkeys(there, EARLIEST if self.kind == "earliest" else LATEST)
        if self.numbers is None:
            assert self.time_ms is not None
            return dict.fromkeys(there, self.time_ms)
        given = dict(self.numbers)
        whole = {part.topic: number for part, number in given.items() if part.number == WHOLE_TOPIC}
        wanted = {part: number for part, number in given.items() if part.number != WHOLE_TOPIC}
        wanted.update((part, whole[part.topic]) for part in there if part.topic in whole)
        missing, unknown = sorted({*there} - wanted.keys()), sorted(wanted.keys() - {*there})
        if missing or unknown:
            which = f"lacks {', '.join(map(str, missing))}" if missing else f"names {', '.join(map(str, unknown))}"
            raise OptionError(
                f"option {self.option} {which}: it must name exactly the partitions that are read, "
                f"{', '.join(map(str, there))}; -2 means earliest, -1 latest"
            )
        return wanted


def starting(values: Mapping[str, Any], *, bounded: bool) -> Boundary:
    """Where to start: `startingTimestamp` goes before `startingOffsetsByTimestamp`, that before `startingOffsets`.

    By default a source that ends starts at the earliest records, any other at the latest.

    Raises
    ------
    OptionError
        If a value is wrong, or a source that ends is to start at its end.
    """
    strategy: WhenLater = values["startingOffsetsByTimestampStrategy"]
    boundary = _boundary("starting", values, strategy, "earliest" if bounded else "latest", EARLIEST)
    return boundary.before_the_end() if bounded else boundary


def ending(values: Mapping[str, Any]) -> Boundary:
    """Where a source that ends does: in the same order; where no record is as late, at the latest.

    Raises
    ------
    OptionError
        If a value is wrong.
    """
    boundary = _boundary("ending", values, "latest", "latest", LATEST)
    if boundary.kind == "earliest":
        raise OptionError(f"option endingOffsets = {values['endingOffsets']!r}: must be latest, or JSON of offsets")
    return boundary


def _boundary(what: str, values: Mapping[str, Any], when_later: WhenLater, default: str, minimum: int) -> Boundary:
    offsets, timestamp = values[f"{what}Offsets"], values[f"{what}Timestamp"]
    if timestamp is not None:
        return Boundary(f"{what}Timestamp", "time", time_ms=timestamp, when_later=when_later)
    option = f"{what}OffsetsByTimestamp"
    if values[option] is not None:
        return Boundary(option, "time", _numbers(option, values[option], 0), when_later=when_later)
    option, text = f"{what}Offsets", offsets or default
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return Boundary(option, "earliest" if word == "earliest" else "latest", is_given=offsets is not None)
    return Boundary(option, "offsets", _numbers(option, text, minimum))


def _numbers(option: str, text: str, minimum: int) -> tuple[tuple[Partition, int], ...]:
    numbers = parse_by_partition(option, text)
    for part, number in numbers.items():
        if number < minimum:
            raise OptionError(f"option {option}: {part} has {number}; must be at least {minimum}")
    return tuple(sorted(numbers.items()))

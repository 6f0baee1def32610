"""Where partitions begin and end: `startingOffsets` and its like, in the order in which Spark heeds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from streaming_source.connectors.kafka.subscription import Partition, parse_by_partition
from streaming_source.exceptions import OptionError

__all__ = ["EARLIEST", "LATEST", "MAX_TIMESTAMP", "Boundary", "Lookup", "ending", "starting"]

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3

Lookup: TypeAlias = Callable[[Mapping[Partition, int]], Mapping[Partition, int | None]]
"""Of each partition the offset at `EARLIEST`, at `LATEST`, or of the first record at or after a time in milliseconds;
None if there is no such record."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """One offset for each partition, by a rule.

    Attributes
    ----------
    option
        Name of the option that says it.
    kind
        `earliest`, `latest`, `offsets` (given), or `time`: the first record at or after one.
    numbers
        Offsets or times in milliseconds by partition; None if there is one time for all.
    time_ms
        The time for all.
    when_later
        What to do where no record is as late: `error` or `latest`.
    is_given
        Whether the user said so; if not, it is the default.
    """

    option: str
    kind: Literal["earliest", "latest", "offsets", "time"]
    numbers: tuple[tuple[Partition, int], ...] | None = None
    time_ms: int | None = None
    when_later: Literal["error", "latest"] = "error"
    is_given: bool = True

    @property
    def begins_at_end(self) -> bool:
        """Whether a partition that begins here begins at its present end: `latest`, or -1 as its offset."""
        return self.kind == "latest" or (self.kind == "offsets" and LATEST in dict(self.numbers or ()).values())

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
        """The same, for what is read to an end.

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
        wanted = dict(self.numbers)
        missing, unknown = sorted({*there} - wanted.keys()), sorted(wanted.keys() - {*there})
        if missing or unknown:
            which = f"lacks {', '.join(map(str, missing))}" if missing else f"names {', '.join(map(str, unknown))}"
            raise OptionError(
                f"option {self.option} {which}: it must name exactly the partitions that are read, "
                f"{', '.join(map(str, there))}; -2 means earliest, -1 latest"
            )
        return wanted


def starting(
    offsets: str | None, timestamp: int | None, by_timestamp: str | None, strategy: str, *, bounded: bool
) -> Boundary:
    """Where to start: `startingTimestamp` goes before `startingOffsetsByTimestamp`, that before `startingOffsets`.

    Parameters
    ----------
    bounded
        By default a source that ends starts at the earliest records, any other at the latest.

    Raises
    ------
    OptionError
        If a value is wrong, or a source that ends is to start at its end.
    """
    when_later: Literal["error", "latest"] = "latest" if strategy == "latest" else "error"
    if timestamp is not None:
        return Boundary("startingTimestamp", "time", time_ms=timestamp, when_later=when_later)
    if by_timestamp is not None:
        numbers = _numbers("startingOffsetsByTimestamp", by_timestamp, 0)
        return Boundary("startingOffsetsByTimestamp", "time", numbers, when_later=when_later)
    boundary = _by_offsets("startingOffsets", offsets, "earliest" if bounded else "latest", EARLIEST)
    return boundary.before_the_end() if bounded else boundary


def ending(offsets: str | None, timestamp: int | None, by_timestamp: str | None) -> Boundary:
    """Where a source that ends does: in the same order; where no record is as late, at the latest.

    Raises
    ------
    OptionError
        If a value is wrong.
    """
    if timestamp is not None:
        return Boundary("endingTimestamp", "time", time_ms=timestamp, when_later="latest")
    if by_timestamp is not None:
        numbers = _numbers("endingOffsetsByTimestamp", by_timestamp, 0)
        return Boundary("endingOffsetsByTimestamp", "time", numbers, when_later="latest")
    boundary = _by_offsets("endingOffsets", offsets, "latest", LATEST)
    if boundary.kind == "earliest":
        raise OptionError(f"option endingOffsets = {offsets!r}: must be latest, or JSON of offsets")
    return boundary


def _by_offsets(option: str, given: str | None, default: str, minimum: int) -> Boundary:
    text, is_given = given or default, given is not None
    word = text.strip().lower()
    if word == "earliest" or word == "latest":
        return Boundary(option, "earliest" if word == "earliest" else "latest", is_given=is_given)
    return Boundary(option, "offsets", _numbers(option, text, minimum))


def _numbers(option: str, text: str, minimum: int) -> tuple[tuple[Partition, int], ...]:
    numbers = parse_by_partition(option, text)
    for part, number in numbers.items():
        if number < minimum:
            raise OptionError(f"option {option}: {part} has {number}; must be at least {minimum}")
    return tuple(sorted(numbers.items()))

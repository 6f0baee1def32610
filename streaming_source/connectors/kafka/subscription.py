"""Which partitions are read, and from where to where, by the same options as Spark's own source."""

from __future__ import annotations

import json
import re
import warnings
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from streaming_source.exceptions import OptionError

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3

_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}
_MOST: Final = 2**63 - 1
_WHOLE_TOPIC: Final = -1
"""The partition number that means all partitions of a topic."""

_ENDS: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")


class Partition(NamedTuple):
    """A partition of a topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"


Lookup: TypeAlias = Callable[[Mapping[Partition, int]], Mapping[Partition, int | None]]
"""Returns the offset of each partition at `EARLIEST`, at `LATEST`, or of the first record at or after a time in
milliseconds; None if there is no such record."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """The chosen partitions. `kind` is the option that chooses them.

    `topics` and, for `assign`, `partitions` are sorted. The class methods raise an `OptionError` if the value of the
    option is wrong.
    """

    kind: Literal["subscribe", "subscribePattern", "assign"]
    topics: tuple[str, ...] = ()
    pattern: str = ""
    partitions: tuple[Partition, ...] = ()

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Subscription:
        """Make it from parsed options, of which exactly one must be given."""
        makers = {"subscribe": cls.to_topics, "subscribePattern": cls.to_pattern, "assign": cls.to_partitions}
        given = [name for name in makers if values[name] is not None]
        if len(given) != 1:
            which = f"options {' and '.join(given)} exclude each other" if given else "no topics are given"
            raise OptionError(f"{which}: give exactly one of {', '.join(makers)}")
        return makers[given[0]](values[given[0]])

    @classmethod
    def to_topics(cls, names: str) -> Subscription:
        """Subscribe to all partitions of topics, separated by commas."""
        topics = tuple(sorted({name.strip() for name in names.split(",")} - {""}))
        if not topics:
            raise OptionError(f"option subscribe = {names!r}: must name at least one topic, as in 'orders,payments'")
        return cls("subscribe", topics)

    @classmethod
    def to_pattern(cls, pattern: str) -> Subscription:
        """Subscribe to all partitions of topics with a match of the pattern anywhere in their names, as in Spark."""
        try:
            with warnings.catch_warnings():
                # Python warns of nested and intersected sets, which only Java has.
                warnings.simplefilter("error")
                re.compile(pattern)
        except (re.error, FutureWarning, DeprecationWarning) as error:
            raise OptionError(
                f"option subscribePattern = {pattern!r}: must be a regular expression of Python, which differs from "
                f"Java's in places (see docs/from-spark-kafka.md): {error}"
            ) from None
        return cls("subscribePattern", pattern=pattern)

    @classmethod
    def to_partitions(cls, text: str) -> Subscription:
        """Subscribe to single partitions, as in `{"orders": [0, 1]}`."""
        try:
            numbers = [Partition(topic, number) for topic, listed in json.loads(text).items() for number in listed]
            if not numbers or not all(type(part.number) is int and part.number >= 0 for part in numbers):
                raise ValueError
        except (ValueError, TypeError, AttributeError):
            raise OptionError(
                f"""option assign = {text!r}: must be JSON of topics and their partitions, like {{"orders": [0, 1]}}"""
            ) from None
        return cls("assign", tuple(sorted({part.topic for part in numbers})), partitions=tuple(sorted(set(numbers))))

    @property
    def description(self) -> str:
        """A text that identifies this choice, however it was written."""
        chosen = self.pattern or ",".join(map(str, self.partitions)) or ",".join(self.topics)
        return f"{self.kind}:{chosen}"

    def matches(self, topic: str) -> bool:
        """Return whether partitions of a topic of this name are chosen."""
        if self.kind == "subscribePattern":
            return re.search(self.pattern, topic) is not None
        return topic in self.topics

    def select(self, topic: str, numbers: Iterable[int]) -> list[Partition]:
        """Return which partitions of a matching topic are chosen, in order."""
        there = [Partition(topic, number) for number in sorted(numbers)]
        return [part for part in there if part in self.partitions] if self.kind == "assign" else there


@dataclass(frozen=True, slots=True)
class Boundary:
    """An offset for each partition, by the rule of an option, or its default if it is not `is_given`.

    With the kind `time` it is the offset of the first record at or after a time. `numbers` are offsets, or times in
    milliseconds, by partition; `time_ms` is one time for all. `when_later` decides what happens if no record is as
    late.
    """

    option: str
    kind: Literal["earliest", "latest", "offsets", "time"]
    numbers: tuple[tuple[Partition, int], ...] | None = None
    time_ms: int | None = None
    when_later: Literal["error", "latest"] = "error"
    is_given: bool = True

    @classmethod
    def start_and_end(cls, values: Mapping[str, Any]) -> tuple[Boundary, Boundary | None]:
        """Return where to start, and where to end, if at all, from parsed options.

        By default a source with an end starts at the earliest records and ends at the latest; one without an end starts
        at the latest. It also ends at the latest if no record is as late as its end. Raises an `OptionError` if it
        would start at its end.
        """
        strategy = values["startingOffsetsByTimestampStrategy"]
        if not values["bounded"] and all(values[name] is None for name in _ENDS):
            return cls._of("starting", values, strategy, "latest", EARLIEST), None
        start, end = (
            cls._of("starting", values, strategy, "earliest", EARLIEST).before_the_end(),
            cls._of("ending", values, "latest", "latest", LATEST),
        )
        if end.kind == "earliest":
            raise OptionError(f"option endingOffsets = {values['endingOffsets']!r}: must be latest, or JSON of offsets")
        return start, end

    @classmethod
    def _of(
        cls, what: str, values: Mapping[str, Any], when_later: Literal["error", "latest"], default: str, minimum: int
    ) -> Boundary:
        timestamp = values[f"{what}Timestamp"]
        if timestamp is not None:
            if timestamp > _MOST:
                raise OptionError(f"option {what}Timestamp = {timestamp}: must be milliseconds since 1970, in 64 bits")
            return cls(f"{what}Timestamp", "time", time_ms=timestamp, when_later=when_later)
        option = f"{what}OffsetsByTimestamp"
        if values[option] is not None:
            return cls(option, "time", _numbers(option, values[option], 0), when_later=when_later)
        option = f"{what}Offsets"
        text = values[option] or default
        word = text.strip().lower()
        if word in ("earliest", "latest"):
            return cls(option, "earliest" if word == "earliest" else "latest", is_given=values[option] is not None)
        return cls(option, "offsets", _numbers(option, text, minimum))

    @property
    def description(self) -> str:
        """A short text that identifies this boundary."""
        if self.numbers is not None:
            return f"{self.option} {zlib.crc32(repr(self.numbers).encode()):08x}"
        return self.kind if self.time_ms is None else f"{self.option} {self.time_ms}"

    def before_the_end(self) -> Boundary:
        """Return the boundary as the start of a source with an end.

        Raises an `OptionError` if it starts at the latest.
        """
        if self.kind == "latest" or (self.kind == "offsets" and LATEST in dict(self.numbers or ()).values()):
            raise OptionError(
                f"option {self.option}: what is read to an end cannot start at latest (-1); start at earliest, at "
                "offsets or at a time"
            )
        return self

    def resolve(self, there: list[Partition], look_up: Lookup) -> dict[Partition, int]:
        """Return the offset of each partition that still exists. One `look_up`, two if it falls back to the latest.

        Raises an `OptionError` if the option names other partitions than there are, or no record is as late as it
        requires.
        """
        wanted = self._wanted(there)
        to_find = {part: number for part, number in wanted.items() if self.kind == "time" or number < 0}
        offsets = look_up(to_find) if to_find else {}
        found = {part: wanted[part] for part in there if part not in to_find} | dict(offsets)
        later = [part for part, offset in found.items() if offset is None]
        if later and self.when_later == "error":
            raise OptionError(
                f"option {self.option}: partition {later[0]} has no record at or after {wanted[later[0]]} ms; give an "
                "earlier time, or set startingOffsetsByTimestampStrategy = latest to start at its end"
            )
        at_end = look_up(dict.fromkeys(later, LATEST)) if later else {}
        found |= at_end
        return {part: offset or 0 for part, offset in found.items() if offset is not None or part in at_end}

    def _wanted(self, there: list[Partition]) -> dict[Partition, int]:
        if self.kind in ("earliest", "latest"):
            return dict.fromkeys(there, _WORDS[self.kind])
        if self.numbers is None:
            assert self.time_ms is not None
            return dict.fromkeys(there, self.time_ms)
        whole = {part.topic: number for part, number in self.numbers if part.number == _WHOLE_TOPIC}
        wanted = {part: number for part, number in self.numbers if part.number != _WHOLE_TOPIC}
        wanted.update((part, whole[part.topic]) for part in there if part.topic in whole)
        missing, unknown = sorted({*there} - wanted.keys()), sorted(wanted.keys() - {*there})
        if missing or unknown:
            which = f"lacks {', '.join(map(str, missing))}" if missing else f"names {', '.join(map(str, unknown))}"
            raise OptionError(
                f"option {self.option} {which}: it must name exactly the partitions that are read, "
                f"{', '.join(map(str, there))}; -2 means earliest, -1 latest"
            )
        return wanted


def _numbers(option: str, text: str, minimum: int) -> tuple[tuple[Partition, int], ...]:
    """Parse JSON like `{"orders": {"0": 23, "1": -2}, "payments": "earliest"}` into numbers by partition, sorted."""
    try:
        numbers = dict[Partition, Any]()
        for topic, given in json.loads(text).items():
            if isinstance(given, str) and given.lower() in _WORDS:
                numbers[Partition(topic, _WHOLE_TOPIC)] = _WORDS[given.lower()]
            else:
                numbers.update((Partition(topic, int(number)), value) for number, value in given.items())
        if not numbers or not all(type(value) is int for value in numbers.values()):
            raise ValueError
    except (ValueError, TypeError, AttributeError):
        raise OptionError(
            f"""option {option} = {text!r}: must be JSON of topics, partitions and numbers, like """
            """{"orders": {"0": 23, "1": -2}}"""
        ) from None
    for part, number in numbers.items():
        if not minimum <= number <= _MOST:
            raise OptionError(f"option {option}: {part} has {number}; must be at least {minimum}, and fit 64 bits")
    return tuple(sorted(numbers.items()))

"""Which partitions are read: `subscribe`, `subscribePattern` or `assign`."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from streaming_source.exceptions import OptionError

__all__ = ["WHOLE_TOPIC", "Partition", "Subscription", "parse_by_partition"]


WHOLE_TOPIC: Final = -1
"""Stands for all partitions of a topic where numbers are given by partition."""


class Partition(NamedTuple):
    """A partition of a topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"


@dataclass(frozen=True, slots=True)
class Subscription:
    """A choice of partitions, by the option that says it: `topics` and, for `assign`, `partitions` are sorted.

    What makes one raises an `OptionError` if the option's value is none.
    """

    kind: Literal["subscribe", "subscribePattern", "assign"]
    topics: tuple[str, ...] = ()
    pattern: str = ""
    partitions: tuple[Partition, ...] = ()

    @classmethod
    def to_topics(cls, names: str | Iterable[str]) -> Subscription:
        """To all partitions of topics, given as a collection or with commas between them."""
        given = names.split(",") if isinstance(names, str) else names
        topics = tuple(sorted({name.strip() for name in given} - {""}))
        if not topics:
            raise OptionError(f"option subscribe = {names!r}: must name at least one topic, as in 'orders,payments'")
        return cls("subscribe", topics)

    @classmethod
    def to_pattern(cls, pattern: str) -> Subscription:
        """To all partitions of the topics in whose names it is found, wherever, as with Spark."""
        try:
            with warnings.catch_warnings():
                # Of nested and intersected sets, which only Java has.
                warnings.simplefilter("error")
                re.compile(pattern)
        except (re.error, FutureWarning, DeprecationWarning) as error:
            raise OptionError(
                f"option subscribePattern = {pattern!r}: must be a regular expression of Python, which differs from "
                f"Java's in places (see docs/kafka.md): {error}"
            ) from None
        return cls("subscribePattern", pattern=pattern)

    @classmethod
    def to_partitions(cls, text: str | Mapping[str, Collection[int]]) -> Subscription:
        """To single partitions, as in `{"orders": [0, 1]}`."""
        try:
            given = json.loads(text) if isinstance(text, str) else text
            numbers = [Partition(topic, number) for topic, listed in given.items() for number in listed]
            if not numbers or not all(type(part.number) is int and part.number >= 0 for part in numbers):
                raise ValueError
        except (ValueError, TypeError, AttributeError):
            raise OptionError(
                f"""option assign = {text!r}: must be JSON of topics and their partitions, like {{"orders": [0, 1]}}"""
            ) from None
        partitions = tuple(sorted(set(numbers)))
        return cls("assign", tuple(sorted({part.topic for part in partitions})), partitions=partitions)

    @property
    def description(self) -> str:
        """Tells this choice from others, the same however it was written."""
        chosen = self.pattern or ",".join(map(str, self.partitions)) or ",".join(self.topics)
        return f"{self.kind}:{chosen}"

    def matches(self, topic: str) -> bool:
        """Whether partitions of a topic of that name are chosen."""
        if self.kind == "subscribePattern":
            return re.search(self.pattern, topic) is not None
        return topic in self.topics

    def select(self, topic: str, numbers: Iterable[int]) -> list[Partition]:
        """Which of the partitions of a topic that matches are chosen, in order."""
        there = [Partition(topic, number) for number in sorted(numbers)]
        return [part for part in there if part in self.partitions] if self.kind == "assign" else there


def parse_by_partition(name: str, text: str) -> dict[Partition, int]:
    """Of JSON like `{"orders": {"0": 23, "1": -2}, "payments": "earliest"}` the number of each partition.

    A word for a topic stands for all its partitions, as that of the partition `WHOLE_TOPIC`.
    """
    try:
        given: Any = json.loads(text)
        numbers = {
            Partition(topic, int(number)): value
            for topic, by_number in given.items()
            for number, value in (_of_word(by_number) or by_number).items()
        }
        if not numbers or not all(type(value) is int for value in numbers.values()):
            raise ValueError
    except (ValueError, TypeError, AttributeError):
        raise OptionError(
            f"""option {name} = {text!r}: must be JSON of topics, partitions and numbers, like """
            """{"orders": {"0": 23, "1": -2}}"""
        ) from None
    return numbers


def _of_word(given: Any) -> dict[int, int] | None:
    words = {"earliest": -2, "latest": -1}
    return {WHOLE_TOPIC: words[given.lower()]} if isinstance(given, str) and given.lower() in words else None

"""Parts of what people read: times, durations, counts, names, and tables of these."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

from alignment.shown import printable
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK

_SECOND_US: Final = 1_000_000
_DAY_US: Final = 86_400 * _SECOND_US
_WORDS: Final = ("year", "day", "record", "split", "position")
"""Units whose plural has an `s`; the others are abbreviations."""


def moment(us: int, near_us: int | None = None) -> str:
    """A time to the second, in UTC; only that of the day where it is on the day of `near_us`.

    Examples
    --------
    >>> moment(1_767_261_733_999_999), moment(1_767_261_738_000_000, 1_767_261_733_999_999)
    ('2026-01-01 10:02:13 UTC', '10:02:18')
    >>> moment(MAX_WATERMARK)
    'the end (every window closes)'
    """
    if us == MAX_WATERMARK:
        return "the end (every window closes)"
    day, _, clock = str(np.datetime64(us // _SECOND_US, "s")).partition("T")
    if near_us is not None and us // _DAY_US == near_us // _DAY_US:
        return clock
    return f"{day} {clock} UTC"


def day_or_moment(us: int) -> str:
    """A time to the second, in UTC; the day alone where that is its first second.

    Examples
    --------
    >>> day_or_moment(1_775_001_600_000_000), day_or_moment(1_775_001_660_000_000)
    ('2026-04-01', '2026-04-01 00:01:00 UTC')
    """
    text = moment(us)
    return text.removesuffix(" 00:00:00 UTC")


def watermark_text(us: int) -> str:
    """A watermark for a table, in UTC.

    Examples
    --------
    >>> watermark_text(MIN_WATERMARK), watermark_text(1_767_261_733_999_999)
    ('none', '2026-01-01 10:02:13')
    """
    return {MIN_WATERMARK: "none", MAX_WATERMARK: "end"}.get(us) or moment(us).removesuffix(" UTC")


def duration_text(us: int) -> str:
    """A duration to two digits or so, to be read and not to be parsed.

    Examples
    --------
    >>> [duration_text(s * 1_000_000) for s in (9.84, 41.3, 200, 7_512, 200_000, 2.3e9)]
    ['9.8 s', '41 s', '3 min 20 s', '2 h 5 min', '2 days 7 h', '72 years']
    """
    seconds = us / _SECOND_US
    if seconds < 60:
        return f"{int(seconds)} s" if seconds >= 10 else f"{round(seconds, 1):g} s"
    parts = (("year", 365 * 86_400), ("day", 86_400), ("h", 3600), ("min", 60), ("s", 1))
    at = next(i for i, (_, unit) in enumerate(parts) if seconds >= unit)
    whole, rest = divmod(int(seconds), parts[at][1])
    texts = [counted(whole, parts[at][0])]
    if at > 0 and (more := rest // parts[at + 1][1]):
        texts.append(counted(more, parts[at + 1][0]))
    return " ".join(texts)


def named(split_ids: Collection[str], most: int = 3) -> str:
    """The first ids of some, and how many more there are.

    Examples
    --------
    >>> named(["a", "b"]), named(["a", "b", "c", "d", "e"])
    ("'a', 'b'", "'a', 'b', 'c' and 2 more")
    >>> named([str(number) for number in range(5_003)])
    "'0', '1', '2' and 5,000 more"
    """
    ids = list(split_ids)
    return ", ".join(map(repr, ids[:most])) + (f" and {len(ids) - most:,} more" if ids[most:] else "")


def counted(count: int, unit: str) -> str:
    """A number of things, with an `s` where there are several.

    Examples
    --------
    >>> counted(1, "record"), counted(1200, "record")
    ('1 record', '1,200 records')
    """
    return f"{count:,} {unit}" + ("s" if unit in _WORDS and count != 1 else "")


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table, its columns aligned, and no name in more than one line.

    Examples
    --------
    >>> aligned([("split", "late"), ("a", "12")])
    ['split  late', 'a      12']
    """
    rows = [[*map(printable, row)] for row in rows]
    widths: list[int] = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]

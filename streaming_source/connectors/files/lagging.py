"""Directories that lag behind others, where each file is a split: their files come late, again and again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from alignment.timestamps import NO_TIMESTAMP

_AGAIN: Final = 3
"""Listings in which a directory came behind the others: once may be a file that was delayed."""
_DIRECTORIES: Final = 1000
"""Directories that are remembered, those that last had a new file."""

Span = tuple[int, int]
"""The earliest and the latest event time of the new files of a directory in one listing."""


@dataclass(frozen=True, slots=True)
class Lag:
    """The files of `directory` come up to `lag_us` behind those of the directory `ahead`."""

    directory: str
    ahead: str
    lag_us: int


@dataclass(slots=True)
class _Known:
    latest_us: int
    times: int = 0
    lag_us: int = 0


class LaggingDirectories:
    """Compares the new files of each listing with those of the listings before.

    A directory lags where its new files begin before files of others that were found earlier, by more than `bound_us`,
    although they follow the earlier files of their own directory: no order inside of files or directories is the
    cause, but that directories are written at different times.
    """

    def __init__(self, bound_us: int) -> None:
        self._bound_us = bound_us
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._ahead, self._latest_us = "", NO_TIMESTAMP
        self._is_found = False

    def look(self, found: Mapping[str, Span]) -> Lag | None:
        """Take in the new files of one listing, by directory; return the lag, once, when it was seen often enough.

        O(directories with new files).
        """
        ahead, limit_us, is_again = self._ahead, self._latest_us - self._bound_us, False
        for directory, (earliest_us, latest_us) in sorted(found.items()):
            known = self._known.pop(directory, None) or _Known(NO_TIMESTAMP)
            follows = NO_TIMESTAMP < known.latest_us <= earliest_us + self._bound_us
            if self._latest_us > NO_TIMESTAMP and follows and earliest_us < limit_us:
                known.times += 1
                known.lag_us = max(known.lag_us, self._latest_us - earliest_us)
                is_again |= known.times >= _AGAIN
            known.latest_us = max(known.latest_us, latest_us)
            self._known[directory] = known
        for directory, (_, latest_us) in found.items():
            if latest_us > self._latest_us:
                self._ahead, self._latest_us = directory, latest_us
        while len(self._known) > _DIRECTORIES:
            self._known.popitem(last=False)
        if self._is_found or not is_again:
            return None
        self._is_found = True
        furthest = max(self._known, key=lambda directory: self._known[directory].lag_us)
        return Lag(furthest, ahead, self._known[furthest].lag_us)

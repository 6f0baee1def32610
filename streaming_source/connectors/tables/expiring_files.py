"""Files that wait while their table does not need them any more: whether they are read before they are deleted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from alignment.arrow_times import format_timestamp
from alignment.durations import format_duration
from alignment.shown import log_of

_log = log_of(__name__)

_AGAIN_MS: Final = 3_600_000
"""Milliseconds after which the same is logged again."""

_SHORT_MS: Final = 24 * 3_600_000
"""So little time left is worth a warning, however fast the files are read."""


class ExpiringFiles:
    """Removed files that wait, by path, and until when each stays readable. `now_ms` is the clock.

    The pace is that at which files were opened since the first look.
    """

    def __init__(self, title: str, now_ms: Callable[[], int]) -> None:
        self._title, self._now_ms = title, now_ms
        self._until_ms: dict[str, int] = {}
        self._first_look_ms: int | None = None
        self._opened = 0
        self._warned_ms: int | None = None

    def __len__(self) -> int:
        return len(self._until_ms)

    def add(self, until_ms: Mapping[str, int]) -> None:
        """Take in files that wait."""
        self._until_ms |= until_ms

    def open(self, path: str) -> None:
        """Take out a file that does not wait any more."""
        self._opened += 1
        self._until_ms.pop(path, None)

    def warn(self, waiting: int) -> None:
        """Log how much time is left, where `waiting` files may take longer; once an hour. O(files that expire)."""
        now_ms = self._now_ms()
        if self._first_look_ms is None:
            self._first_look_ms = now_ms
        if not self._until_ms or (self._warned_ms is not None and now_ms < self._warned_ms + _AGAIN_MS):
            return
        until_ms = min(self._until_ms.values())
        left_ms, elapsed_ms = until_ms - now_ms, now_ms - self._first_look_ms
        needed_ms = waiting * elapsed_ms // self._opened if self._opened else None
        if left_ms > _SHORT_MS and (needed_ms is None or needed_ms <= left_ms):
            return
        self._warned_ms = now_ms
        pace = "none was opened yet" if needed_ms is None else f"at this pace that takes {_about(needed_ms)}"
        _log.warning(
            "%s: %d of the %d files that wait to be read are not in the table any more, and stay until %s at least "
            "(%s left); %s. Raise the table's retention (delta.deletedFileRetentionDuration, or "
            "history.expire.max-snapshot-age-ms), or read more in a micro-batch",
            self._title,
            len(self._until_ms),
            waiting,
            format_timestamp(until_ms * 1000),
            _about(max(left_ms, 0)),
            pace,
        )


def _about(duration_ms: int) -> str:
    """A duration in minutes, in seconds where it is short."""
    unit_ms = 60_000 if duration_ms >= 120_000 else 1_000
    return format_duration(duration_ms // unit_ms * unit_ms * 1000)

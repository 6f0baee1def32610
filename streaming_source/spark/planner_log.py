"""What a planner process says in its log, which is its standard error: Spark's driver passes that on to its own."""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import struct
import sys
import termios
import time
from collections.abc import Callable
from typing import Final, TextIO

from alignment.explain import Cause, Explanation
from alignment.sentence import duration_text, sentence

__all__ = ["StandstillWarning", "log_lines_of"]

_log = logging.getLogger(__name__)

_PATIENCE_S: Final = 1.0
_LOOKS: Final = 20
"""How often a standstill is looked at in the time after which it is worth a warning."""


class _TakenLines(logging.StreamHandler[TextIO]):
    """Waits until the driver has taken each line: what is still in the pipe when it ends the process is lost.

    The line that says what an AvailableNow run leaves unread is written right before that end.
    """

    def flush(self) -> None:
        super().flush()
        deadline = time.monotonic() + _PATIENCE_S
        while _is_untaken(self.stream) and time.monotonic() < deadline:
            time.sleep(0.001)


def log_lines_of(source: str) -> None:
    """Let each line say time (UTC), level and source, unless somebody has set up logging in this process already.

    A planner process plans one source of one query, whose name it does not learn: what tells queries apart is the id of
    the source, which stands in their offsets.
    """
    logger = logging.getLogger("streaming_source")
    if logger.hasHandlers():
        return
    handler = _TakenLines(sys.stderr)
    formatter = logging.Formatter(f"%(asctime)s.%(msecs)03dZ %(levelname)s {source}: %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logger.addHandler(handler)


def _is_untaken(stream: TextIO) -> bool:
    """Whether a pipe holds what its reader has not taken yet; False where that cannot be known."""
    try:
        pipe = stream.fileno()
        if not stat.S_ISFIFO(os.fstat(pipe).st_mode):
            return False
        (size,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))
    except (OSError, ValueError):
        return False
    return bool(size)


class StandstillWarning:
    """Warns where the same splits have held the watermark for too long; again only when it is others, or why changes.

    `explain` says why the watermark stands, at this moment; None where nobody knows yet. It is called now and then
    only.
    """

    def __init__(self, warn_after_us: int, explain: Callable[[], Explanation | None]) -> None:
        self._warn_after_us = warn_after_us
        self._explain = explain
        self._look_at_us = 0
        self._held_by: tuple[str, ...] = ()
        self._since_us = 0
        # Why they hold it, as was said last.
        self._said: Cause | None = None

    def look(self, now_us: int) -> None:
        """Time has passed. O(1), but now and then that of an explanation."""
        if now_us < self._look_at_us:
            return
        self._look_at_us = now_us + self._warn_after_us // _LOOKS
        explanation = self._explain()
        if explanation is None:
            return
        if explanation.held_by != self._held_by:
            self._held_by, self._since_us, self._said = explanation.held_by, now_us, None
        held_us = now_us - max(self._since_us, explanation.stands_since_us)
        is_news = explanation.cause not in (self._said, Cause.NOTHING, Cause.SLOWEST)
        if self._held_by and is_news and held_us >= self._warn_after_us:
            self._said = explanation.cause
            _log.warning("the watermark has been held for %s. %s", duration_text(held_us), sentence(explanation))

"""The log of a planner process, and its warnings of what takes too long: a watermark that stands, a micro-batch.

It is on standard error, which Spark's driver copies to its own.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TextIO

from alignment.explain import Cause, Explanation
from alignment.sentence import duration_text
from alignment.shown import log_of
from alignment.watermarks import MIN_WATERMARK
from streaming_source.coordinator import processing_time_us
from streaming_source.monitoring.causes.answer import advice_on, cause_of, sentence

_log = log_of(__name__)

_LOOKS: Final = 20
"""Checks of a standstill within the time after which it is warned of."""

_SHORTEST_WAIT_S: Final = 0.01

_NO_NEWS: Final = (Cause.NOTHING, Cause.SLOWEST, Cause.MICRO_BATCH, Cause.ALL_IDLE, Cause.ENDED)
"""With these a watermark may stand for long, and nothing is wrong; a micro-batch has a deadline of its own."""

_PATIENCE_S: Final = 1.0
"""Seconds to wait for the driver to read a line."""


class _TakenLines(logging.StreamHandler[TextIO]):
    """Waits until the driver has read each line: lines still in the pipe when the driver ends the process are lost.

    An AvailableNow run logs which records it leaves unread right before the driver ends the process.
    """

    def flush(self) -> None:
        super().flush()
        deadline = time.monotonic() + _PATIENCE_S
        while _is_untaken(self.stream) and time.monotonic() < deadline:
            time.sleep(0.001)


def log_lines_of(source: str) -> None:
    """Put time (UTC), level and source before each line, unless logging is set up in this process already.

    A planner process plans one source of one query. Spark does not pass the query's name: lines name the data read.
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
    """Return whether a pipe has unread bytes; False if that is not known."""
    try:
        pipe = stream.fileno()
        if not stat.S_ISFIFO(os.fstat(pipe).st_mode):
            return False
        (size,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))
    except (OSError, ValueError):
        return False
    return bool(size)


class StandstillWarning:
    """Warns if the same splits hold the watermark for too long; again only if the splits or the cause change.

    It also warns of a micro-batch that is not committed for as long: Spark does not call its planner meanwhile, so a
    thread of this object watches the time. Between two triggers that are far apart it does not call it either: so a
    micro-batch has at least twice the time from the last call to the one before.
    `explain` returns the current cause of the watermark, or None if it is not known yet; it is called rarely. `now_us`
    is processing time.
    """

    def __init__(
        self, warn_after_us: int, explain: Callable[[], Explanation | None], now_us: Callable[[], int] | None = None
    ) -> None:
        self._warn_after_us = warn_after_us
        self._explain = explain
        self._now_us = processing_time_us if now_us is None else now_us
        self._look_at_us = 0
        self._held_by: tuple[str, ...] = ()
        self._since_us = 0
        # The cause that the last warning gave.
        self._warned: Cause | None = None
        # Deadline of the current micro-batch, by `time.monotonic`; None between two micro-batches.
        self._done_by_s: float | None = None
        # When Spark called last, and how long after the call before; None before the first, and the second.
        self._called_s: float | None = None
        self._pause_s: float | None = None
        self._watcher: threading.Thread | None = None
        self._is_closed = threading.Event()

    def check(self, now_us: int) -> None:
        """Check the watermark at this time. O(1), plus an explanation in some calls."""
        if now_us < self._look_at_us:
            return
        self._look_at_us = now_us + self._warn_after_us // _LOOKS
        explanation = self._explain()
        if explanation is None:
            return
        if explanation.held_by != self._held_by:
            self._held_by, self._since_us, self._warned = explanation.held_by, now_us, None
        held_us = now_us - max(self._since_us, explanation.stands_since_us)
        cause = cause_of(explanation)
        is_news = cause not in (self._warned, *_NO_NEWS)
        nothing_found = cause is Cause.NO_SPLITS and explanation.watermark == MIN_WATERMARK
        is_news &= bool(self._held_by) or nothing_found or cause is Cause.FUTURE
        if is_news and held_us >= self._warn_after_us:
            self._warned = cause
            _log.warning("the watermark has been held for %s. %s", duration_text(held_us), _in_words(explanation))

    def begin_batch(self) -> None:
        """Start the deadline of a micro-batch, after which a warning follows. O(1); the first call starts a thread."""
        self._called_s = time.monotonic()
        if self._pause_s is None:
            return
        self._done_by_s = self._called_s + max(self._warn_after_us / 1e6, 2 * self._pause_s)
        # No thread if the time is longer than a thread can wait.
        if self._watcher is None and self._warn_after_us / 1e6 <= threading.TIMEOUT_MAX:
            self._watcher = threading.Thread(target=self._watch, name="standstill", daemon=True)
            self._watcher.start()

    def end_batch(self) -> None:
        """Cancel the deadline: Spark has called for the next micro-batch. O(1)."""
        now_s = time.monotonic()
        self._pause_s = None if self._called_s is None else now_s - self._called_s
        self._done_by_s, self._called_s = None, now_s

    def close(self) -> None:
        """Stop all warnings."""
        self._is_closed.set()

    def _watch(self) -> None:
        """Wake up at most once in the time that a micro-batch may take; warn once of each that takes longer."""
        wait_s, warned = self._warn_after_us / 1e6, None
        while not self._is_closed.wait(max(wait_s, _SHORTEST_WAIT_S)):
            done_by_s, wait_s = self._done_by_s, self._warn_after_us / 1e6
            if done_by_s is None or done_by_s == warned:
                continue
            left_s = done_by_s - time.monotonic()
            if left_s > 0:
                wait_s = left_s
            else:
                warned = done_by_s
                self._warn_of_batch()

    def _warn_of_batch(self) -> None:
        explanation = self._explain()
        if explanation is None or explanation.batch is None:
            return
        # For the planner it is done with the report that Spark asks for as soon as it is planned.
        explanation = replace(explanation, batch=replace(explanation.batch, done_us=None))
        if cause_of(explanation) is Cause.MICRO_BATCH:
            _log.warning("%s", _in_words(explanation))


def _in_words(explanation: Explanation) -> str:
    """The sentence and the advice: what `explain` says."""
    advice = advice_on([explanation])
    return " ".join([sentence(explanation), *(f"Advice ({one.option}): {one.text}" for one in advice)])

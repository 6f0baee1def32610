"""A warning where a watermark or a micro-batch stands for long."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from alignment.explain import Cause, Explanation
from alignment.sentence import duration_text, sentence
from streaming_source.coordinator import processing_time_us

__all__ = ["StandstillWarning"]

_log = logging.getLogger(__name__)

_LOOKS: Final = 20
"""How often a standstill is looked at in the time after which it is worth a warning."""

_SHORTEST_WAIT_S: Final = 0.01


class StandstillWarning:
    """Warns where the same splits have held the watermark for too long; again only when it is others, or why changes.

    The same of a micro-batch that is not committed for as long: Spark does not call its planner then, so a thread of
    this object watches it.
    `explain` returns why the watermark stands, at this moment; None where that is not known yet. It is called now and
    then only. `now_us` is processing time.
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
        # Why they hold it, by the last warning.
        self._warned: Cause | None = None
        # Until when the micro-batch under way is to be done, by `time.monotonic`; None between two.
        self._done_by_s: float | None = None
        self._watcher: threading.Thread | None = None
        self._is_closed = threading.Event()

    def look(self, now_us: int) -> None:
        """Time has passed. O(1), but now and then that of an explanation."""
        if now_us < self._look_at_us:
            return
        self._look_at_us = now_us + self._warn_after_us // _LOOKS
        explanation = self._explain()
        if explanation is None:
            return
        if explanation.held_by != self._held_by:
            self._held_by, self._since_us, self._warned = explanation.held_by, now_us, None
        held_us = now_us - max(self._since_us, explanation.stands_since_us)
        is_news = explanation.cause not in (self._warned, Cause.NOTHING, Cause.SLOWEST, Cause.MICRO_BATCH)
        if self._held_by and is_news and held_us >= self._warn_after_us:
            self._warned = explanation.cause
            _log.warning("the watermark has been held for %s. %s", duration_text(held_us), sentence(explanation))

    def begin_batch(self) -> None:
        """A micro-batch is planned: warn if it is not done in time. O(1); the first call starts a thread."""
        self._done_by_s = time.monotonic() + self._warn_after_us / 1e6
        # Longer than a thread can wait: never.
        if self._watcher is None and self._warn_after_us / 1e6 <= threading.TIMEOUT_MAX:
            self._watcher = threading.Thread(target=self._watch, name="standstill", daemon=True)
            self._watcher.start()

    def end_batch(self) -> None:
        """It is done. O(1)."""
        self._done_by_s = None

    def close(self) -> None:
        """Warn no more."""
        self._is_closed.set()

    def _watch(self) -> None:
        """Wake up no more than once in the time that a micro-batch may take; warn once of one that takes longer."""
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
        if explanation is not None and explanation.cause is Cause.MICRO_BATCH:
            _log.warning("%s", sentence(explanation))

"""Says once, in the log, that a watermark has been held for long, and by whom."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from alignment.explain import Cause, Explanation
from alignment.sentence import duration_text, sentence

__all__ = ["StandstillWarning"]

_log = logging.getLogger(__name__)

_LOOKS: Final = 20
"""How often a standstill is looked at in the time after which it is worth a warning."""


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

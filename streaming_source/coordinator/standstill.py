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

    Parameters
    ----------
    warn_after_us
        How long is too long, in microseconds of processing time.
    explain
        Why the watermark stands, at this moment; None where nobody knows yet. It is called now and then only.
    """

    def __init__(self, warn_after_us: int, explain: Callable[[], Explanation | None]) -> None:
        self._warn_after_us = warn_after_us
        self._explain = explain
        self._look_at_us = 0
        # Who holds it and why, since when, and whether that was said.
        self._holds: tuple[Cause, tuple[str, ...]] | None = None
        self._since_us = 0
        self._has_warned = False

    def look(self, now_us: int) -> None:
        """Time has passed. O(1), but now and then that of an explanation."""
        if now_us < self._look_at_us:
            return
        self._look_at_us = now_us + self._warn_after_us // _LOOKS
        explanation = self._explain()
        if explanation is None:
            return
        holds = explanation.cause, explanation.held_by
        if holds != self._holds:
            self._holds, self._since_us, self._has_warned = holds, now_us, False
        since_us = max(self._since_us, explanation.stands_since_us)
        is_held = bool(explanation.held_by) and explanation.cause is not Cause.NOTHING
        if is_held and not self._has_warned and now_us - since_us >= self._warn_after_us:
            self._has_warned = True
            held_for = duration_text(now_us - since_us)
            _log.warning("the watermark has been held for %s. %s", held_for, sentence(explanation))

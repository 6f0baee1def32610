"""Which messages were taken already."""

from __future__ import annotations

import threading
from typing import Final

from streaming_source.gateway.messages import MessageHeader
from streaming_source.gateway.refusals import Refusal, RefusedError

__all__ = ["TakenMessages"]

_KEPT_BATCHES: Final = 4
_MAX_TASKS: Final = 65_536


class TakenMessages:
    """Takes every message once. From any thread; O(1) a message.

    A task sends one message after the other and numbers them upwards, so of each task the last number is enough. Only
    the tasks of the newest few micro-batches are remembered: messages of older ones are refused unseen.

    Parameters
    ----------
    kept_batches
        Micro-batches that are remembered, at least 1.
    max_tasks
        Task attempts that are remembered, at most. If there are more, older micro-batches are given up; attempts of the
        newest one beyond it are refused.
    """

    def __init__(self, kept_batches: int = _KEPT_BATCHES, max_tasks: int = _MAX_TASKS) -> None:
        self._kept_batches = kept_batches
        self._max_tasks = max_tasks
        self._lock = threading.Lock()
        # batch -> (subtask, attempt) -> number of its last message.
        self._last: dict[int, dict[tuple[int, int], int]] = {}
        self._tasks = 0
        self._oldest = 0

    def __len__(self) -> int:
        """Task attempts remembered."""
        return self._tasks

    def take(self, header: MessageHeader) -> None:
        """Take a message.

        Raises
        ------
        RefusedError
            `REPLAYED` if it, or a later one of its task attempt, was taken; `STALE` if its micro-batch is too old;
            `CROWDED` if there are too many task attempts.
        """
        task = (header.subtask_id, header.attempt)
        with self._lock:
            if header.batch < self._oldest:
                raise RefusedError(Refusal.STALE)
            last = self._last.get(header.batch, {}).get(task)
            if last is None:
                self._make_room(header.batch)
                self._tasks += 1
            elif header.number <= last:
                raise RefusedError(Refusal.REPLAYED)
            self._last.setdefault(header.batch, {})[task] = header.number

    def _make_room(self, batch: int) -> None:
        """For one more task of a micro-batch."""
        newest = max(batch, *self._last) if self._last else batch
        self._forget_before(newest - self._kept_batches + 1)
        while self._tasks >= self._max_tasks:
            oldest = min(self._last)
            if oldest >= batch:
                raise RefusedError(Refusal.CROWDED)
            self._forget_before(oldest + 1)

    def _forget_before(self, batch: int) -> None:
        for old in [known for known in self._last if known < batch]:
            self._tasks -= len(self._last.pop(old))
        self._oldest = max(self._oldest, batch)

"""Hands out tests to the workers of `pytest -n`, room by room."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import WorkStealingScheduling

from tests.rooms import ROOMS

__all__ = ["Shares"]

_AT_A_TIME = 20
_WORTH_A_SESSION = 6
"""So many tests must be left in a queue for another worker to take half of them."""


class Shares(WorkStealingScheduling):
    """First what is quick, to whoever has none; when all of it is done the other rooms, unless one has failed.

    Then one worker takes what uses the shared Spark session and one what uses the broker, so that each is started once.
    The others take what starts a service of its own or takes long, and then what is wide, as these two do when they are
    done: services wait half of the time, and what is wide needs none. Who has nothing left takes over from the longest
    queue, if that is worth another session.

    `rooms` is a folder in which each worker has left the places of its tests by `ROOMS`; they are the same in all.
    """

    def __init__(self, config: pytest.Config, log: Any, rooms: Path) -> None:
        super().__init__(config, log)
        self._folder = rooms
        self._rooms: dict[str, deque[int]] = {}
        self._quick: frozenset[int] = frozenset()
        self._unseen: set[int] = set()
        self._has_failed = False

    def failed(self, nodeid: str) -> None:
        """A test has failed."""
        assert self.collection is not None
        self._has_failed |= nodeid in self.collection and self.collection.index(nodeid) in self._quick

    def check_schedule(self) -> None:
        if not self.collection:
            return
        if not self._rooms:
            left = json.loads(next(self._folder.iterdir()).read_text())
            self._rooms = {room: deque(left[room]) for room in ROOMS}
            self._quick = frozenset(self._rooms["quick"])
            self._unseen = set(self._quick)
        if self._has_failed and not self._unseen and len(self._quick) < len(self.collection):
            self.config.pluginmanager.getplugin("dsession").shouldstop = "a quick test failed; no other was begun"
            return
        for number, node in enumerate(self.nodes):
            held = self.node2pending[node]
            # A worker begins its last test when it knows the next one.
            while len(held) < 2 and not node.shutting_down and not self._waits(held):
                found = self._next(number)
                if not found:
                    node.shutdown()
                    break
                held += found
                self.pending = [index for index in self.pending if index not in found]
                node.send_runtest_some(found)

    def mark_test_complete(self, node: Any, item_index: int, duration: float | None = None) -> None:
        self._unseen.discard(item_index)
        super().mark_test_complete(node, item_index, duration)

    def remove_node(self, node: Any) -> str | None:
        """A worker has crashed, by its first test: the next ones go to another."""
        held = self.node2pending[node]
        if held:
            self._rooms["alone"].extend(held[1:])
            self._unseen.difference_update(held)
        return super().remove_node(node)

    def _waits(self, held: Sequence[int]) -> bool:
        """Whether a worker may go no further: its next test is not quick, and quick ones are not done."""
        return bool(held and self._unseen and held[0] not in self._quick)

    def _next(self, number: int) -> list[int]:
        if quick := self._rooms["quick"]:
            return _taken(quick, max(2, min(_AT_A_TIME, len(quick) // (4 * len(self.nodes)))))
        for room in (_room_of(number), "alone", "wide"):
            if self._rooms[room]:
                return _taken(self._rooms[room], 4 if room == "wide" else 1)
        longest = max(self._rooms.values(), key=len)
        others = [_room_of(place) for place, node in enumerate(self.nodes) if not node.shutting_down]
        if len(longest) < _WORTH_A_SESSION and any(self._rooms[room] is longest for room in others):
            return []
        self._rooms["alone"].extend(reversed([longest.pop() for _ in range((len(longest) + 1) // 2)]))
        return _taken(self._rooms["alone"], 1)


def _room_of(number: int) -> str:
    """The room of a worker."""
    return ROOMS[1 + number % 3]


def _taken(queue: deque[int], number: int) -> list[int]:
    return [queue.popleft() for _ in range(min(number, len(queue)))]

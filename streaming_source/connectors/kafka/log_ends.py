"""Where logs end, and which of their leaders are away while others answer."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from streaming_source.connectors.kafka.subscription import Partition
from streaming_source.exceptions import SourceError

__all__ = ["Leaders", "LogEnd", "LogEnds"]

_log = logging.getLogger(__name__)

_FRESH_S: Final = 0.2
"""How long the end of a log holds, and after a failure how long no query is made."""

_TRY_S: Final = 5.0
"""How often those are tried that are away: it may take seconds, for which the others wait."""


class LogEnd(NamedTuple):
    """Where a partition's log ends: all before `readable` can be read, under the isolation level of the consumer.

    `written` is beyond that by what a transaction that is open holds back.
    """

    readable: int
    written: int


class Leaders:
    """Knows who has answered, and who of them is away now. Changed on a worker, seen by all threads.

    One that has never answered is not waited for here: where its partition is to be read from is not known.
    """

    def __init__(self, patience_s: float = math.inf, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience_s = patience_s
        self._clock = clock
        self._answered: set[Partition] = set()
        # Since when, and why. Replaced, never changed.
        self._away: Mapping[Partition, tuple[float, str]] = {}
        self._try_at = -math.inf

    @property
    def away(self) -> Mapping[Partition, str]:
        """The partitions whose leaders are away, and why they did not answer. O(those)."""
        return {part: why for part, (_, why) in self._away.items()}

    def are_due(self) -> bool:
        """Whether to try those that are away; then not again for a while."""
        now = self._clock()
        is_due = bool(self._away) and now >= self._try_at
        if is_due:
            self._try_at = now + _TRY_S
        return is_due

    def answer(self, parts: Iterable[Partition]) -> None:
        """The leaders of these partitions have answered."""
        answered = set(parts)
        self._answered |= answered
        if back := sorted(answered & self._away.keys()):
            self._away = {part: known for part, known in self._away.items() if part not in answered}
            _log.warning("the leader of partition %s is back%s", back[0], _others(back))

    def miss(self, why: Mapping[Partition, str]) -> bool:
        """These did not answer while others did; whether they can be waited for."""
        if not why.keys() <= self._answered:
            return False
        now = self._clock()
        new = sorted(why.keys() - self._away.keys())
        self._away = {**self._away, **{part: (self._away.get(part, (now,))[0], why[part]) for part in why}}
        if new:
            _log.warning(
                "partition %s is waited for, and holds the watermark: %s%s; the others are read on. After "
                "brokerTimeout, %g s, the query fails",
                *(new[0], why[new[0]], _others(new), self._patience_s),
            )
        return True

    def check(self) -> None:
        """A `SourceError` if a leader has been away for too long."""
        for part, (since, why) in sorted(self._away.items()):
            if self._clock() - since >= self._patience_s:
                raise SourceError(
                    f"partition {part} could not be read for {self._patience_s:g} s: {why}. Bring its broker back and "
                    "start the query again, it goes on from its checkpoint; option brokerTimeout waits longer"
                )

    def keep(self, parts: Collection[Partition]) -> None:
        """Only these partitions are left."""
        self._answered.intersection_update(parts)
        self._away = {part: known for part, known in self._away.items() if part in parts}


def _others(parts: Collection[Partition]) -> str:
    return f" (and so for {len(parts) - 1} more)" if len(parts) > 1 else ""


class LogEnds:
    """Keeps ends for a moment, so that a thousand partitions are one question and not a thousand.

    It knows the splits that discovery has seen, and only those: before discovery has looked, a split of an offset may
    be one of a topic that was created again since. Used by many threads: one asks, the others wait for its answer.

    `ask` is `KafkaAdmin.ends`. Of topics and their ids `find_replaced` returns those that were created again, which
    have no end here until discovery has seen them; it is called when an end has moved. Failures are no error for
    `patience_s`; `end` and `ask_again` raise `SourceError` after that.
    """

    def __init__(
        self,
        ask: Callable[[Sequence[Partition]], Mapping[Partition, LogEnd]],
        patience_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
        find_replaced: Callable[[Mapping[str, str]], Collection[str]] = lambda ids: (),
    ) -> None:
        self._ask = ask
        self._find_replaced = find_replaced
        self._patience_s = patience_s
        self._clock = clock
        self._lock = threading.Lock()
        self._there: Mapping[str, Partition] = {}
        self._gone: set[str] = set()
        self._topic_ids: Mapping[str, str] = {}
        self._known: Mapping[Partition, LogEnd] = {}
        self._fails_since: float | None = None
        self._queried_at: float | None = None

    def update(
        self, there: Mapping[str, Partition], gone: Iterable[str], topic_ids: Mapping[str, str] | None = None
    ) -> None:
        """Take what discovery has seen: partitions by split id, ids of splits that are gone, and of topics by name."""
        with self._lock:
            if there.keys() != self._there.keys():
                self._queried_at = None
            self._there = dict(there)
            self._topic_ids = dict(topic_ids or {})
            self._gone.update(gone)

    def forget(self, split_ids: Iterable[str]) -> None:
        """No reader has these splits any more, which are gone: others may come under their ids."""
        with self._lock:
            self._gone.difference_update(split_ids)

    def is_gone(self, split_id: str) -> bool:
        """Whether there will be nothing of a split any more; false of one that was forgotten."""
        return split_id in self._gone

    def end(self, split_id: str) -> LogEnd | None:
        """Of one split, as it was a moment ago; None if discovery has not seen it, or the brokers do not say."""
        with self._lock:
            part = self._there.get(split_id)
            if part is None:
                return None
            now = self._clock()
            if self._queried_at is None or now - self._queried_at >= _FRESH_S:
                self._look(now)
            return self._known.get(part)

    def locked(self) -> dict[str, int]:
        """By the ids of splits, records that open transactions held back when the ends were looked up last. O(n)."""
        known = self._known
        ends = ((split_id, known[part]) for split_id, part in self._there.items() if part in known)
        return {split_id: end.written - end.readable for split_id, end in ends if end.written > end.readable}

    def ask_again(self) -> dict[str, LogEnd]:
        """Of all that are known, asked for now whatever is kept. O(n)."""
        with self._lock:
            if self._there:
                self._look(self._clock())
            return {split_id: self._known[part] for split_id, part in self._there.items() if part in self._known}

    def _look(self, now: float) -> None:
        try:
            ends = self._ask(sorted(self._there.values()))
            # Afterwards: what was found before is of the topics that have not changed until now.
            moved = {part.topic for part, end in ends.items() if self._known.get(part) != end}
            replaced = self._find_replaced({name: self._topic_ids.get(name, "") for name in moved}) if moved else ()
            self._known = {part: end for part, end in ends.items() if part.topic not in replaced} if replaced else ends
            self._fails_since = None
        except SourceError as error:
            if self._fails_since is None:
                self._fails_since = now
                _log.warning("no split becomes idle until the brokers return the ends of their logs: %s", error)
            self._known = {}
            if self._clock() - self._fails_since >= self._patience_s:
                raise
        # When it was asked, not when the answer came: what was written since is not in it.
        self._queried_at = now if self._fails_since is None else self._clock()

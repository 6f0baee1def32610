"""The ends of logs, which of their leaders are away, and a forecast of how long unread records stay at their starts."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from alignment.durations import format_duration
from alignment.shown import log_of
from streaming_source.connectors.kafka.faults import report_loss
from streaming_source.connectors.kafka.subscription import Partition
from streaming_source.exceptions import SourceError

_log = log_of(__name__)

_FRESH_S: Final = 0.2
"""For how long the end of a log is used, and after an error for how long no query is made."""

_TRY_S: Final = 5.0
"""Seconds after which leaders that are away are tried again: a call may take seconds, and the others wait for it."""


class LogEnd(NamedTuple):
    """The end of a partition's log. Records before `readable` can be read under the consumer's isolation level.

    Those between `readable` and `written` belong to open transactions.
    """

    readable: int
    written: int


class Leaders:
    """The leaders of partitions that have answered, and which of them are away.

    It is changed on a worker, and read by all threads.

    A leader that has never answered is not waited for: it is not known from where its partition is to be read.
    """

    def __init__(self, patience_s: float = math.inf, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience_s = patience_s
        self._clock = clock
        self._answered: set[Partition] = set()
        # By partition: since when its leader is away, and why. The mapping is replaced, never changed.
        self._away: Mapping[Partition, tuple[float, str]] = {}
        self._try_at = -math.inf

    @property
    def away(self) -> Mapping[Partition, str]:
        """Why leaders that are away did not answer, by partition. O(partitions of these)."""
        return {part: why for part, (_, why) in self._away.items()}

    def are_due(self) -> bool:
        """Return whether leaders that are away should be tried now; the next time is some seconds later."""
        now = self._clock()
        is_due = bool(self._away) and now >= self._try_at
        if is_due:
            self._try_at = now + _TRY_S
        return is_due

    def answer(self, parts: Iterable[Partition]) -> None:
        """Record that the leaders of these partitions have answered."""
        answered = set(parts)
        self._answered |= answered
        if back := sorted(answered & self._away.keys()):
            self._away = {part: known for part, known in self._away.items() if part not in answered}
            _log.warning("the leader of partition %s is back%s", back[0], _others(back))

    def miss(self, why: Mapping[Partition, str]) -> bool:
        """Record leaders that did not answer while others did; return whether all of them can be waited for."""
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
        """Raise a `SourceError` if a leader has been away for `patience_s`."""
        for part, (since, why) in sorted(self._away.items()):
            if self._clock() - since >= self._patience_s:
                raise SourceError(
                    f"partition {part} could not be read for {self._patience_s:g} s: {why}. Bring its broker back and "
                    "start the query again, it goes on from its checkpoint; option brokerTimeout waits longer"
                )

    def keep(self, parts: Collection[Partition]) -> None:
        """Forget all partitions but these."""
        self._answered.intersection_update(parts)
        self._away = {part: known for part, known in self._away.items() if part in parts}


def _others(parts: Collection[Partition]) -> str:
    return f" (and so for {len(parts) - 1} more)" if len(parts) > 1 else ""


class LogEnds:
    """The ends of the logs of all partitions, looked up in one call and kept for a moment.

    It knows only splits that discovery has found: a split in an offset may be of a topic that was created again since.
    Used by many threads: one makes the call, the others wait for its result.

    `look_up` is `KafkaAdmin.ends`. `find_replaced` takes the ids of topics, and returns the names of topics that were
    created again: these have no end here until discovery has found them. It is called when an end has moved. Errors are
    tolerated for `patience_s`; after that `end` and `look_up_now` raise a `SourceError`.
    """

    def __init__(
        self,
        look_up: Callable[[Sequence[Partition]], Mapping[Partition, LogEnd]],
        patience_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
        find_replaced: Callable[[Mapping[str, str]], Collection[str]] = lambda ids: (),
    ) -> None:
        self._look_up = look_up
        self._find_replaced = find_replaced
        self._patience_s = patience_s
        self._clock = clock
        self._lock = threading.Lock()
        self._there: Mapping[str, Partition] = {}
        self._lost: set[str] = set()
        self._topic_ids: Mapping[str, str] = {}
        self._known: Mapping[Partition, LogEnd] = {}
        self._fails_since: float | None = None
        self._queried_at: float | None = None

    def update(
        self, there: Mapping[str, Partition], lost: Iterable[str], topic_ids: Mapping[str, str] | None = None
    ) -> None:
        """Take what discovery found: partitions by split id, ids of lost splits, ids of topics by name."""
        with self._lock:
            if there.keys() != self._there.keys():
                self._queried_at = None
            self._there = dict(there)
            self._topic_ids = dict(topic_ids or {})
            self._lost.update(lost)

    def forget(self, split_ids: Iterable[str]) -> None:
        """Forget splits that no longer exist: new ones may get their ids. No reader has them any more."""
        with self._lock:
            self._lost.difference_update(split_ids)

    def is_lost(self, split_id: str) -> bool:
        """Return whether the partition of a split no longer exists; False for a split that was forgotten."""
        return split_id in self._lost

    def end(self, split_id: str) -> LogEnd | None:
        """Return the end of one split, at most a moment old; None if the split or its end is not known."""
        with self._lock:
            part = self._there.get(split_id)
            if part is None:
                return None
            now = self._clock()
            if self._queried_at is None or now - self._queried_at >= _FRESH_S:
                self._refresh(now)
            return self._known.get(part)

    def locked(self) -> dict[str, int]:
        """Return, by split id, how many records open transactions held back at the last query. O(n)."""
        known = self._known
        ends = ((split_id, known[part]) for split_id, part in self._there.items() if part in known)
        return {split_id: end.written - end.readable for split_id, end in ends if end.written > end.readable}

    def look_up_now(self) -> dict[str, LogEnd]:
        """Look up the ends of all known splits now. O(n)."""
        with self._lock:
            if self._there:
                self._refresh(self._clock())
            return {split_id: self._known[part] for split_id, part in self._there.items() if part in self._known}

    def of_restored(self, there: Mapping[str, Partition]) -> dict[str, LogEnd]:
        """Look up the ends of splits that are not known here yet; none if the brokers do not answer."""
        new = {split_id: part for split_id, part in there.items() if split_id not in self._there}
        try:
            ends = self._look_up(sorted(new.values())) if new else {}
        except SourceError:
            return {}
        return {split_id: ends[part] for split_id, part in new.items() if part in ends}

    def _refresh(self, now: float) -> None:
        try:
            ends = self._look_up(sorted(self._there.values()))
            # Checked afterwards: ends of topics that are still the same are theirs.
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
        # The time of the call, not of its result: records that were written meanwhile are not in it.
        self._queried_at = now if self._fails_since is None else self._clock()


_PERIOD_S: Final = 60.0
"""Seconds between two queries of the starts of logs."""

_LOOKS: Final = 120
"""Over so many looks the pace is measured: retention removes whole segments, in steps."""

_WARN_S: Final = 86_400.0
"""With less time left than this a warning is logged, and again whenever half of that is left."""

_SECOND_US: Final = 1_000_000


class NextOffset(NamedTuple):
    """The next record of a split that is still to be read."""

    partition: Partition
    offset: int


class RetentionWatch:
    """Compares the starts of logs with the next records to be read, by split id.

    While a query reads a history, the partitions of its live side are not read yet, and retention moves their starts.
    `left_s` is how long it takes, at the pace of the last two hours, until the first of them passes a record that is
    still to be read; None while no start moves towards one. `look` runs on a worker, about once a minute.
    """

    def __init__(
        self,
        look_up_starts: Callable[[Collection[Partition]], Mapping[Partition, int | None]],
        *,
        fails: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look_up_starts = look_up_starts
        self._fails = fails
        self._clock = clock
        self._due_at = clock()
        # When, and by split id how far the start of its log was before its next record.
        self._looks: deque[tuple[float, Mapping[str, int]]] = deque(maxlen=_LOOKS)
        self._lost: frozenset[str] = frozenset()
        self._warn_below_s = _WARN_S
        self.left_s: float | None = None

    def look(self, next_offsets: Callable[[], Mapping[str, NextOffset]]) -> None:
        """Look up the starts of logs, if it is time to. One call of the brokers. O(splits).

        Raises a `DataLossError` if a record that was still to be read was deleted and option `failOnDataLoss` is true.
        """
        now = self._clock()
        if now < self._due_at:
            return
        self._due_at = now + _PERIOD_S
        wanted = next_offsets()
        starts = self._look_up_starts({one.partition for one in wanted.values()})
        there = {
            split_id: start for split_id, one in wanted.items() if (start := starts.get(one.partition)) is not None
        }
        ahead = {split_id: wanted[split_id].offset - start for split_id, start in there.items()}
        self._report_lost({split_id: wanted[split_id] for split_id, by in ahead.items() if by < 0}, there)
        self._looks.append((now, ahead))
        self._estimate(now, wanted, ahead)

    def _report_lost(self, lost: Mapping[str, NextOffset], starts: Mapping[str, int]) -> None:
        new = sorted(lost.keys() - self._lost)
        self._lost = frozenset(lost)
        if new:
            report_loss(
                f"split {new[0]!r}: offset {lost[new[0]].offset}, which was to be read next, is not there any more: "
                f"retention has moved the start of the log to {starts[new[0]]}",
                "to go on with what is there",
                fails=self._fails,
            )

    def _estimate(self, now: float, wanted: Mapping[str, NextOffset], ahead: Mapping[str, int]) -> None:
        since, before = self._looks[0]
        left: dict[str, float] = {}
        for split_id, by in ahead.items():
            nearer = before.get(split_id, by) - by
            if nearer > 0 and by >= 0:
                left[split_id] = by * (now - since) / nearer
        self.left_s = min(left.values(), default=None)
        if self.left_s is None or self.left_s >= _WARN_S:
            self._warn_below_s = _WARN_S
        elif self.left_s < self._warn_below_s:
            self._warn_below_s = self.left_s / 2
            split_id = min(left, key=lambda one: (left[one], one))
            topic, number = wanted[split_id].partition
            _log.warning(
                "retention of topic %r passes offset %d of partition %d, which is still to be read, in %s at the "
                "present pace. Raise retention.ms or retention.bytes of the topic, or let the query read faster",
                topic,
                wanted[split_id].offset,
                number,
                format_duration(round(self.left_s) * _SECOND_US),
            )

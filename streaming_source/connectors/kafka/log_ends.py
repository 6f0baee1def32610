"""The ends of logs, how far each was read, and a forecast of how long unread records stay at their starts."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from alignment.durations import format_duration
from alignment.shown import log_of
from streaming_source.connectors.kafka.faults import report_loss
from streaming_source.connectors.kafka.split import KafkaSplit
from streaming_source.connectors.kafka.subscription import Partition
from streaming_source.exceptions import SourceError

_log = log_of(__name__)

_FRESH_S: Final = 0.2
"""For how long the end of a log is used, and after an error for how long no query is made."""


class LogEnd(NamedTuple):
    """The end of a partition's log. Records before `readable` can be read under the consumer's isolation level.

    Those between `readable` and `written` belong to open transactions.
    """

    readable: int
    written: int


class LogEnds:
    """The ends of the logs of all partitions, looked up in one call and kept for a moment, and how far each was read.

    It knows only splits that discovery has found: a split in an offset may be of a topic that was created again since.
    Used by many threads: one makes the call, the others wait for its result. A log that has become shorter than it was,
    or than it was read, has lost records: a `DataLossError` if it `fails`, else its loss is logged once.

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
        *,
        fails: bool = True,
    ) -> None:
        self._look_up = look_up
        self._find_replaced = find_replaced
        self._patience_s = patience_s
        self._clock = clock
        self._lock = threading.Lock()
        self._fails = fails
        self._there: Mapping[str, Partition] = {}
        # By id of a split that no longer exists: the first state since, None before that.
        self._lost: dict[str, int | None] = {}
        # By split id: the position in the last plan, and up to where its log was read or has reached. Workers change
        # them, too: they are never iterated over in place. Then the splits whose loss was reported.
        self._positions: dict[str, int] = {}
        self._reached: dict[str, int] = {}
        self._shorter: set[str] = set()
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
            self._lost.update(dict.fromkeys(lost))
        for split_id in {*self._reached, *self._positions} - there.keys():
            self._reached.pop(split_id, None)
            self._positions.pop(split_id, None)

    def forget(self, checkpoint_id: int) -> None:
        """Forget splits that have not existed for two states: no reader has them, and new ones may get their ids."""
        since = {i: checkpoint_id if first is None else first for i, first in self._lost.items()}
        self._lost = {split_id: first for split_id, first in since.items() if checkpoint_id < first + 2}
        self._shorter -= since.keys() - self._lost.keys()

    def restore(self, splits: Iterable[KafkaSplit]) -> None:
        """Go on from these positions, also where later ones are known."""
        self._positions.update((split.split_id, split.position) for split in splits)

    def move_on(self, split_id: str, position: int) -> None:
        """Record that a plan reads a split up to a position."""
        self._positions[split_id] = max(self.position(split_id) or 0, position)

    def position(self, split_id: str) -> int | None:
        """Return up to where plans read a split; None if no plan has."""
        return self._positions.get(split_id)

    def check(self, split: KafkaSplit, end: LogEnd) -> None:
        """Report a log that has become shorter, and remember how far it reaches."""
        self._reach(split.split_id, split.position, end, split.before_stop(end.readable))

    def report_shorter(self, split_id: str, reached: int, end: int) -> None:
        """Report the loss of records from `end` on, up to where a log had reached; see the class."""
        if split_id not in self._shorter:
            self._shorter.add(split_id)
            report_loss(
                f"split {split_id!r}: offset {reached} is not there, the partition ends at {end}: its last ones were "
                "deleted",
                "to go on with what is there",
                fails=self._fails,
            )

    def _reach(self, split_id: str, position: int, end: LogEnd, readable: int) -> bool:
        """Take in the end of a log, and return whether it has become shorter."""
        reached = max(self._reached.get(split_id, 0), position)
        if is_shorter := end.written < reached:
            self.report_shorter(split_id, reached, end.written)
        self._reached[split_id] = max(reached, readable)
        return is_shorter

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

    def look_up_now(self, there: Mapping[str, Partition]) -> tuple[dict[str, LogEnd], dict[str, int]]:
        """Look up the ends of all known splits now; and by split id those of logs that became shorter. O(n).

        Of splits that are `there` a log may have become shorter while the query was down: those in a plan are looked up
        even if discovery has not found them here yet; none if the brokers do not answer.
        """
        with self._lock:
            if self._there:
                self._refresh(self._clock())
            ends = {split_id: self._known[part] for split_id, part in self._there.items() if part in self._known}
            new = {i: part for i, part in there.items() if i not in self._there and i in self._positions}
        restored: Mapping[Partition, LogEnd] = {}
        with suppress(SourceError):
            restored = self._look_up(sorted(new.values())) if new else {}
        shorter: dict[str, int] = {}
        found = {**{i: restored[part] for i, part in new.items() if part in restored}, **ends}
        for split_id, end in found.items():
            if split_id in there and self._reach(split_id, self._positions.get(split_id, 0), end, end.readable):
                shorter[split_id] = end.written
        return ends, shorter

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

"""A forecast of how long the records that a query is still to read stay in their logs, while their starts move."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

from alignment.durations import format_duration
from alignment.shown import log_of
from streaming_source.connectors.kafka.faults import report_loss
from streaming_source.connectors.kafka.subscription import Partition

_log = log_of(__name__)

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

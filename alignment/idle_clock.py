"""Since when the splits of a source have had nothing left to read, and up to when that is known."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set

import numpy as np
import numpy.typing as npt

from alignment.combine import SplitStatus
from alignment.explain import WaitsFor
from alignment.plan import SplitTable
from alignment.watermarks import LONG_AGO_US, BoolArray, Int64Array


class IdleClock:
    """Measures idleness in processing time, but only up to the last probe: what was not probed for may be there.

    A *probe* is a look at the outside. One that finds nothing more of a split shows that it had nothing to read at the
    moment at which the probe began. Since when a split has been silent survives a restart: it is in the state. Arrays
    have one entry for each split, in the order of the engine's table. Processing time is in microseconds since the
    epoch.

    A split is idle after `timeout_us` without anything to read; None for never. `caught_up_us` (`int64[n]`) is since
    when each has had nothing, if it has nothing; `LONG_AGO_US` where it is idle from before a restart. `blocked`
    splits cannot be read now, and what for: they are not idle, until a probe finds that it is over.
    `last_probe_us` is when the last probe began, whatever it found and wherever; None before any.

    In runs that end by themselves (AvailableNow) minutes say nothing: with `counts_runs` runs are counted there
    instead. A split that brought nothing in one run (`silent`, `bool[n]`) is idle in the next one that brings nothing
    of it either; `overdue` are those that may become idle so in this run.

    A source without any split is as silent as a split: it is idle `timeout_us` after its last one has left, which was
    at `empty_since_us`, or after planning began; `LONG_AGO_US` while it has one, or if it never had one.
    """

    def __init__(self, timeout_us: int | None, *, counts_runs: bool = False) -> None:
        self.timeout_us = timeout_us
        self.counts_runs = counts_runs
        self.silent: BoolArray = np.empty(0, np.bool_)
        self._overdue: BoolArray = np.empty(0, np.bool_)
        # Whether the source had no split in the run before, nor in this one.
        self._was_empty = self.is_empty = False
        self.caught_up_us = np.empty(0, np.int64)
        # The position of each split before its first record.
        self.origins: Int64Array = np.empty(0, np.int64)
        self._deadline_us: int | None = None
        self._probed_all_us: int = LONG_AGO_US
        self._probed_us: dict[str, int] = {}
        self.blocked: dict[str, WaitsFor] = {}
        self.last_probe_us: int | None = None
        self.empty_since_us: int = LONG_AGO_US
        self._began_us: int = LONG_AGO_US

    # ---- splits --------------------------------------------------------------------------------------------------

    def begin(
        self,
        statuses: npt.NDArray[np.int8],
        origins: Int64Array,
        silent_since_us: Int64Array,
        now_us: int,
        empty_since_us: int = LONG_AGO_US,
        *,
        overdue: BoolArray | None = None,
        silent: BoolArray | None = None,
        was_empty: bool = False,
    ) -> None:
        """Start with restored splits, as `Restored` has them: those that were idle still are. O(n)."""
        self._overdue = np.zeros(len(origins), np.bool_) if overdue is None else overdue
        self.silent = np.ones(len(origins), np.bool_) if silent is None else silent
        self._was_empty, self.is_empty = was_empty, True
        # The wall clock may have been put back since.
        since_us = np.where(silent_since_us == LONG_AGO_US, now_us, np.minimum(silent_since_us, now_us))
        self.caught_up_us = np.where(statuses == SplitStatus.IDLE, LONG_AGO_US, since_us)
        self.origins = origins
        self._deadline_us = None
        self._began_us, self.empty_since_us = now_us, min(empty_since_us, now_us)
        self._probed_us.clear()
        self.blocked.clear()

    def add(self, origins: Sequence[int], joined_us: Sequence[int], order: npt.NDArray[np.intp]) -> None:
        """New splits came after the others at these times, and then all were put in this order. O(n)."""
        self.origins = np.append(self.origins, np.array(origins, np.int64))[order]
        self.caught_up_us = np.append(self.caught_up_us, np.array(joined_us, np.int64))[order]
        self.silent = np.append(self.silent, np.ones(len(origins), np.bool_))[order]
        self._overdue = np.append(self._overdue, np.zeros(len(origins), np.bool_))[order]

    def keep(self, slots: npt.NDArray[np.intp], finished: Collection[str]) -> None:
        """Keep the splits in these slots, and forget those with the ids in `finished`. O(n)."""
        self.origins = self.origins[slots]
        self.caught_up_us = self.caught_up_us[slots]
        self.silent, self._overdue = self.silent[slots], self._overdue[slots]
        for split_id in finished:
            self.blocked.pop(split_id, None)
            self._probed_us.pop(split_id, None)

    def split_ids(self) -> Set[str]:
        """Ids of the splits of which something is remembered by id."""
        return self.blocked.keys() | self._probed_us.keys()

    # ---- probes --------------------------------------------------------------------------------------------------

    def probe(self, at_us: int, split_ids: Collection[str] | None) -> None:
        """A probe that began at `at_us` found nothing more of these splits; None for all."""
        self.last_probe_us = max(at_us, self.last_probe_us or 0)
        if split_ids is None:
            self._probed_all_us = max(at_us, self._probed_all_us)
            self.blocked.clear()
        else:
            self._probed_us.update(dict.fromkeys(split_ids, at_us))
            for split_id in split_ids:
                self.blocked.pop(split_id, None)

    def find(self, split_id: str) -> None:
        """More was found of a split: only a later probe shows that it has nothing to read."""
        self._probed_us.pop(split_id, None)

    def probed_us(self, split_id: str) -> int:
        """When the last probe of a split began that found nothing more; `LONG_AGO_US` before any. O(1)."""
        return max(self._probed_us.get(split_id, LONG_AGO_US), self._probed_all_us)

    # ---- plans ---------------------------------------------------------------------------------------------------

    def is_due(self) -> bool:
        """Return whether, as of the last probe, a split may have become idle. O(1)."""
        return self._deadline_us is not None and (self.last_probe_us or 0) >= self._deadline_us

    def idle(self, table: SplitTable, drains_from_us: int | None = None, marked: BoolArray | None = None) -> BoolArray:
        """`bool[n]`: splits whose last record was read at least the timeout before they were last probed. O(n).

        `drains_from_us` is since when what is there is all there is (AvailableNow): a snapshot does not show the time
        that passes while it is read. When a split that never had a record will have one is not known: a run that
        ends does not wait for it. Generators of the user's own that `marked` splits as idle (`bool[n]`) know what was
        planned, not whether a split was probed.
        """
        probed_us = np.full(len(table), self._probed_all_us, np.int64)
        if self._probed_us:
            each = (self._probed_us.get(split_id, LONG_AGO_US) for split_id in table.split_ids)
            probed_us = np.maximum(probed_us, np.fromiter(each, np.int64, len(table)))
        is_probed = probed_us > LONG_AGO_US
        if drains_from_us is None:
            idle = self._is_timed_out(probed_us)
        else:
            timed_out = self._is_timed_out(np.minimum(probed_us, drains_from_us))
            idle = self._overdue & is_probed if self.counts_runs else timed_out
            idle |= (table.positions == self.origins) & is_probed
            idle |= table.statuses == SplitStatus.IDLE
        if marked is not None:
            idle |= marked & is_probed
        if self.blocked:
            idle &= ~np.fromiter((split_id in self.blocked for split_id in table.split_ids), np.bool_, len(table))
        return idle

    def track(self, unread: BoolArray, statuses: npt.NDArray[np.int8], now_us: int) -> None:
        """Start anew for each split that has (`unread`), or just had, something to read. O(n).

        `statuses` are those after the plan.
        """
        self.caught_up_us = np.where(unread, now_us, self.caught_up_us)
        self.silent, self._overdue = self.silent & ~unread, self._overdue & ~unread
        self._deadline_us = None
        had_splits = len(self) > 0
        if had_splits:
            self._was_empty = self.is_empty = False
            self.empty_since_us = now_us if (statuses == SplitStatus.FINISHED).all() else LONG_AGO_US
        if self.timeout_us is None:
            return
        if not had_splits:
            since_us = self._began_us if self.empty_since_us == LONG_AGO_US else self.empty_since_us
            if (self.last_probe_us or 0) < since_us + self.timeout_us:
                self._deadline_us = since_us + self.timeout_us
            return
        active = statuses == SplitStatus.ACTIVE
        waiting = self.caught_up_us[active & ~unread]
        if waiting.size:
            # What was probed and is not idle yet was itself probed too early: it takes another probe.
            self._deadline_us = max(int(waiting.min()) + self.timeout_us, (self.last_probe_us or 0) + 1)
        elif (active & unread).any():
            self._deadline_us = now_us + self.timeout_us

    def is_empty_source_idle(self, drains_from_us: int | None = None) -> bool:
        """Return whether a source that has no split is idle; see `idle`. O(1).

        A run that ends does not wait for the first split of a source, as for the first record of a split.
        """
        probed_us = self.last_probe_us
        if probed_us is None:
            return False
        is_new = self.empty_since_us == LONG_AGO_US
        if drains_from_us is not None:
            if is_new or self.counts_runs:
                return is_new or self._was_empty
            probed_us = min(probed_us, drains_from_us)
        since_us = self._began_us if is_new else self.empty_since_us
        return self.timeout_us is not None and probed_us >= since_us + self.timeout_us

    def __len__(self) -> int:
        return int(self.caught_up_us.size)

    def _is_timed_out(self, probed_us: Int64Array) -> BoolArray:
        if self.timeout_us is None:
            return np.zeros(len(self), np.bool_)
        since = np.maximum(probed_us, LONG_AGO_US + self.timeout_us) - self.timeout_us
        # What was idle before a restart is idle until something is found, probed or not.
        is_known = (probed_us > LONG_AGO_US) | (self.caught_up_us == LONG_AGO_US)
        return np.asarray((self.caught_up_us <= since) & is_known)

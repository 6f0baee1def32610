"""Event times of sources that are not known ahead of reading: the readers report what they saw.

The enumerator returns again and again where the records of a split end; how many of them are read next follows from the
reports so far, see `alignment.plan.by_reports`. Nothing is read twice. The price is that a cut is a guess: a split may
be read past the limit, by as much as one micro-batch admits; and that a watermark is known a micro-batch later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic

import numpy as np
import numpy.typing as npt

from alignment.events import Probed
from alignment.sentence import named
from alignment.shown import log_of
from alignment.timestamps import NO_TIMESTAMP
from streaming_source.api import Source, SplitRange
from streaming_source.api.split import SplitT
from streaming_source.coordinator.enumerator_host import EnumeratorHost
from streaming_source.coordinator.event_times.provider import EventTimeProvider, RecordNumber
from streaming_source.coordinator.event_times.split_ends import SplitEnds
from streaming_source.coordinator.state import SourceState
from streaming_source.exceptions import SourceError

_log = log_of(__name__)

_WARN_US: Final = 60_000_000

_PERIOD_S: Final = 0.2
"""Seconds after an answer before the enumerator is called again for where the records end."""


@dataclass(slots=True)
class _Known(Generic[SplitT]):
    """A split in work: as it was taken over, the position after its last known record, and where it has ended.

    Its end `is_found` if it was since it was taken over, or since the run to the end of what is there began. Such a run
    `awaits_probe` of a split that may have ended; `is_probed_last` where that was the one before the run ends.
    """

    split: SplitT
    end: int
    ended_at: int | None = None
    is_found: bool = False
    awaits_probe: bool = False
    is_probed_last: bool = False


class ReportedTimes(EventTimeProvider[SplitT]):
    """Knows where the splits end, and what the readers reported.

    A split without a stop is complete when its `SplitReader` finishes it after its last record, see `SplitEnds`. The
    offset says so as soon as a plan knows it, and nothing before: after a restart it is probed again.
    """

    def __init__(self, source: Source[SplitT, Any], host: EnumeratorHost[SplitT, Any]) -> None:
        self._enumerator = host.enumerator
        self._host = host
        self._calls = host.calls
        self._known: dict[str, _Known[SplitT]] = {}
        self._split_ends = SplitEnds(source, host, self._take_probe)
        self._warned_us: int | None = None
        # Whether all ends will be found again: by one call at a time.
        self._finds_again = False
        self._started = False

    @property
    def knows_each(self) -> bool:
        return False

    # ---- splits --------------------------------------------------------------------------------------------------

    def restore_splits(self, state: SourceState[SplitT, Any]) -> None:
        self._known.clear()
        self.add_splits(state.unfinished())

    def add_splits(self, splits: Sequence[SplitT]) -> None:
        self._known.update((split.split_id, _Known(split, split.position)) for split in splits)
        if self._started and splits:
            self._calls.workers.submit(partial(self._find_ends, tuple(splits), again=False))

    def start(self) -> None:
        self._started = self._finds_again = True
        self._find_all_ends()

    def finish_splits(self, split_ids: Iterable[str]) -> None:
        """See `EventTimeProvider`. One that the state to start from had finished was never in work here."""
        for split_id in split_ids:
            self._known.pop(split_id, None)
            self._split_ends.forget(split_id)

    def split_ids(self) -> Set[str]:
        return self._known.keys() | self._split_ends.split_ids()

    def commit_plan(self, split_ids: Sequence[str], numbers: Sequence[RecordNumber]) -> tuple[SplitT, ...]:
        return tuple(self._known[i].split.at(number) for i, number in zip(split_ids, numbers, strict=True))

    def ranges(self, start: SplitT, end: SplitT, rows_per_range: int) -> Sequence[SplitRange[SplitT]]:
        return SplitRange.evenly(start, end.position, rows_per_range)

    # ---- what is known -------------------------------------------------------------------------------------------

    def known_from(self, split: SplitT) -> int:
        """See `EventTimeProvider`. What readers reported to an earlier planner, and after its last plan, is lost."""
        known = self._known.get(split.split_id)
        return split.position if known is None else known.split.position

    def event_times(self, split_id: str, start: int, stop: int) -> npt.NDArray[np.int64]:
        return np.full(stop - start, NO_TIMESTAMP, np.int64)

    def before_plan(self) -> None:
        """See `EventTimeProvider`. Readers report before a micro-batch ends: what is missing now was lost."""
        missing, now_us = self._host.engine.unreported(), self._calls.now_us()
        if missing and (self._warned_us is None or now_us - self._warned_us >= _WARN_US):
            self._warned_us = now_us
            _log.warning(
                "of %d splits (%s) not all that was read last is reported: their watermarks wait for the next report; "
                "if this goes on, the gateway is out of the readers' reach: see options gatewayHost and gatewayPort, "
                "and the logs of Spark's workers",
                len(missing),
                named(missing, 5),
            )

    # ---- where records end ---------------------------------------------------------------------------------------

    def drain(self, from_us: int) -> None:
        super().drain(from_us)
        if self._started:
            for known in self._known.values():
                known.is_found = known.awaits_probe = known.is_probed_last = False
            self._finds_again = True
            self._find_all_ends()

    def find_expected(self, ends: Mapping[str, int]) -> Callable[[], bool]:
        for split_id, end in ends.items():
            if split_id in self._known:
                self._take_end(self._known[split_id], end, self._calls.now_us())
        return lambda: True

    def is_warm(self) -> bool:
        return all(known.is_found for known in self._known.values())

    @property
    def is_settled(self) -> bool:
        """See `EventTimeProvider`. The end of a split that no longer exists will not be known."""
        abandoned = self._host.engine.abandoned
        return all((one.is_found and not one.awaits_probe) or i in abandoned for i, one in self._known.items())

    @property
    def is_at_rest(self) -> bool:
        return self.is_settled

    def probe_last(self, split_ids: Iterable[str]) -> bool:
        """See `EventTimeProvider`: a split may have ended since the run began, or when its last records were read."""
        known = [self._known[split_id] for split_id in split_ids if split_id in self._known]
        probed = [one for one in known if one.split.stop is None and one.ended_at is None and not one.is_probed_last]
        for one in probed:
            one.awaits_probe = one.is_probed_last = True
            self._split_ends.probe(one.split, one.end, at_once=True)
        return bool(probed)

    def _find_all_ends(self) -> None:
        splits = tuple([known.split for known in self._known.values()])
        self._calls.workers.submit(partial(self._find_ends, splits, again=True))

    def _find_ends(self, splits: tuple[SplitT, ...], *, again: bool) -> None:
        """On a worker."""
        began_us = self._calls.now_us()
        try:
            ends = list(self._enumerator.end_positions(splits))
            if len(ends) != len(splits):
                raise SourceError(
                    f"{type(self._enumerator).__name__}.end_positions gave {len(ends)} positions for {len(splits)} "
                    "splits: it must give one for each, in their order"
                )
        except BaseException as error:  # whatever it is, the query must fail with it
            self._calls.fail(error)
            return
        self._calls.post(partial(self._take, splits, ends, began_us, again=again))

    def _take(self, splits: tuple[SplitT, ...], ends: list[int | None], began_us: int, *, again: bool) -> None:
        found = [(split.split_id, end) for split, end in zip(splits, ends, strict=True) if end is not None]
        in_work = [(split_id, end) for split_id, end in found if split_id in self._known]
        caught_up = tuple([i for i, end in in_work if not self._take_end(self._known[i], end, began_us)])
        self._host.engine.apply(Probed(began_us, caught_up))
        self._finds_again = self._finds_again and not again
        if not self._finds_again and (self.drains_from_us is None or not self.is_warm()):
            self._finds_again = True
            # By way of the coordinator's thread: where that does not run, nothing is called.
            self._calls.workers.submit(partial(self._calls.post, self._find_all_ends), _PERIOD_S)

    def _take_end(self, known: _Known[SplitT], end: int, began_us: int) -> bool:
        """Take in where a split ends; whether there is more than was known."""
        split = known.split
        drains = self.drains_from_us is not None and began_us >= self.drains_from_us
        is_first = drains and not known.is_found
        known.is_found |= drains or self.drains_from_us is None
        # Records may go on after where a split stops.
        end = end if split.stop is None else min(end, split.stop)
        new = end - known.end
        if new > 0:
            self._host.add_blocks(split.split_id, new, NO_TIMESTAMP, NO_TIMESTAMP)
            known.end = end
        if split.stop is None and known.ended_at is None and (is_first or new <= 0):
            known.awaits_probe |= is_first
            self._split_ends.probe(split, known.end, at_once=is_first)
        self._complete_if_ended(known)
        return new > 0

    def _take_probe(self, split: SplitT, began_us: int, ended_at: int | None) -> None:
        known = self._known.get(split.split_id)
        if known is None:
            return
        if self.drains_from_us is None or began_us >= self.drains_from_us:
            known.awaits_probe = False
        if ended_at is not None:
            known.ended_at = ended_at
        self._complete_if_ended(known)

    def _complete_if_ended(self, known: _Known[SplitT]) -> None:
        """After the blocks up to the end were taken: a plan must not finish a split with records that it has not."""
        split_id = known.split.split_id
        stop = known.ended_at if known.split.stop is None else known.split.stop
        if stop is not None and known.end >= stop and split_id not in self._host.engine.complete:
            self._host.complete_split(split_id)

"""The partitions of a subscription with what the brokers know of their timestamps."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from streaming_source.api import SplitEnumeratorContext, SplitRange, SupportsEventTimeIndex
from streaming_source.connectors.kafka.admin import RetryPolicy
from streaming_source.connectors.kafka.broker_index.scanning import Scanner
from streaming_source.connectors.kafka.broker_index.time_index import Looked, TimeIndex
from streaming_source.connectors.kafka.discovery import Found, PartitionDiscovery
from streaming_source.connectors.kafka.enumerator import KafkaSplitEnumerator
from streaming_source.connectors.kafka.log_ends import LogEnds
from streaming_source.connectors.kafka.split import KafkaSplit

__all__ = ["IndexedKafkaSplitEnumerator"]

_LOOK_S: Final = 0.2

Int64Array: TypeAlias = npt.NDArray[np.int64]


class IndexedKafkaSplitEnumerator(SupportsEventTimeIndex[KafkaSplit], KafkaSplitEnumerator):
    """Looks for partitions and for news in them in one call, so that what is idle was looked at."""

    def __init__(
        self,
        context: SplitEnumeratorContext[KafkaSplit],
        discovery: PartitionDiscovery,
        patience: RetryPolicy,
        log_ends: LogEnds,
        index: TimeIndex,
        scanner: Scanner,
    ) -> None:
        super().__init__(context, discovery, patience, log_ends)
        self._index = index
        self._scanner = scanner
        self._look_s = _LOOK_S if self._period_s is None else min(_LOOK_S, self._period_s)
        # When the next look is one for partitions as well, by `time.monotonic`. Used by looks alone.
        self._discovers_at = -math.inf

    # ---- SplitEnumerator -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """See `SplitEnumerator`."""
        self._has_started = True
        self._context.call_async(self._look, self._on_looked, period_seconds=self._look_s, at_each_trigger=True)

    def close(self) -> None:
        """See `SplitEnumerator`."""
        super().close()
        self._scanner.close()

    # ---- SupportsEventTimeIndex ----------------------------------------------------------------------------------

    def restore_splits(self, splits: Sequence[KafkaSplit]) -> None:
        """See `SupportsEventTimeIndex`."""
        self._index.add(splits)

    def event_times(self, split_id: str, start: int, stop: int) -> Int64Array:
        """See `SupportsEventTimeIndex`."""
        return self._index.event_times(split_id, start, stop)

    def first_later(
        self, split_ids: Sequence[str], starts: Int64Array, stops: Int64Array, bound_us: int
    ) -> tuple[Int64Array, Int64Array]:
        """See `SupportsEventTimeIndex`."""
        return self._index.first_later(split_ids, starts, stops, bound_us)

    def blocked_splits(self) -> Collection[str]:
        """See `SupportsEventTimeIndex`."""
        return self._index.blocked_splits

    def extend_snapshot(self) -> None:
        """See `SupportsEventTimeIndex`."""
        self._index.extend_snapshot()

    def split_at(self, split_id: str, position: int) -> KafkaSplit:
        """See `SupportsEventTimeIndex`."""
        return self._index.commit_plan(split_id, position)

    def ranges(self, start: KafkaSplit, end: KafkaSplit, rows_per_range: int) -> Sequence[SplitRange[KafkaSplit]]:
        """See `SupportsEventTimeIndex`. Cut by offsets: what is not there any more is noticed by the readers."""
        borders = [*range(start.position, end.position, rows_per_range), end.position]
        return [SplitRange(start.at(begin).until(stop), stop - begin) for begin, stop in pairwise(borders)]

    def finish_split(self, split_id: str) -> None:
        """See `SupportsEventTimeIndex`. The checkpoint remembers its partition."""
        self._index.remove(split_id)

    # ---- looks ---------------------------------------------------------------------------------------------------

    def _look_now(self) -> None:
        self._discovers_at = -math.inf
        self._on_looked(self._look(), None)

    def _look(self) -> tuple[Found | None, Looked]:
        found = None
        if time.monotonic() >= self._discovers_at:
            found = self._discovery.look()
            self._discovers_at = time.monotonic() + (self._period_s or math.inf)
        return found, self._index.look(found.splits if found else (), found.gone if found else ())

    def _on_looked(self, result: tuple[Found | None, Looked] | None, error: BaseException | None) -> None:
        if error is not None:
            raise error
        assert result is not None
        found, looked = result
        if found is not None:
            self._index.leave(found.gone)
            self._on_found(found, None)
        self._index.take(looked)

    def _assign(self, splits: Sequence[KafkaSplit]) -> None:
        super()._assign(splits)
        self._index.add(splits)

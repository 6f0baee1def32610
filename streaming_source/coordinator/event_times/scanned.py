"""Event times from an index that reads records for them: in the background, while what it has is planned and read."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final

import pyarrow as pa

from alignment.events import ScanMoved
from alignment.strategy import WatermarkStrategy
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import Int64Array
from streaming_source.api import Source
from streaming_source.api.enumerator import Scanned, SupportsScan
from streaming_source.api.split import SplitT
from streaming_source.coordinator.enumerator_host import EnumeratorHost
from streaming_source.coordinator.event_times.provider import IndexedTimes, RecordNumber

_MOST_KEPT: Final = 4 * 1024 * 1024
"""Event times that are kept as they are scanned, and as many that are loaded ahead."""

_MOST_BLOCKS: Final = 4096
"""Of so many blocks at most."""


class ScannedTimes(IndexedTimes[SplitT]):
    """Scans the splits of an index, and loads exact event times before a plan needs them.

    If it scans `in_parts` it is always next the split that was scanned least far in event time. So the time up to which
    all are known rises, and a plan that a limit on rows cuts below it does not wait for the rest. What is not scanned
    holds the watermark.
    """

    def __init__(
        self,
        source: Source[SplitT, Any],
        index: SupportsScan[SplitT],
        schema: pa.Schema,
        strategy: WatermarkStrategy,
        host: EnumeratorHost[SplitT, Any],
        *,
        in_parts: bool,
    ) -> None:
        super().__init__(source, index, schema, strategy)
        self._scanned = index
        self._in_parts = in_parts
        self._host = host
        # Of the coordinator's thread.
        self._left: set[str] = set()
        self._loading: dict[tuple[str, int, int], _Loading] = {}
        self._kept: dict[tuple[str, int, int], Int64Array] = {}
        self._lock = threading.RLock()
        # Guarded by the lock: the latest event time of each split that waits to be scanned further; and how many event
        # times are kept, or are on their way.
        self._waiting: list[tuple[int, str]] = []
        self._kept_times = 0
        self._closed = False

    def start(self) -> None:
        self._left = set(self._scanned.unscanned_splits())
        self._waiting = [(NO_TIMESTAMP, split_id) for split_id in sorted(self._left)]
        self._tell()
        for _ in self._waiting[: self._scanned.scans_at_once]:
            self._host.calls.workers.submit(self._scan_next)

    loads_ahead = True

    def before_discovery(self, max_rows: int | None) -> None:
        # Without a limit the first plan needs all of the scan, in whatever order.
        self._scanned.scans_in_parts = self._in_parts and max_rows is not None

    @property
    def is_at_rest(self) -> bool:
        return not self._left

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._waiting.clear()

    def planning(self) -> AbstractContextManager[object]:
        # The scan begins no further part: a plan that shares the processor with it takes three times as long.
        return self._lock

    # ---- exact times -------------------------------------------------------------------------------------------------

    def load_ahead(self, blocks: Iterable[tuple[str, int, int]]) -> None:
        wanted = {block: self._loading.get(block) for block in blocks if block not in self._kept}
        self._loading, rows = {}, 0
        for block, known in wanted.items():
            rows += block[2] - block[1]
            if rows > _MOST_KEPT:
                return
            self._loading[block] = loading = known or _Loading(partial(super().event_times, *block))
            if known is None:
                self._host.calls.workers.submit(loading.begin)

    def commit_plan(self, split_ids: Sequence[str], numbers: Sequence[RecordNumber]) -> tuple[SplitT, ...]:
        read_to = dict(zip(split_ids, numbers, strict=True))
        for block in [block for block in self._kept if block[2] <= read_to[block[0]]]:
            self._drop(self._kept.pop(block))
        return super().commit_plan(split_ids, numbers)

    def event_times(self, split_id: str, start: int, stop: int) -> Int64Array:
        block = split_id, start, stop
        if (kept := self._kept.pop(block, None)) is not None:
            self._drop(kept)
            return kept
        loading = self._loading.pop(block, None)
        return super().event_times(*block) if loading is None else loading.result()

    # ---- the scan ----------------------------------------------------------------------------------------------------

    def _scan_next(self) -> None:
        """Scan a part of the split that was scanned least far, and go on. On a worker."""
        with self._lock:
            if not self._waiting:
                return
            _, split_id = heapq.heappop(self._waiting)
            keeps_times = self._kept_times < _MOST_KEPT
        try:
            part = self._scanned.scan(split_id, keeps_times=keeps_times)
        except BaseException as error:  # whatever it is, the query must fail with it
            self._host.calls.fail(error)
            return
        self._host.calls.post(partial(self._take, split_id, part))
        with self._lock:
            self._kept_times += part.kept
            if not (part.is_last or self._closed):
                heapq.heappush(self._waiting, (part.latest_us, split_id))
        self._host.calls.workers.submit(self._scan_next)

    def _take(self, split_id: str, part: Scanned) -> None:
        for start, times in part.add():
            if len(self._kept) < _MOST_BLOCKS:
                self._kept[split_id, start, start + times.size] = times
            else:
                self._drop(times)
        if part.is_last:
            self._left.discard(split_id)
            self._tell()

    def _drop(self, times: Int64Array) -> None:
        with self._lock:
            self._kept_times -= times.size

    def _tell(self) -> None:
        if self._left or self._host.engine.unscanned:
            self._host.engine.apply(ScanMoved(frozenset(self._left)))


class _Loading:
    """Event times that a worker loads, or whoever needs them first."""

    def __init__(self, load: Callable[[], Int64Array]) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._times: Int64Array | None = None

    def begin(self) -> None:
        """Load them. On a worker: an error is that of `result`, which tries again."""
        try:
            self.result()
        except Exception:
            return

    def result(self) -> Int64Array:
        with self._lock:
            if self._times is None:
                self._times = self._load()
            return self._times

"""A listener that keeps what queries say of their watermarks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from streaming_source.monitoring.checkpoint import MicroBatch
from streaming_source.monitoring.history import History

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from pyspark.sql.connect.streaming.query import StreamingQuery as ConnectQuery
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["AlignmentListener"]

_log = logging.getLogger(__name__)

_ENDED: Final = 100
"""Queries that have ended and whose history is kept."""


class AlignmentListener(StreamingQueryListener):
    """Keeps a bounded history of each query, logs why its watermark stands, and gives OpenMetrics.

    It works in a classic session and under Spark Connect. The log has a line, at level INFO, whenever there is another
    reason or another split that holds the watermark. To serve metrics, register it with the registry of the package
    `prometheus_client` (extra `metrics`), as any collector.

    Parameters
    ----------
    capacity
        Rows of `History.splits` kept of a query at most, one of a split and micro-batch.

    Examples
    --------
    >>> listener = AlignmentListener()
    >>> spark.streams.addListener(listener)  # doctest: +SKIP
    >>> listener.history(query).sources().select(["batch", "watermark", "held_by"])  # doctest: +SKIP
    >>> prometheus_client.REGISTRY.register(listener)  # doctest: +SKIP
    """

    def __init__(self, capacity: int = 100_000) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        # By id of the query, which its restarts keep; those last that run or ended last.
        self._histories: dict[str, History] = {}
        self._names: dict[str, str] = {}
        self._running: set[str] = set()

    def history(self, query: StreamingQuery | ConnectQuery | str) -> History:
        """The history of a query, or of the one with this id; an empty one of a query that has reported nothing."""
        with self._lock:
            return self._histories.get(str(getattr(query, "id", query)), History(self._capacity))

    def collect(self) -> Iterable[Metric]:
        """The state of all queries that run, as metrics; for `prometheus_client`."""
        # Here and not above: it needs the extra.
        from streaming_source.monitoring.metrics import metrics_of

        with self._lock:
            return metrics_of({self._names[query]: self._histories[query] for query in sorted(self._running)})

    # ---- what Spark calls ------------------------------------------------------------------------------------------

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing is known yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Take a micro-batch into the history of its query."""
        progress = event.progress
        batch = MicroBatch.of_progress(progress)
        if not any(batch.sources):
            return
        query = str(progress.id)
        with self._lock:
            history = self._histories.setdefault(query, History(self._capacity))
            self._names[query] = progress.name or query
            self._running.add(query)
            before = history.latest
            history.add(batch)
        _log_changes(self._names[query], before, batch)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Keep the history of a query that has ended, and those of the last ones before it."""
        query = str(event.id)
        with self._lock:
            self._running.discard(query)
            if (history := self._histories.pop(query, None)) is None:
                return
            history.pause()
            self._histories[query] = history
            ended = [known for known in self._histories if known not in self._running]
            for known in ended[:-_ENDED]:
                del self._histories[known], self._names[known]


def _log_changes(name: str, before: MicroBatch | None, after: MicroBatch) -> None:
    for place, report in enumerate(after.sources):
        last = None if before is None else before.sources[place]
        if report is not None and (last is None or _reason(last) != _reason(report)):
            _log.info("query %s, %s: %s", name, report.source, report.sentence)


def _reason(report: Any) -> tuple[Any, ...]:
    return report.explanation.cause, report.explanation.held_by

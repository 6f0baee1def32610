"""A listener that keeps the watermark reports of queries, logs what holds their watermarks, and exports OpenMetrics."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from alignment.shown import log_of
from streaming_source.monitoring.explained import explain
from streaming_source.monitoring.history import History
from streaming_source.monitoring.query_advice import on_second_watermark
from streaming_source.tools.pages.html_page import html_report

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from pyspark.sql.connect.streaming.query import StreamingQuery as ConnectQuery
    from pyspark.sql.streaming.query import StreamingQuery

_log = log_of(__name__)

_ENDED: Final = 100
"""Ended queries that keep their history."""

_SOURCE: Final = {
    "watermark": ("watermark_timestamp_seconds", "Event time up to which the source is complete."),
    "limit": ("limit_timestamp_seconds", "No record later than this is read yet."),
    "drift": ("drift_seconds", "How far the foremost split that counts is ahead of the slowest."),
    "max_drift": ("max_drift_seconds", "How far it may be: maxDrift."),
    "behind": ("backlog_records", "Records that are there and not read."),
    "stands_since": ("watermark_stands_since_timestamp_seconds", "Processing time since which it has not moved."),
    "retention_left": ("retention_left_seconds", "Until Kafka removes records that are not read, at this pace."),
}
_SPLIT: Final = {
    "watermark": ("split_watermark_timestamp_seconds", "Event time up to which the split is complete."),
    "drift": ("split_drift_seconds", "How far it is ahead of the slowest split that counts."),
    "position": ("split_position", "Of its next record."),
    "behind": ("split_backlog_records", "Records of it that are there and not read."),
    "holds": ("split_holds_watermark", "1 if it holds the watermark of its source."),
}


class AlignmentListener(StreamingQueryListener):
    """Keeps a bounded history of each query, logs what holds its watermark, and exports OpenMetrics.

    It works in a classic session and under Spark Connect. It logs a line, at level INFO, whenever the reason changes,
    or the split that holds the watermark. To serve metrics, register the listener, as any collector, with the registry
    of the package `prometheus_client` (extra `metrics`).

    Parameters
    ----------
    capacity
        Rows of `History.splits` kept for each query at most: one for each split and micro-batch.

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
        # By query id, which restarts keep; running queries and those that ended last are at the end.
        self._histories: dict[str, History] = {}
        self._running: dict[str, str] = {}
        # Queries with a second watermark that was warned of.
        self._warned: set[str] = set()

    def history(self, query: StreamingQuery | ConnectQuery | str) -> History:
        """Return the history of a query, or of the query with this id; it grows while the query runs.

        Spark calls its listeners after a micro-batch, and does not wait for them.
        """
        with self._lock:
            return self._history(str(getattr(query, "id", query)))

    def write_report(self, query: StreamingQuery | ConnectQuery, path: str | Path) -> None:
        """Write an HTML page of the history of a query; the page needs no network.

        It has what `streaming-source report` shows, and the rows read and in state, which no checkpoint has.
        """
        page = html_report(self.history(query), explain(query), f"Watermarks of {query.name or query.id}")
        Path(path).write_text(page, encoding="utf-8")

    def collect(self) -> Iterable[Metric]:
        """Yield the state of all running queries as metrics; `prometheus_client` calls this."""
        with self._lock:
            return _metrics_of({name: self._histories[query] for query, name in sorted(self._running.items())})

    # ---- what Spark calls ------------------------------------------------------------------------------------------

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: no progress is known yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self._add(event.progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Record the current status of the splits from the query's last progress: the event does not have it."""
        # Only Spark Connect sets a listener's session.
        session = self.spark or SparkSession.getActiveSession()
        query = None if session is None else session.streams.get(str(event.id))
        progress = None if query is None else query.lastProgress
        if progress is not None:
            self._add(progress)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Keep the history of an ended query, and those of the queries that ended last before it."""
        query = str(event.id)
        with self._lock:
            self._running.pop(query, None)
            self._warned.discard(query)
            if (history := self._histories.pop(query, None)) is None:
                return
            history.pause()
            self._histories[query] = history
            ended = [known for known in self._histories if known not in self._running]
            for known in ended[:-_ENDED]:
                del self._histories[known]

    def _history(self, query: str) -> History:
        return self._histories.setdefault(query, History(self._capacity))

    def _add(self, progress: StreamingQueryProgress) -> None:
        query = str(progress.id)
        name = progress.name or query
        with self._lock:
            history, self._running[query] = self._history(query), name
            before = history.latest
            history.add_progress(progress)
        advice = on_second_watermark(json.loads(progress.json), None)
        if advice is not None and query not in self._warned:
            self._warned.add(query)
            _log.warning("query %s: %s", name, advice.text)
        for number, report in enumerate(history.latest.sources if history.latest else ()):
            last = before.sources[number] if before else None
            if report is None:
                continue
            if last is None or (last.cause, last.explanation.held_by) != (report.cause, report.explanation.held_by):
                _log.info("query %s, %s: %s", name, report.source, report.sentence)


def _metrics_of(histories: Mapping[str, History]) -> list[Metric]:
    """Return the last micro-batch of each query, by its name; unknown values have no sample. O(splits)."""
    # Imported here: it needs the extra `metrics`.
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

    def gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"streaming_source_{name}", text, labels=["query", "source", *labels])

    def counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
        return CounterMetricFamily(f"streaming_source_{name}", text, labels=["query", "source", *labels])

    sources = {column: gauge(*metric) for column, metric in _SOURCE.items()}
    splits = {column: gauge(*metric, "split") for column, metric in _SPLIT.items()}
    status = gauge("split_status", "1 for what the split is.", "split", "status")
    spent = counter("split_status_seconds", "Time that the split has spent so.", "split", "status")
    late = counter("split_late_records", "Records at or below the announced watermark.", "split")
    for query, history in histories.items():
        _, source_rows, split_rows = (table.to_pylist() for table in history.last())
        labels = {row["source"]: [query, f"{row['source']}:{row['name']}"] for row in source_rows}
        samples = [(sources, labels[row["source"]], row) for row in source_rows]
        for row in split_rows:
            of_split = [*labels[row["source"]], row["split"]]
            samples.append((splits, of_split, row))
            late.add_metric(of_split, row["late"])
            for name in ("active", "paused", "idle"):
                status.add_metric([*of_split, name], row["status"] == name)
                spent.add_metric([*of_split, name], _number(row[f"time_{name}"]))
        for families, of_row, row in samples:
            for column, family in families.items():
                if row[column] is not None:
                    family.add_metric(of_row, _number(row[column]))
    return [*sources.values(), *splits.values(), status, spent, late]


def _number(value: Any) -> float:
    if isinstance(value, datetime):
        return value.timestamp()
    return value.total_seconds() if isinstance(value, timedelta) else float(value)

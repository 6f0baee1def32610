"""What queries say of their watermarks as OpenMetrics, for the package `prometheus_client`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from streaming_source.monitoring.history import History

__all__ = ["metrics_of"]

_SOURCE: Final = {
    "watermark": ("watermark_timestamp_seconds", "Event time up to which the source is complete."),
    "limit": ("limit_timestamp_seconds", "No record later than this is read yet."),
    "drift": ("drift_seconds", "How far the foremost split that counts is ahead of the slowest."),
    "max_drift": ("max_drift_seconds", "How far it may be: maxDrift."),
    "behind": ("backlog_records", "Records that are there and not read."),
    "stands_since": ("watermark_stands_since_timestamp_seconds", "Processing time since which it has not moved."),
}
_SPLIT: Final = {
    "watermark": ("split_watermark_timestamp_seconds", "Event time up to which the split is complete."),
    "drift": ("split_drift_seconds", "How far it is ahead of the slowest split that counts."),
    "position": ("split_position", "Of its next record."),
    "behind": ("split_backlog_records", "Records of it that are there and not read."),
    "holds": ("split_holds_watermark", "1 if it holds the watermark of its source."),
}
_STATUSES: Final = ("active", "paused", "idle")


def metrics_of(histories: Mapping[str, History]) -> list[Metric]:
    """The last micro-batch of each query, by its name. O(splits)."""
    source_labels, split_labels = ["query", "source"], ["query", "source", "split"]
    sources = {column: _gauge(*metric, source_labels) for column, metric in _SOURCE.items()}
    splits = {column: _gauge(*metric, split_labels) for column, metric in _SPLIT.items()}
    status = _gauge("split_status", "1 for what the split is.", [*split_labels, "status"])
    spent = _counter("split_status_seconds", "Time that the split has spent so.", [*split_labels, "status"])
    late = _counter("split_late_records", "Records at or below the announced watermark.", split_labels)
    for query, history in histories.items():
        _, source_rows, split_rows = (table.to_pylist() for table in history.last())
        names = {row["source"]: f"{row['source']}:{row['name']}" for row in source_rows}
        for row in source_rows:
            _add(sources, [query, names[row["source"]]], row)
        for row in split_rows:
            labels = [query, names[row["source"]], row["split"]]
            _add(splits, labels, row)
            late.add_metric(labels, row["late"])
            for name in _STATUSES:
                status.add_metric([*labels, name], row["status"] == name)
                spent.add_metric([*labels, name], _number(row[f"time_{name}"]))
    return [*sources.values(), *splits.values(), status, spent, late]


def _gauge(name: str, text: str, labels: list[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"streaming_source_{name}", text, labels=labels)


def _counter(name: str, text: str, labels: list[str]) -> CounterMetricFamily:
    return CounterMetricFamily(f"streaming_source_{name}", text, labels=labels)


def _add(families: Mapping[str, GaugeMetricFamily], labels: list[str], row: Mapping[str, Any]) -> None:
    """What is not known has no sample."""
    for column, family in families.items():
        if row[column] is not None:
            family.add_metric(labels, _number(row[column]))


def _number(value: Any) -> float:
    if isinstance(value, datetime):
        return value.timestamp()
    return value.total_seconds() if isinstance(value, timedelta) else float(value)

"""What a query says of its watermarks: read from its progress, or from its checkpoint alone; without Spark.

`report` is the value, its JSON, and what an offset says of it; `micro_batch` has those of all sources, and Spark's
statistics; `checkpoint` all micro-batches of a checkpoint. `explained` has the last of them in words, with advice,
`history` all as Arrow tables, `metrics` the last as OpenMetrics, and `html_page` draws them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = [
    "Advice",
    "Checkpoint",
    "ExplainedQuery",
    "ExplainedSource",
    "History",
    "MicroBatch",
    "Statistics",
    "WatermarkReport",
    "explain",
    "explain_checkpoint",
    "html_report",
]

if TYPE_CHECKING:
    from streaming_source.monitoring.checkpoint import Checkpoint
    from streaming_source.monitoring.explained import (
        Advice,
        ExplainedQuery,
        ExplainedSource,
        explain,
        explain_checkpoint,
    )
    from streaming_source.monitoring.history import History
    from streaming_source.monitoring.html_page import html_report
    from streaming_source.monitoring.micro_batch import MicroBatch, Statistics
    from streaming_source.monitoring.report import WatermarkReport

_HOMES = {
    "Checkpoint": "checkpoint",
    "History": "history",
    "MicroBatch": "micro_batch",
    "Statistics": "micro_batch",
    "WatermarkReport": "report",
    "html_report": "html_page",
}


def __getattr__(name: str) -> Any:
    # Lazily: a planner writes reports, and loads nothing that reads them.
    if name in __all__:
        return getattr(import_module(f"streaming_source.monitoring.{_HOMES.get(name, 'explained')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

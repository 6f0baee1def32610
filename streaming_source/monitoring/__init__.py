"""What a query says of its watermarks: read from its progress, or from its checkpoint alone; without Spark.

`report` is the value and its JSON, `offsets` what an offset says, `checkpoint` all micro-batches of a checkpoint,
`explained` the last of them in words, with `advice`. `history` has them as Arrow tables, with Spark's `statistics`,
`metrics` the last as OpenMetrics, and `html_page` draws them.
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
    from streaming_source.monitoring.advice import Advice
    from streaming_source.monitoring.checkpoint import Checkpoint, MicroBatch
    from streaming_source.monitoring.explained import ExplainedQuery, ExplainedSource, explain, explain_checkpoint
    from streaming_source.monitoring.history import History
    from streaming_source.monitoring.html_page import html_report
    from streaming_source.monitoring.report import WatermarkReport
    from streaming_source.monitoring.statistics import Statistics

_HOMES = {
    "Advice": "advice",
    "Checkpoint": "checkpoint",
    "History": "history",
    "MicroBatch": "checkpoint",
    "Statistics": "statistics",
    "WatermarkReport": "report",
    "html_report": "html_page",
}


def __getattr__(name: str) -> Any:
    # Lazily: a planner writes reports, and loads nothing that reads them.
    if name in __all__:
        return getattr(import_module(f"streaming_source.monitoring.{_HOMES.get(name, 'explained')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""What a query says of its watermarks: read from its progress, or from its checkpoint alone; without Spark.

`report` is the value and its JSON, `offsets` what an offset says, `checkpoint` all micro-batches of a checkpoint,
`explained` the last of them in words, with `advice`.
"""

from __future__ import annotations

from streaming_source.monitoring.advice import Advice
from streaming_source.monitoring.checkpoint import Checkpoint, MicroBatch
from streaming_source.monitoring.explained import ExplainedQuery, ExplainedSource, explain, explain_checkpoint
from streaming_source.monitoring.report import WatermarkReport

__all__ = [
    "Advice",
    "Checkpoint",
    "ExplainedQuery",
    "ExplainedSource",
    "MicroBatch",
    "WatermarkReport",
    "explain",
    "explain_checkpoint",
]

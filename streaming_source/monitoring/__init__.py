"""What a query says of its watermarks: read from its progress, or from its checkpoint alone; without Spark.

`report` is the value and its JSON, `offsets` what an offset says, `checkpoint` all micro-batches of a checkpoint.
"""

from __future__ import annotations

from streaming_source.monitoring.checkpoint import Checkpoint, MicroBatch
from streaming_source.monitoring.report import WatermarkReport

__all__ = ["Checkpoint", "MicroBatch", "WatermarkReport"]

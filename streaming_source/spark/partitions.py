"""What travels to the executors: one partition for each task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from streaming_source.api import SourceEvent, SourceSplit

if TYPE_CHECKING:
    from streaming_source.gateway import GatewayAddress

__all__ = ["AlignedInputPartition"]


@dataclass(frozen=True)
class AlignedInputPartition(InputPartition):
    """What one task reads.

    Attributes
    ----------
    splits
        Ranges of splits, in order.
    announced
        The watermark that holds while they are processed.
    late
        What becomes of records at or below it: `keep`, `drop` or `fail`; `only` for none but these.
    watermark_row_us
        Event time of the watermark row that rides along, or None.
    subtask_id
        Number of the reader.
    batch
        Number of the micro-batch.
    events
        From the enumerator, for this reader.
    gateway
        Where the reader reports; None if it has nothing to report.
    """

    splits: tuple[SourceSplit, ...]
    announced: int
    late: str = "keep"
    watermark_row_us: int | None = None
    subtask_id: int = 0
    batch: int = 0
    events: tuple[SourceEvent, ...] = ()
    gateway: GatewayAddress | None = None
    # PySpark's own field, which its `__repr__` shows.
    value: Any = None

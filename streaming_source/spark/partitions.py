"""What travels to the executors: one partition for each task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from streaming_source.api import SourceEvent, SourceSplit

if TYPE_CHECKING:
    from alignment.split_generators import GeneratorState
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
    time_limit_us
        Event times from here on are invalid; None where `maxFutureSkew` says nothing of it.
    generators
        Where readers run the watermark generators, or report the source's own watermarks: by split id from which
        position on records are emitted, and what the generator goes on from. Earlier records were emitted before, and
        are read for the watermark alone.
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
    time_limit_us: int | None = None
    generators: Mapping[str, tuple[int, GeneratorState | None]] = field(default_factory=dict)
    gateway: GatewayAddress | None = None
    # PySpark's own field, which its `__repr__` shows.
    value: Any = None

"""The planner's orders to a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from streaming_source.api import SourceEvent, SourceSplit

if TYPE_CHECKING:
    from alignment.split_generators import GeneratorState
    from streaming_source.gateway import GatewayAddress


@dataclass(frozen=True)
class AlignedInputPartition(InputPartition):
    """The ranges of one task, the reader `subtask_id` of the micro-batch `batch`; Spark sends it to the executor.

    `announced` is the watermark while the splits are processed; records at or below it are late, and `late` is what
    becomes of them: `keep`, `drop` or `fail`; `only` keeps late records alone. `watermark_row_us` is the event time of
    the watermark row, None for no row. `events` are those of the enumerator for this reader. Event times from
    `time_limit_us` on are invalid; None for no limit.

    If readers run watermark generators, or report the source's own watermarks, `generators` has by split id the
    position from which records are emitted, and the generator's state: earlier records were emitted before, and are
    read for the watermark alone. The reader reports to `gateway`; if that is a directory, `report_run` is the run of
    the query to which it reports there. Both are None if the reader has nothing to report. An error is left beside
    the `note` of its planner.
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
    report_run: str | None = None
    note: str | None = None
    # PySpark's own field, which its `__repr__` shows.
    value: Any = None

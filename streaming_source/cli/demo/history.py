"""What a stream's progress tells of its watermarks, batch by batch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from alignment.combine import SplitStatus
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK
from streaming_source.monitoring.offsets import positions_of_offset, report_of_offset

__all__ = ["AlignedBatch", "SparkBatch", "SplitState", "aligned_history", "spark_history", "split_positions"]


@dataclass(frozen=True, slots=True)
class SplitState:
    """One split after a micro-batch: its watermark (None before any record of it was read), and where it stands.

    At the limit it has records that lie too far ahead of the slowest split: in the offset it is paused.
    """

    watermark_us: int | None
    is_at_limit: bool


@dataclass(frozen=True, slots=True)
class AlignedBatch:
    """State of an aligned source after a micro-batch.

    Attributes
    ----------
    rows
        Records read.
    watermark_us
        The exact watermark after the batch, None before there is any; not set where the source has ended.
    ended
        Whether the watermark is `MAX_WATERMARK`.
    splits
        By split id; a finished split is gone.
    """

    rows: int
    watermark_us: int | None
    ended: bool
    splits: Mapping[str, SplitState]


@dataclass(frozen=True, slots=True)
class SparkBatch:
    """Event times of one micro-batch of Spark's own stream, in microseconds.

    Attributes
    ----------
    rows
        Records read, dropped ones too.
    earliest_us, latest_us
        Of these records.
    watermark_us
        What Spark compared them with: at or below it they are too late. It drops by the watermark of the batch before,
        so the first two batches lose nothing.
    closing_us
        The batch's own watermark: windows that end at or before it were closed.
    """

    rows: int
    earliest_us: int
    latest_us: int
    watermark_us: int
    closing_us: int


def aligned_history(progress: Iterable[Mapping[str, Any]]) -> list[AlignedBatch]:
    """From the offsets in a query's progress: they hold the state of every split."""
    history = []
    for batch in progress:
        source = batch["sources"][0]
        offset = _offset(source["endOffset"])
        if offset is None or offset == _offset(source["startOffset"]):
            # A batch without data, in which Spark only closed windows.
            continue
        state = report_of_offset(offset).explanation
        splits = {
            split.split_id: SplitState(
                None if split.watermark == MIN_WATERMARK else split.watermark, split.status is SplitStatus.PAUSED
            )
            for split in state.splits
        }
        watermark_us = None if state.watermark in (MIN_WATERMARK, MAX_WATERMARK) else state.watermark
        history.append(AlignedBatch(source["numInputRows"], watermark_us, state.watermark == MAX_WATERMARK, splits))
    return history


def split_positions(batch: Mapping[str, Any] | None) -> dict[str, int]:
    """The next record of each split after a micro-batch; nothing before the first."""
    offset = _offset(batch["sources"][0]["endOffset"]) if batch is not None else None
    return {} if offset is None else positions_of_offset(offset)


def spark_history(progress: Iterable[Mapping[str, Any]]) -> list[SparkBatch]:
    """From the event-time statistics in a query's progress."""
    history = []
    before_us = 0
    for batch in progress:
        times = batch["eventTime"]
        watermark_us = _epoch_us(times["watermark"])
        # A batch without data has no such statistics, but the next one is compared with its watermark.
        if "max" in times:
            earliest_us, latest_us = _epoch_us(times["min"]), _epoch_us(times["max"])
            rows = batch["sources"][0]["numInputRows"]
            history.append(SparkBatch(rows, earliest_us, latest_us, before_us, watermark_us))
        before_us = watermark_us
    return history


def _offset(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _epoch_us(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000) * 1000

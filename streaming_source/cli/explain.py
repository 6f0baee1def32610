"""`streaming-source explain`: why a query's watermark stands where it does, from its checkpoint alone."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from alignment.sentence import watermark_text
from streaming_source.monitoring import Checkpoint, MicroBatch, WatermarkReport, explain_checkpoint
from streaming_source.monitoring.explained import aligned

__all__ = ["run_explanation"]

_WATCH_S: Final = 1.0
_CLEAR: Final = "\x1b[H\x1b[2J"
_COLUMNS: Final = ("batch", "planned at (UTC)", "watermark (UTC)", "cause", "behind", "late", "held by")


def run_explanation(checkpoint: str, *, as_json: bool, watch: bool, history: bool) -> None:
    """Print it: once, or with `watch` again whenever it changes, until it is interrupted.

    Raises
    ------
    CheckpointError
        If there is no checkpoint.
    """
    shown = None
    while True:
        found = Checkpoint(checkpoint).history() if history else explain_checkpoint(checkpoint)
        written = json.dumps(_batches_to_json(found) if isinstance(found, list) else found.to_json())
        if written != shown:
            shown = written
            if watch and sys.stdout.isatty():
                print(_CLEAR, end="")
            text = "\n".join(_table(found)) if isinstance(found, list) else str(found)
            print(written if as_json else text, flush=True)
        if not watch:
            return
        time.sleep(_WATCH_S)


def _batches_to_json(batches: Sequence[MicroBatch]) -> dict[str, Any]:
    """All of them, oldest first."""
    return {
        "batches": [
            {
                "batch": batch.number,
                "committed": batch.is_committed,
                "sources": [report.to_json() for report in batch.sources if report is not None],
            }
            for batch in batches
        ]
    }


def _table(batches: Sequence[MicroBatch]) -> list[str]:
    return aligned([_COLUMNS, *(row for batch in batches for row in _rows(batch))])


def _rows(batch: MicroBatch) -> Iterator[tuple[str, ...]]:
    number = f"{batch.number}" + ("" if batch.is_committed else " (not committed)")
    for report in batch.sources:
        if report is not None:
            yield number, watermark_text(batch.planned_at_us), *_row(report)
            number = ""


def _row(report: WatermarkReport) -> tuple[str, ...]:
    explanation = report.explanation
    counts = (sum(split.behind for split in explanation.splits), explanation.late)
    held_by = ", ".join(explanation.held_by[:3])
    watermark = watermark_text(explanation.watermark)
    return watermark, explanation.cause.value, *(f"{count:,}" for count in counts), held_by

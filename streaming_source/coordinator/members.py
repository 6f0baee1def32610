"""Splits that join and leave the table of a source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from alignment.combine import SplitStatus
from alignment.planner import SplitTable
from alignment.watermarks import MIN_WATERMARK
from streaming_source.api import SourceSplit

__all__ = ["has_news", "joined", "without_finished"]

Slots = npt.NDArray[np.intp]


def joined(table: SplitTable, splits: Sequence[SourceSplit]) -> tuple[SplitTable, Slots]:
    """The table with new splits, which count at once; and the order of all: first the old, then the new. O(n log n)."""
    ids: npt.NDArray[Any] = np.array([*table.split_ids, *(split.split_id for split in splits)], dtype=object)
    order = np.argsort(ids, kind="stable")
    n = len(splits)
    return SplitTable(
        tuple(ids[order]),
        np.append(table.positions, [split.position for split in splits])[order],
        np.append(table.watermarks, np.full(n, MIN_WATERMARK))[order],
        np.append(table.statuses, np.full(n, SplitStatus.ACTIVE, np.int8))[order],
        table.combined,
    ), order


def without_finished(table: SplitTable) -> tuple[SplitTable, Slots, list[str]]:
    """The table without its finished splits, the slots of those that stay, and the ids of those that leave. O(n)."""
    gone = table.statuses == SplitStatus.FINISHED
    keep = np.flatnonzero(~gone)
    left = SplitTable(
        tuple(table.split_ids[slot] for slot in keep),
        table.positions[keep],
        table.watermarks[keep],
        table.statuses[keep],
        table.combined,
    )
    return left, keep, [table.split_ids[slot] for slot in np.flatnonzero(gone)]


def has_news(handed_out: SplitTable, before: SplitTable, after: SplitTable) -> bool:
    """Whether a plan changes anything, records aside, that Spark must know. Who is paused is no news. O(n).

    Parameters
    ----------
    handed_out
        Of the last state.
    before, after
        Between which the plan leads: since that state splits have left and joined.
    """
    known, _, _ = without_finished(handed_out)
    leaves = (SplitStatus.IDLE, SplitStatus.FINISHED)
    return bool(
        after.combined != handed_out.combined
        or known.split_ids != after.split_ids
        or any(((after.statuses == s) != (before.statuses == s)).any() for s in leaves)
    )

"""The user's decisions for all micro-batches, what changes from one to the next, and the rules that all plans share.

Whether the ends of a micro-batch are chosen from event times known ahead of reading or from what readers reported: the
same splits keep the others from going further, and a read limit is shared in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from alignment.event_time_range import EventTimeRange
from alignment.exceptions import InvalidArgumentError
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK, BoolArray, Int64Array


@dataclass(frozen=True, slots=True)
class PlanningRules:
    """The user's decisions, for all micro-batches.

    Attributes
    ----------
    out_of_orderness_us
        Bound `B` of the generator; None if it is the user's own or none, whose watermarks cannot be foretold.
    max_drift_us
        How far `T` may be ahead of the smallest reach; None leaves it open.
    drains_past_caught_up
        While draining (AvailableNow), a split that has been read to its end no longer bounds `T`. Only safe where
        drift costs state and never records: with the exact watermark.
    lateness
        The option: with `none` the combined watermark never passes the smallest time that the index sees unread. Where
        the index does not know that time, as inside of opaque blocks, the splits' own watermarks alone decide.
    by_source
        The source emits one watermark for all its splits, which the combined one follows (`PlanConditions.source_us`).
        Only with `lateness=none`: what was found and is unread holds it. The splits have no bound.
    bounded
        When all splits are finished and no more will come, the watermark is `MAX_WATERMARK`.
    times
        The event times that are wanted; None for all. Of what lies outside and is left out, the earlier records count
        for nothing, and the later ones move the watermark, and are never late. The index has the same range.
    counts_outside
        Records outside of them are counted, for which event times are loaded that no plan needs.
    """

    out_of_orderness_us: int | None
    max_drift_us: int | None = None
    drains_past_caught_up: bool = False
    lateness: Literal["bounded", "none"] = "bounded"
    by_source: bool = False
    bounded: bool = False
    times: EventTimeRange | None = None
    counts_outside: bool = True

    def __post_init__(self) -> None:
        for name in ("out_of_orderness_us", "max_drift_us"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise InvalidArgumentError(f"{name} = {value}: must be at least 0, or None")
        if self.by_source and (self.out_of_orderness_us is not None or self.lateness != "none"):
            raise InvalidArgumentError(
                f"by_source = True with out_of_orderness_us = {self.out_of_orderness_us} and lateness = "
                f"{self.lateness!r}: must be None and 'none', since the source emits the watermark"
            )

    def late_up_to(self, announced_us: int) -> int:
        """Wanted records are late up to here, where this watermark was announced."""
        if self.times is None or self.times.until_us is None or self.times.overlap != "drop":
            return announced_us
        return min(announced_us, self.times.until_us - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConditions:
    """Inputs of one planning step that change from batch to batch.

    Attributes
    ----------
    max_rows
        Read limit, at least 1; None for no limit.
    group_limit_us
        The bound that other sources of the same alignment group set.
    source_us
        With `PlanningRules.by_source`: the watermark that the source has emitted; `MIN_WATERMARK` before the first.
    horizon_us
        Splits that the source knows and has not let join yet have no record earlier than this: nothing later is read,
        and the watermark stays below it. So of a great many splits only those need to be here that are read next.
    idle, complete
        `bool[n]`: splits that have had nothing left to read for the idle timeout, and those to which no record will be
        added; None for none.
    unscanned
        `bool[n]`: splits with records behind those of the index, whose event times are not known yet; None for none.
        They hold the watermark. A plan counts only if these records make no difference to what it reads.
    no_more_splits
        No split will be added.
    draining
        Read to the ends known now, then stop (AvailableNow).
    holds_rows
        Too few rows are there for a micro-batch: none is read. Statuses and the watermark go on.
    """

    max_rows: int | None = None
    group_limit_us: int = MAX_WATERMARK
    source_us: int = MIN_WATERMARK
    horizon_us: int = MAX_WATERMARK
    idle: BoolArray | None = None
    complete: BoolArray | None = None
    unscanned: BoolArray | None = None
    no_more_splits: bool = False
    draining: bool = False
    holds_rows: bool = False

    def __post_init__(self) -> None:
        if self.max_rows is not None and self.max_rows < 1:
            raise InvalidArgumentError(f"max_rows = {self.max_rows}: must be at least 1, or None for no limit")

    def flags(self, n: int) -> tuple[BoolArray, BoolArray]:
        """`idle` and `complete` of all `n` splits."""
        none = np.zeros(n, np.bool_)
        return none if self.idle is None else self.idle, none if self.complete is None else self.complete


def bounding_splits(
    rules: PlanningRules, unread: BoolArray, idle: BoolArray, complete: BoolArray, draining: bool
) -> BoolArray:
    """Which splits keep the others from going further than the drift ahead of them, `bool[n]`. O(n).

    Those with something to read, and those caught up with that may get more.
    """
    holds = unread | ~(idle | complete)
    if draining and rules.drains_past_caught_up:
        holds &= unread
    return holds


def total(counts: Int64Array) -> int:
    """The exact sum of counts of at least 0 (`int64[n]`), which an int64 need not hold. O(n)."""
    low_bits = 32
    return (int((counts >> low_bits).sum()) << low_bits) + int((counts & (2**low_bits - 1)).sum())


def share_evenly(wanted: Int64Array, positions: Int64Array, max_rows: int) -> Int64Array:
    """Each split as many as any other, or all that it wants: together `max_rows`, or all. O(n log(max_rows)).

    `wanted` is how many each could take, `int64[n]`. What cannot be divided goes to those of which least was read, by
    `positions`.
    """
    level, too_high = 0, max_rows + 1
    while too_high - level > 1:
        middle = (level + too_high) // 2
        fits = total(np.minimum(wanted, middle)) <= max_rows
        level, too_high = (middle, too_high) if fits else (level, middle)
    shared: Int64Array = np.minimum(wanted, level)
    wanting = np.flatnonzero(wanted > level)
    least_read = wanting[np.argsort(positions[wanting], kind="stable")]
    shared[least_read[: max_rows - int(shared.sum())]] += 1
    return shared

"""The exact watermark: one row sets Spark's event-time watermark to the source's watermark.

Spark's watermark is the largest event time it has seen, minus a delay. So a source adds to each micro-batch one
*watermark row*, whose event time is `OFFSET` after the intended watermark `W`, and the delay is `OFFSET` as well. Data
is thousands of years before any watermark row and cannot move the watermark; watermark rows are filtered out directly
after the operator that reads the event times.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from alignment.durations import format_duration
from alignment.strategy import WatermarkStrategy
from alignment.watermarks import MIN_WATERMARK
from streaming_source.exceptions import OptionError


def _epoch_us(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


DELAY: Final = timedelta(days=1_461_000)
"""The delay of Spark's watermark for watermark rows; equal to `OFFSET_US`."""

OFFSET_US: Final = DELAY // timedelta(microseconds=1)
"""4000 years of 365.25 days: the time from a watermark to its watermark row."""

MAX_SPARK_WATERMARK_US: Final = _epoch_us(datetime(9999, 12, 31, tzinfo=UTC)) - OFFSET_US
"""The latest watermark that a row of Spark's last year can announce; later than any data."""

FAR_SQL: Final = "TIMESTAMP '4000-01-01 00:00:00+00:00'"
"""`FAR_US` for Spark: data is before it, and watermark rows are after it, as `OFFSET` after 1970 is in 5970."""


def watermark_row_time(watermark: int) -> int | None:
    """Return the event time in microseconds of the row that announces `watermark`; None if no row is needed.

    Spark's own watermark starts at 1970, so an earlier one needs no row. `MAX_WATERMARK` becomes the latest watermark
    that a Spark timestamp can announce.
    """
    if watermark == MIN_WATERMARK or watermark < 0:
        return None
    return min(watermark, MAX_SPARK_WATERMARK_US) + OFFSET_US


def check_policy(setting: Callable[[str], str | None]) -> None:
    """Raise an `OptionError` if Spark goes by the largest watermark of a query; `setting` is of its session, or a task.

    It returns None for a setting that is not set.
    """
    # Imported here: planners are not told the settings of a query.
    from streaming_source.checkpoint import POLICY

    if (setting(POLICY) or "").lower() == "max":
        raise OptionError(
            f"{POLICY} is max: Spark then goes by the source that is furthest, and drops records of the others, which "
            f"the exact watermark is to prevent. A checkpoint keeps what it was at the first start: if this query had "
            "max then, give it a new checkpointLocation; or, if it reads one source alone, which loses nothing, write "
            f"min for max in the last file of the checkpoint's offsets. Call spark.conf.set({POLICY!r}, 'min') before "
            "the frame is made"
        )


def required_delay(strategy: WatermarkStrategy, *, per_row: bool = False) -> str:
    """Return the smallest delay with which plain `withWatermark` drops no record that is on time.

    For windows it is the larger of the bound on out-of-orderness and the maximum drift (by default the same bound):
    Spark keeps a row as long as its window ends after the watermark.

    Parameters
    ----------
    strategy
        The strategy given to the source.
    per_row
        For operators that compare the row's own time with the watermark (`dropDuplicates`, stream-stream joins). Spark
        drops a row *at* the watermark, so a record exactly on the bound needs one millisecond more.

    Returns
    -------
    str
        For `withWatermark`, in whole milliseconds.

    Raises
    ------
    OptionError
        If the strategy has a generator whose bound is not known.

    Examples
    --------
    >>> from alignment import WatermarkStrategy
    >>> strategy = WatermarkStrategy.for_bounded_out_of_orderness("5 seconds")
    >>> required_delay(strategy.with_watermark_alignment("logs", "1 minute"))
    '1 minute'
    """
    if not isinstance(strategy, WatermarkStrategy):
        raise TypeError(
            f"required_delay takes a WatermarkStrategy, not a {type(strategy).__name__}: as in "
            "required_delay(WatermarkStrategy.for_bounded_out_of_orderness('5 seconds'))"
        )
    if strategy.out_of_orderness_us is None:
        raise OptionError("required_delay needs a strategy with a bound on out-of-orderness; use the exact watermark")
    drift_us = strategy.alignment.max_drift_us if strategy.alignment else 0
    delay_us = max(strategy.out_of_orderness_us, drift_us)
    delay_ms = -(-delay_us // 1000) if not per_row or drift_us > strategy.out_of_orderness_us else delay_us // 1000 + 1
    return format_duration(delay_ms * 1000)

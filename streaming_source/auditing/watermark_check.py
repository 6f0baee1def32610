"""Whether the watermarks in the checkpoint follow from the event times that were read."""

from __future__ import annotations

from collections.abc import Sequence

from alignment.arrow_times import format_timestamp
from alignment.durations import format_duration
from alignment.timestamps import NO_TIMESTAMP
from streaming_source.auditing.checkpoint import Checkpoint
from streaming_source.auditing.counting import Tally
from streaming_source.auditing.sources.base import SplitRead

__all__ = ["watermark_note"]


def watermark_note(
    checkpoint: Checkpoint, counted: Sequence[tuple[int, SplitRead, Tally]], delay_us: int | None
) -> str | None:
    """Describe what is wrong with the event times; None if they are right, or that cannot be decided.

    After a micro-batch Spark's watermark is the latest event time less the delay of `withWatermark`, in whole
    milliseconds, unless it was higher before. If it does not follow from the source's times, the query filters or
    changes rows before `withWatermark`, or the event time is another column. If `delay_us` is None, the delay follows
    from the first micro-batch that moved the watermark. Only queries over one source are checked: with several, each
    may have a watermark of its own.
    """
    latest: dict[int, int] = {}
    unseen: set[int] = set()
    for _, read, tally in counted:
        if read.batch is not None:
            latest[read.batch.number] = max(latest.get(read.batch.number, NO_TIMESTAMP), tally.latest_us)
            if tally.gone:
                unseen.add(read.batch.number)
    if len(checkpoint.source_names) != 1:
        return None
    for batch in checkpoint.batches:
        us = latest.get(batch.number, NO_TIMESTAMP)
        if batch.next_us is None or batch.number in unseen:
            continue
        if us == NO_TIMESTAMP:
            expected_us = batch.watermark_us
        else:
            if delay_us is None:
                if batch.next_us <= batch.watermark_us:
                    continue
                delay_us = us // 1_000 * 1_000 - batch.next_us
                if delay_us < 0:
                    return _differs(batch.number, us // 1_000 * 1_000, batch.next_us, "any delay")
            expected_us = max(batch.watermark_us, us // 1_000 * 1_000 - delay_us)
        if expected_us != batch.next_us:
            return _differs(batch.number, expected_us, batch.next_us, f"a delay of {format_duration(delay_us or 0)}")
    return None


def _differs(number: int, expected_us: int, recorded_us: int, delay: str) -> str:
    return (
        f"From micro-batch {number} on the event times do not lead to the watermark that Spark had: with {delay} they "
        f"give {format_timestamp(expected_us)}, and the checkpoint has {format_timestamp(recorded_us)}. The counts are "
        "of all rows of the source: the query filters or changes rows before withWatermark, or its event time is "
        "another column (--time)."
    )

"""Causes of the query and its micro-batches: it has failed, was stopped, has ended, or works on one for long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from alignment.durations import format_duration
from alignment.explain import Cause, Explanation, LastBatch
from alignment.sentence import counted, duration_text, moment, named
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK
from streaming_source.monitoring.causes.rule import Rule, advice

_CONCURRENT: Final = ("CONCURRENT_STREAM_LOG_UPDATE", "Multiple streaming jobs detected")
"""Of Spark's error where two queries write one checkpoint."""
_SINKS: Final = ("_spark_metadata", "_delta_log")
_GONE: Final = ("exist", "not found", "No such file", "NotFound", "NOT_FOUND")
"""Of Spark's errors where the log of a sink is not there any more."""


def _says_end(explanation: Explanation) -> str:
    """That the query does not run, why, and what it has left behind."""
    end, batch = explanation.end, explanation.batch
    assert end is not None
    at = "" if end.at_us is None else f" at {moment(end.at_us)}"
    text = "The query does not run any more."
    if end.error is not None:
        text = f"The query has failed{at}: {end.error.rstrip('.')}."
    elif end.overdue is not None:
        text = (
            f"The query does not run any more, or cannot reach its source: no micro-batch announces that split "
            f"{end.overdue!r} has become idle."
        )
    elif end.other_pid is not None:
        text = f"This run of the query has ended{at}; another one goes on with its checkpoint, process {end.other_pid}."
    elif end.was_cut_off:
        text = (
            f"The run was ended{at} before it had read all that it was to read: it was stopped, or its driver was "
            "killed, as where memory runs out."
        )
    elif end.pid is not None:
        text = f"The query does not run any more: its planner, process {end.pid}, has ended{at}."
    if batch is not None and batch.done_us is None:
        planned = moment(batch.planned_us, end.at_us)
        text += (
            f" {_named_batch(batch).capitalize()}, planned at {planned}, is not committed: the next run reads it again."
        )
        if end.error is None and end.pid is not None and not end.was_cut_off:
            text += " The query has failed in it, or was stopped: the log of the driver has the error."
    behind = sum(split.behind for split in explanation.splits)
    if explanation.watermark > MIN_WATERMARK:
        text += f" Its watermark was at {moment(explanation.watermark)}, with {behind:,} known records unread."
    return text


def _how_to_start_again(reports: Sequence[Explanation]) -> str:
    end = reports[-1].end
    assert end is not None
    error = end.error or ""
    mend = "Mend what the error names, and start" if error and not end.was_killed else "Start"
    again = "it goes on after the last micro-batch that was committed, and loses nothing"
    text = f"{mend} the query again with the same checkpointLocation: {again}."
    if any(words in error for words in _CONCURRENT) or end.other_pid is not None:
        text = (
            "Do not start this one again: another query goes on with the same checkpoint, and one of two fails or is "
            "stopped. If both are wanted give each a checkpointLocation of its own."
        )
    elif end.is_gone:
        text = (
            "The checkpoint is gone: its directory offsets/ is not there any more. Bring it back if it can be. A start "
            "without it begins anew, at micro-batch 0, and reads all again: a sink that knows the numbers of "
            "micro-batches (files, Delta) skips those that it has, so give the query a new checkpointLocation and an "
            "empty place to write to."
        )
    elif "checkpointLocation" in error or "splitBy = file" in error:
        text = (
            "Do what the error names: started again as it was, the query fails in the same way. With a new "
            "checkpointLocation it begins anew, and its sink needs an empty place, too."
        )
    elif any(words in error for words in _SINKS) and any(words in error for words in _GONE):
        text = (
            "The sink was removed, or its log: what it had is not written again, and what is written from now on may "
            "not be readable. Restore it as it was at the last micro-batch that was committed; or give the query a new "
            "checkpointLocation and an empty place to write to: it then reads all again."
        )
    elif end.is_gone is None:
        text = (
            f"{mend} the query again with the same checkpointLocation, if its directory offsets/ is still there: "
            f"{again}. Without it the query begins anew."
        )
    return text


_START_AGAIN: Final = advice("query", _how_to_start_again)

FAILED: Final = Rule(
    Cause.FAILED,
    lambda explanation: explanation.end is not None and explanation.end.error is not None,
    _says_end,
    _START_AGAIN,
)

ENDED: Final = Rule(
    Cause.ENDED,
    lambda explanation: explanation.watermark == MAX_WATERMARK,
    lambda _: "The source has ended; all windows are closed.",
)

STOPPED: Final = Rule(
    Cause.STOPPED,
    lambda explanation: explanation.end is not None and (explanation.end.was_cut_off or not explanation.is_draining),
    _says_end,
    _START_AGAIN,
)


def _says_slow(explanation: Explanation) -> str:
    batch, took_us = explanation.batch, explanation.batch_takes_us
    assert batch is not None
    assert took_us is not None
    named_batch, took = _named_batch(batch).capitalize(), duration_text(took_us)
    after = "."
    if explanation.watermark > MIN_WATERMARK:
        after = f". After this micro-batch the watermark is at {moment(explanation.watermark)}."
    if batch.done_us is None:
        return (
            f"{named_batch}, planned at {moment(batch.planned_us)}, has not been committed for {took}: until then "
            f"nothing more is planned, and the watermark does not move{after}"
        )
    return (
        f"{named_batch} took {took} from its plan to its commit, and the query spends {batch.share:.0%} of its time "
        f"so: records wait for Spark{after}"
    )


LONG_BATCH: Final = Rule(
    Cause.MICRO_BATCH,
    lambda explanation: (
        (batch := explanation.batch) is not None and batch.done_us is None and explanation.batch_takes_us is not None
    ),
    _says_slow,
    advice(
        "sink",
        "Nothing is planned, and no split becomes idle, until Spark has committed it. Look at the sink or the "
        "state: the Spark UI has the stage that runs. If no query has this checkpoint at work any more, start it "
        "again: it reads this micro-batch once more.",
    ),
)


SLOW_BATCHES: Final = Rule(
    Cause.MICRO_BATCH,
    lambda explanation: explanation.batch_takes_us is not None,
    _says_slow,
    advice(
        "sink",
        "Splits wait for Spark, not Spark for splits. Look at the sink or the state: sources[].metrics and "
        "durationMs of the progress have the time of addBatch. Larger micro-batches cost less where each of them "
        "is expensive.",
    ),
)


def _leaves_records(explanation: Explanation) -> bool:
    has_ended = explanation.is_draining and explanation.end is not None and not explanation.end.was_cut_off
    return has_ended and any(split.behind for split in explanation.splits)


def _says_unread(explanation: Explanation) -> str:
    left = {split.split_id: split.behind for split in explanation.splits if split.behind}
    slowest = [split.split_id for split in explanation.setters if split.split_id not in left]
    text = f"The run has ended and leaves {counted(sum(left.values()), 'record')} unread, of {named(left)}"
    if explanation.watermark == MIN_WATERMARK:
        return f"{text}."
    if slowest:
        text += f": they are later than split {slowest[0]!r} allows, which may still get earlier ones"
    return f"{text}. The watermark is at {moment(explanation.watermark)}."


def _how_to_read_all(reports: Sequence[Explanation]) -> str:
    bounds = reports[-1].bounds
    given = "" if bounds.max_drift_us is None else f", {format_duration(bounds.max_drift_us)} now"
    return (
        f"A later run reads them when the slowest split has come that far, or is idle. To read all in each run "
        f"raise maxDrift{given}, leave out maxDrift and maxOutOfOrderness, or use the exact watermark."
    )


UNREAD: Final = Rule(Cause.UNREAD, _leaves_records, _says_unread, advice("maxDrift", _how_to_read_all))


def _named_batch(batch: LastBatch) -> str:
    number = "the last micro-batch" if batch.number is None else f"micro-batch {batch.number}"
    return number if batch.rows is None else f"{number}, of {counted(batch.rows, 'record')}"

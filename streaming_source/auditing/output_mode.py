"""The output mode of an aggregation, as far as its state shows it.

The checkpoint does not keep the mode. In append and update mode Spark removes a group from the state when the watermark
passes it; in complete mode it never does. Append and update leave the same state, and drop the same rows.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from streaming_source.checkpoint.micro_batches import Checkpoint
from streaming_source.checkpoint.operators import Operator
from streaming_source.checkpoint.state_keys import entries_of, partitions_of, time_in, versions_of, window_in
from streaming_source.exceptions import OptionError

MODES: Final = ("append", "update", "complete")
_FILES: Final = 1_000
"""The most files of the state that are read."""


def output_mode(checkpoint: Checkpoint, operator: Operator | None, given: str | None) -> tuple[str | None, bool]:
    """Return the output mode, and whether the state shows that it is complete or not.

    The mode is as given or as the state shows it; None if it is append or update, or has no effect.

    Raises
    ------
    OptionError
        If `given` is no output mode, or another one than the state shows; or if it is needed, and the state does not
        show it.
    """
    if given is not None and given not in MODES:
        raise OptionError(f"mode = {given!r}: must be the query's output mode: {', '.join(MODES)}")
    if operator is None or not operator.depends_on_mode:
        return given, False
    is_complete = _is_complete(checkpoint, operator)
    if is_complete is None:
        if given is None:
            raise OptionError(
                f"the query has {operator.title}, and its checkpoint does not show whether its output mode is "
                "complete, in which nothing is dropped; give it with --mode append, update or complete (in Python "
                "mode=)"
            )
        return given, False
    if given is not None and is_complete != (given == "complete"):
        kept, mode = ("still has", "complete") if is_complete else ("has removed", "append or --mode update")
        raise OptionError(
            f"mode = {given!r} is not the query's: its state {kept} groups that the watermark has passed; give --mode "
            f"{mode}"
        )
    return "complete" if is_complete else given, True


def _is_complete(checkpoint: Checkpoint, operator: Operator) -> bool | None:
    """Return whether the mode is complete; None if the state has no group that the watermark has passed.

    Files are read newest first, so that the first entry of such a group is its last.
    """
    column = operator.time_column
    if column is None:
        return None
    files = (
        (partition, file)
        for partition in partitions_of(checkpoint.log, operator.number)
        for _, file in versions_of(checkpoint.log, partition)
    )
    unread: set[str] = set()
    for partition, file in islice(files, _FILES):
        entries = entries_of(checkpoint.log, file)
        if entries is None:
            # The groups that it removed are not known, so older files of the partition prove nothing.
            unread.add(partition)
            continue
        if partition in unread:
            continue
        if any(value is None for _, value in entries):
            return False
        if any(_has_passed(checkpoint.emitted_us, key, operator, column) for key, _ in entries):
            return True
    return None


def _has_passed(watermark_us: int, key: bytes, operator: Operator, column: int) -> bool:
    if operator.window_column is None:
        time = time_in(key, len(operator.key), column)
        return time is not None and time <= watermark_us
    window = window_in(key, len(operator.key), column)
    return window is not None and window[1] <= watermark_us

"""The stateful operator that gets the rows of the sources first: the rule by which it drops some, windows, output mode.

A checkpoint keeps no size of windows, but each key in the state has the start and the end of one. It does not keep the
output mode either: in append and update mode Spark removes a group from the state when the watermark passes it, in
complete mode never. Append and update leave the same state, and drop the same rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Final

from alignment.durations import format_duration
from streaming_source.checkpoint.offset_log import Checkpoint, CheckpointFiles
from streaming_source.checkpoint.operators import (
    AGGREGATE,
    BY_ROW,
    SESSIONS,
    Operator,
    entries_of,
    partitions_of,
    time_in,
    versions_of,
    window_in,
)
from streaming_source.exceptions import OptionError
from streaming_source.tools.auditing.rule import NothingDropped, RowTimes, Rule, SessionWindows, Undecided, Windows

MODES: Final = ("append", "update", "complete")
_FILES: Final = 1_000
"""The most files of the state that are read."""


def output_mode(checkpoint: Checkpoint, operator: Operator | None, given: str | None) -> tuple[str | None, bool]:
    """Return the output mode, and whether the state shows that it is complete or not.

    The mode is as given or as the state shows it; None if it is append or update, or has no effect. An `OptionError` if
    `given` is no output mode, or another one than the state shows; or if it is needed, and the state does not show it.
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


_VERSIONS: Final = 20
"""Of how many of the latest micro-batches all windows are read; of earlier ones a few."""
_ENOUGH: Final = 1_000


@dataclass(frozen=True, slots=True)
class ShownWindows:
    """The windows that the state has had: their starts in order, by size, in microseconds."""

    starts: Mapping[int, Sequence[int]]

    @property
    def changed(self) -> str | None:
        """Why the windows are not those of one query; None if they may be."""
        sizes = sorted(self.starts)
        if len(sizes) > 1:
            several = " and ".join(map(format_duration, sizes))
            return (
                f"the state has windows of {several}: the query had another window in an earlier run, and the "
                "checkpoint does not keep which micro-batches had which"
            )
        return None

    @property
    def windows(self) -> Windows | None:
        """Size, slide and start; None if the state does not show them.

        If each row is in one window, the windows begin at multiples of the size. If a row is in several, they overlap,
        and the nearest two are one slide apart, since a row that was not dropped from its earliest windows wrote both.
        There must be at least two windows.
        """
        if len(self.starts) != 1:
            return None
        ((size, starts),) = self.starts.items()
        if len(starts) < 2 or size <= 0:
            return None
        slide = min(min(b - a for a, b in pairwise(starts)), size)
        if any((start - starts[0]) % slide for start in starts):
            return None
        return Windows(size, slide, starts[0] % slide)

    def check(self, given: str) -> None:
        """Raise an `OptionError` if windows that the user has given are not those of the state."""
        wanted, found = Windows.parse(given), self.windows
        for size, starts in self.starts.items():
            is_on_grid = not any((start - wanted.start_us) % wanted.slide_us for start in starts)
            if size == wanted.size_us and is_on_grid and (found is None or found.slide_us == wanted.slide_us):
                continue
            shown = format_duration(size) if found is None else found
            fix = "correct it" if found is None else f'leave it out, or give --window "{found}"'
            raise OptionError(f"window = {given!r} is not the query's: its state has windows of {shown}; {fix}")


def windows_of_state(files: CheckpointFiles, operator: Operator) -> ShownWindows | None:
    """Return the windows of an aggregation; None if it has none, or the state does not show them."""
    column = operator.window_column
    if column is None:
        return None
    starts: defaultdict[int, set[int]] = defaultdict(set)
    count = 0
    for seen, of_version in enumerate(_by_version(files, operator.number)):
        is_in_full = seen < _VERSIONS and count < _ENOUGH
        for file in of_version:
            keys = (key for key, _ in entries_of(files, file, None if is_in_full else _ENOUGH) or ())
            windows = {window for key in keys if (window := window_in(key, len(operator.key), column)) is not None}
            for start, end in windows:
                starts[end - start].add(start)
            count += len(windows)
            if windows and not is_in_full:
                break
    return ShownWindows({size: sorted(found) for size, found in starts.items()}) if starts else None


def check_gap(files: CheckpointFiles, operator: Operator, given: str) -> None:
    """Raise an `OptionError` if the gap that the user has given is longer than a session in the state.

    A session of a single row is as long as the gap, and none is shorter.
    """
    column = operator.session_column
    if column is None:
        return
    shortest: int | None = None
    for of_version in _by_version(files, operator.number):
        for file in of_version:
            values = (value for _, value in entries_of(files, file, _ENOUGH) or () if value is not None)
            sessions = (window_in(value, len(operator.value), column) for value in values)
            lengths = [session[1] - session[0] for session in sessions if session is not None]
            shortest = min([*lengths, *([] if shortest is None else [shortest])], default=None)
        if shortest is not None:
            break
    gap_us = Windows.parse(given).size_us
    if shortest is not None and gap_us > shortest:
        raise OptionError(
            f"window = {given!r} is not the query's: its state has a session of {format_duration(shortest)}, and no "
            "session is shorter than the gap; give the gap of session_window"
        )


def _by_version(files: CheckpointFiles, operator: int) -> Iterator[list[str]]:
    """Yield the files of each version of the state, newest first; those of a partition come in the same order."""
    found: defaultdict[int, list[str]] = defaultdict(list)
    for partition in partitions_of(files, operator):
        for version, file in versions_of(files, partition):
            found[version].append(file)
    yield from (found[version] for version in sorted(found, reverse=True))


_NO_STATE: Final = (
    "the query has a watermark, and its checkpoint has no state; either it has no stateful operator, and dropped "
    "none, or the folder state was lost: restore it from a copy of the checkpoint"
)


def first_operator(operators: Sequence[Operator], sources: int) -> Operator | None:
    """Return the first operator that gets the rows of all sources; None if it cannot be determined.

    Spark numbers operators from the sink back, so that in a chain the last number is the first operator. A query with
    several sources may have several chains.
    """
    if len(operators) == 1 or sources == 1:
        return operators[-1]
    is_one_chain = operators[-1].is_join and sources == 2 and not any(one.is_join for one in operators[:-1])
    return operators[-1] if is_one_chain else None


def rule_of(checkpoint: Checkpoint, operators: Sequence[Operator] | None, mode: str | None, window: str | None) -> Rule:
    """Return the rule of the first stateful operator. `window` describes its windows as the user gives them.

    `mode` None is append or update. `operators` None is a checkpoint without state. An `OptionError` if it has windows
    and `window` is None.
    """
    sources = len(checkpoint.source_folders)
    if not operators:
        # Spark makes no folder for the state of a query without one. If there was one, it may have dropped rows.
        had_watermark = any(batch.next_us or batch.watermark_us for batch in checkpoint.batches)
        return Undecided(_NO_STATE) if had_watermark else NothingDropped()
    operator = first_operator(operators, sources)
    if operator is None:
        names = ", ".join(one.title for one in reversed(operators))
        return Undecided(f"the query has {sources} sources and several stateful operators ({names})")
    if operator.name not in (AGGREGATE, SESSIONS, *BY_ROW):
        return Undecided(f"whether {operator.name} drops a row is decided by code of the query's own")
    if not operator.is_known:
        return Undecided(f"the schema of the state of {operator.name} is of an unknown version")
    if mode == "complete" and len(operators) == 1 and operator.name == AGGREGATE:
        return NothingDropped(any(field.is_window for field in operator.event_times))
    if operator.name == SESSIONS:
        return SessionWindows(Windows.parse(_given(window, operator)).size_us, waits=mode == "append")
    if operator.is_join and any(field.is_window for field in operator.event_times):
        return Undecided("it joins windows of two streams")
    if operator.name in BY_ROW:
        return RowTimes() if operator.event_times or not operator.is_join else NothingDropped()
    if not operator.event_times:
        return NothingDropped()
    waits = None if mode is None else mode == "append"
    if not any(field.is_window for field in operator.event_times):
        return RowTimes(waits=waits)
    found = Windows.parse(_given(window, operator))
    return Windows(found.size_us, found.slide_us, found.start_us, waits=waits)


def _given(window: str | None, operator: Operator) -> str:
    if window is None:
        what = "the gap" if operator.name == SESSIONS else "the size (and the slide, where there is one)"
        raise OptionError(
            f"the checkpoint shows that the query has {operator.title}, and not {what}; give it with --window, as in "
            '--window "1 hour" or --window "1 hour, 15 minutes"'
        )
    return window

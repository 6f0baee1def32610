"""The windows and sessions of a query, from the keys and values that Spark's default state store has written.

A checkpoint keeps no size of windows, but each key in the state has the start and the end of one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from alignment.durations import format_duration
from streaming_source.auditing.rule import Windows
from streaming_source.checkpoint.files import CheckpointFiles
from streaming_source.checkpoint.operators import Operator
from streaming_source.checkpoint.state_keys import entries_of, partitions_of, versions_of, window_in
from streaming_source.exceptions import OptionError

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

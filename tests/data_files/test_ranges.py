"""Where readers begin: ranges of files name the block in which their first row is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from alignment import EventTimeRange
from streaming_source.data_files.file import DataFile, FileBlocks, SeekPoint
from streaming_source.data_files.ranges import LoggedFile, cut_ranges

blocks_of_a_file = st.lists(st.integers(1, 9), min_size=1, max_size=6)


def logged(files: list[list[int]], *, one_range: bool) -> list[LoggedFile]:
    log: list[LoggedFile] = []
    for number, blocks in enumerate(files):
        offsets = None if one_range else tuple(100 * (i + 1) for i in range(len(blocks)))
        position = log[-1].end if log else 0
        rows = np.array(blocks, np.int64)
        described = FileBlocks(rows, rows, rows, rows, offsets)
        log.append(LoggedFile(DataFile(f"/f{number}"), position, described, number))
    return log


def point_by_counting(blocks: tuple[int, ...], row: int) -> SeekPoint:
    owners = [(first, number) for number in range(len(blocks)) for first in [sum(blocks[:number])] if first <= row]
    first, number = owners[-1]
    return SeekPoint(first, 100 * (number + 1))


@given(
    files=st.lists(blocks_of_a_file, min_size=1, max_size=4),
    cut=st.tuples(st.integers(0, 99), st.integers(0, 99)),
    rows_per_range=st.integers(1, 30),
)
def test_a_range_begins_at_the_block_of_its_first_row(
    files: list[list[int]], cut: tuple[int, int], rows_per_range: int
) -> None:
    log = logged(files, one_range=False)
    start, stop = (min(c, log[-1].end) for c in sorted(cut))
    by_path = {file.file.path: file for file in log}
    for ranges, _ in cut_ranges(log, start, stop, rows_per_range):
        for part in ranges:
            blocks = tuple(by_path[part.file.path].blocks.rows.tolist())
            assert part.seek_point == point_by_counting(blocks, part.start)


@given(
    files=st.lists(blocks_of_a_file, min_size=1, max_size=4),
    cut=st.tuples(st.integers(0, 99), st.integers(0, 99)),
    rows_per_range=st.integers(1, 30),
)
def test_a_file_that_is_read_from_its_beginning_only_is_not_shared(
    files: list[list[int]], cut: tuple[int, int], rows_per_range: int
) -> None:
    log = logged(files, one_range=True)
    start, stop = (min(c, log[-1].end) for c in sorted(cut))
    parts = [part for ranges, _ in cut_ranges(log, start, stop, rows_per_range) for part in ranges]
    assert len({part.file.path for part in parts}) == len(parts)
    assert sum(part.stop - part.start for part in parts) == stop - start
    assert all(part.seek_point is None for part in parts)


@given(
    files=st.lists(
        st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=6), min_size=1, max_size=4
    ),
    cut=st.tuples(st.integers(0, 99), st.integers(0, 99)),
    rows_per_range=st.integers(1, 30),
    one_range=st.booleans(),
)
def test_blocks_without_a_wanted_event_time_are_in_no_range(
    files: list[list[tuple[int, bool]]], cut: tuple[int, int], rows_per_range: int, one_range: bool
) -> None:
    log = logged([[rows for rows, _ in blocks] for blocks in files], one_range=one_range)
    wanted_rows: dict[str, list[int]] = {}
    for i, (file, blocks) in enumerate(zip(log, files, strict=True)):
        of_blocks = np.array([10 if is_wanted else 0 for _, is_wanted in blocks], np.int64)
        log[i] = replace(file, blocks=replace(file.blocks, min_us=of_blocks, max_us=of_blocks))
        mask = np.repeat([is_wanted for _, is_wanted in blocks], [rows for rows, _ in blocks])
        wanted_rows[file.file.path] = np.flatnonzero(mask).tolist()
    start, stop = (min(c, log[-1].end) for c in sorted(cut))
    groups = cut_ranges(log, start, stop, rows_per_range, EventTimeRange(5))
    for parts, rows in groups:
        assert rows == sum(part.stop - part.start for part in parts)
    read = [part for parts, _ in groups for part in parts]
    for file in log:
        of_file = [part for part in read if part.file.path == file.file.path]
        rows = [row for part in of_file for row in range(part.start, part.stop)]
        asked = range(max(start - file.position, 0), stop - file.position)
        wanted = [row for row in wanted_rows[file.file.path] if row in asked]
        assert all(part.position == file.position + part.start for part in of_file)
        if one_range:
            assert len(of_file) <= 1
            # All from the first to the last wanted record of the file, as far as they are asked for.
            all_wanted = wanted_rows[file.file.path]
            span = range(all_wanted[0], all_wanted[-1] + 1) if all_wanted else range(0)
            assert rows == [row for row in asked if row in span]
        else:
            assert rows == wanted

"""Which event times are read again, beside a model that looks at them one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from alignment.event_time_range import Ranges, covering, covering_sessions
from alignment.watermarks import Int64Array

windows = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)).map(lambda w: (w[0], sum(w))), max_size=12)


@given(windows)
def test_the_ranges_have_the_times_of_the_windows_and_no_others(windows: list[tuple[int, int]]) -> None:
    starts, ends = (np.array([each[side] for each in windows], np.int64) for side in (0, 1))
    ranges = covering(starts, ends)
    found, expected = ({t for low, high in each for t in range(low, high)} for each in (ranges, windows))
    assert found == expected
    # Ascending, and apart: what could be one range is one.
    edges = [edge for each in ranges for edge in each]
    assert edges == sorted({*edges})


def sessions_with(times: list[int], records: list[int], gap: int) -> list[tuple[int, int]]:
    """The sessions of records that have one of these times, by going through the records."""
    found: list[list[int]] = []
    for record in sorted(records):
        if found and record <= found[-1][1]:
            found[-1][1] = record + gap
        else:
            found.append([record, record + gap])
    return [(start, end) for start, end in found if any(start <= time < end for time in times)]


@given(st.lists(st.integers(0, 120), min_size=1, max_size=30), st.integers(1, 9), st.data())
def test_the_ranges_have_whole_sessions(records: list[int], gap: int, data: st.DataObject) -> None:
    late = data.draw(st.lists(st.sampled_from(records), min_size=1, max_size=4))

    def sessions_in(ranges: Ranges) -> tuple[Int64Array, Int64Array]:
        read = [record for record in records if any(low <= record < high for low, high in ranges)]
        starts, ends = np.array(sessions_with(late, read, gap), np.int64).T
        return starts, ends

    starts, ends = sessions_in(covering_sessions(np.array(late), gap, sessions_in))
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == sessions_with(late, records, gap)

"""Which event times are read again, beside a model that looks at them one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from alignment.touched_ranges import covering

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

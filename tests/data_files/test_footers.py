"""Footers of Parquet that were changed give all rows, are refused, or, rarely, end the process: never other rows."""

from __future__ import annotations

import pytest

from tests.data_files.footers import outcomes


@pytest.mark.soak
def test_changed_footers_give_rows_or_errors_and_hardly_ever_end_the_process() -> None:
    count = 4000
    found = outcomes(count)
    signals = {name: number for name, number in found.items() if name.startswith("SIG")}
    assert found.total() == count
    assert set(found) - set(signals) <= {"rows", "refused"}
    assert found["rows"] > 100
    # The figure is in docs/reliability.md.
    assert sum(signals.values()) <= count // 500, signals

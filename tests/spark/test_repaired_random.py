"""Repairs of random workloads over files, whatever dies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples import one_in
from tests.spark.repaired import WINDOWS, check_seed
from tests.spark.repaired_files import Files


@pytest.mark.parametrize("seed", one_in(101, range(300)))
def test_once_quiet_the_target_is_the_batch_over_all_records(tmp_path: Path, seed: int) -> None:
    lateness = "none" if seed % 5 == 3 else "bounded"
    data = Files(tmp_path / "in", splitBy="file" if seed // 4 % 2 else "directory", lateness=lateness)
    windows, repairs = check_seed(seed, data, tmp_path, WINDOWS[seed % 4])
    print(f"seed {seed}: {len(data.written)} records in {windows} windows, {repairs.repairs} repairs")

"""`NO_TIMESTAMP`, `MIN_WATERMARK` and `LONG_AGO_US` are one number, and none stands for another."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.house import ROOT

_NUMBERS = {"MIN_WATERMARK": "-(2**63) + 1", "LONG_AGO_US": "-(2**63) + 2"}

_SOME = ["tests/alignment/test_planner.py", "tests/coordinator/test_available_now.py"]
_AT_THE_END = [
    "tests/alignment/test_durations.py::test_addition_saturates_at_the_ends_of_int64",
    "tests/alignment/test_index.py::test_every_answer_is_that_of_the_plain_lists",
    "tests/alignment/test_planner_random.py::TestPlansAgreeWithTheNaivePlanner::runTest",
]
"""These draw numbers at the very end of int64, where the three are."""

_ALL = ["tests/alignment", "tests/coordinator", "tests/scenarios", "tests/testing"]


@pytest.mark.slow
@pytest.mark.parametrize("tests", [_SOME, pytest.param(_ALL, marks=pytest.mark.soak)], ids=["some", "all"])
def test_the_library_plans_the_same_where_they_are_three_numbers(tests: list[str], tmp_path: Path) -> None:
    for name in ("alignment", "streaming_source", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    watermarks = tmp_path / "alignment" / "watermarks.py"
    text = watermarks.read_text(encoding="utf-8")
    for name, number in _NUMBERS.items():
        text, changed = re.subn(rf"^{name}: Final = .*$", f"{name}: Final = {number}", text, flags=re.MULTILINE)
        assert changed == 1
    watermarks.write_text(text, encoding="utf-8")
    options = ["-q", "-n", "0", "--timeout", "0", "-p", "no:cacheprovider", "-m", "not soak and not spark"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests, *(f"--deselect={test}" for test in _AT_THE_END)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]

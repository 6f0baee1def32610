"""A person on call gets the right answer: the cause, the split and the advice, by the query, command line and log."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.examples import one_in
from tests.monitoring.on_call import COURSES
from tests.monitoring.three_ways import run

_WITH_PERMISSIONS = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
"""So that root needs them, too."""

pytestmark = pytest.mark.spark


@pytest.mark.slow
@pytest.mark.parametrize("part", one_in(4, range(4)))
def test_each_cause_is_named_with_its_split_and_its_advice(spark: SparkSession, tmp_path: Path, part: int) -> None:
    found = run(spark, tmp_path, [course for course in COURSES if course.is_quick][part::4])
    assert not found, "\n".join(found)


@pytest.mark.soak
def test_each_situation_is_right_in_all_three_ways() -> None:
    # A short path: each line of the log has only the beginning of what is read.
    with tempfile.TemporaryDirectory(prefix="call", dir="/tmp") as folder:
        log = Path(folder, "log")
        with log.open("w", encoding="utf-8") as errors:
            asked = [*_WITH_PERMISSIONS, sys.executable, "-m", "tests.monitoring.three_ways", folder, str(log)]
            answered = subprocess.run(asked, stdout=subprocess.PIPE, stderr=errors, text=True, check=False)
        assert answered.returncode == 0, answered.stdout
        assert not answered.stdout.strip()

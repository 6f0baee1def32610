"""Repairs by Spark's MERGE into a Delta table, whose processes are killed at each step of a write."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.delta.spark_delta import jars_of_delta
from tests.kafka.artifacts import ArtifactsMissingError

pytestmark = [pytest.mark.spark, pytest.mark.soak]


def run(folder: Path, what: str) -> tuple[Any, Any]:
    """The rows of the table and those of the batch; killed processes print none."""
    try:
        jars = jars_of_delta()
    except ArtifactsMissingError as error:
        pytest.skip(str(error))
    command = [sys.executable, "-m", "tests.delta.repair_query", jars, str(folder), what]
    with (folder / f"{what}.log").open("w") as log:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, timeout=500, text=True)
    if what in ("before", "within", "after"):
        assert done.returncode == -9
        return None, None
    assert done.returncode == 0, (folder / f"{what}.log").read_text()[-3000:]
    rows, expected = map(json.loads, done.stdout.splitlines()[-2:])
    return rows, expected


def test_a_merge_of_repairs_is_the_batch_whenever_its_process_is_killed(tmp_path: Path) -> None:
    rows, expected = run(tmp_path, "query")
    assert rows != expected
    assert len(rows) == len(expected)
    for step in ("before", "within", "after"):
        run(tmp_path, step)
    for _ in range(2):
        rows, again = run(tmp_path, "repair")
        assert rows == again == expected

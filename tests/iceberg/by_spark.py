"""Spark's own Iceberg, on PySpark 4.1, as a process: for procedures that `pyiceberg` does not have."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.kafka.artifacts import Artifacts, ArtifactsMissingError

__all__ = ["call_by_spark", "run_by_spark"]


def _python() -> str:
    """Return the Python that has PySpark 4.1, by `ICEBERG_PYTHON`; the test is skipped if that is not set."""
    if (python := os.environ.get("ICEBERG_PYTHON")) is None:
        pytest.skip("ICEBERG_PYTHON is not set: the path of a Python with PySpark 4.1")
    return python


def _jars() -> str:
    """Return the JARs, separated by commas; the test is skipped if they cannot be had."""
    try:
        return ",".join(map(str, Artifacts(Path(__file__).with_name("iceberg-spark.xml")).jars()))
    except ArtifactsMissingError as error:
        pytest.skip(str(error))


def call_by_spark(folder: Path, call: str) -> None:
    """Call a procedure of the catalog in a folder, such as `expire_snapshots(table => 'db.t')`."""
    run_by_spark("call_by_spark.py", str(folder), call)


def run_by_spark(script: str, *arguments: str) -> None:
    """Run a script of this folder, after the JARs as its first argument."""
    python = _python()
    own = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    not_its = ("SPARK_HOME", "PYTHONPATH", "JAVA_TOOL_OPTIONS")
    others = {name: value for name, value in os.environ.items() if name not in not_its}
    command = [python, str(Path(__file__).with_name(script)), _jars(), *arguments]
    done = subprocess.run(command, env=others | own, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]

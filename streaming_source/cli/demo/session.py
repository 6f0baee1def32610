"""A Spark session whose log does not hide what the demo has to say."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark_session"]


@contextmanager
def spark_session(master: str, scratch: Path, log: Path) -> Iterator[SparkSession]:
    """Start Spark with UTC as its time zone, and stop it.

    Parameters
    ----------
    master
        Of Spark.
    scratch
        For what Spark writes beside the results.
    log
        Takes what Spark's JVM and workers write to standard error.
    """
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if master.startswith("local"):
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # PySpark says so for every pandas 3; nothing here uses pandas.
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
    from pyspark.sql import SparkSession

    with _stderr_to(log):
        # The JVM inherits standard error when it is launched and keeps it, and so do the workers that it starts.
        session = (
            SparkSession.builder.master(master)
            .appName("spark-watermark-alignment demo")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
            .config("spark.local.dir", str(scratch / "local"))
            .config("spark.sql.streaming.numRecentProgressUpdates", "10000")
            .getOrCreate()
        )
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log.open("wb") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)

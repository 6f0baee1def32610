"""A Spark session whose log does not hide what the demo has to say."""

from __future__ import annotations

import os
import re
import socket
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from streaming_source.cli.demo.flights import DemoError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["check_master", "spark_session"]

_ADDRESS: Final = re.compile(r"(?P<host>\[[^]]+\]|[^:,/\s]+):(?P<port>\d+)")
_WITHOUT_ADDRESS: Final = re.compile(r"local(\[(\*|\d+)(,\d+)?\]|-cluster\[\d+,\d+,\d+\])?|yarn")
_CONNECT_S: Final = 5.0


def check_master(master: str) -> None:
    """Say at once what Spark takes a minute to find out, and then ends the process for.

    Raises
    ------
    DemoError
        If Spark knows no such master, or nobody listens at its address.
    """
    kind, _, place = master.partition("://")
    if _WITHOUT_ADDRESS.fullmatch(master.replace(" ", "")):
        return
    found = list(_ADDRESS.finditer(place.removeprefix("https://").removeprefix("http://")))
    if kind not in ("spark", "k8s") or not found:
        raise DemoError(f"--master {master}: must be local[*], local[n], spark://host:port, k8s://host:port or yarn")
    for address in found:
        try:
            socket.create_connection((address["host"].strip("[]"), int(address["port"])), _CONNECT_S).close()
            return
        except (OSError, OverflowError) as error:
            reason = error
    raise DemoError(f"--master {master}: nobody can be reached there ({reason}); start the master, or use local[*]")


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

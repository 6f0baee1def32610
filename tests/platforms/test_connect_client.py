"""A client of Spark Connect without a JVM, against a server whose processes get nothing but what they must have."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyspark
import pytest

from tests.docs.pages import ROOT
from tests.spark.support import SECOND, T0, Logs, naive_windows, write_file

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.soak]

_CLIENT = "pyspark-client>=4.2"

_PROGRAM = """
import json, sys
import pyspark
from pyspark.sql import SparkSession, functions as F
from pyspark.util import is_remote_only
from streaming_source import FileSource, WatermarkStrategy, explain, from_source, read_stream, with_exact_watermark

assert is_remote_only(), pyspark.__file__
url, root = sys.argv[1:]
spark = SparkSession.builder.remote(url).getOrCreate()
spark.conf.set("spark.sql.session.timeZone", "UTC")
spark.conf.set("spark.sql.shuffle.partitions", "1")
options = {"eventTimeColumn": "ts", "maxOutOfOrderness": "5 seconds"}
strategy = WatermarkStrategy.for_bounded_out_of_orderness("5 seconds").with_timestamp_assigner("ts")
plain = spark.readStream.format("aligned_files").options(**options).load(root + "/logs")
frames = {
    "read_stream": read_stream(spark).format("aligned_files").options(**options).load(root + "/logs"),
    "with_exact_watermark": with_exact_watermark(plain),
    "from_source": from_source(spark, FileSource(root + "/logs"), strategy, "logs"),
}


def windows(frame):
    counted = frame.groupBy(F.window("ts", "1 minute"), "s").count()
    return counted.select(F.unix_micros("window.start"), F.unix_micros("window.end"), "s", "count")


def run(name, frame):
    writer = frame.writeStream.format("parquet").option("path", f"{root}/out/{name}")
    query = writer.option("checkpointLocation", f"{root}/checkpoints/{name}").trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    return sorted(map(tuple, spark.read.parquet(f"{root}/out/{name}").collect())), str(explain(query))


found = {name: run(name, windows(frame)) for name, frame in frames.items()}
minutes = {
    side: frames[door].where(f"s = '{side}'").groupBy(F.window("ts", "1 minute")).agg(F.count("*").alias(side))
    for door, side in (("read_stream", "slow"), ("with_exact_watermark", "fast"))
}
joined = minutes["slow"].join(minutes["fast"], "window").select(F.unix_micros("window.start"), "slow", "fast")
found["join"] = run("join", joined)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds PySpark's client and nothing else; the rest is that of this environment."""
    folder = tmp_path_factory.mktemp("client")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), _CLIENT]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{_CLIENT} cannot be installed: {done.stderr.splitlines()[-1]}")
    return folder


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of a server with next to no environment, in a folder that none may write to."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    home = Path(pyspark.__file__).parent
    folder = tmp_path / "read-only"
    folder.mkdir(mode=0o555)
    kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME", "PYTHONPATH") if name in os.environ}
    arguments = ["--conf", f"spark.connect.grpc.binding.port={port}", "--conf", "spark.ui.enabled=false"]
    arguments += [
        "--conf",
        f"spark.sql.warehouse.dir={tmp_path / 'warehouse'}",
        "--conf",
        "spark.driver.host=127.0.0.1",
    ]
    main = "org.apache.spark.sql.connect.service.SparkConnectServer"
    with (tmp_path / "server.log").open("w") as log:
        process = subprocess.Popen(
            [str(home / "bin" / "spark-submit"), *arguments, "--class", main, "spark-internal"],
            env={**kept, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(home)},
            cwd=folder,
            stdout=log,
            stderr=log,
        )
    try:
        _await_port(port, process, tmp_path / "server.log")
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def _await_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise AssertionError(log.read_text()[-4000:])


def test_a_client_without_a_jvm_has_every_door_twice(client: Path, server: str, tmp_path: Path) -> None:
    logs: Logs = {"slow": T0 + np.arange(600) * SECOND, "fast": T0 + np.arange(600) * 4 * SECOND}
    for end in (400, 600):
        for log, times in logs.items():
            write_file(tmp_path / "logs" / log / f"part-{end}.parquet", times[{400: 0, 600: 400}[end] : end], log)
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _PROGRAM, server, str(tmp_path)],
            # No Java to be found. The client of 4.2.0 looks for a home of Spark and uses nothing of it.
            env={"PYTHONPATH": os.pathsep.join([str(client), str(ROOT)]), "SPARK_HOME": str(client), "PATH": ""},
            capture_output=True,
            text=True,
            timeout=280,
            cwd=tmp_path,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-6000:] + (tmp_path / "server.log").read_text()[-3000:]
        found = json.loads(done.stdout.splitlines()[-1])
        watermark = int(logs["slow"][end - 1]) - 5 * SECOND - 1
        counted = naive_windows({log: times[:end] for log, times in logs.items()})
        expected = [window for window in counted if window[1] <= watermark]
        for door in ("read_stream", "with_exact_watermark", "from_source"):
            rows, explained = found[door]
            assert list(map(tuple, rows)) == expected
            assert "'slow'" in explained
        sides = {(start, s): count for start, _, s, count in expected}
        pairs = [(start, n, sides[start, "fast"]) for (start, s), n in sorted(sides.items()) if s == "slow"]
        assert list(map(tuple, found["join"][0])) == pairs

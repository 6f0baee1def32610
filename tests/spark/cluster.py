"""A standalone Spark cluster on the loopback address, and a driver program on it, in processes of their own."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = ["Cluster", "Driver"]

START_S = 90.0
CALL_S = 240.0
END_S = 20.0

# When its standard input ends, so does all that was started: also if the tests are killed and can end nothing.
_TIED = 'exec 3<&0; { cat <&3; kill -KILL 0; } >/dev/null & exec "$@" </dev/null'


class Cluster:
    """A master and workers of one core each, from the jars of the installed PySpark.

    Parameters
    ----------
    folder
        For logs and the workers' directories: `worker-0`, `worker-1` ...
    workers
        How many.

    Attributes
    ----------
    url
        `spark://127.0.0.1:port`.

    Raises
    ------
    AssertionError
        If it does not start; with the logs.
    """

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.folder = folder
        self._daemons: list[subprocess.Popen[bytes]] = []
        try:
            master = self._start("master", "master.Master")
            self.url = self._logged(master, r"Starting Spark master at (spark://\S+)")
            logs = []
            for name in (f"worker-{number}" for number in range(workers)):
                options = ["--cores", "1", "--memory", "640m", "--work-dir", str(folder / name), self.url]
                logs.append(self._start(name, "worker.Worker", *options))
            for log in logs:
                self._logged(log, r"(Successfully registered with master)")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all daemons, and with them the executors."""
        for daemon in reversed(self._daemons):
            os.killpg(daemon.pid, signal.SIGKILL)
            daemon.communicate()

    def logs(self) -> str:
        """The last lines of every daemon and executor."""
        files = sorted([*self.folder.glob("*.log"), *self.folder.glob("worker-*/*/*/stderr")])
        tails = (f"--- {file.relative_to(self.folder)}\n" + file.read_text(errors="replace")[-4000:] for file in files)
        return "\n".join(tails)

    def _start(self, name: str, main: str, *options: str) -> Path:
        spec = importlib.util.find_spec("pyspark")
        assert spec is not None
        assert spec.origin is not None
        home = Path(spec.origin).parent
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{main}"]
        command += ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0", *options]
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
        }
        log = self.folder / f"{name}.log"
        with log.open("wb") as file:
            daemon = subprocess.Popen(
                ["bash", "-c", _TIED, "bash", *command],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
            )
        self._daemons.append(daemon)
        return log

    def _logged(self, log: Path, pattern: str) -> str:
        """The first group of a pattern, as soon as a log has it."""
        limit = time.monotonic() + START_S
        while not (found := re.search(pattern, log.read_text(errors="replace"))):
            ended = [daemon.args for daemon in self._daemons if daemon.poll() is not None]
            assert not ended, f"a daemon has ended: {ended}\n{self.logs()}"
            assert time.monotonic() < limit, f"waited {START_S} s for {pattern!r} in {log}\n{self.logs()}"
            time.sleep(0.05)
        return found[1]


class Driver:
    """A driver program: makes calls one after another, each with a Spark session on the cluster as first argument.

    Parameters
    ----------
    cluster
        Whose logs are shown if a call fails.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        spawned = multiprocessing.get_context("spawn")
        self._calls, theirs = spawned.Pipe()
        self._process = spawned.Process(target=_make_calls, args=(theirs, cluster.url, str(cluster.folder)))
        self._process.start()
        theirs.close()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The result of `function(spark, *arguments)`; both are found by name and pickled.

        Raises
        ------
        AssertionError
            If it fails, with what it raised there.
        """
        self._calls.send((function, arguments))
        assert self._calls.poll(CALL_S), f"{function.__name__} took longer than {CALL_S} s\n{self._cluster.logs()}"
        result, error = self._calls.recv()
        assert error is None, f"{error}\n{self._cluster.logs()}"
        return result

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # It ends when nobody can call it any more; its JVM when it has ended.
        self._calls.close()
        self._process.join(END_S)
        self._process.kill()
        self._process.join()


def _make_calls(calls: Connection, url: str, folder: str) -> None:
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master(url)
        .appName("spark-watermark-alignment tests on a cluster")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.executor.memory", "512m")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
        .config("spark.local.dir", f"{folder}/local")
        .config("spark.sql.streaming.stopTimeout", "60s")
        # Nothing runs before both workers have given their executors.
        .config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
        .config("spark.cores.max", "2")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    try:
        while True:
            function, arguments = calls.recv()
            result, error = None, None
            try:
                result = function(session, *arguments)
            except BaseException:
                error = traceback.format_exc()
                for query in session.streams.active:
                    query.stop()
            calls.send((result, error))
    except EOFError:
        session.stop()

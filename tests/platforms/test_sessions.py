"""The acts in a classic session, and from a client of Spark Connect without a JVM, also where Python is isolated."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.docs.pages import ROOT, code
from tests.platforms import acts

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.soak]

_CLIENT = "pyspark-client>=4.2"
_ACTS = ["quick start", "AvailableNow twice", "join", "reports", "restart"]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds PySpark's client and nothing else; the rest is that of this environment."""
    folder = tmp_path_factory.mktemp("client")
    _install(folder, "PySpark's client", "--no-deps", _CLIENT)
    return folder


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the library as it is installed."""
    folder = tmp_path_factory.mktemp("installed")
    _install(folder, "the library", "--no-deps", str(ROOT))
    return folder


_ISOLATED = """#!/bin/sh
# Python as Spark starts it: on a network of its own without a device, in a folder that none may
# write to, without the environment but for what names Spark's socket.
kept=$(env | grep -E '^(PYTHON_WORKER_FACTORY|PYTHON_UNIX_DOMAIN|SPARK_(REUSE_WORKER|BUFFER_SIZE|AUTH_SOCKET))')
exec unshare --map-root-user --net --mount sh -c '
    for folder in {folder} {library}; do
        mount --bind "$folder" "$folder" && mount -o remount,ro,bind "$folder" || exit 1
    done
    cd {folder} && exec "$@"
' sh env -i $kept PYTHONPATH={library} {python} "$@"
"""


@pytest.fixture
def isolated(folder: Path, installed: Path) -> Path:
    """What starts Python isolated."""
    if subprocess.run(["unshare", "--map-root-user", "--net", "--mount", "true"], check=False).returncode:
        pytest.skip("a user may not make namespaces here, which isolate Python: unshare --map-root-user --net --mount")
    program = folder / "isolated-python"
    read_only = folder / "read-only"
    program.write_text(_ISOLATED.format(folder=read_only, library=installed, python=sys.executable))
    program.chmod(0o755)
    return program


def _install(folder: Path, what: str, *arguments: str) -> None:
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), *arguments]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{what} cannot be installed: {done.stderr.splitlines()[-1]}")


@contextmanager
def server(folder: Path, path: str, python: str = sys.executable, **more: str) -> Iterator[str]:
    """The address of a server with next to no environment, in a folder that none may write to."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    home = Path(pyspark.__file__).parent
    conf = {
        "spark.connect.grpc.binding.port": port,
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.warehouse.dir": folder / "warehouse",
        **more,
    }
    arguments = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    main = "org.apache.spark.sql.connect.service.SparkConnectServer"
    kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME") if name in os.environ}
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(
            [str(home / "bin" / "spark-submit"), *arguments, "--class", main, "spark-internal"],
            env={
                **kept,
                "PYTHONPATH": path,
                "PYSPARK_PYTHON": python,
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_HOME": str(home),
            },
            cwd=folder / "read-only",
            stdout=log,
            stderr=log,
        )
    try:
        _await_port(port, process, folder / "server.log")
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


def act(folder: Path, path: list[Path], *arguments: str, **environment: str) -> dict[str, Any]:
    """What the acts print, done by a program of its own; the times of the acts are shown with `-s`."""
    quick = folder / "quick_start.py"
    quick.write_text(code(ROOT / "docs" / "quick-start.md"))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", acts.__file__, str(folder), str(quick), *arguments],
        env={"PYTHONPATH": os.pathsep.join(map(str, path)), **environment},
        capture_output=True,
        text=True,
        timeout=400,
        cwd=folder,
        check=False,
    )
    logs = "".join(log.read_text()[-4000:] for log in folder.glob("server.log"))
    assert done.returncode == 0, done.stderr[-6000:] + logs
    printed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(printed["seconds"])
    return printed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "read-only").mkdir(mode=0o555)
    return tmp_path


def test_a_classic_session(folder: Path) -> None:
    kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME") if name in os.environ}
    done = act(folder, [ROOT], PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1", **kept)
    assert [*done["seconds"]] == ["session", *_ACTS]


def test_a_client_without_a_jvm(client: Path, folder: Path) -> None:
    with server(folder, str(ROOT)) as url:
        # No Java to be found. The client of 4.2.0 looks for a home of Spark and uses nothing of it.
        done = act(folder, [client, ROOT], url, SPARK_HOME=str(client), PATH="")
    assert [*done["seconds"]] == ["session", *_ACTS]
    assert done["worker"]["may port"]
    assert done["planner"]["may port"]


def test_a_client_of_a_server_whose_python_is_isolated(
    client: Path, installed: Path, isolated: Path, folder: Path
) -> None:
    """No environment, no port, no folder that may be written to, and the library in one that is read-only."""
    # A network of their own has none of Spark's ports either.
    sockets = {"spark.python.unix.domain.socket.enabled": "true"}
    with server(folder, str(installed), str(isolated), **sockets) as url:
        done = act(folder, [client, ROOT], url, SPARK_HOME=str(client), PATH="")
    assert [*done["seconds"]] == ["session", *_ACTS]
    for process in ("worker", "planner"):
        found = done[process]
        assert found["file"] == str(installed / "streaming_source" / "__init__.py")
        assert [found[f"may {what}"] for what in ("library", "cwd", "port")] == [False] * 3, found
        assert not {"PATH", "HOME", "SPARK_HOME", "SPARK_LOCAL_DIRS", "PYSPARK_PYTHON"} & {*found["names"]}

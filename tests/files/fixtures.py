"""An S3-compatible server on this machine, for those who ask."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """`host:port` of a server in a process of its own, on a free port."""
    if importlib.util.find_spec("moto") is None:
        pytest.skip("needs moto[s3], flask and flask-cors")
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-u", "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stderr is not None
        said = []
        for line in server.stderr:
            said.append(line)
            if found := re.search(r"Running on http://(127\.0\.0\.1:\d+)", line):
                # It goes on to say something about each request; a full pipe would stop it.
                threading.Thread(target=server.stderr.read, daemon=True).start()
                yield found[1]
                return
        raise AssertionError(f"the server did not start: {said}")
    finally:
        server.kill()
        server.communicate()

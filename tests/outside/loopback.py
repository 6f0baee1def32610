"""A server that no request may reach, and credentials in the environment that it would get."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

__all__ = ["Listening", "give_credentials", "listening"]


class Listening:
    """The address of the server, and the headers of each request."""

    def __init__(self, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        self.requests: list[str] = []


@contextmanager
def listening() -> Iterator[Listening]:
    """Listen on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.requests.append(f"{self.command} {self.path} {dict(self.headers)}")
            self.send_response(403)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_PUT = do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Listening(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def give_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set those that clients of stores find by themselves."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AKIADUMMY",
        "AWS_SECRET_ACCESS_KEY": "dummy",
        "AWS_SESSION_TOKEN": "dummy",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "1",
    }.items():
        monkeypatch.setenv(name, value)

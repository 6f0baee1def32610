"""A proxy for reading from a server that speaks S3, which answers as a store does on a bad day."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

__all__ = ["FaultyStore", "before"]

_ERROR = (
    '<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>not now</Message>'
    "<RequestId>1</RequestId></Error>"
)
_CODES = {500: "InternalError", 503: "SlowDown"}


class FaultyStore:
    """What the proxy does.

    Attributes
    ----------
    endpoint
        `host:port` of the proxy.
    answers
        Of the next requests that read objects or list, one each: a status, or `half` for half of the body of an object.
        When there are no more, all is well.
    is_stale
        As long as it is set each listing is the one before.
    refused
        As long as it is set all of them are answered with this status.
    valid_key
        If it is set, whoever signs with another access key is refused.
    """

    def __init__(self) -> None:
        self.endpoint = ""
        self.answers: list[int | str] = []
        self.is_stale = False
        self.refused: int | None = None
        self.valid_key: str | None = None
        self.faults = 0
        self._listings: dict[str, tuple[int, list[tuple[str, str]], bytes]] = {}
        self._lock = threading.Lock()

    def next_answer(self, *, lists: bool) -> int | str | None:
        """What to do with a request that reads."""
        with self._lock:
            if self.refused is not None:
                self.faults += 1
                return self.refused
            if not self.answers or (lists and self.answers[0] == "half"):
                return None
            self.faults += 1
            return self.answers.pop(0)


@contextmanager
def before(endpoint: str) -> Iterator[FaultyStore]:
    """A proxy before the server at `endpoint`."""
    store = FaultyStore()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize: ClassVar[int] = -1

        def _serve(self) -> None:
            lists = "list-type" in self.path
            reads = self.command == "GET"
            what = store.next_answer(lists=lists) if reads else None
            if store.valid_key is not None and f"={store.valid_key}/" not in self.headers.get("Authorization", ""):
                self._reply(403, [("Content-Type", "application/xml")], _ERROR.format(code="ExpiredToken").encode())
                return
            if isinstance(what, int):
                self._reply(what, [("Content-Type", "application/xml")], _ERROR.format(code=_CODES[what]).encode())
                return
            if lists and store.is_stale and self.path in store._listings:
                self._reply(*store._listings[self.path])
                return
            connection = http.client.HTTPConnection(endpoint, timeout=60)
            connection.request(self.command, self.path, headers=dict(self.headers))
            answer = connection.getresponse()
            content = answer.read()
            headers = [h for h in answer.getheaders() if h[0].lower() not in ("content-length", "connection", "date")]
            connection.close()
            if lists:
                store._listings[self.path] = (answer.status, headers, content)
            self._reply(answer.status, headers, content, half=what == "half", length=answer.getheader("Content-Length"))

        do_GET = do_HEAD = _serve  # noqa: N815  # the names are those of http.server

        def _reply(
            self,
            status: int,
            headers: list[tuple[str, str]],
            content: bytes,
            *,
            half: bool = False,
            length: str | None = None,
        ) -> None:
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", (length if self.command == "HEAD" else None) or str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content[: len(content) // 2] if half else content)
            if half:
                self.wfile.flush()
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    store.endpoint = f"127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield store
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

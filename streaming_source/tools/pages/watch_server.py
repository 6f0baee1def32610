"""Serves the page of a checkpoint on loopback, and server-sent events when it changes: read-only, for a browser here.

Only 127.0.0.1 is listened on. Other users of this host cannot read it: the path begins with a random token. A page of
another site cannot either: a request must name this host (a name that an attacker lets point here is refused), and no
header lets other origins read an answer.
"""

from __future__ import annotations

import errno
import re
import secrets
import socket
import threading
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from alignment.exceptions import InvalidArgumentError
from streaming_source.tools.pages.html_page import live_page
from streaming_source.tools.pages.watch import CheckpointWatch

_LOOPBACK: Final = "127.0.0.1"
_HOST: Final = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?", re.IGNORECASE)
"""With any port: the browser may come through a tunnel."""
_ALIVE_S: Final = 5.0
_REQUEST_S: Final = 10.0
_MAX_CONNECTIONS: Final = 64
_TOKEN_BYTES: Final = 24
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class WatchServer:
    """The page of a `CheckpointWatch` at a port of this host, 0 for any, from `start` to `close`.

    Who does not know the `url` gets no page: its path begins with a token, another one for each server. The token is
    in the path and not in a cookie, because a browser sends a cookie to every port of this host. Without `has_token`
    each user of the host can read the page.

    An `InvalidArgumentError` if the port is taken or not for this user.
    """

    def __init__(self, watch: CheckpointWatch, port: int = 0, *, has_token: bool = True) -> None:
        self._watch = watch
        self._root = f"/{secrets.token_urlsafe(_TOKEN_BYTES)}/" if has_token else "/"
        try:
            self._server = _Server((_LOOPBACK, port), watch, self._root)
        except OSError as error:
            why = "another program listens there" if error.errno == errno.EADDRINUSE else str(error.strerror)
            raise InvalidArgumentError(f"--port {port}: {why}; give another port, or 0 for any that is free") from None
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="watch-server", daemon=True
        )

    @property
    def url(self) -> str:
        """Return where the page is, with its token."""
        return f"http://{_LOOPBACK}:{self._server.server_address[1]}{self._root}"

    def start(self) -> None:
        """Answer from now on, and look at the checkpoint."""
        self._watch.start()
        self._thread.start()

    def close(self) -> None:
        """End all connections and threads."""
        self._watch.close()
        if self._thread.ident is not None:
            self._server.shutdown()
            self._thread.join()
        self._server.cut()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True

    def __init__(self, where: tuple[str, int], watch: CheckpointWatch, root: str) -> None:
        self.watch = watch
        self.root = root
        # In the order in which they came: whether it has shown the token.
        self._connections: dict[socket.socket, bool] = {}
        self._lock = threading.Lock()
        super().__init__(where, _Request)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Take a connection; where there are too many it takes the place of the first that has shown no token."""
        with self._lock:
            silent = None
            if is_full := len(self._connections) >= _MAX_CONNECTIONS:
                silent = next((one for one, is_known in self._connections.items() if not is_known), None)
                is_full = silent is None
            if silent is not None:
                del self._connections[silent]
                _wake(silent)
            if not is_full:
                self._connections[request] = False
        if is_full:
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def know(self, request: socket.socket) -> None:
        """Keep a connection, which has shown the token, when others come."""
        with self._lock:
            if request in self._connections:
                self._connections[request] = True

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def cut(self) -> None:
        """Wake every thread that waits for its client."""
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            _wake(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has closed the connection, or sends what is no request: of no interest to who watches."""


def _wake(connection: socket.socket) -> None:
    """End a connection under the thread that waits for its client."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Request(BaseHTTPRequestHandler):
    server: _Server
    timeout = _REQUEST_S
    server_version = "streaming-source"
    sys_version = ""

    def do_GET(self) -> None:
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or _HOST.fullmatch(hosts[0]) is None:
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "this host is reached as 127.0.0.1 or localhost only")
            return
        where = urlsplit(self.path)
        root = self.server.root
        if not secrets.compare_digest(f"{where.path}/"[: len(root)].encode(), root.encode()):
            self._refuse(HTTPStatus.FORBIDDEN, "no token; open the address that streaming-source watch printed")
            return
        self.server.know(self.connection)
        page = where.path[len(root) :]
        if len(where.path) < len(root):  # copied without its last slash
            self._answer("text/plain; charset=utf-8", "", HTTPStatus.PERMANENT_REDIRECT, {"Location": root})
        elif not page:
            snapshot = self.server.watch.latest
            self._answer("text/html; charset=utf-8", live_page(snapshot.data, snapshot.plain, "events"))
        elif page == "events" and self.command == "GET":
            seen = self.headers.get("Last-Event-ID") or next(iter(parse_qs(where.query).get("seen", [])), None)
            self._send_events(seen)
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is the page, and its events")

    do_HEAD = do_GET  # noqa: N815

    def _only_reads(self) -> None:
        self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "nothing can be changed here", {"Allow": "GET, HEAD"})

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _only_reads  # noqa: N815

    def _send_events(self, seen: str | None) -> None:
        watch = self.server.watch
        self._head(HTTPStatus.OK, {"Content-Type": "text/event-stream; charset=utf-8"})
        while not watch.is_closed:
            snapshot = watch.wait(seen, _ALIVE_S)
            if snapshot is not None:
                seen = snapshot.version
                self._write(f"id: {seen}\nevent: state\ndata: {snapshot.to_json()}\n\n")
            elif not watch.is_closed:
                self._write(f"event: alive\ndata: {watch.looked_at_ms}\n\n")

    def _answer(
        self, kind: str, text: str, status: HTTPStatus = HTTPStatus.OK, more: dict[str, str] | None = None
    ) -> None:
        body = text.encode()
        self._head(status, {"Content-Type": kind, "Content-Length": str(len(body)), **(more or {})})
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refuse(self, status: HTTPStatus, why: str, more: dict[str, str] | None = None) -> None:
        self._answer("text/plain; charset=utf-8", f"{status.value} {status.phrase}: {why}\n", status, more)

    def _head(self, status: HTTPStatus, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def _write(self, text: str) -> None:
        self.wfile.write(text.encode())
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""

"""The page of a checkpoint that changes, made anew, and served on loopback with events when it does: read-only.

Only 127.0.0.1 is listened on. Other users of this host cannot read it: the path begins with a random token. A page of
another site cannot either: a request must name this host (a name that an attacker lets point here is refused), and no
header lets other origins read an answer.
"""

from __future__ import annotations

import errno
import json
import re
import secrets
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from operator import is_
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from alignment.exceptions import InvalidArgumentError
from alignment.shown import shown
from streaming_source.exceptions import CheckpointError
from streaming_source.monitoring.explained import ExplainedQuery, explain_batches
from streaming_source.monitoring.history import History
from streaming_source.monitoring.micro_batch import CheckpointBatches, MicroBatch
from streaming_source.tools.pages.html_page import drawn_page, page_data

_SHARE: Final = 10
"""A look that takes long is followed by so many times as long without one."""
_AGAIN_S: Final = 5.0
"""Sentences change with time as well: how long a split has been silent, when it becomes idle."""
_ROWS: Final = 1_000_000
"""Splits times micro-batches in a history: a hundred micro-batches of ten thousand splits, some 200 MB."""
_BATCHES: Final = 1_000
"""Micro-batches in a history, more than Spark keeps; of more than these the oldest are forgotten."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The content of the page, as `page_data` and as text. Each version is another one, also after a new start."""

    version: str
    data: dict[str, Any]
    plain: str


class CheckpointWatch:
    """The state of a checkpoint, read every `interval_s` seconds between `start` and `close`.

    `checkpoint` is as for `OffsetLog`. It takes at most a tenth of a processor.
    """

    def __init__(self, checkpoint: str, interval_s: float = 1.0) -> None:
        self._checkpoint = checkpoint
        self._interval_s = interval_s
        self._batches = CheckpointBatches(checkpoint)
        self._was_there = False
        self._history = History(_ROWS)
        self._added: list[MicroBatch] = []
        self._looked: tuple[list[MicroBatch], float] = [], 0.0
        self._begun = time.time_ns()
        self.looked_at_ms = 0
        """When the checkpoint was read last: milliseconds since the epoch."""
        self._count = 0
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checkpoint-watch", daemon=True)
        self._snapshot = self._note("")
        self.look()

    @property
    def latest(self) -> Snapshot:
        """The last state. From any thread."""
        return self._snapshot

    @property
    def is_closed(self) -> bool:
        """True if nothing is going to change any more."""
        return self._closed.is_set()

    def start(self) -> None:
        """Look again and again, in a thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop looking, and let go who waits. Safe to call twice."""
        self._closed.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    def wait(self, seen: str | None, timeout_s: float) -> Snapshot | None:
        """The next state after the version that was seen; None if there is none in time, or none comes any more."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_closed or self._snapshot.version != seen, timeout_s)
            return None if self.is_closed or self._snapshot.version == seen else self._snapshot

    def look(self) -> None:
        """Read what has changed; a new version if the page shows something else."""
        self.looked_at_ms = time.time_ns() // 1_000_000
        try:
            batches = self._batches.read()
            self._was_there = True
            if self._is_same(batches):
                return
            explained = explain_batches(batches)
            made = self._made(page_data(self._history_of(batches), explained, self._title), str(explained))
            self._looked = batches, time.monotonic()
        except Exception as error:
            if isinstance(error, CheckpointError) and not self._batches.is_there:
                self._history, self._added = History(_ROWS), []
                state = "is not there any more" if self._was_there else "is not there yet"
                made = self._note(f"The checkpoint {state}. This page follows as soon as a query writes it.")
            else:
                # Whatever is in the files: the page shows it, and the next look may find them whole.
                made = self._note(f"The checkpoint cannot be read: {error}")
        if _without_time(made.data) != _without_time(self._snapshot.data):
            with self._changed:
                self._snapshot = made
                self._changed.notify_all()
        else:
            self._count -= 1

    @property
    def _title(self) -> str:
        return f"Watermarks: {self._checkpoint}"

    def _note(self, text: str) -> Snapshot:
        return self._made({**page_data(History(), ExplainedQuery(()), self._title), "note": shown(text)}, shown(text))

    def _made(self, data: dict[str, Any], plain: str) -> Snapshot:
        self._count += 1
        version = f"{self._begun:x}-{self._count}"
        return Snapshot(version, {**data, "version": version}, plain)

    def _run(self) -> None:
        pause_s = self._interval_s
        while not self._closed.wait(pause_s):
            started = time.perf_counter()
            self.look()
            pause_s = max(self._interval_s, _SHARE * (time.perf_counter() - started))

    def _is_same(self, batches: list[MicroBatch]) -> bool:
        """Return whether nothing was written since the last look, and that was a moment ago."""
        known, at = self._looked
        is_same = len(batches) == len(known) and all(map(is_, batches, known))
        return is_same and time.monotonic() - at < _AGAIN_S and bool(self._snapshot.data["sources"])

    def _history_of(self, batches: list[MicroBatch]) -> History:
        """The history with what is new; another one if a micro-batch before the last is not what it was."""
        added = self._added
        known = set(map(id, added))
        new = [batch for batch in batches if id(batch) not in known]
        last = added[-1].number if added else -1
        is_next = not new or new[0].number >= last
        if not is_next or len(added) + len(new) > _BATCHES or (batches and batches[-1].number < last):
            self._history, self._added, new = History(_ROWS), [], batches
        for batch in new:
            self._history.add(batch)
        self._added = [*self._added, *new]
        return self._history


def _without_time(data: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name not in ("asOf", "version")}


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
            self._answer("text/html; charset=utf-8", drawn_page(snapshot.data, snapshot.plain, "events"))
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
                seen, data = snapshot.version, json.dumps(snapshot.data, separators=(",", ":"))
                self._write(f"id: {seen}\nevent: state\ndata: {data}\n\n")
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

"""The planner's end of a gateway: takes what readers send, each message once, and counts what it refuses."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import secrets
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any, Final, Protocol

from alignment.events import RangeReport
from streaming_source.api import SimpleVersionedSerializer, SourceEvent
from streaming_source.exceptions import OptionError
from streaming_source.gateway.messages import (
    MAX_MESSAGE_BYTES,
    GatewayAddress,
    MessageId,
    Refusal,
    RefusedError,
    decode,
    decode_reports,
    encode,
    event_from_json,
    event_to_json,
)

__all__ = ["GatewayListener", "GatewayServer", "RefusalCounts", "TakenMessages"]

_log = logging.getLogger(__name__)

_MAX_CONNECTIONS: Final = 1024
_MAX_HEAD_BYTES: Final = 8192
_MAX_BODIES: Final = 32
"""In memory at once: those of further connections wait."""
_BODY_WAIT_S: Final = 1.0
_REQUEST_S: Final = 10.0
"""From a message's first byte to the last one of its answer."""
_SILENT_S: Final = 10.0
"""From when on a connection may be cut off to make room for another one."""
_CHECK_S: Final = 0.5
_OK: Final = "200 OK"
_CLOSE_S: Final = 1.0
_LOG_EVERY_S: Final = 60.0
_HEAD: Final = re.compile(r"([A-Z]+) (\S+) HTTP/1\.1\r\n((?:[^\s:]+:[^\r\n]*\r\n)*)\r\n")
_HEADER: Final = re.compile(r"([^\s:]+):([^\r\n]*)")
_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\s*", re.DOTALL)


class GatewayListener(Protocol):
    """Takes what readers say. Called on threads of the gateway's, several at once: it is quick, and does not raise."""

    def on_reports(self, reports: Sequence[RangeReport]) -> None:
        """A reader has read ranges. The same ones may be reported again, by another attempt at the same task."""

    def on_event(self, subtask_id: int, event: SourceEvent) -> None:
        """A reader sends an event to the enumerator."""

    def take_events(self, subtask_id: int) -> list[SourceEvent]:
        """Hand out the events for a reader that were not handed out yet."""


class GatewayServer:
    """Listens for the tasks of one run of a query: one daemon thread, and one for each connection.

    Every message carries a token that only the tasks of this run have. Token and length are checked before the body is
    read, each message is taken once, and what does not fit is refused and counted; the query goes on whatever comes.

    Without a serializer of events these are unknown actions. It listens on this host and port alone; port 0 is any that
    is free. Certificate, with its chain, and key are PEM files for TLS; both or neither.
    """

    def __init__(
        self,
        listener: GatewayListener,
        event_serializer: SimpleVersionedSerializer[SourceEvent] | None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        certificate: Path | None = None,
        key: Path | None = None,
    ) -> None:
        self._listener = listener
        self._serializer: Any = event_serializer
        self._actions = ("reports",) if event_serializer is None else ("reports", "event", "take_events")
        self._where = (host, port)
        self._files = (certificate, key)
        self._query_id, self._token = secrets.token_hex(8), secrets.token_urlsafe(32)
        self._counts = RefusalCounts()
        self._taken = TakenMessages()
        self._bodies = threading.BoundedSemaphore(_MAX_BODIES)
        self._connections: list[_Connection] = []
        self._lock = threading.Lock()
        self._address: GatewayAddress | None = None
        self._listening: tuple[socket.socket, threading.Thread] | None = None
        self._closed = False
        self._pid = os.getpid()

    @property
    def refused(self) -> Mapping[Refusal, int]:
        """How many messages were refused, by reason; at any time, from any thread."""
        return self._counts.snapshot()

    def start(self) -> GatewayAddress:
        """Listen, if it does not yet. From any thread; an `OptionError` if it cannot, or the certificate is none."""
        with self._lock:
            if self._closed:
                raise RuntimeError("this gateway was closed: make another one")
            if self._address is None:
                tls, pem = _read_certificate(*self._files)
                listening = _listen(*self._where)
                port = listening.getsockname()[1]
                if tls is not None:  # the handshake is made on the connection's own thread
                    listening = tls.wrap_socket(listening, server_side=True, do_handshake_on_connect=False)
                self._address = GatewayAddress(self._where[0], port, self._query_id, self._token, pem)
                thread = threading.Thread(target=self._accept, args=(listening,), name="gateway", daemon=True)
                self._listening = (listening, thread)
                thread.start()
            return self._address

    def close(self) -> None:
        """Cut all connections off, and let no other in; again and again, and without effect in a forked process."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._closed = True
            listening, self._listening = self._listening, None
        if listening is None:
            return
        with contextlib.suppress(OSError):  # wakes the thread where the system does that
            listening[0].shutdown(socket.SHUT_RDWR)
        until = time.monotonic() + _CLOSE_S
        listening[1].join(_CLOSE_S)
        for connection in self._connections:
            connection.cut()
        for connection in self._connections:
            connection.join(max(until - time.monotonic(), 0.0))
        if any(connection.is_alive() for connection in self._connections):
            _log.warning("the gateway was closed while its listener is at work; that ends when the listener is done")

    # ---- on the thread that accepts ------------------------------------------------------------------------------

    def _accept(self, listening: socket.socket) -> None:
        listening.settimeout(_CHECK_S)
        while not self._closed:
            try:
                self._let_in(_Connection(listening.accept()[0], self._take, self._counts))
            except TimeoutError:
                pass
            except OSError:  # it has gone already; or no file is left for another one, for the moment
                time.sleep(_CHECK_S / 100)
            for known in self._connections:
                if known.is_alive() and known.deadline < time.monotonic():
                    known.cut(Refusal.SLOW)
        listening.close()

    def _let_in(self, new: _Connection) -> None:
        self._connections = [known for known in self._connections if known.is_alive()]
        if len(self._connections) >= _MAX_CONNECTIONS:
            quietest = min(self._connections, key=lambda known: known.began)
            is_silent = new.began - quietest.began >= _SILENT_S
            (quietest if is_silent else new).cut(Refusal.CROWDED)
        try:
            new.start()
            self._connections.append(new)
        except RuntimeError:  # the system has no thread for it
            new.cut(Refusal.CROWDED)
            new.socket.close()

    # ---- on the thread of a connection ---------------------------------------------------------------------------

    def _take(self, method: str, path: str, headers: Mapping[str, str], stream: BufferedReader) -> tuple[str, bytes]:
        if (token := headers.get("gateway-token")) is None:
            raise RefusedError(Refusal.NO_TOKEN)
        if headers.get("gateway-query") != self._query_id:
            raise RefusedError(Refusal.OTHER_QUERY)
        if not secrets.compare_digest(token.encode(), self._token.encode()):
            raise RefusedError(Refusal.WRONG_TOKEN)
        action, message = MessageId.parse(path)
        if method != "POST" or action not in self._actions:
            raise RefusedError(Refusal.UNKNOWN_ACTION)
        if not self._bodies.acquire(timeout=_BODY_WAIT_S):
            raise RefusedError(Refusal.CROWDED)
        try:
            deliver = self._delivery(action, message.subtask_id, _read_body(stream, headers))
        finally:
            self._bodies.release()
        self._taken.take(message)
        try:
            events = deliver() or ()
        except Exception as error:  # its text may quote the message
            _log.error("the gateway's listener failed: %s", type(error).__name__)
            return "500 failed", b""
        written = []
        for event in events:
            try:
                written.append(event_to_json(self._serializer, event))
            except Exception as error:  # the others are not to be lost with it
                _log.error("a %s for a reader is left out: %s", type(event).__name__, type(error).__name__)
        return _OK, encode(written)

    def _delivery(self, action: str, subtask_id: int, body: bytes) -> Callable[[], Sequence[SourceEvent] | None]:
        if action == "reports":
            return partial(self._listener.on_reports, decode_reports(body))
        if action == "event":
            event = event_from_json(self._serializer, decode(body, list))
            return partial(self._listener.on_event, subtask_id, event)
        if body:
            raise RefusedError(Refusal.MALFORMED)
        return partial(self._listener.take_events, subtask_id)


class _Connection(threading.Thread):
    """A connection and the thread that serves it, which waits without a limit: the end comes from `cut`.

    `began` is when its last message did; before there is one, when it was let in. That message has to be answered
    before `deadline`, which is infinite once it is: who has shown the token may be silent.
    """

    def __init__(self, connected: socket.socket, take: Callable[..., tuple[str, bytes]], counts: RefusalCounts) -> None:
        super().__init__(name="gateway-connection", daemon=True)
        connected.settimeout(None)
        self.socket = connected
        self._take = take
        self._counts = counts
        self._is_refused = False
        self.began = time.monotonic()
        self.deadline = self.began + _REQUEST_S

    def run(self) -> None:
        """Answer messages until one is refused, or the other end has gone."""
        with contextlib.suppress(OSError), self.socket, self.socket.makefile("rb") as stream:
            status = _OK
            while status == _OK and stream.peek(1):
                self.began = time.monotonic()
                self.deadline = self.began + _REQUEST_S
                try:
                    head = _read_head(stream)
                except RefusedError as error:  # not a message: not to be answered
                    return self._refuse(error.refusal)
                try:
                    status, body = self._take(*head, stream)
                except RefusedError as error:
                    self._refuse(error.refusal)
                    status, body = f"{error.refusal.status} {error.refusal.text}", b""
                kept = "keep-alive" if status == _OK else "close"
                fields = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: {kept}\r\n\r\n"
                self.socket.sendall(fields.encode() + body)
                if status == _OK:
                    self.deadline = math.inf
            # What still comes is let by unseen: if it were not, it would take the answer with it.
            socket.socket.shutdown(self.socket, socket.SHUT_WR)
            left = MAX_MESSAGE_BYTES
            while left > 0 and (passed := stream.read1(1 << 16)):
                left -= len(passed)

    def cut(self, refusal: Refusal | None = None) -> None:
        """End both ways at once, whoever reads or writes; for a reason that is counted. From any thread."""
        if refusal is not None:
            self._refuse(refusal)
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)

    def _refuse(self, refusal: Refusal) -> None:
        if not self._is_refused:  # what follows from the first reason is no further one
            self._is_refused = True
            self._counts.add(refusal)


def _read_head(stream: BufferedReader) -> tuple[str, str, dict[str, str]]:
    """Method, path, and headers by name in lower case; those of one name are one, as HTTP has it."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += (line := stream.readline(_MAX_HEAD_BYTES - len(head)))
        if not line.endswith(b"\n"):
            raise RefusedError(Refusal.OVERSIZED if len(head) == _MAX_HEAD_BYTES else Refusal.MALFORMED)
    if not (match := _HEAD.fullmatch(head.decode("latin-1"))):
        raise RefusedError(Refusal.MALFORMED)
    headers: dict[str, str] = {}
    for name, value in _HEADER.findall(match[3]):
        before = headers.get(name.lower())
        headers[name.lower()] = value.strip() if before is None else f"{before}, {value.strip()}"
    return match[1], match[2], headers


def _read_body(stream: BufferedReader, headers: Mapping[str, str]) -> bytes:
    length = headers.get("content-length", "")
    if {"transfer-encoding", "content-encoding"} & headers.keys() or not re.fullmatch("[0-9]+", length):
        raise RefusedError(Refusal.MALFORMED)
    if len(length) > len(str(MAX_MESSAGE_BYTES)) or int(length) > MAX_MESSAGE_BYTES:
        raise RefusedError(Refusal.OVERSIZED)
    if len(body := stream.read(int(length))) < int(length):
        raise RefusedError(Refusal.MALFORMED)
    return body


def _read_certificate(certificate: Path | None, key: Path | None) -> tuple[ssl.SSLContext | None, bytes | None]:
    if certificate is None and key is None:
        return None, None
    try:
        if certificate is None or key is None:
            raise FileNotFoundError("one of them is missing")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # A key behind a passphrase is an error: nobody is there who could type it.
        context.load_cert_chain(certificate, key, password="")
        # The key may stand in the same file, and must not travel to the tasks.
        return context, b"".join(_CERTIFICATE.findall(certificate.read_bytes()))
    except OSError as error:
        raise OptionError(
            f"certificate = {certificate}, key = {key}: TLS of the gateway needs both as PEM files, or neither: {error}"
        ) from error


def _listen(host: str, port: int) -> socket.socket:
    try:
        if not 0 <= port < 1 << 16:
            raise OSError("a port is 1 to 65535, or 0 for any that is free")
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise OptionError(
            f"gatewayHost = {host!r}, gatewayPort = {port}: the gateway cannot listen there: {error}; "
            "name an address of the driver's machine, and a port that is free, or 0 for any"
        ) from error
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # its connections have it as well
    return listening


class RefusalCounts:
    """Counts refusals by reason, and logs at most once a minute that there were some. From any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: Counter[Refusal] = Counter()
        self._logs_at = -math.inf

    def add(self, refusal: Refusal) -> None:
        with self._lock:
            self._counts[refusal] += 1
            if (now := self._clock()) < self._logs_at:
                return
            self._logs_at = now + _LOG_EVERY_S
            counts = ", ".join(f"{count} {reason.text}" for reason, count in self._counts.items())
        _log.warning("the gateway refused a message: %s; refused so far: %s", refusal.text, counts)

    def snapshot(self) -> dict[Refusal, int]:
        """How many there were of each; without those of which there were none."""
        with self._lock:
            return dict(self._counts)


class TakenMessages:
    """Takes every message once. From any thread; O(1) a message.

    A task sends one message after the other and numbers them upwards, so of each task the last number is enough. Only
    the tasks of the newest few micro-batches are remembered, and of them only so many: older ones make room, and their
    messages are refused as stale.
    """

    def __init__(self, kept_batches: int = 4, max_tasks: int = 65_536) -> None:
        self._kept_batches = kept_batches
        self._max_tasks = max_tasks
        self._lock = threading.Lock()
        # batch -> (subtask, attempt) -> number of its last message.
        self._last: dict[int, dict[tuple[int, int], int]] = {}
        self._oldest = 0

    def __len__(self) -> int:
        return sum(map(len, self._last.values()))

    def take(self, message: MessageId) -> None:
        """Take a message; refuse it if it, or a later one of its task attempt, was taken, or cannot be remembered."""
        batch, task = message.batch, (message.subtask_id, message.attempt)
        with self._lock:
            if batch < self._oldest:
                raise RefusedError(Refusal.STALE)
            tasks = self._last.setdefault(batch, {})
            if message.number <= tasks.get(task, -1):
                raise RefusedError(Refusal.REPLAYED)
            if task not in tasks:
                self._forget_before(max(self._last) - self._kept_batches + 1)
                while len(self) >= self._max_tasks:
                    if (oldest := min(self._last)) == batch:
                        raise RefusedError(Refusal.CROWDED)
                    self._forget_before(oldest + 1)
            tasks[task] = message.number

    def _forget_before(self, oldest: int) -> None:
        self._oldest = max(self._oldest, oldest)
        self._last = {batch: tasks for batch, tasks in self._last.items() if batch >= oldest}

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
from pathlib import Path
from typing import Any, Final, Protocol

from alignment.reports import RangeReport
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
from streaming_source.gateway.wire import Headers, Wire

__all__ = ["GatewayListener", "GatewayServer", "RefusalCounts", "TakenMessages"]

_log = logging.getLogger(__name__)

_MAX_CONNECTIONS: Final = 1024
_MAX_BODIES: Final = 32
"""In memory at once: those of further connections wait."""
_REQUEST_S: Final = 10.0
"""From a message's first byte to the last one of its answer."""
_SILENT_S: Final = 10.0
"""From when on a connection may be cut off to make room for another one."""
_BODY_WAIT_S: Final = 1.0
_CHECK_S: Final = 0.5
_CLOSE_S: Final = 1.0
_BACKLOG: Final = 128
_LOG_EVERY_S: Final = 60.0
_LAST_PORT: Final = 65_535
_FIRST_LINE: Final = re.compile(r"([A-Z]+) (\S+) HTTP/1\.1")


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

    Parameters
    ----------
    listener
        Who takes what arrives.
    event_serializer
        Of the source's events; None if it has none: events are then refused as unknown actions.
    host, port
        Where to listen, and nowhere else; port 0 takes any that is free.
    certificate, key
        PEM files for TLS, the certificate with its chain; both or neither.
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
        self._actions: dict[str, tuple[Callable[[bytes], Any], Callable[[int, Any], Sequence[SourceEvent] | None]]] = {
            "reports": (decode_reports, lambda _subtask_id, reports: listener.on_reports(reports))
        }
        if (serializer := event_serializer) is not None:
            self._serializer = serializer
            self._actions |= {
                "event": (lambda body: event_from_json(serializer, decode(body)), listener.on_event),
                "take_events": (_nothing, lambda subtask_id, _nothing: listener.take_events(subtask_id)),
            }
        self._where = (host, port)
        self._files = (certificate, key)
        self._query_id, self._token = secrets.token_hex(8), secrets.token_urlsafe(32)
        self._counts = RefusalCounts()
        self._taken = TakenMessages()
        self._bodies = threading.BoundedSemaphore(_MAX_BODIES)
        self._lock = threading.Lock()
        self._wires: dict[Wire, threading.Thread] = {}
        self._address: GatewayAddress | None = None
        self._accepting: tuple[socket.socket, threading.Thread] | None = None
        self._closed = False
        self._pid = os.getpid()

    @property
    def refused(self) -> Mapping[Refusal, int]:
        """How many messages were refused, by reason; at any time, from any thread."""
        return self._counts.snapshot()

    def start(self) -> GatewayAddress:
        """Listen, if it does not yet. From any thread.

        Raises
        ------
        OptionError
            If it cannot listen there, or a certificate cannot be read.
        RuntimeError
            If it was closed.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError("this gateway was closed: make another one")
            if self._address is None:
                tls, pem = _read_certificate(*self._files)
                listening = _listen(*self._where)
                port = listening.getsockname()[1]
                self._address = GatewayAddress(self._where[0], port, self._query_id, self._token, pem)
                thread = threading.Thread(target=self._accept, args=(listening, tls), name="gateway", daemon=True)
                self._accepting = (listening, thread)
                thread.start()
            return self._address

    def close(self) -> None:
        """Cut all connections off, and let no other in; again and again, and without effect in a forked process."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._closed = True
            accepting, self._accepting = self._accepting, None
            wires, threads = list(self._wires), list(self._wires.values())
        if accepting is not None:
            with contextlib.suppress(OSError):  # wakes the thread where the system does that
                accepting[0].shutdown(socket.SHUT_RDWR)
            threads.append(accepting[1])
        for wire in wires:
            wire.cut()
        until = time.monotonic() + _CLOSE_S
        for thread in threads:
            thread.join(max(until - time.monotonic(), 0.0))
        if accepting is not None:
            accepting[0].close()
        if any(thread.is_alive() for thread in threads):
            _log.warning("the gateway was closed while its listener is at work; that ends when the listener is done")

    # ---- on the thread that accepts ------------------------------------------------------------------------------

    def _accept(self, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        listening.settimeout(_CHECK_S)
        while not self._closed:
            connected = None
            try:
                connected, _ = listening.accept()
            except TimeoutError:
                pass
            except OSError:  # closed; or no file is left for another connection, for the moment
                time.sleep(_CHECK_S / 10)
            now = time.monotonic()
            for wire in [wire for wire in list(self._wires) if wire.deadline < now]:
                wire.cut()
            if connected is not None:
                try:
                    if tls is not None:  # the handshake is made on the connection's own thread
                        connected = tls.wrap_socket(connected, server_side=True, do_handshake_on_connect=False)
                    self._let_in(Wire(connected))
                except OSError:  # it has gone already
                    connected.close()

    def _let_in(self, wire: Wire) -> None:
        wire.deadline = wire.heard_at + _REQUEST_S
        with self._lock:
            if len(self._wires) >= _MAX_CONNECTIONS:
                self._counts.add(Refusal.CROWDED)
                quietest = min(self._wires, key=lambda known: known.heard_at)
                if wire.heard_at - quietest.heard_at < _SILENT_S:
                    wire.socket.close()
                    return
                del self._wires[quietest]
                quietest.cut()
            thread = threading.Thread(target=self._serve, args=(wire,), name="gateway-connection", daemon=True)
            if self._closed:
                wire.socket.close()
                return
            try:
                thread.start()
            except RuntimeError:  # the system has no thread for it
                self._counts.add(Refusal.CROWDED)
                wire.socket.close()
                return
            # Its end waits for this lock.
            self._wires[wire] = thread

    # ---- on the thread of a connection ---------------------------------------------------------------------------

    def _serve(self, wire: Wire) -> None:
        try:
            wire.shake_hands()
            while wire.await_more():
                wire.deadline = time.monotonic() + _REQUEST_S
                if not self._answer(wire):
                    return
                # Who has shown the token may be silent between micro-batches.
                wire.deadline = math.inf
        except RefusedError as error:
            self._counts.add(error.refusal)
        except TimeoutError:
            self._counts.add(Refusal.SLOW)
        except OSError:
            pass  # the other end has gone, or was cut off
        finally:
            with self._lock:
                self._wires.pop(wire, None)
            wire.socket.close()

    def _answer(self, wire: Wire) -> bool:
        first, headers = wire.read_head()
        if not (request := _FIRST_LINE.fullmatch(first)):
            raise RefusedError(Refusal.MALFORMED)
        try:
            wire.send("HTTP/1.1 200 OK", self._take(request[1], request[2], headers, wire))
            return True
        except RefusedError as error:
            self._counts.add(error.refusal)
            status = f"{error.refusal.status} {error.refusal.text}"
        except _ListenerError:
            status = "500 failed"
        wire.send(f"HTTP/1.1 {status}", b"", Connection="close")
        with contextlib.suppress(OSError):
            wire.end(MAX_MESSAGE_BYTES)
        return False

    def _take(self, method: str, path: str, headers: Headers, wire: Wire) -> bytes:
        self._check_token(headers)
        action, message = MessageId.parse(path)
        if method != "POST" or action not in self._actions:
            raise RefusedError(Refusal.UNKNOWN_ACTION)
        read, deliver = self._actions[action]
        if not self._bodies.acquire(timeout=_BODY_WAIT_S):
            raise RefusedError(Refusal.CROWDED)
        try:
            value = read(wire.read_body(headers, MAX_MESSAGE_BYTES))
        finally:
            self._bodies.release()
        self._taken.take(message)
        try:
            events = deliver(message.subtask_id, value) or ()
        except Exception as error:  # its text may quote the message
            _log.error("the gateway's listener failed: %s", type(error).__name__)
            raise _ListenerError from None
        return encode([written for event in events if (written := self._written(event)) is not None])

    def _written(self, event: SourceEvent) -> list[Any] | None:
        try:
            return event_to_json(self._serializer, event)
        except Exception as error:  # the others are not to be lost with it
            _log.error("a %s for a reader is left out: %s", type(event).__name__, type(error).__name__)
            return None

    def _check_token(self, headers: Headers) -> None:
        tokens = headers.get("gateway-token", [])
        if not tokens:
            raise RefusedError(Refusal.NO_TOKEN)
        is_right = len(tokens) == 1 and secrets.compare_digest(tokens[0].encode(), self._token.encode())
        if headers.get("gateway-query") != [self._query_id]:
            raise RefusedError(Refusal.OTHER_QUERY)
        if not is_right:
            raise RefusedError(Refusal.WRONG_TOKEN)


class _ListenerError(Exception):
    """The listener failed, after the message was taken."""


def _nothing(body: bytes) -> None:
    if body:
        raise RefusedError(Refusal.MALFORMED)


def _read_certificate(certificate: Path | None, key: Path | None) -> tuple[ssl.SSLContext | None, bytes | None]:
    if certificate is None and key is None:
        return None, None
    if certificate is None or key is None:
        raise OptionError(
            f"certificate = {certificate}, key = {key}: TLS of the gateway needs both, as PEM files; or neither"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # A key behind a passphrase is an error: nobody is there who could type it.
        context.load_cert_chain(certificate, key, password="")
        return context, certificate.read_bytes()
    except (OSError, ssl.SSLError) as error:
        raise OptionError(
            f"certificate = {certificate}, key = {key}: the gateway cannot read these PEM files: {error}"
        ) from error


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= _LAST_PORT:
        raise OptionError(f"gatewayPort = {port}: a port is 1 to {_LAST_PORT}, or 0 for any that is free")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise OptionError(
            f"gatewayHost = {host!r}, gatewayPort = {port}: the gateway cannot listen there: {error}; "
            "name an address of the driver's machine, and a port that is free, or 0 for any"
        ) from error


class RefusalCounts:
    """Counts refusals by reason, and logs at most once a minute that there were some. From any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: Counter[Refusal] = Counter()
        self._logs_at = -math.inf

    def add(self, refusal: Refusal) -> None:
        """Count one."""
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
        """Task attempts remembered."""
        return sum(map(len, self._last.values()))

    def take(self, message: MessageId) -> None:
        """Take a message; refuse it if it, or a later one of its task attempt, was taken, or cannot be remembered."""
        task = (message.subtask_id, message.attempt)
        with self._lock:
            if message.batch < self._oldest:
                raise RefusedError(Refusal.STALE)
            last = self._last.get(message.batch, {}).get(task)
            if last is None:
                self._make_room(message.batch)
            elif message.number <= last:
                raise RefusedError(Refusal.REPLAYED)
            self._last.setdefault(message.batch, {})[task] = message.number

    def _make_room(self, batch: int) -> None:
        self._forget_before(max([batch, *self._last]) - self._kept_batches + 1)
        while len(self) >= self._max_tasks:
            oldest = min(self._last)
            if oldest >= batch:
                raise RefusedError(Refusal.CROWDED)
            self._forget_before(oldest + 1)

    def _forget_before(self, batch: int) -> None:
        self._oldest = max(self._oldest, batch)
        self._last = {known: tasks for known, tasks in self._last.items() if known >= self._oldest}

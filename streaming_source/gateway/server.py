"""The planner's end of a gateway: it accepts each message of readers once, and counts refused ones."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import secrets
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, cast

from alignment.events import RangeReport
from alignment.shown import log_of
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

_log = log_of(__name__)

_MAX_CONNECTIONS: Final = 1024
_SHARE: Final = 4
"""Connections take at most one of so many descriptors that the process may open."""
_MAX_HEAD_BYTES: Final = 8192
_MAX_BODIES: Final = 32
"""Bodies in memory at once; further connections wait."""
_BODY_WAIT_S: Final = 1.0
_TOKEN_S: Final = 2.0
"""Time limit from the opening of a connection to the token."""
_REQUEST_S: Final = 10.0
"""Time limit from a message's first byte to the last byte of the answer."""
_SILENT_S: Final = 10.0
"""Age after which a connection that has shown the token may be closed to make room for another one."""
_NO_FILE_S: Final = 0.1
_CLOSE_S: Final = 1.0
_LOG_EVERY_S: Final = 60.0
_HEAD: Final = re.compile(r"([A-Z]+) (\S+) HTTP/1\.1\r\n((?:[^\s:]+:[^\r\n]*\r\n)*)\r\n")
_HEADER: Final = re.compile(r"([^\s:]+):([^\r\n]*)")
_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\s*", re.DOTALL)


class GatewayListener(Protocol):
    """Receives readers' messages, on several threads of the gateway at once. Methods must be quick and not raise."""

    def on_reports(self, reports: Sequence[RangeReport]) -> None:
        """Receive reports of ranges that a reader has read; another attempt at the task may report them again."""

    def on_event(self, subtask_id: int, event: SourceEvent) -> None:
        """Receive an event of a reader for the enumerator."""

    def take_events(self, subtask_id: int) -> list[SourceEvent]:
        """Return the enumerator's events for a reader that were not returned before."""


class GatewayServer:
    """Serves the tasks of one run of a query, on a thread of its own; the listener is called on other threads.

    Every message carries a token that only the tasks of this run have. Token and length are checked before the body is
    read, each message is accepted once, and invalid messages are refused and counted; no message stops the query. A
    connection has 2 seconds to show the token; where there is no room for another one, the oldest that has not shown it
    is closed.

    Without a serializer of events, requests with events are refused as unknown. It listens on this host and port alone;
    port 0 takes any free port. Certificate, with its chain, and key are PEM files for TLS; give both or neither.
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
        self._refused: Counter[Refusal] = Counter()
        self._logs_at = 0.0
        self._taken = TakenMessages()
        self._bodies = asyncio.Semaphore(_MAX_BODIES)
        # For each connection, when its last message began; before the first message, when it was accepted.
        self._connections: dict[asyncio.Task[None], float] = {}
        self._with_token: set[asyncio.Task[None]] = set()
        self._lock = threading.Lock()
        self._address: GatewayAddress | None = None
        self._running: tuple[asyncio.Task[None], threading.Thread] | None = None
        self._closed = False
        self._pid = os.getpid()

    @property
    def refused(self) -> Mapping[Refusal, int]:
        """Return how many messages were refused, by reason; may be called at any time, from any thread."""
        return dict(self._refused)

    def start(self) -> GatewayAddress:
        """Start listening, unless it listens already; raises an `OptionError` if host, port or certificate fail."""
        with self._lock:
            if self._closed:
                raise RuntimeError("this gateway was closed: make another one")
            if self._address is None:
                tls, pem = _read_certificate(*self._files)
                listening = _listen(*self._where)
                port = listening.getsockname()[1]
                self._address = GatewayAddress(self._where[0], port, self._query_id, self._token, pem)
                accepting = asyncio.new_event_loop().create_task(self._accept(listening, tls))
                thread = threading.Thread(target=_run, args=(accepting,), name="gateway", daemon=True)
                self._running = (accepting, thread)
                thread.start()
            return self._address

    def close(self) -> None:
        """Close all connections and accept no other; may be repeated, and has no effect in a forked process."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._closed = True
            running, self._running = self._running, None
        if running is None:
            return
        accepting, thread = running
        accepting.get_loop().call_soon_threadsafe(accepting.cancel)
        thread.join(_CLOSE_S)
        if thread.is_alive():
            _log.warning("the gateway was closed while its listener is at work; that ends when the listener is done")

    # ---- on the gateway's own thread -----------------------------------------------------------------------------

    async def _accept(self, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        # A thread for each connection: the listener may wait for the planner, and must not delay other connections.
        loop.set_default_executor(ThreadPoolExecutor(_MAX_CONNECTIONS, "gateway-listener"))
        with listening:
            while True:
                try:
                    connected, _ = await loop.sock_accept(listening)
                except OSError:  # the peer has closed it already, or the process has no free file descriptor
                    await asyncio.sleep(_NO_FILE_S)
                    continue
                if len(self._connections) >= min(_MAX_CONNECTIONS, _descriptors() // _SHARE):
                    self._refuse(Refusal.CROWDED)
                    quietest = min(self._connections, key=lambda one: (one in self._with_token, self._connections[one]))
                    if quietest in self._with_token and loop.time() - self._connections[quietest] < _SILENT_S:
                        connected.close()
                        continue
                    quietest.cancel()
                    del self._connections[quietest]
                connection = loop.create_task(self._serve(connected, tls))
                self._connections[connection] = loop.time()
                connection.add_done_callback(self._forget)
                # It begins before another one may end it: what never began would close nothing.
                await asyncio.sleep(0)

    def _forget(self, ended: asyncio.Task[None]) -> None:
        self._connections.pop(ended, None)
        self._with_token.discard(ended)

    async def _serve(self, connected: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Answer the messages of a connection until one is refused, or the peer closes it."""
        loop, this = asyncio.get_running_loop(), cast("asyncio.Task[None]", asyncio.current_task())
        reader = asyncio.StreamReader(_MAX_HEAD_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, refusal = None, None
        try:
            async with asyncio.timeout(min(_TOKEN_S, _REQUEST_S)) as deadline:
                transport, _ = await loop.connect_accepted_socket(lambda: protocol, connected, ssl=tls)
                writer = asyncio.StreamWriter(transport, protocol, reader, loop)
                while refusal is None and (first := await reader.read(1)):
                    self._connections[this] = loop.time()
                    if this in self._with_token:
                        deadline.reschedule(loop.time() + _REQUEST_S)
                    head = _parse(first + await reader.readuntil(b"\r\n\r\n"))
                    try:
                        method, path, headers = head
                        self._check_token(headers)
                        self._with_token.add(this)
                        deadline.reschedule(self._connections[this] + _REQUEST_S)
                        status, body = "200 OK", await self._take(method, path, headers, reader)
                    except RefusedError as error:
                        refusal = error.refusal
                        self._refuse(refusal)
                        status, body = f"{refusal.status} {refusal.text}", b""
                    kept = "keep-alive" if refusal is None else "close"
                    fields = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: {kept}\r\n\r\n"
                    writer.write(fields.encode() + body)
                    await writer.drain()
                    if refusal is None:  # a peer that has sent the token may stay silent
                        deadline.reschedule(None)
                # Further bytes are read and dropped: closing with unread bytes could discard the answer.
                left = MAX_MESSAGE_BYTES
                while left > 0 and (passed := await reader.read(1 << 16)):
                    left -= len(passed)
        except RefusedError as error:  # no message, so it gets no answer
            self._refuse(error.refusal)
        except asyncio.LimitOverrunError:
            self._refuse(Refusal.OVERSIZED)
        except asyncio.IncompleteReadError:
            self._refuse(Refusal.MALFORMED)
        except TimeoutError:
            if refusal is None:  # a timeout after a refusal is not counted again
                self._refuse(Refusal.SLOW)
        except OSError:  # the peer has closed the connection
            pass
        finally:
            if transport is None:
                connected.close()
            else:
                transport.abort()

    def _check_token(self, headers: Mapping[str, str]) -> None:
        if (token := headers.get("gateway-token")) is None:
            raise RefusedError(Refusal.NO_TOKEN)
        if headers.get("gateway-query") != self._query_id:
            raise RefusedError(Refusal.OTHER_QUERY)
        if not secrets.compare_digest(token.encode(), self._token.encode()):
            raise RefusedError(Refusal.WRONG_TOKEN)

    async def _take(self, method: str, path: str, headers: Mapping[str, str], reader: asyncio.StreamReader) -> bytes:
        action, message = MessageId.parse(path)
        if method != "POST" or action not in self._actions:
            raise RefusedError(Refusal.UNKNOWN_ACTION)
        length = _length(headers)
        try:
            async with asyncio.timeout(_BODY_WAIT_S):
                await self._bodies.acquire()
        except TimeoutError:
            raise RefusedError(Refusal.CROWDED) from None
        run = partial(asyncio.get_running_loop().run_in_executor, None)
        try:
            deliver = await run(self._delivery, action, message.subtask_id, await reader.readexactly(length))
        finally:
            self._bodies.release()
        return await run(self._deliver, message, deliver)

    def _refuse(self, refusal: Refusal) -> None:
        self._refused[refusal] += 1
        if (now := time.monotonic()) >= self._logs_at:
            self._logs_at = now + _LOG_EVERY_S
            counts = ", ".join(f"{count} {reason.text}" for reason, count in self._refused.items())
            _log.warning("the gateway refused a message: %s; refused so far: %s", refusal.text, counts)

    # ---- on threads for the listener -----------------------------------------------------------------------------

    def _delivery(self, action: str, subtask_id: int, body: bytes) -> Callable[[], Sequence[SourceEvent] | None]:
        if action == "reports":
            return partial(self._listener.on_reports, decode_reports(body))
        if action == "event":
            event = event_from_json(self._serializer, decode(body, list))
            return partial(self._listener.on_event, subtask_id, event)
        if body:
            raise RefusedError(Refusal.MALFORMED)
        return partial(self._listener.take_events, subtask_id)

    def _deliver(self, message: MessageId, deliver: Callable[[], Sequence[SourceEvent] | None]) -> bytes:
        self._taken.take(message)
        try:
            events = deliver() or ()
        except Exception as error:  # its text may quote the message
            _log.error("the gateway's listener failed: %s", type(error).__name__)
            raise RefusedError(Refusal.FAILED) from None
        written = []
        for event in events:
            try:
                written.append(event_to_json(self._serializer, event))
            except Exception as error:  # one event that fails must not lose the others
                _log.error("a %s for a reader is left out: %s", type(event).__name__, type(error).__name__)
        return encode(written)


def _descriptors() -> int:
    """Return how many files and connections this process may have open."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _SHARE * _MAX_CONNECTIONS if most == resource.RLIM_INFINITY else most


def _run(accepting: asyncio.Task[None]) -> None:
    # The runner cancels the remaining connections as it ends.
    with asyncio.Runner(loop_factory=accepting.get_loop) as runner, suppress(asyncio.CancelledError):
        runner.get_loop().run_until_complete(accepting)


def _parse(head: bytes) -> tuple[str, str, dict[str, str]]:
    """Return method, path, and headers by lower-case name; headers of equal names are joined, as in HTTP."""
    if not (match := _HEAD.fullmatch(head.decode("latin-1"))):
        raise RefusedError(Refusal.MALFORMED)
    headers: dict[str, str] = {}
    for name, value in _HEADER.findall(match[3]):
        before = headers.get(name.lower())
        headers[name.lower()] = value.strip() if before is None else f"{before}, {value.strip()}"
    return match[1], match[2], headers


def _length(headers: Mapping[str, str]) -> int:
    length = headers.get("content-length", "")
    if {"transfer-encoding", "content-encoding"} & headers.keys() or not re.fullmatch("[0-9]+", length):
        raise RefusedError(Refusal.MALFORMED)
    if len(length) > len(str(MAX_MESSAGE_BYTES)) or int(length) > MAX_MESSAGE_BYTES:
        raise RefusedError(Refusal.OVERSIZED)
    return int(length)


def _read_certificate(certificate: Path | None, key: Path | None) -> tuple[ssl.SSLContext | None, bytes | None]:
    if certificate is None and key is None:
        return None, None
    try:
        if certificate is None or key is None:
            raise FileNotFoundError("one of them is missing")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # A key with a passphrase is an error: no user could type it.
        context.load_cert_chain(certificate, key, password="")
        # The file may also contain the key, which must not be sent to the tasks.
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
            "name an address of the driver's machine, and a port that is free, or 0 for any; where none may be opened, "
            "leave indexing at auto, and readers without events"
        ) from error
    listening.setblocking(False)
    return listening


class TakenMessages:
    """Accepts every message once. From any thread; O(1) a message.

    A task sends messages one after the other with increasing numbers, so the last number of each task is enough. Only
    the tasks of the newest `kept_batches` micro-batches are kept, and at most `max_tasks`: the oldest are dropped, and
    their messages are refused as stale.
    """

    def __init__(self, kept_batches: int = 4, max_tasks: int = 65_536) -> None:
        self._kept_batches = kept_batches
        self._max_tasks = max_tasks
        self._lock = threading.Lock()
        # (batch, subtask, attempt) -> number of its last message.
        self._last: dict[tuple[int, ...], int] = {}
        self._oldest = 0

    def __len__(self) -> int:
        return len(self._last)

    def take(self, message: MessageId) -> None:
        """Accept a message; refuse it if stale, without room, or not newer than the last one of its task attempt."""
        *key, number = message
        batch, task = message.batch, tuple(key)
        with self._lock:
            if batch < self._oldest:
                raise RefusedError(Refusal.STALE)
            if number <= self._last.get(task, -1):
                raise RefusedError(Refusal.REPLAYED)
            if task not in self._last:
                self._forget_before(batch - self._kept_batches + 1)
                if len(self._last) >= self._max_tasks:
                    self._forget_before(batch)
                if len(self._last) >= self._max_tasks:
                    raise RefusedError(Refusal.CROWDED)
            self._last[task] = number

    def _forget_before(self, oldest: int) -> None:
        if oldest > self._oldest:
            self._oldest = oldest
            self._last = {task: number for task, number in self._last.items() if task[0] >= oldest}

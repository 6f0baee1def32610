"""The tasks' end of a gateway. What cannot be delivered is no error, and costs no task more than a few seconds."""

from __future__ import annotations

import logging
import math
import os
import re
import socket
import ssl
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

from alignment.events import RangeReport
from streaming_source.api import SimpleVersionedSerializer, SourceEvent
from streaming_source.exceptions import UnsupportedOperationError
from streaming_source.gateway.messages import (
    MAX_MESSAGE_BYTES,
    GatewayAddress,
    MessageId,
    Refusal,
    RefusedError,
    decode,
    encode,
    encode_reports,
    event_from_json,
    event_to_json,
)

__all__ = ["CircuitBreaker", "GatewayClient", "TaskMessages"]

_log = logging.getLogger(__name__)

_CALL_S: Final = 2.5
_PAUSE_S: Final = 0.05
_TASK_S: Final = 5.0
_QUICK_S: Final = 0.05
"""A call that takes no longer is not counted: a task may ask for events as long as it reads."""
_FIRST_WAIT_S: Final = 2.0
_LAST_WAIT_S: Final = 64.0
_MAX_REPORTS: Final = 500
_MAX_ANSWER_BYTES: Final = 32 << 20
_MAX_CLIENTS: Final = 16
_OK: Final = 200
_ANSWER: Final = re.compile(
    rb"HTTP/1\.1 (\d{3}) ([ -~]{1,99})\r\nContent-Length: (\d{1,8})\r\n(?:Connection: [a-z-]+\r\n)?\r\n"
)
_DOWN: Final = {0, Refusal.NO_TOKEN.status, Refusal.WRONG_TOKEN.status, Refusal.OTHER_QUERY.status}
"""No answer; or it is the gateway of another run of the query, and will not let this task in later either."""


class GatewayClient:
    """Speaks to one gateway, for all tasks that run in this process; after a fork each process has its own connections.

    `of` gives the process's own, so that a connection outlives a micro-batch. A task spends at most 5 seconds in all on
    a gateway that is slow, a call at most 2.5. After a failure nobody tries for 2 seconds, then for 4, and so on up to
    64; one that nobody listens at costs next to nothing. Clock (monotonic seconds), sleep and connect are for tests.

    Examples
    --------
    >>> from alignment.events import RangeReport
    >>> address = GatewayAddress("127.0.0.1", 1, "0123456789abcdef", token="nobody listens at port 1")
    >>> messages = GatewayClient(address).for_task(batch=7, subtask_id=0, attempt=0)
    >>> messages.send_reports([RangeReport("orders", start=0, stop=10)])
    False
    """

    def __init__(
        self,
        address: GatewayAddress,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        connect: Callable[[GatewayAddress], Any] | None = None,
    ) -> None:
        self.address = address
        self.clock = clock
        self._connect = connect or _Connection
        self._sleep = sleep
        self._breaker = CircuitBreaker(clock)
        # Free ones: whoever calls takes one out, and two at once have two. No lock: see `CircuitBreaker`.
        self._connections: list[Any] = []
        self._has_warned = False
        weakref.finalize(self, _close_all, self._connections)

    @staticmethod
    @lru_cache(_MAX_CLIENTS)
    def of(address: GatewayAddress) -> GatewayClient:
        return GatewayClient(address)

    def for_task(
        self,
        batch: int,
        subtask_id: int,
        attempt: int,
        event_serializer: SimpleVersionedSerializer[SourceEvent] | None = None,
    ) -> TaskMessages:
        """What one attempt at a task sends; two attempts of one number are taken for one."""
        return TaskMessages(self, MessageId(batch, subtask_id, attempt), event_serializer)

    def close(self) -> None:
        _close_all(self._connections)

    def call(self, path: str, body: bytes, within_s: float, tries: int) -> bytes | None:
        """Send a message, at most so often within so many seconds, and give the answer; None if it did not arrive."""
        if not self._breaker.allows():
            return None
        until = self.clock() + within_s
        tries = 1 if self._breaker.is_tripped else tries
        for left in reversed(range(tries)):
            try:
                status, reason, answer = self._exchange(path, body, max(min(_CALL_S, until - self.clock()), 0.0))
                break
            except OSError as error:
                status, reason, answer = 0, f"{type(error).__name__}: it is out of reach, or slow", b""
                if not left or until - self.clock() <= 2 * _PAUSE_S:
                    break
                self._sleep(_PAUSE_S)
        self._breaker.failed() if status in _DOWN else self._breaker.succeeded()
        if status == _OK:
            return answer
        if status == Refusal.REPLAYED.status and left < tries - 1:
            # The first try did arrive, and its answer did not.
            return b""
        if not self._has_warned:
            self._has_warned = True
            text = "the gateway at %s:%d cannot be told what is read: %s; the query goes on, its watermark may wait"
            why = f"it refused a message: {reason}" if status else reason
            _log.warning(text, self.address.host, self.address.port, why)
        return None

    def _exchange(self, path: str, body: bytes, within_s: float) -> tuple[int, str, bytes]:
        connection, status = self._free(), 0
        try:
            status, reason, answer = connection.exchange(path, body, within_s)
        finally:
            # The gateway ends a connection after a refusal.
            self._connections.append(connection) if status == _OK else connection.close()
        return status, reason, answer

    def _free(self) -> Any:
        with suppress(IndexError):  # also if another thread is faster
            while True:
                connection = self._connections.pop()
                if connection.is_usable():
                    return connection
                connection.close()
        return self._connect(self.address)


def _close_all(connections: list[Any]) -> None:
    while connections:
        connections.pop().close()


class _Connection:
    """To a gateway, made with the first message and kept open; for one thread at a time of the process that made it."""

    def __init__(self, address: GatewayAddress) -> None:
        self._address = address
        self._socket: socket.socket | None = None
        self._fields = f"Host: gateway\r\nGateway-Token: {address.token}\r\nGateway-Query: {address.query_id}\r\n"
        self._pid = os.getpid()

    def is_usable(self) -> bool:
        """Whether it is this process's own, and nothing has come that was not awaited, as its end."""
        if self._pid != os.getpid() or self._socket is None:
            return False
        self._socket.settimeout(0)
        try:
            socket.socket.recv(self._socket, 1, socket.MSG_PEEK)
        except OSError as error:
            return isinstance(error, BlockingIOError)
        return False

    def exchange(self, path: str, body: bytes, within_s: float) -> tuple[int, str, bytes]:
        until = time.monotonic() + within_s
        connected = self._socket or self._connect(until)
        head = f"POST {path} HTTP/1.1\r\n{self._fields}Content-Length: {len(body)}\r\n\r\n"
        connected.settimeout(_left_s(until))
        connected.sendall(head.encode() + body)
        answer = bytearray()
        while not (match := _ANSWER.match(answer)) or len(answer) < match.end() + int(match[3]):
            connected.settimeout(_left_s(until))
            received = connected.recv(1 << 16)
            if not received or len(answer) > _MAX_ANSWER_BYTES:
                raise ConnectionError("this is no answer of a gateway's")
            answer += received
        return int(match[1]), match[2].decode(), bytes(answer[match.end() :])

    def close(self) -> None:
        """Let go of it; another process that has it as well keeps its own end."""
        if self._socket is not None:
            self._socket.close()

    def _connect(self, until: float) -> socket.socket:
        where = self._address
        self._socket = socket.create_connection((where.host, where.port), timeout=_left_s(until))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if where.certificate is not None:
            self._socket.settimeout(_left_s(until))
            self._socket = _trusting(where.certificate).wrap_socket(self._socket, server_hostname=where.host)
        return self._socket


def _left_s(until: float) -> float:
    if (left_s := until - time.monotonic()) <= 0:
        raise TimeoutError
    return left_s


@lru_cache(_MAX_CLIENTS)
def _trusting(certificate: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=certificate.decode())
    # The gateway's own certificate is enough, whoever has signed it.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


class CircuitBreaker:
    """Lets nobody try for a while after a failure: 2 seconds, then twice as long each time, up to 64.

    When the wait is over one caller may try; the others wait on until it says how that went. There is no lock: a forked
    process could find it taken for ever. At worst two threads try at once.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._wait_s = 0.0
        self._closed_until = -math.inf

    @property
    def is_tripped(self) -> bool:
        return self._wait_s > 0

    def allows(self) -> bool:
        """Whether the caller may try; if so it says afterwards how that went."""
        if self.is_tripped and self._clock() < self._closed_until:
            return False
        # Whoever comes while this one tries.
        self._closed_until = self._clock() + self._wait_s
        return True

    def succeeded(self) -> None:
        """It worked: everybody may try."""
        self._wait_s = 0.0

    def failed(self) -> None:
        """It did not work, after all tries that the caller had."""
        self._wait_s = min(max(2 * self._wait_s, _FIRST_WAIT_S), _LAST_WAIT_S)
        self._closed_until = self._clock() + self._wait_s


class TaskMessages:
    """What one attempt at a task sends to its gateway, from a first message on; on the task's thread."""

    def __init__(
        self, client: GatewayClient, message: MessageId, event_serializer: SimpleVersionedSerializer[SourceEvent] | None
    ) -> None:
        self._client = client
        self._next = message
        self._serializer = event_serializer
        self._left_s = _TASK_S

    def send_reports(self, reports: Sequence[RangeReport]) -> bool:
        """Report what was read; whether all of it arrived. Many reports go in several messages."""
        count = len(reports)
        if count > _MAX_REPORTS or (len(body := encode_reports(reports)) > MAX_MESSAGE_BYTES and count > 1):
            middle = count // 2
            return self.send_reports(reports[:middle]) and self.send_reports(reports[middle:])
        return not reports or self._send("reports", body) is not None

    def send_event(self, event: SourceEvent) -> bool:
        """Send an event to the enumerator, at most once; whether it arrived. As in Flink a lost one is no error."""
        return self._send("event", encode(event_to_json(self._events_as_bytes, event))) is not None

    def take_events(self) -> list[SourceEvent]:
        """Events from the enumerator that this reader was not given yet; a lost answer is lost."""
        serializer, events, written = self._events_as_bytes, [], []
        with suppress(RefusedError):  # who answers need not be a gateway
            written = decode(self._send("take_events", b"", tries=1) or b"[]", list)
        for event in written:
            try:
                events.append(event_from_json(serializer, event))
            except RefusedError:
                _log.error("an event from the enumerator is left out: %s cannot read it", type(serializer).__name__)
        return events

    @property
    def _events_as_bytes(self) -> SimpleVersionedSerializer[SourceEvent]:
        if self._serializer is None:
            raise UnsupportedOperationError(
                "this source has no serializer for source events: override Source.source_event_serializer"
            )
        return self._serializer

    def _send(self, action: str, body: bytes, tries: int = 2) -> bytes | None:
        message = self._next
        self._next = message._replace(number=message.number + 1)
        if len(body) > MAX_MESSAGE_BYTES:
            _log.error("a message of %d bytes is not sent: the gateway refuses such", len(body))
            return None
        if self._left_s <= 0:
            return None
        began = self._client.clock()
        answer = self._client.call(message.path(action), body, self._left_s, tries)
        took_s = self._client.clock() - began
        self._left_s -= took_s if took_s > _QUICK_S else 0.0
        return answer

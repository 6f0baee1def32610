"""The tasks' end of a gateway. An undelivered message is no error, and costs a task a few seconds at most."""

from __future__ import annotations

import math
import os
import re
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

from alignment.events import RangeReport
from alignment.shown import log_of
from streaming_source.api import SimpleVersionedSerializer, SourceEvent
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

_log = log_of(__name__)

_CALL_S: Final = 2.5
_TASK_S: Final = 5.0
_QUICK_S: Final = 0.05
"""A quicker call does not count against `_TASK_S`: a task may poll for events as long as it reads."""
_FIRST_WAIT_S: Final = 2.0
_LAST_WAIT_S: Final = 64.0
_MAX_REPORTS: Final = 500
_MAX_ANSWER_BYTES: Final = 32 << 20
_MAX_CLIENTS: Final = 16
_OK: Final = 200
_ANSWER: Final = re.compile(
    rb"HTTP/1\.1 (\d{3}) ([ -~]{1,99})\r\nContent-Length: (\d{1,8})\r\n(?:Connection: [a-z-]+\r\n)?\r\n"
)
_DOWN: Final = (0, Refusal.OTHER_QUERY.status)
"""Statuses after which retries wait: no answer, or the gateway of another run, which never accepts this task."""


class GatewayClient:
    """Sends the messages of all tasks in this process to one gateway; forked processes have connections of their own.

    `of` returns the process's client for an address, so that connections outlive a micro-batch. A task spends at most
    5 seconds in all on a slow gateway, a call at most 2.5. After a failure no task tries for 2 seconds, then for 4, and
    so on up to 64; after each delay one task tries, and the others wait for its result. A gateway without a listener
    costs almost no time. The clock, in monotonic seconds, is for tests.

    Examples
    --------
    >>> from alignment.events import RangeReport
    >>> address = GatewayAddress("127.0.0.1", 1, "0123456789abcdef", token="nobody listens at port 1")
    >>> messages = GatewayClient(address).for_task(batch=7, subtask_id=0, attempt=0)
    >>> messages.send_reports([RangeReport("orders", start=0, stop=10)])
    False
    """

    def __init__(self, address: GatewayAddress, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.address = address
        self.clock = clock
        self._wait_s = 0.0
        self._closed_until = -math.inf
        # Free connections; a call takes one out. No locks: a forked process could inherit one that is held for ever.
        self._connections: list[socket.socket] = []
        self._pid = os.getpid()
        self._has_warned = False

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
        """Return the messages of one task attempt; attempts with equal numbers count as one."""
        return TaskMessages(self, MessageId(batch, subtask_id, attempt), event_serializer)

    def close(self) -> None:
        """Close all connections of this process; a forked process keeps its copies open."""
        with suppress(IndexError):  # another thread may be faster
            while True:
                self._connections.pop().close()

    __del__ = close

    def call(self, path: str, body: bytes, within_s: float, tries: int) -> bytes | None:
        """Send a message, in at most `tries` within `within_s` seconds, and return the answer; None if none came."""
        began = self.clock()
        if began < self._closed_until:
            return None
        # Stops the calls of other tasks while this one tries.
        self._closed_until = began + self._wait_s
        status, reason, answer, failure = 0, "", b"", ""
        for _ in range(1 if self._wait_s else tries):
            try:
                status, reason, answer = self._exchange(path, body, min(_CALL_S, began + within_s - self.clock()))
                break
            except OSError as error:
                failure = f"{type(error).__name__}: it is out of reach, or slow"
                if self.clock() >= began + within_s:
                    break
        self._wait_s = min(max(2 * self._wait_s, _FIRST_WAIT_S), _LAST_WAIT_S) if status in _DOWN else 0.0
        self._closed_until = self.clock() + self._wait_s
        if status == _OK:
            return answer
        if status == Refusal.REPLAYED.status and failure:  # the first try arrived, but its answer was lost
            return b""
        if not self._has_warned:
            self._has_warned = True
            text = "could not report to the gateway at %s:%d: %s; the query goes on, its watermark may wait"
            why = f"it refused a message: {reason}" if status else failure
            _log.warning(text, self.address.host, self.address.port, why)
        return None

    def _exchange(self, path: str, body: bytes, within_s: float) -> tuple[int, str, bytes]:
        until = time.monotonic() + within_s
        connected = self._take_free() or _connect(self.address, until)
        status = 0
        try:
            fields = f"Host: gateway\r\nGateway-Token: {self.address.token}\r\nGateway-Query: {self.address.query_id}"
            head = f"POST {path} HTTP/1.1\r\n{fields}\r\nContent-Length: {len(body)}\r\n\r\n"
            connected.settimeout(_left_s(until))
            connected.sendall(head.encode() + body)
            answer = bytearray()
            while not (match := _ANSWER.match(answer)) or len(answer) < match.end() + int(match[3]):
                connected.settimeout(_left_s(until))
                received = connected.recv(1 << 16)
                if not received or len(answer) > _MAX_ANSWER_BYTES:
                    raise ConnectionError("this is no answer of a gateway's")
                answer += received
            status = int(match[1])
            return status, match[2].decode(), bytes(answer[match.end() :])
        finally:
            # The gateway closes a connection after a refusal.
            self._connections.append(connected) if status == _OK else connected.close()

    def _take_free(self) -> socket.socket | None:
        """Return a free connection of this process that is open and has no unexpected bytes; None if there is none."""
        if self._pid != os.getpid():
            self.close()
            self._pid = os.getpid()
        with suppress(IndexError):
            while True:
                connected = self._connections.pop()
                connected.settimeout(0)
                try:
                    socket.socket.recv(connected, 1, socket.MSG_PEEK)
                except BlockingIOError:
                    return connected
                except OSError:
                    pass
                connected.close()
        return None


def _connect(address: GatewayAddress, until: float) -> socket.socket:
    connected = socket.create_connection((address.host, address.port), timeout=_left_s(until))
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if address.certificate is None:
        return connected
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=address.certificate.decode())
    # The gateway's own certificate is trusted, whatever authority signed it.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    connected.settimeout(_left_s(until))
    return context.wrap_socket(connected, server_hostname=address.host)


def _left_s(until: float) -> float:
    if (left_s := until - time.monotonic()) <= 0:
        raise TimeoutError
    return left_s


class TaskMessages:
    """The numbered messages that one task attempt sends to its gateway, on the task's thread."""

    def __init__(
        self, client: GatewayClient, message: MessageId, event_serializer: SimpleVersionedSerializer[SourceEvent] | None
    ) -> None:
        self._client = client
        self._next = message
        self._serializer: Any = event_serializer
        self._left_s = _TASK_S

    def send_reports(self, reports: Sequence[RangeReport]) -> bool:
        """Send reports, in several messages if there are many; return whether all of them arrived."""
        count = len(reports)
        if count > _MAX_REPORTS or (len(body := encode_reports(reports)) > MAX_MESSAGE_BYTES and count > 1):
            middle = count // 2
            return self.send_reports(reports[:middle]) and self.send_reports(reports[middle:])
        return not reports or self._send("reports", body) is not None

    def send_event(self, event: SourceEvent) -> bool:
        """Send an event to the enumerator at most once; return whether it arrived. As in Flink, loss is no error."""
        return self._send("event", encode(event_to_json(self._serializer, event))) is not None

    def take_events(self) -> list[SourceEvent]:
        """Return new events from the enumerator for this reader; the events of a lost answer are lost."""
        events, written = [], []
        with suppress(RefusedError):  # the answer may come from another server than a gateway
            written = decode(self._send("take_events", b"", tries=1) or b"[]", list)
        for event in written:
            try:
                events.append(event_from_json(self._serializer, event))
            except RefusedError:
                unread = "an event from the enumerator is left out: %s cannot read it"
                _log.error(unread, type(self._serializer).__name__)
        return events

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

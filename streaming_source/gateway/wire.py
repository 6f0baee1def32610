"""One end of an HTTP/1.1 connection: heads of a few kilobytes, bodies whose length is known, all within a deadline.

No chunks, no codings: headers and length are known, and can be refused, before a body is taken into memory.
"""

from __future__ import annotations

import contextlib
import math
import socket
import ssl
import time
from collections.abc import Callable
from typing import Final

from streaming_source.gateway.messages import Refusal, RefusedError

__all__ = ["Headers", "Wire"]

Headers = dict[str, list[str]]
"""Values by name in lower case."""

_MAX_HEAD_BYTES: Final = 8192


class Wire:
    """Reads and writes messages of HTTP over a connected socket, plain or TLS. On one thread; `cut` from any.

    Attributes
    ----------
    deadline
        Seconds of the clock from when on reading and writing fail with `TimeoutError`.
    heard_at
        When something came last.
    """

    def __init__(self, connected: socket.socket, clock: Callable[[], float] = time.monotonic) -> None:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The other machine may go without a word.
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.deadline = math.inf
        self.heard_at = clock()
        self.socket = connected
        self._clock = clock
        self._unread = bytearray()

    def shake_hands(self) -> None:
        """Make the handshake of TLS, if there is one."""
        if isinstance(self.socket, ssl.SSLSocket):
            self.socket.settimeout(self._left_s())
            self.socket.do_handshake()

    def await_more(self) -> bool:
        """Wait until something comes; False if the other end has closed."""
        if not self._unread:
            self._unread += self._receive(_MAX_HEAD_BYTES)
        return bool(self._unread)

    def read_head(self) -> tuple[str, Headers]:
        """First line and headers of a message; anything else is refused."""
        while (end := self._unread.find(b"\r\n\r\n")) < 0:
            if len(self._unread) >= _MAX_HEAD_BYTES:
                raise RefusedError(Refusal.OVERSIZED)
            if not (received := self._receive(_MAX_HEAD_BYTES)):
                raise RefusedError(Refusal.MALFORMED)
            self._unread += received
        first, *lines = self._unread[:end].decode("latin-1").split("\r\n")
        del self._unread[: end + 4]
        headers: Headers = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon or not name or name != name.strip():
                raise RefusedError(Refusal.MALFORMED)
            headers.setdefault(name.lower(), []).append(value.strip())
        return first, headers

    def read_body(self, headers: Headers, limit: int) -> bytes:
        """The body behind a head; refused unread if it is too large, compressed, or of unknown length."""
        lengths = headers.get("content-length", [])
        if {"transfer-encoding", "content-encoding"} & headers.keys() or len(lengths) != 1:
            raise RefusedError(Refusal.MALFORMED)
        if not (lengths[0].isascii() and lengths[0].isdigit()):
            raise RefusedError(Refusal.MALFORMED)
        if len(lengths[0]) > len(str(limit)) or (length := int(lengths[0])) > limit:
            raise RefusedError(Refusal.OVERSIZED)
        body = self._unread[:length]
        del self._unread[:length]
        while len(body) < length:
            if not (received := self._receive(min(length - len(body), 1 << 16))):
                raise RefusedError(Refusal.MALFORMED)
            body += received
        return bytes(body)

    def send(self, first: str, body: bytes, **headers: str) -> None:
        """A message: its first line, its headers, its body."""
        lines = [first, f"Content-Length: {len(body)}", *(f"{name}: {value}" for name, value in headers.items())]
        self.socket.settimeout(self._left_s())
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + body)

    def end(self, limit: int) -> None:
        """Send no more, and let so many bytes come, unseen: what was sent last would be lost otherwise."""
        socket.socket.shutdown(self.socket, socket.SHUT_WR)
        while limit > 0 and (received := self._receive(1 << 16)):
            limit -= len(received)

    def cut(self) -> None:
        """End both ways at once, whoever reads or writes."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)

    def _receive(self, at_most: int) -> bytes:
        self.socket.settimeout(self._left_s())
        received = self.socket.recv(at_most)
        self.heard_at = self._clock()
        return received

    def _left_s(self) -> float | None:
        if self.deadline == math.inf:
            return None
        if (left_s := self.deadline - self._clock()) <= 0:
            raise TimeoutError("it takes too long")
        return left_s

"""How many bytes of a connection are on the way, seen from the frames of HTTP/2 (RFC 9113)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

from streaming_source.gateway.refusals import Refusal, RefusedError

__all__ = ["FrameMeter", "MemoryBudget"]

_HEAD_BYTES: Final = 9
_MESSAGE_HEAD_BYTES: Final = 5
_DATA, _HEADERS, _RESET, _CONTINUATION = 0x0, 0x1, 0x3, 0x9
_END_STREAM: Final = 0x1
_PADDED: Final = 0x8
_CONTROL_BYTES: Final = 1 << 14
_MAX_STREAMS: Final = 64


class MemoryBudget:
    """Bytes that are on the way in all connections together. On one thread.

    Parameters
    ----------
    limit
        Bytes, at most.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.used = 0

    def take(self, count: int) -> None:
        """Count bytes.

        Raises
        ------
        RefusedError
            If they are too many; they count until they are given back all the same.
        """
        self.used += count
        if self.used > self._limit:
            raise RefusedError(Refusal.CROWDED)

    def give_back(self, count: int) -> None:
        """Count bytes no more."""
        self.used -= count


class FrameMeter:
    """Counts what a connection's client has sent of calls that are not answered yet. O(frames), and no copy.

    gRPC decompresses a message before anybody can ask for its token, to any size: compressed ones are refused.

    Parameters
    ----------
    max_bytes
        Bytes of all unanswered calls of the connection, at most.
    budget
        Shared with other connections.
    """

    GREETING: ClassVar = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    """What a client begins with."""

    def __init__(self, max_bytes: int, budget: MemoryBudget) -> None:
        self._max_bytes = max_bytes
        self._budget = budget
        self._client = _HeadReader(_HEAD_BYTES, slice(0, 3))
        self._service = _HeadReader(_HEAD_BYTES, slice(0, 3))
        self._greeting = self.GREETING
        # Unanswered calls, by stream: bytes so far.
        self._open: dict[int, int] = {}
        self._messages: dict[int, _HeadReader] = {}
        self._bytes = 0

    def from_client(self, data: bytes) -> None:
        """Look at what the client sends, before it is passed on.

        Raises
        ------
        RefusedError
            `MALFORMED` if it is no HTTP/2 or compressed, `OVERSIZED` or `CROWDED` if it is too much.
        """
        begin, self._greeting = self._greeting[: len(data)], self._greeting[len(data) :]
        if not data.startswith(begin):
            raise RefusedError(Refusal.MALFORMED)
        for head, payload in self._client.parts(memoryview(data)[len(begin) :]):
            kind, flags, stream, length = _frame(head)
            if payload:
                if kind == _DATA:
                    self._look_into(stream, payload)
            elif kind in (_DATA, _HEADERS, _CONTINUATION):
                if kind == _DATA and flags & _PADDED:
                    # No gRPC client does that: it would hide where messages begin.
                    raise RefusedError(Refusal.MALFORMED)
                if kind == _HEADERS:
                    self._messages.setdefault(stream, _HeadReader(_MESSAGE_HEAD_BYTES, slice(1, 5)))
                self._add(stream, length + _HEAD_BYTES)
            elif length > _CONTROL_BYTES:
                raise RefusedError(Refusal.MALFORMED)
            elif kind == _RESET:
                self._end(stream)

    def from_service(self, data: bytes) -> None:
        """Look at what the service answers: with its last frame a call is done."""
        for head, payload in self._service.parts(memoryview(data)):
            kind, flags, stream, _length = _frame(head)
            if not payload and (kind == _RESET or (kind in (_DATA, _HEADERS) and flags & _END_STREAM)):
                self._end(stream)

    def close(self) -> None:
        """Give back what is on the way."""
        self._budget.give_back(self._bytes)
        self._open.clear()
        self._messages.clear()
        self._bytes = 0

    def _look_into(self, stream: int, payload: memoryview) -> None:
        # What comes for a stream that is answered is dropped by the service.
        messages = self._messages.get(stream)
        if messages is not None and any(head[0] for head, _ in messages.parts(payload)):
            raise RefusedError(Refusal.MALFORMED)

    def _add(self, stream: int, count: int) -> None:
        self._open[stream] = self._open.get(stream, 0) + count
        self._bytes += count
        if self._bytes > self._max_bytes:
            # The budget never knew of these.
            self._bytes -= count
            raise RefusedError(Refusal.OVERSIZED)
        self._budget.take(count)
        if len(self._open) > _MAX_STREAMS:
            raise RefusedError(Refusal.CROWDED)

    def _end(self, stream: int) -> None:
        self._messages.pop(stream, None)
        count = self._open.pop(stream, 0)
        self._bytes -= count
        self._budget.give_back(count)


class _HeadReader:
    """Finds heads in a sequence of bytes that comes in pieces: each is followed by as many bytes as it says.

    Parameters
    ----------
    size
        Of a head.
    length
        Where in it that number stands.
    """

    def __init__(self, size: int, length: slice) -> None:
        self._size = size
        self._length = length
        self._head = b""
        self._left = 0

    def parts(self, data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
        """Each head that ends in this piece, with nothing; and with it each part of what follows it."""
        at = 0
        while at < len(data):
            if self._left:
                part = data[at : at + self._left]
                self._left -= len(part)
                at += len(part)
                yield self._head, part
                continue
            if len(self._head) == self._size:
                self._head = b""
            piece = data[at : at + self._size - len(self._head)]
            at += len(piece)
            self._head += piece
            if len(self._head) == self._size:
                self._left = int.from_bytes(self._head[self._length], "big")
                yield self._head, data[:0]


def _frame(head: bytes) -> tuple[int, int, int, int]:
    """Kind, flags, stream and length of a frame."""
    return head[3], head[4], int.from_bytes(head[5:], "big") & 0x7FFFFFFF, int.from_bytes(head[:3], "big")

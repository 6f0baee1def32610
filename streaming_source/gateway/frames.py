"""How many bytes of a connection are on the way, seen from the frames of HTTP/2 (RFC 9113)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

from streaming_source.gateway.refusals import Refusal, RefusedError

__all__ = ["FrameMeter", "MemoryBudget"]

_HEAD_BYTES: Final = 9
_DATA, _HEADERS, _RESET, _CONTINUATION = 0x0, 0x1, 0x3, 0x9
_END_STREAM: Final = 0x1
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
        self._client = _FrameReader()
        self._service = _FrameReader()
        self._greeting = self.GREETING
        # Unanswered calls, by stream: bytes so far.
        self._open: dict[int, int] = {}
        self._bytes = 0

    def from_client(self, data: bytes) -> None:
        """Look at what the client sends, before it is passed on.

        Raises
        ------
        RefusedError
            `MALFORMED` if it is no HTTP/2, `OVERSIZED` or `CROWDED` if it is too much.
        """
        begin, self._greeting = self._greeting[: len(data)], self._greeting[len(data) :]
        if not data.startswith(begin):
            raise RefusedError(Refusal.MALFORMED)
        for kind, _flags, stream, length in self._client.heads(data[len(begin) :]):
            if kind in (_DATA, _HEADERS, _CONTINUATION):
                self._add(stream, length + _HEAD_BYTES)
            elif length > _CONTROL_BYTES:
                raise RefusedError(Refusal.MALFORMED)
            elif kind == _RESET:
                self._end(stream)

    def from_service(self, data: bytes) -> None:
        """Look at what the service answers: with its last frame a call is done."""
        for kind, flags, stream, _length in self._service.heads(data):
            if kind == _RESET or (kind in (_DATA, _HEADERS) and flags & _END_STREAM):
                self._end(stream)

    def close(self) -> None:
        """Give back what is on the way."""
        self._budget.give_back(self._bytes)
        self._open.clear()
        self._bytes = 0

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
        count = self._open.pop(stream, 0)
        self._bytes -= count
        self._budget.give_back(count)


class _FrameReader:
    """Finds the heads of frames in a sequence of bytes that comes in pieces."""

    def __init__(self) -> None:
        self._head = b""
        self._skip = 0

    def heads(self, data: bytes) -> Iterator[tuple[int, int, int, int]]:
        """Kind, flags, stream and length of each frame whose head ends in this piece."""
        at = 0
        while at < len(data):
            if self._skip:
                passed = min(self._skip, len(data) - at)
                self._skip -= passed
                at += passed
                continue
            piece = data[at : at + _HEAD_BYTES - len(self._head)]
            at += len(piece)
            self._head += piece
            if len(self._head) == _HEAD_BYTES:
                head, self._head = self._head, b""
                self._skip = int.from_bytes(head[:3], "big")
                yield head[3], head[4], int.from_bytes(head[5:], "big") & 0x7FFFFFFF, self._skip

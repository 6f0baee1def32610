"""The planner's end of a gateway: an Arrow Flight service that takes what readers say."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol

import pyarrow.flight as flight

from alignment.exceptions import InvalidArgumentError
from alignment.reports import RangeReport
from streaming_source.api import SimpleVersionedSerializer, SourceEvent
from streaming_source.gateway import processes
from streaming_source.gateway.address import GatewayAddress
from streaming_source.gateway.front import GatewayFront
from streaming_source.gateway.messages import (
    EVENT,
    HEADER_BYTES,
    QUERY_ID_CHARACTERS,
    QUERY_KEY,
    REPORTS,
    TAKE_EVENTS,
    TOKEN_KEY,
    MessageHeader,
    decode_event,
    decode_reports,
    encode_event,
)
from streaming_source.gateway.refusals import Refusal, RefusalCounts, RefusedError
from streaming_source.gateway.taken import TakenMessages

__all__ = ["GatewayListener", "GatewayServer"]

_log = logging.getLogger(__name__)

_MAX_MESSAGE_BYTES: Final = 1 << 20
_LEAST_MESSAGE_BYTES: Final = 1 << 16
_CLOSE_S: Final = 1.0


class GatewayListener(Protocol):
    """Takes what readers say. Called on threads of the gateway's, several at once: it is quick, and does not raise."""

    def on_reports(self, reports: Sequence[RangeReport]) -> None:
        """A reader has read ranges. The same ones may be reported again, by another attempt at the same task."""

    def on_event(self, subtask_id: int, event: SourceEvent) -> None:
        """A reader sends an event to the enumerator."""

    def take_events(self, subtask_id: int) -> list[SourceEvent]:
        """Hand out the events for a reader that were not handed out yet."""


class GatewayServer:
    """Listens for the tasks of one run of a query.

    Every message carries a token that only the tasks of this run have. It is compared before anything of a message is
    looked at, each message is taken once, and what does not fit is refused and counted; the query goes on whatever
    comes. All threads are daemons.

    Parameters
    ----------
    listener
        Who takes what arrives.
    event_serializer
        Of the source's events; None if it has none: events are then refused as unknown actions.
    host, port
        Where to listen, and nowhere else; port 0 takes any that is free.
    public_host
        Name under which tasks find `host`; by default `host` itself.
    certificate, key
        PEM files for TLS, the certificate with its chain; both or neither.
    root_certificate
        PEM file of the certificate that vouches for `certificate`; by default that itself, as is right for one that is
        self-signed.
    max_message_bytes
        Larger messages are refused, before they are in memory; at least 65,536.
    directory
        Where the service has its local socket: a directory that others clean up if this process is killed; by default a
        temporary one.

    Raises
    ------
    InvalidArgumentError
        If `max_message_bytes` is too small.
    OptionError
        By `start`, if it cannot listen there or a certificate cannot be read.
    """

    def __init__(
        self,
        listener: GatewayListener,
        event_serializer: SimpleVersionedSerializer[SourceEvent] | None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        public_host: str | None = None,
        certificate: Path | None = None,
        key: Path | None = None,
        root_certificate: Path | None = None,
        max_message_bytes: int = _MAX_MESSAGE_BYTES,
        directory: Path | None = None,
    ) -> None:
        if max_message_bytes < _LEAST_MESSAGE_BYTES:
            raise InvalidArgumentError(
                f"max_message_bytes = {max_message_bytes}: must be at least {_LEAST_MESSAGE_BYTES}, for a report to fit"
            )
        self._max_message_bytes = max_message_bytes
        self._counts = RefusalCounts()
        self._query_id = secrets.token_hex(QUERY_ID_CHARACTERS // 2)
        self._token = secrets.token_urlsafe(32)
        self._public_host = public_host
        self._desk = _Desk(listener, event_serializer, self._query_id, self._counts, max_message_bytes)
        self._front = GatewayFront(
            host,
            port,
            self._counts.add,
            max_message_bytes=max_message_bytes + HEADER_BYTES,
            certificate=certificate,
            key=key,
            root_certificate=root_certificate,
            directory=directory,
        )
        self._lock = threading.Lock()
        self._service: _Service | None = None
        self._address: GatewayAddress | None = None
        self._closed = False

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
                self._address = self._start()
            return self._address

    def close(self) -> None:
        """Listen no more; repeated calls are fine. What the listener is at work on is waited for, for a second."""
        with self._lock:
            self._closed = True
            service, self._service = self._service, None
        self._front.close()
        if service is None or not processes.is_own():
            return
        # On a thread of its own: it waits for the calls under way.
        closing = threading.Thread(target=service.shutdown, name="gateway-close", daemon=True)
        closing.start()
        closing.join(_CLOSE_S)
        if closing.is_alive():
            _log.warning("the gateway was closed while its listener is at work; that ends when the listener is done")

    def _start(self) -> GatewayAddress:
        front = self._front
        try:
            front.bind()
            doorkeeper = _Doorkeeper(self._query_id, self._token, self._counts)
            self._service = processes.use(_Service(front.location, self._desk, doorkeeper))
            front.serve()
        except BaseException:
            service, self._service = self._service, None
            front.close()
            if service is not None:
                service.shutdown()
            raise
        host = front.host if self._public_host is None else self._public_host
        return GatewayAddress(
            host, front.port, self._query_id, self._token, front.root_certificate, self._max_message_bytes
        )


class _Doorkeeper(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Lets calls in that carry the token, whatever their method."""

    def __init__(self, query_id: str, token: str, counts: RefusalCounts) -> None:
        super().__init__()
        self._query_id = query_id
        self._token = token.encode()
        self._counts = counts

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, list[str]]) -> None:
        """Look at the headers of a call; its body is not read before."""
        refusal = self._refusal(info, headers)
        if refusal is not None:
            self._counts.add(refusal)
            if refusal is Refusal.UNKNOWN_ACTION:
                _answer(refusal)
            raise flight.FlightUnauthenticatedError(f"refused: {refusal.value}")

    def _refusal(self, info: flight.CallInfo, headers: Mapping[str, list[str]]) -> Refusal | None:
        tokens = _header(headers, TOKEN_KEY)
        if not tokens:
            return Refusal.NO_TOKEN
        if len(tokens) > 1 or not secrets.compare_digest(tokens[0], self._token):
            is_other = _header(headers, QUERY_KEY) != [self._query_id.encode()]
            return Refusal.OTHER_QUERY if is_other else Refusal.WRONG_TOKEN
        return None if info.method == flight.FlightMethod.DO_ACTION else Refusal.UNKNOWN_ACTION


def _header(headers: Mapping[str, list[str]], key: str) -> list[bytes]:
    return [value.encode("utf-8", "surrogateescape") for value in headers.get(key, ()) if isinstance(value, str)]


class _Service(flight.FlightServerBase):  # type: ignore[misc]
    """What Arrow Flight calls for the messages that were let in."""

    def __init__(self, location: str, desk: _Desk, doorkeeper: _Doorkeeper) -> None:
        super().__init__(location, middleware={"token": doorkeeper})
        self._desk = desk

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[flight.Result]:
        """Take a message."""
        try:
            return iter([flight.Result(answer) for answer in self._desk.take(action.type, action.body)])
        except RefusedError as error:
            refusal = error.refusal
        except Exception as error:  # a listener's own fault; its text may quote the message
            _log.error("the gateway's listener failed: %s", type(error).__name__)
            raise flight.FlightServerError("failed") from None
        _answer(refusal)


def _answer(refusal: Refusal) -> NoReturn:
    raise flight.FlightServerError(f"refused: {refusal.value}", extra_info=refusal.name.encode()) from None


class _Desk:
    """Opens messages, and hands them to the listener."""

    def __init__(
        self,
        listener: GatewayListener,
        event_serializer: SimpleVersionedSerializer[SourceEvent] | None,
        query_id: str,
        counts: RefusalCounts,
        max_message_bytes: int,
    ) -> None:
        self._listener = listener
        self._serializer = event_serializer
        self._query_id = query_id
        self._counts = counts
        self._max_bytes = max_message_bytes + HEADER_BYTES
        self._taken = TakenMessages()
        self._actions: dict[str, Callable[[MessageHeader, bytes], list[bytes]]] = {REPORTS: self._take_reports}
        if event_serializer is not None:
            self._actions |= {EVENT: self._take_event, TAKE_EVENTS: self._hand_out}

    def take(self, kind: str, message: Any) -> list[bytes]:
        """Take a message, and answer it.

        Parameters
        ----------
        message
            Arrow buffer.

        Raises
        ------
        RefusedError
            If it is refused; it was counted.
        """
        try:
            action = self._actions.get(kind)
            if action is None:
                raise RefusedError(Refusal.UNKNOWN_ACTION)
            if message.size > self._max_bytes:
                raise RefusedError(Refusal.OVERSIZED)
            data = message.to_pybytes()
            header = MessageHeader.decode(data)
            if header.query_id != self._query_id:
                raise RefusedError(Refusal.OTHER_QUERY)
            return action(header, data[HEADER_BYTES:])
        except RefusedError as error:
            self._counts.add(error.refusal)
            raise

    def _take_reports(self, header: MessageHeader, body: bytes) -> list[bytes]:
        reports = decode_reports(body)
        self._taken.take(header)
        self._listener.on_reports(reports)
        return []

    def _take_event(self, header: MessageHeader, body: bytes) -> list[bytes]:
        assert self._serializer is not None
        event = decode_event(self._serializer, body)
        self._taken.take(header)
        self._listener.on_event(header.subtask_id, event)
        return []

    def _hand_out(self, header: MessageHeader, body: bytes) -> list[bytes]:
        assert self._serializer is not None
        if body:
            raise RefusedError(Refusal.MALFORMED)
        self._taken.take(header)
        answers = []
        for event in self._listener.take_events(header.subtask_id):
            try:
                answers.append(encode_event(self._serializer, event))
            except Exception as error:  # the others are not to be lost with it
                _log.error("a %s for a reader is left out: %s", type(event).__name__, type(error).__name__)
        return answers

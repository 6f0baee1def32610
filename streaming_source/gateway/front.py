"""What stands before Arrow Flight: it keeps from gRPC what is too large for it.

Arrow's Flight server takes messages of any size into memory before anybody can ask for their token, and pyarrow has no
option for that. So the service listens on a socket inside a private directory, and this front listens for the tasks: it
passes on what they send as it comes, and counts as it goes. TLS ends here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from streaming_source.exceptions import OptionError
from streaming_source.gateway.frames import FrameMeter, MemoryBudget
from streaming_source.gateway.refusals import Refusal, RefusedError

__all__ = ["GatewayFront"]

_CHUNK: Final = 1 << 16
_MAX_CONNECTIONS: Final = 1024
_MESSAGES_AT_ONCE: Final = 32
_FRAMING_BYTES: Final = 1 << 15
"""Of a message's bytes on the wire, those that are not its own: headers, and the protocol's."""
_GREETING_S: Final = 10.0
_SILENT_S: Final = 10.0
"""From when on a connection may be cut off to make room for another one."""

_CLOSE_S: Final = 1.0
_STEPS_TO_CLOSE: Final = 3
_LAST_PORT: Final = 65_535
_LONGEST_SOCKET_PATH: Final = 100


class GatewayFront:
    """Passes connections on to a local service, as long as they keep to the limits. One daemon thread.

    Of a connection at most one message of the largest size is on the way at a time, and of all connections together 32.
    A connection that sends more, or something other than HTTP/2, is cut off and counted. Where there is no room for
    another one, that of which nothing was heard for longest makes room if it was silent for 10 s.

    Parameters
    ----------
    host, port
        Where to listen.
    count
        Counts a refusal.
    max_message_bytes
        Of a message's body.
    certificate, key, root_certificate, directory
        As for `GatewayServer`.

    Attributes
    ----------
    host, port
        Where it listens, once it does.
    root_certificate
        PEM that clients trust; None without TLS.
    """

    def __init__(
        self,
        host: str,
        port: int,
        count: Callable[[Refusal], None],
        *,
        max_message_bytes: int,
        certificate: Path | None = None,
        key: Path | None = None,
        root_certificate: Path | None = None,
        directory: Path | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.root_certificate: bytes | None = None
        self._count = count
        self._max_bytes = max_message_bytes + _FRAMING_BYTES
        self._budget = MemoryBudget(_MESSAGES_AT_ONCE * self._max_bytes)
        self._files = (certificate, key, root_certificate)
        self._directory = directory
        self._pid = os.getpid()
        self._private: Path | None = None
        self._listening: socket.socket | None = None
        self._tls: ssl.SSLContext | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._thread: threading.Thread | None = None
        # Of each when something last came from its client, in seconds of the loop.
        self._connections: dict[asyncio.Task[None], float] = {}

    @property
    def location(self) -> str:
        """Where the service has to listen; after `bind`."""
        return f"grpc+unix://{self._service_path}"

    def bind(self) -> None:
        """Take the port, and make the service's private directory.

        Raises
        ------
        OptionError
            If the port cannot be had, or a certificate cannot be read.
        """
        self._tls = self._read_certificates()
        if not 0 <= self.port <= _LAST_PORT:
            raise OptionError(f"gatewayPort = {self.port}: a port is 1 to {_LAST_PORT}, or 0 for any that is free")
        try:
            family = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
            self._listening = socket.create_server((self.host, self.port), family=family)
        except OSError as error:
            raise OptionError(
                f"gatewayHost = {self.host!r}, gatewayPort = {self.port}: the gateway cannot listen there: {error}; "
                "name an address of the driver's machine, and a port that is free, or 0 for any"
            ) from error
        self._listening.setblocking(False)
        self.port = self._listening.getsockname()[1]
        self._private = _private_directory(self._directory)

    def serve(self) -> None:
        """Let connections in, on a thread of its own; the service listens already."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(self._loop,), name="gateway-front", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Cut all connections off, and let no other in. Repeated calls are fine."""
        if self._pid != os.getpid():
            return
        thread, self._thread = self._thread, None
        if thread is not None and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self._stopping.set)
            thread.join(_CLOSE_S)
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.close()
        private, self._private = self._private, None
        if private is not None:
            shutil.rmtree(private, ignore_errors=True)

    # ---- at start ------------------------------------------------------------------------------------------------

    @property
    def _service_path(self) -> Path:
        assert self._private is not None
        return self._private / "service"

    def _read_certificates(self) -> ssl.SSLContext | None:
        certificate, key, root = self._files
        if certificate is None and key is None:
            return None
        if certificate is None or key is None:
            raise OptionError(
                f"certificate = {certificate}, key = {key}: TLS of the gateway needs both, as PEM files; or neither"
            )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["h2"])
        try:
            # A key behind a passphrase is an error: nobody is there who could be asked.
            context.load_cert_chain(certificate, key, password="")
            self.root_certificate = (root or certificate).read_bytes()
        except (OSError, ssl.SSLError) as error:
            raise OptionError(
                f"certificate = {certificate}, key = {key}, root certificate = {root}: the gateway cannot read these "
                f"PEM files: {error}"
            ) from error
        return context

    # ---- on its thread -------------------------------------------------------------------------------------------

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        # What goes wrong with a connection is its own affair, and may quote it.
        loop.set_exception_handler(lambda _loop, _context: None)
        try:
            loop.run_until_complete(self._serve_until_stopped())
        finally:
            loop.close()

    async def _serve_until_stopped(self) -> None:
        in_time = _GREETING_S if self._tls else None
        server = await asyncio.start_server(
            self._let_in, sock=self._listening, limit=_CHUNK, ssl=self._tls, ssl_handshake_timeout=in_time
        )
        await self._stopping.wait()
        server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        # Transports that were cut off say so in the next steps of the loop.
        for _ in range(_STEPS_TO_CLOSE):
            await asyncio.sleep(0)

    async def _let_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = self._now_s()
        try:
            # Executors may go without a word.
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if len(self._connections) > _MAX_CONNECTIONS:
                self._make_room()
            await self._pass_on(task, reader, writer)
        except RefusedError as error:
            self._count(error.refusal)
        except (OSError, asyncio.CancelledError):
            pass  # either side has gone, or all are being closed
        finally:
            self._connections.pop(task, None)
            writer.transport.abort()

    def _now_s(self) -> float:
        assert self._loop is not None
        return self._loop.time()

    def _make_room(self) -> None:
        quietest = min(self._connections, key=self._connections.__getitem__)
        if self._now_s() - self._connections[quietest] < _SILENT_S:
            raise RefusedError(Refusal.CROWDED)
        self._count(Refusal.CROWDED)
        # At once: several may ask for room before it has ended.
        del self._connections[quietest]
        quietest.cancel()

    async def _pass_on(
        self, task: asyncio.Task[None], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        meter = FrameMeter(self._max_bytes, self._budget)

        def heard(data: bytes) -> None:
            self._connections[task] = self._now_s()
            meter.from_client(data)

        try:
            async with asyncio.timeout(_GREETING_S):
                greeting = await reader.readexactly(len(FrameMeter.GREETING))
        except TimeoutError:
            raise RefusedError(Refusal.MALFORMED) from None
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise RefusedError(Refusal.MALFORMED) from None
            return
        meter.from_client(greeting)
        service_reader, service_writer = await asyncio.open_unix_connection(str(self._service_path), limit=_CHUNK)
        service_writer.write(greeting)
        ways = [
            asyncio.ensure_future(_copy(reader, service_writer, heard)),
            asyncio.ensure_future(_copy(service_reader, writer, meter.from_service)),
        ]
        try:
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in done:
                way.result()
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            service_writer.transport.abort()
            meter.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, look: Callable[[bytes], None]) -> None:
    """Pass bytes on until there are no more; what is refused is not passed on."""
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(_CHUNK):
            look(data)
            writer.write(data)
            await writer.drain()


def _private_directory(parent: Path | None) -> Path:
    """A new directory that this user alone may enter, with a name short enough for a socket's."""
    if parent is not None and len(os.fsencode(parent)) > _LONGEST_SOCKET_PATH - len("/gateway-xxxxxxxx/service"):
        parent = None
    made = Path(tempfile.mkdtemp(prefix="gateway-", dir=parent))
    if len(os.fsencode(made)) > _LONGEST_SOCKET_PATH:
        made.rmdir()
        made = Path(tempfile.mkdtemp(prefix="gateway-", dir="/tmp"))
    return made

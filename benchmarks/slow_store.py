"""A store that is far away: moto's S3 server, and before it a proxy that lets each request wait.

moto itself answers some 400 requests a second of one core. The proxy asks it once for each object and listing, and
keeps what it answered.
"""

from __future__ import annotations

import asyncio
import http.client
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.request import urlopen

__all__ = ["SlowStore", "slow_store"]

_COUNT = "/requests-so-far"
_DROPPED = ("connection", "content-length", "date", "keep-alive", "server", "transfer-encoding")


@dataclass(frozen=True)
class SlowStore:
    """`host:port` of moto, to write to without delay, and of the proxy, to read from."""

    moto: str
    proxy: str

    def requests(self) -> int:
        """How many requests the proxy has answered."""
        return int(urlopen(f"http://{self.proxy}{_COUNT}").read())


@contextmanager
def slow_store(latency_s: float) -> Iterator[SlowStore]:
    """Both in a process of their own."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.slow_store", str(latency_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield SlowStore(*process.stdout.readline().split())
        finally:
            process.kill()


@dataclass
class _Proxy:
    """What moto answered, by method and path; an object is there as a whole."""

    moto: str
    latency_s: float
    requests: int = 0
    _answers: dict[str, tuple[int, str, bytes]] = field(default_factory=dict)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, none of which has a body."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                method, path = head.split(" ", 2)[:2]
                if path == _COUNT:
                    writer.write(_answer(200, "", str(self.requests).encode()))
                    continue
                self.requests += 1
                await asyncio.sleep(self.latency_s)
                status, headers, body = self._asked(path, head)
                part = re.search(r"(?i)\r\nrange: *bytes=(\d+)-(\d+)", head)
                if status == 200 and part:
                    begin, last, size = int(part[1]), min(int(part[2]), len(body) - 1), len(body)
                    headers += f"Content-Range: bytes {begin}-{last}/{size}\r\n"
                    status, body = 206, memoryview(body)[begin : last + 1]
                writer.write(_answer(status, headers, body, has_body=method != "HEAD"))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def _asked(self, path: str, head: str) -> tuple[int, str, bytes]:
        if path not in self._answers:
            sent = dict(line.split(": ", 1) for line in head.split("\r\n")[1:-2])
            kept = {name: value for name, value in sent.items() if name.lower() not in ("range", "host")}
            connection = http.client.HTTPConnection(self.moto)
            connection.request("GET", path, headers=kept)
            answer = connection.getresponse()
            headers = [f"{n}: {value}\r\n" for n, value in answer.getheaders() if n.lower() not in _DROPPED]
            self._answers[path] = (answer.status, "".join(headers), answer.read())
            connection.close()
        return self._answers[path]


def _answer(status: int, headers: str, body: bytes | memoryview, *, has_body: bool = True) -> bytes:
    head = f"HTTP/1.1 {status} {http.client.responses[status]}\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    return b"".join([head.encode(), body if has_body else b""])


async def _main(latency_s: float) -> None:
    from moto.server import ThreadedMotoServer

    moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    moto.start()
    address = "{}:{}".format(*moto.get_host_and_port())
    server = await asyncio.start_server(_Proxy(address, latency_s).serve, "127.0.0.1", 0)
    print(address, "{}:{}".format(*server.sockets[0].getsockname()), flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(float(sys.argv[1])))

"""What the tests of the gateway share: events, a listener that notes what it is told, calls of strangers."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from hypothesis import strategies as st

from alignment.events import RangeReport
from alignment.timestamps import NO_TIMESTAMP
from streaming_source.api import DataclassEventSerializer, SourceEvent
from streaming_source.gateway import GatewayAddress
from streaming_source.gateway.messages import MessageId, encode_reports


@dataclass(frozen=True)
class AskForMore(SourceEvent):
    split_id: str
    rows: int


@dataclass(frozen=True)
class Answer(SourceEvent):
    granted: bool
    until: float | None = None
    splits: tuple[str, ...] = ()


SERIALIZER = DataclassEventSerializer(AskForMore, Answer)

REPORT = RangeReport("orders", start=0, stop=10, min_us=1, max_us=5)
"""One of many alike, where it does not matter what is reported."""


@dataclass
class RecordingListener:
    """Notes what it is told, and hands out what it was given."""

    reports: list[RangeReport] = field(default_factory=list)
    events: list[tuple[int, SourceEvent]] = field(default_factory=list)
    outgoing: dict[int, list[SourceEvent]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def on_reports(self, reports: list[RangeReport]) -> None:
        with self.lock:
            self.reports += reports

    def on_event(self, subtask_id: int, event: SourceEvent) -> None:
        with self.lock:
            self.events.append((subtask_id, event))

    def take_events(self, subtask_id: int) -> list[SourceEvent]:
        with self.lock:
            return self.outgoing.pop(subtask_id, [])


BODY = encode_reports([REPORT])

OK = (200, "OK")

Headers = Iterable[tuple[str, str]]


def path(action: str = "reports", *, number: int = 0, batch: int = 1) -> str:
    """Where a message goes that a gateway takes, if it was not taken yet."""
    return MessageId(batch, 0, 0, number).path(action)


class Stranger:
    """Calls a gateway with Python's own HTTP client, with any headers and any bytes."""

    def __init__(self, address: GatewayAddress) -> None:
        self._client = http.client.HTTPConnection(address.host, address.port, timeout=20)

    def call(self, path: str, body: bytes, headers: Headers, method: str = "POST") -> tuple[int, str]:
        """Status and reason of the answer."""
        self._client.putrequest(method, path, skip_accept_encoding=True)
        for name, value in (*headers, ("Content-Length", str(len(body)))):
            self._client.putheader(name, value)
        self._client.endheaders(body)
        with self._client.getresponse() as response:
            response.read()
            return response.status, response.reason

    def close(self) -> None:
        self._client.close()


def credentials(address: GatewayAddress) -> list[tuple[str, str]]:
    """The headers that open a gateway."""
    return [("Gateway-Token", address.token), ("Gateway-Query", address.query_id)]


def request(address: GatewayAddress, *, number: int = 0, headers: Headers = (), body: bytes = BODY) -> bytes:
    """A message that a gateway takes, as it goes over the wire; with further headers."""
    lines = [f"{name}: {value}" for name, value in (*credentials(address), *headers)]
    return "\r\n".join([f"POST {path(number=number)} HTTP/1.1", *lines, "", ""]).encode() + body


@st.composite
def range_reports(draw: st.DrawFn) -> RangeReport:
    """Any report that a reader can make."""
    at_least_0 = st.integers(0, 2**63 - 1)
    start, stop = sorted((draw(at_least_0), draw(at_least_0)))
    times = st.integers(NO_TIMESTAMP + 1, 2**63 - 1)
    low, high = draw(st.one_of(st.just((NO_TIMESTAMP, NO_TIMESTAMP)), st.tuples(times, times).map(sorted)))
    late = draw(st.integers(0, stop - start))
    split_id = draw(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=50))
    return RangeReport(split_id, start, stop, low, high, late)

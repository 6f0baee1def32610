"""What the tests of the gateway share: events, a listener that notes what it is told, calls of strangers."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.flight as flight
from hypothesis import strategies as st

from alignment.reports import RangeReport
from alignment.timestamps import NO_TIMESTAMP
from streaming_source.api import DataclassEventSerializer, SourceEvent
from streaming_source.gateway import GatewayAddress
from streaming_source.gateway.messages import MessageHeader, encode_reports


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

REPORT = RangeReport("orders", start=0, stop=10, rows=10, min_us=1, max_us=5)
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


def message(address: GatewayAddress, *, number: int = 0, batch: int = 1, body: bytes | None = None) -> bytes:
    """A message that a gateway takes, if it was not taken yet."""
    header = MessageHeader(address.query_id, batch, 0, 0, number)
    return header.encode() + (encode_reports([REPORT]) if body is None else body)


class Stranger:
    """Calls a gateway with Arrow Flight alone, with any headers and any bytes."""

    def __init__(self, address: GatewayAddress) -> None:
        self._client = flight.FlightClient(
            address.uri, tls_root_certs=address.root_certificate, generic_options=[("grpc.enable_http_proxy", 0)]
        )

    def call(self, action: str, body: bytes, headers: list[tuple[bytes, bytes]]) -> list[bytes]:
        options = flight.FlightCallOptions(timeout=20, headers=headers)
        return [result.body.to_pybytes() for result in self._client.do_action(flight.Action(action, body), options)]

    def list_flights(self, headers: list[tuple[bytes, bytes]]) -> list[object]:
        return list(self._client.list_flights(options=flight.FlightCallOptions(timeout=20, headers=headers)))

    def put(self, size: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Stream about so many bytes to a method that no gateway offers."""
        batch = pa.record_batch({"x": pa.array([0] * 1_000, pa.int64())})
        options = flight.FlightCallOptions(timeout=20, headers=headers)
        writer, reader = self._client.do_put(flight.FlightDescriptor.for_command(b""), batch.schema, options)
        with writer:
            for _ in range(size // batch.nbytes + 1):
                writer.write_batch(batch)
            writer.done_writing()
            reader.read()

    def close(self) -> None:
        self._client.close()


def credentials(address: GatewayAddress) -> list[tuple[bytes, bytes]]:
    """The headers that open a gateway."""
    return [(b"gateway-token", address.token.encode()), (b"gateway-query", address.query_id.encode())]


@st.composite
def range_reports(draw: st.DrawFn) -> RangeReport:
    """Any report that a reader can make."""
    at_least_0 = st.integers(0, 2**63 - 1)
    start, stop = sorted((draw(at_least_0), draw(at_least_0)))
    times = st.integers(NO_TIMESTAMP + 1, 2**63 - 1)
    low, high = draw(st.one_of(st.just((NO_TIMESTAMP, NO_TIMESTAMP)), st.tuples(times, times).map(sorted)))
    rows = draw(at_least_0)
    late, invalid = draw(st.integers(0, rows)), draw(st.integers(0, rows))
    split_id = draw(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=50))
    return RangeReport(split_id, start, stop, rows, low, high, late, invalid, draw(at_least_0))

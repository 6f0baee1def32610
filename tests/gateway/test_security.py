"""What the gateway refuses: it is counted, nothing leaks, and the next message is taken as if nothing had been."""

from __future__ import annotations

import contextlib
import logging
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streaming_source.gateway import GatewayAddress, GatewayClient, GatewayServer, Refusal, front
from streaming_source.gateway.frames import FrameMeter
from streaming_source.gateway.messages import HEADER_BYTES
from streaming_source.gateway.refusals import RefusalCounts
from tests.examples import examples
from tests.gateway.support import REPORT, SERIALIZER, RecordingListener, Stranger, credentials, message

MEGABYTE = 1 << 20
SETTINGS = b"\0\0\0\x04\0\0\0\0\0"
PING = b"\0\0\x08\x06\0\0\0\0\0" + b"anybody?"
"""Frames of HTTP/2; the second is answered with its last eight bytes."""


@pytest.fixture(autouse=True)
def _the_gateway_is_unharmed_and_its_token_unseen(
    server: GatewayServer, address: GatewayAddress, listener: RecordingListener, caplog: pytest.LogCaptureFixture
) -> Iterator[None]:
    """After each test: the gateway takes reports, nobody else's arrived, and the log knows no token."""
    with caplog.at_level(logging.DEBUG):
        yield
        client = GatewayClient(address)
        assert client.for_task(batch=9, subtask_id=1, attempt=0).send_reports([REPORT])
        client.close()
    assert listener.reports.count(REPORT) == len(listener.reports)
    assert address.token not in caplog.text


def test_a_call_without_a_token_is_refused(stranger: Stranger, address: GatewayAddress, server: GatewayServer) -> None:
    with pytest.raises(flight.FlightUnauthenticatedError, match="refused: no token"):
        stranger.call("reports", message(address), [])
    assert server.refused == {Refusal.NO_TOKEN: 1}


@pytest.mark.parametrize("wrong", ["", "x", "0" * 43])
def test_a_call_with_a_wrong_token_is_refused(
    wrong: str, stranger: Stranger, address: GatewayAddress, server: GatewayServer
) -> None:
    headers = credentials(replace(address, token=wrong))
    with pytest.raises(flight.FlightUnauthenticatedError, match="refused: wrong token") as caught:
        stranger.call("reports", message(address), headers)
    assert address.token not in str(caught.value)
    assert server.refused == {Refusal.WRONG_TOKEN: 1}


def test_a_call_with_two_tokens_is_refused(stranger: Stranger, address: GatewayAddress, server: GatewayServer) -> None:
    with pytest.raises(flight.FlightUnauthenticatedError, match="refused: wrong token"):
        stranger.call("reports", message(address), [(b"gateway-token", b"x"), *credentials(address)])
    assert server.refused == {Refusal.WRONG_TOKEN: 1}


def test_a_token_of_another_query_is_refused(address: GatewayAddress, server: GatewayServer) -> None:
    other_server = GatewayServer(RecordingListener(), None)
    other = other_server.start()
    client = GatewayClient(replace(other, port=address.port))
    assert not client.for_task(batch=1, subtask_id=0, attempt=0).send_reports([REPORT])
    client.close()
    other_server.close()
    assert server.refused == {Refusal.OTHER_QUERY: 1}


def test_a_message_of_another_query_is_refused(
    stranger: Stranger, address: GatewayAddress, server: GatewayServer
) -> None:
    other = replace(address, query_id="0123456789abcdef")
    with pytest.raises(flight.FlightServerError, match="of another query"):
        stranger.call("reports", message(other), credentials(address))
    assert server.refused == {Refusal.OTHER_QUERY: 1}


def test_a_message_is_taken_once(
    stranger: Stranger, address: GatewayAddress, server: GatewayServer, listener: RecordingListener
) -> None:
    stranger.call("reports", message(address), credentials(address))
    for _ in range(3):
        with pytest.raises(flight.FlightServerError, match="refused: replayed"):
            stranger.call("reports", message(address), credentials(address))
    assert listener.reports == [REPORT]
    assert server.refused == {Refusal.REPLAYED: 3}


def test_a_message_of_an_old_micro_batch_is_refused(
    stranger: Stranger, address: GatewayAddress, server: GatewayServer
) -> None:
    stranger.call("reports", message(address, batch=9), credentials(address))
    with pytest.raises(flight.FlightServerError, match="of an old micro-batch"):
        stranger.call("reports", message(address, batch=5), credentials(address))
    assert server.refused == {Refusal.STALE: 1}


def test_an_unknown_action_and_every_other_method_are_refused(
    stranger: Stranger, address: GatewayAddress, server: GatewayServer
) -> None:
    for action in ("", "report", "__reduce__", "x" * 1000):
        with pytest.raises(flight.FlightServerError, match="unknown action"):
            stranger.call(action, message(address), credentials(address))
    with pytest.raises(flight.FlightServerError, match="unknown action"):
        stranger.list_flights(credentials(address))
    with pytest.raises(flight.FlightServerError, match="unknown action"):
        stranger.put(1_000, credentials(address))
    assert server.refused == {Refusal.UNKNOWN_ACTION: 6}
    with pytest.raises(flight.FlightUnauthenticatedError, match="no token"):
        stranger.list_flights([])
    with pytest.raises(flight.FlightUnauthenticatedError, match="no token"):
        stranger.put(1_000, [])


def test_a_stream_without_end_is_cut_off(stranger: Stranger, address: GatewayAddress, server: GatewayServer) -> None:
    # The service answers at once that it does not take it; until the client hears that, it sends.
    with pytest.raises(flight.FlightError):
        stranger.put(10 * MEGABYTE, credentials(address))
    assert sum(server.refused.values()) >= 1


def memory_kb(what: str) -> int:
    """Of this process: `VmRSS`, or `VmHWM`, the most that it ever was."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what))


@pytest.mark.parametrize("has_token", [False, True])
def test_a_message_of_100_megabytes_is_cut_off_before_it_is_in_memory(
    has_token: bool, address: GatewayAddress, server: GatewayServer
) -> None:
    headers = credentials(address) if has_token else []
    # From a process of its own: the sender's memory is not the gateway's.
    code = (
        "import pyarrow.flight as flight\n"
        f"client = flight.FlightClient({address.uri!r})\n"
        f"options = flight.FlightCallOptions(timeout=30, headers={headers!r})\n"
        f"list(client.do_action(flight.Action('reports', bytes({100 * MEGABYTE})), options))\n"
    )
    # Resets VmHWM to what is in memory now.
    Path("/proc/self/clear_refs").write_text("5")
    most_before = memory_kb("VmHWM")
    sent = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "FlightUnavailableError" in sent.stderr
    assert server.refused == {Refusal.OVERSIZED: 1}
    assert memory_kb("VmHWM") - most_before < 10_000


def test_a_compressed_message_is_cut_off_before_it_is_decompressed(
    address: GatewayAddress, server: GatewayServer
) -> None:
    gzip = 2
    options = [("grpc.enable_http_proxy", 0), ("grpc.default_compression_algorithm", gzip)]
    with flight.FlightClient(address.uri, generic_options=options) as client:
        action = flight.Action("reports", message(address, body=bytes(20 * MEGABYTE)))
        with pytest.raises(flight.FlightUnavailableError):
            list(client.do_action(action, flight.FlightCallOptions(timeout=20)))
    assert set(server.refused) == {Refusal.MALFORMED}


def test_a_message_that_is_a_little_too_large_is_refused(
    stranger: Stranger, address: GatewayAddress, server: GatewayServer
) -> None:
    with pytest.raises(flight.FlightServerError, match="refused: oversized"):
        stranger.call("reports", message(address, body=bytes(MEGABYTE + 1)), credentials(address))
    with pytest.raises(flight.FlightServerError, match="refused: malformed"):
        stranger.call("reports", message(address, body=bytes(MEGABYTE)), credentials(address))
    assert server.refused == {Refusal.OVERSIZED: 1, Refusal.MALFORMED: 1}


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(action=st.sampled_from(["reports", "event", "take_events"]), body=st.binary(max_size=4 * HEADER_BYTES))
def test_garbage_in_messages_is_malformed(
    action: str, body: bytes, stranger: Stranger, address: GatewayAddress, server: GatewayServer
) -> None:
    before = server.refused.get(Refusal.MALFORMED, 0)
    with pytest.raises(flight.FlightServerError, match="refused: malformed"):
        stranger.call(action, body, credentials(address))
    assert server.refused == {Refusal.MALFORMED: before + 1}


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(action=st.sampled_from(["reports", "event"]), body=st.binary(max_size=500))
def test_garbage_behind_a_header_is_malformed(
    action: str, body: bytes, stranger: Stranger, address: GatewayAddress, server: GatewayServer
) -> None:
    before = server.refused.get(Refusal.MALFORMED, 0)
    with pytest.raises(flight.FlightServerError, match="refused: malformed"):
        stranger.call(action, message(address, body=body), credentials(address))
    assert server.refused == {Refusal.MALFORMED: before + 1}


# Names of headers and their values as gRPC lets them through.
_NAMES = st.sampled_from(["gateway-token", "gateway-query", "authorization", "gateway-token-bin", "x"])
_VALUES = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=300).map(str.encode)


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(headers=st.lists(st.tuples(_NAMES.map(str.encode), _VALUES), max_size=5))
def test_any_other_headers_open_nothing(
    headers: list[tuple[bytes, bytes]], stranger: Stranger, address: GatewayAddress, server: GatewayServer
) -> None:
    before = sum(server.refused.values())
    with pytest.raises(flight.FlightUnauthenticatedError, match="refused: "):
        stranger.call("reports", message(address), headers)
    assert sum(server.refused.values()) == before + 1


def answer_to(address: GatewayAddress, data: bytes) -> bytes:
    """What the gateway says to raw bytes until it, or the caller, has enough."""
    with socket.create_connection((address.host, address.port), timeout=20) as connection:
        answer = b""
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while received := connection.recv(1 << 16):
                answer += received
        except OSError:
            # Cut off, at whatever step.
            pass
        return answer


def await_answer(connection: socket.socket) -> None:
    answer = b""
    while PING[9:] not in answer:
        received = connection.recv(1000)
        assert received, "it was cut off"
        answer += received


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(min_size=1, max_size=2_000).filter(lambda data: data[:24] != FrameMeter.GREETING[: len(data)]))
def test_raw_bytes_on_the_socket_are_malformed_and_not_answered(
    data: bytes, address: GatewayAddress, server: GatewayServer
) -> None:
    before = server.refused.get(Refusal.MALFORMED, 0)
    assert answer_to(address, data) == b""
    assert server.refused == {Refusal.MALFORMED: before + 1}


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=2_000))
def test_raw_bytes_behind_the_greeting_of_http_2_bring_nobody_in(
    data: bytes, address: GatewayAddress, listener: RecordingListener
) -> None:
    answer = answer_to(address, FrameMeter.GREETING + data)
    assert address.token.encode() not in answer
    assert listener.reports == []


def test_more_connections_than_there_is_room_for_are_not_let_in(
    address: GatewayAddress, server: GatewayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "_MAX_CONNECTIONS", 1)
    with socket.create_connection((address.host, address.port)) as first:
        first.sendall(FrameMeter.GREETING)
        # An answer: it was let in.
        assert first.recv(1)
        assert answer_to(address, FrameMeter.GREETING) == b""
    assert server.refused == {Refusal.CROWDED: 1}
    monkeypatch.undo()


def test_a_connection_that_was_silent_makes_room_for_another_one(
    address: GatewayAddress, server: GatewayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "_MAX_CONNECTIONS", 2)
    monkeypatch.setattr(front, "_SILENT_S", 0.0)
    with contextlib.ExitStack() as stack:

        def connect() -> socket.socket:
            made = stack.enter_context(socket.create_connection((address.host, address.port), timeout=20))
            made.sendall(FrameMeter.GREETING + SETTINGS + PING)
            await_answer(made)
            return made

        silent, talking = connect(), connect()
        talking.sendall(PING)
        await_answer(talking)
        connect()
        with contextlib.suppress(ConnectionError):
            while silent.recv(1000):
                pass
        talking.sendall(PING)
        await_answer(talking)
    assert server.refused == {Refusal.CROWDED: 1}
    monkeypatch.undo()


def test_a_connection_that_says_nothing_is_cut_off(
    address: GatewayAddress, server: GatewayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "_GREETING_S", 0.05)
    with socket.create_connection((address.host, address.port), timeout=20) as silent, contextlib.suppress(OSError):
        assert silent.recv(1) == b""
    assert server.refused == {Refusal.MALFORMED: 1}


def test_refusals_are_logged_at_most_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    counts = RefusalCounts(lambda: now)
    for now in (0.0, 1.0, 59.0, 60.0, 61.0):  # noqa: B007
        counts.add(Refusal.NO_TOKEN)
    said = [record.getMessage() for record in caplog.records]
    assert [line.rpartition(": ")[2] for line in said] == ["1 no token", "4 no token"]


def test_thousands_of_refusals_leave_no_memory_behind_and_few_lines_in_the_log(
    stranger: Stranger, address: GatewayAddress, server: GatewayServer, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(times: int) -> None:
        for _ in range(times):
            with pytest.raises(flight.FlightUnauthenticatedError):
                stranger.call("reports", bytes(200_000), [])

    refuse(100)
    before, in_arrow = memory_kb("VmRSS"), pa.total_allocated_bytes()
    refuse(1_000)
    # What was sent is 200 MB; what may remain is the allocators' slack.
    assert memory_kb("VmRSS") - before < 30_000
    assert pa.total_allocated_bytes() - in_arrow < MEGABYTE
    assert server.refused == {Refusal.NO_TOKEN: 1_100}
    assert len([record for record in caplog.records if "refused" in record.message]) == 1


def test_it_listens_on_the_given_host_only(address: GatewayAddress) -> None:
    listening = {
        (line.split()[1], line.split()[3])
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]
    }
    port = f"{address.port:04X}"
    hosts = {local.rpartition(":")[0] for local, state in listening if local.endswith(f":{port}") and state == "0A"}
    # 127.0.0.1 in the byte order of this machine.
    assert hosts == {"0100007F"}


def test_its_inner_socket_is_for_its_own_user_alone(tmp_path: Path) -> None:
    server = GatewayServer(RecordingListener(), SERIALIZER, directory=tmp_path)
    server.start()
    (private,) = tmp_path.iterdir()
    assert private.stat().st_mode & 0o777 == 0o700
    server.close()

"""What the gateway refuses: it is counted, nothing leaks, and the next message is taken as if nothing had been."""

from __future__ import annotations

import contextlib
import gzip
import logging
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from alignment.events import RangeReport
from streaming_source.gateway import GatewayAddress, GatewayClient, GatewayServer, Refusal
from streaming_source.gateway import server as gateway_server
from tests.examples import examples
from tests.gateway.support import (
    BODY,
    OK,
    REPORT,
    RecordingListener,
    Stranger,
    credentials,
    path,
    request,
)

MEGABYTE = 1 << 20


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


def test_a_call_without_a_token_is_refused(stranger: Stranger, server: GatewayServer) -> None:
    assert stranger.call(path(), BODY, []) == (401, "no token")
    assert server.refused == {Refusal.NO_TOKEN: 1}


@pytest.mark.parametrize("wrong", ["", "x", "0" * 43, "\u00fc"])
def test_a_call_with_a_wrong_token_is_refused(
    wrong: str, stranger: Stranger, address: GatewayAddress, server: GatewayServer
) -> None:
    assert stranger.call(path(), BODY, credentials(replace(address, token=wrong))) == (403, "wrong token")
    assert server.refused == {Refusal.WRONG_TOKEN: 1}


def test_a_call_with_two_tokens_is_refused(stranger: Stranger, address: GatewayAddress, server: GatewayServer) -> None:
    headers = [*credentials(address), ("gateway-token", address.token)]
    assert stranger.call(path(), BODY, headers) == (403, "wrong token")
    assert server.refused == {Refusal.WRONG_TOKEN: 1}


def test_a_message_of_another_query_is_refused(
    stranger: Stranger, address: GatewayAddress, server: GatewayServer
) -> None:
    other = replace(address, query_id="0123456789abcdef")
    assert stranger.call(path(), BODY, credentials(other)) == (421, "token or message of another query")
    assert server.refused == {Refusal.OTHER_QUERY: 1}


def test_a_message_is_taken_once(
    stranger: Stranger, address: GatewayAddress, server: GatewayServer, listener: RecordingListener
) -> None:
    assert stranger.call(path(), BODY, credentials(address)) == OK
    for _ in range(3):
        assert stranger.call(path(), BODY, credentials(address)) == (409, "replayed")
    assert listener.reports == [REPORT]
    assert server.refused == {Refusal.REPLAYED: 3}


def test_a_message_of_an_old_micro_batch_is_refused(
    stranger: Stranger, address: GatewayAddress, server: GatewayServer
) -> None:
    assert stranger.call(path(batch=9), BODY, credentials(address)) == OK
    assert stranger.call(path(batch=5), BODY, credentials(address)) == (410, "of an old micro-batch")
    assert server.refused == {Refusal.STALE: 1}


def test_an_unknown_action_and_every_other_method_are_refused(
    stranger: Stranger, address: GatewayAddress, server: GatewayServer
) -> None:
    for action in ("", "report", "__reduce__", "../reports", "x" * 1000):
        assert stranger.call(path(action), BODY, credentials(address)) == (404, "unknown action")
    for method in ("GET", "PUT", "DELETE", "OPTIONS", "TRACE"):
        assert stranger.call(path(), BODY, credentials(address), method) == (404, "unknown action")
    assert server.refused == {Refusal.UNKNOWN_ACTION: 10}
    assert stranger.call("/", b"", [], "GET") == (401, "no token")


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
        "import http.client\n"
        f"client = http.client.HTTPConnection({address.host!r}, {address.port}, timeout=30)\n"
        f"client.request('POST', {path()!r}, bytes({100 * MEGABYTE}), dict({headers!r}))\n"
        "client.getresponse()\n"
    )
    # Resets VmHWM to what is in memory now.
    Path("/proc/self/clear_refs").write_text("5")
    most_before = memory_kb("VmHWM")
    sent = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ConnectionResetError" in sent.stderr or "BrokenPipeError" in sent.stderr
    assert server.refused == {Refusal.OVERSIZED if has_token else Refusal.NO_TOKEN: 1}
    assert memory_kb("VmHWM") - most_before < 10_000


@pytest.mark.parametrize("coding", ["gzip", "identity"])
def test_a_compressed_message_is_refused_unread(
    coding: str, stranger: Stranger, address: GatewayAddress, server: GatewayServer
) -> None:
    headers = [*credentials(address), ("Content-Encoding", coding)]
    assert stranger.call(path(), gzip.compress(bytes(20 * MEGABYTE)), headers) == (400, "malformed")
    assert server.refused == {Refusal.MALFORMED: 1}


def test_a_message_may_have_the_largest_size_and_no_more(
    stranger: Stranger, address: GatewayAddress, server: GatewayServer, listener: RecordingListener
) -> None:
    assert stranger.call(path(), bytes(MEGABYTE + 1), credentials(address)) == (413, "oversized")
    assert stranger.call(path(), bytes(MEGABYTE), credentials(address)) == (400, "malformed")
    assert server.refused == {Refusal.OVERSIZED: 1, Refusal.MALFORMED: 1}
    assert stranger.call(path(), BODY.ljust(MEGABYTE), credentials(address)) == OK
    assert listener.reports == [REPORT]


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(action=st.sampled_from(["reports", "event", "take_events"]), body=st.binary(min_size=1, max_size=500))
def test_garbage_in_messages_is_malformed(
    action: str, body: bytes, stranger: Stranger, address: GatewayAddress, server: GatewayServer
) -> None:
    before = server.refused.get(Refusal.MALFORMED, 0)
    assert stranger.call(path(action), body, credentials(address)) == (400, "malformed")
    assert server.refused == {Refusal.MALFORMED: before + 1}


_NAMES = st.sampled_from(["Gateway-Token", "gateway-query", "Authorization", "Cookie", "Expect", "X"])
_VALUES = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=300)


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(headers=st.lists(st.tuples(_NAMES, _VALUES), max_size=5))
def test_any_other_headers_open_nothing(
    headers: list[tuple[str, str]], stranger: Stranger, address: GatewayAddress, server: GatewayServer
) -> None:
    before = sum(server.refused.values())
    assert stranger.call(path(), BODY, headers)[0] in (401, 403, 421)
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


def await_refusals(server: GatewayServer, expected: dict[Refusal, int]) -> None:
    until = time.monotonic() + 20
    while server.refused != expected and time.monotonic() < until:
        time.sleep(0.01)
    assert server.refused == expected


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(min_size=1, max_size=2_000))
@example(data=b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
@example(data=b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")
@example(data=b"GET / HTTP/1.0\r\n\r\n")
@example(data=b"POST /reports/1/0/0/0 HTTP/1.1\r\nno colon\r\n\r\n")
@example(data=b"POST /reports/1/0/0/0 HTTP/1.1\r\nX: 1\r\n folded\r\n\r\n")
@example(data=b"POST /reports/1/0/0/0 HTTP/1.1\r\nGateway-Token : x\r\n\r\n")
@example(data=b"POST  /reports/1/0/0/0 HTTP/1.1\r\n\r\n")
def test_raw_bytes_on_the_socket_are_malformed_and_not_answered(
    data: bytes, address: GatewayAddress, server: GatewayServer
) -> None:
    before = server.refused.get(Refusal.MALFORMED, 0)
    assert answer_to(address, data) == b""
    await_refusals(server, {Refusal.MALFORMED: before + 1})


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=2_000))
def test_raw_bytes_behind_a_request_bring_nobody_in(
    data: bytes, address: GatewayAddress, listener: RecordingListener
) -> None:
    answer = answer_to(address, b"POST /reports/1/0/0/0 HTTP/1.1\r\n" + data)
    assert address.token.encode() not in answer
    assert listener.reports == []


@pytest.mark.parametrize(
    ("headers", "refusal"),
    [
        ([], Refusal.MALFORMED),
        ([("Content-Length", "-1")], Refusal.MALFORMED),
        ([("Content-Length", "+5")], Refusal.MALFORMED),
        ([("Content-Length", "5, 5")], Refusal.MALFORMED),
        ([("Content-Length", "5"), ("Content-Length", "5")], Refusal.MALFORMED),
        ([("Content-Length", "\u00b2")], Refusal.MALFORMED),
        ([("Content-Length", "9" * 5000)], Refusal.OVERSIZED),
        ([("Content-Length", str(MEGABYTE + 1))], Refusal.OVERSIZED),
        ([("Transfer-Encoding", "chunked")], Refusal.MALFORMED),
        ([("Transfer-Encoding", "chunked"), ("Content-Length", str(len(BODY)))], Refusal.MALFORMED),
    ],
)
def test_a_body_of_no_right_length_is_refused_unread(
    headers: list[tuple[str, str]],
    refusal: Refusal,
    address: GatewayAddress,
    server: GatewayServer,
    listener: RecordingListener,
) -> None:
    answer = answer_to(address, request(address, headers=headers, body=b"5\r\n" + BODY))
    assert answer.startswith(f"HTTP/1.1 {refusal.status} {refusal.text}\r\n".encode())
    assert server.refused == {refusal: 1}
    assert listener.reports == []


@pytest.mark.parametrize("headers", [[("X", "x" * 20_000)], [(f"X{number}", "x") for number in range(5_000)]])
def test_headers_without_end_are_cut_off(
    headers: list[tuple[str, str]], address: GatewayAddress, server: GatewayServer
) -> None:
    assert answer_to(address, request(address, headers=headers)) == b""
    await_refusals(server, {Refusal.OVERSIZED: 1})


@pytest.mark.parametrize("sent", ["nothing", "part of the headers", "part of the body"])
def test_a_message_that_never_comes_to_an_end_is_cut_off(
    sent: str, address: GatewayAddress, server: GatewayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_server, "_REQUEST_S", 0.3)
    whole = request(address, headers=[("Content-Length", str(len(BODY)))])
    dripping = {"nothing": b"", "part of the headers": whole[: -len(BODY) - 2], "part of the body": whole[:-1]}[sent]
    with socket.create_connection((address.host, address.port), timeout=20) as slow:
        for byte in dripping[:-5]:
            slow.sendall(bytes([byte]))
        with contextlib.suppress(ConnectionError):
            for byte in dripping[-5:]:
                # No single pause is too long.
                time.sleep(0.1)
                slow.sendall(bytes([byte]))
        with contextlib.suppress(ConnectionError):
            assert slow.recv(1) == b""
    assert server.refused == {Refusal.SLOW: 1}
    while server._connections:
        time.sleep(0.01)
    assert server.refused == {Refusal.SLOW: 1}, "being cut off is no second reason"
    monkeypatch.undo()


def test_a_call_that_the_listener_does_not_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    class Stuck(RecordingListener):
        def on_reports(self, reports: list[RangeReport]) -> None:
            released.wait()

    monkeypatch.setattr(gateway_server, "_REQUEST_S", 0.1)
    server = GatewayServer(Stuck(), None)
    address = server.start()
    whole = request(address, headers=[("Content-Length", str(len(BODY)))])
    with socket.create_connection((address.host, address.port), timeout=20) as caller:
        caller.sendall(whole)
        assert caller.recv(1) == b""
    released.set()
    server.close()
    monkeypatch.undo()


def test_messages_sent_without_waiting_for_answers_are_answered_in_turn_and_checked_each(
    address: GatewayAddress, server: GatewayServer, listener: RecordingListener
) -> None:
    length = ("Content-Length", str(len(BODY)))
    first, second = (request(address, number=number, headers=[length]) for number in (0, 1))
    stowaway = f"POST {path(number=2)} HTTP/1.1\r\nContent-Length: {len(BODY)}\r\n\r\n".encode() + BODY
    answer = answer_to(address, first + second + stowaway + request(address, number=3, headers=[length]))
    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"200", b"200", b"401"]
    assert server.refused == {Refusal.NO_TOKEN: 1}
    assert listener.reports == [REPORT, REPORT]


def test_more_bodies_than_there_is_memory_for_are_not_taken_in(
    address: GatewayAddress, server: GatewayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_server, "_BODY_WAIT_S", 0.05)
    length = ("Content-Length", str(len(BODY)))
    with contextlib.ExitStack() as stack:
        for number in range(32):
            slow = stack.enter_context(socket.create_connection((address.host, address.port), timeout=20))
            slow.sendall(request(address, number=number, headers=[length])[:-1])
        await_no_room(server)
        assert answer_to(address, request(address, number=99, headers=[length])).startswith(b"HTTP/1.1 503 ")
    await_refusals(server, {Refusal.CROWDED: 1, Refusal.MALFORMED: 32})
    monkeypatch.undo()


def await_no_room(server: GatewayServer) -> None:
    until = time.monotonic() + 20
    while server._bodies._value and time.monotonic() < until:
        time.sleep(0.01)


def test_more_connections_than_there_is_room_for_are_not_let_in(
    stranger: Stranger, address: GatewayAddress, server: GatewayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_server, "_MAX_CONNECTIONS", 1)
    assert stranger.call(path(), BODY, credentials(address)) == OK
    assert answer_to(address, request(address, number=1)) == b""
    assert server.refused == {Refusal.CROWDED: 1}
    monkeypatch.undo()


def test_a_connection_that_was_silent_makes_room_for_another_one(
    address: GatewayAddress, server: GatewayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_server, "_MAX_CONNECTIONS", 2)
    monkeypatch.setattr(gateway_server, "_SILENT_S", 0.0)
    silent, talking, new = (Stranger(address) for _ in range(3))
    assert silent.call(path(number=0), BODY, credentials(address)) == OK
    assert talking.call(path(number=1), BODY, credentials(address)) == OK
    assert new.call(path(number=2), BODY, credentials(address)) == OK
    assert talking.call(path(number=3), BODY, credentials(address)) == OK
    with pytest.raises(ConnectionError):
        silent.call(path(number=4), BODY, credentials(address))
    assert server.refused == {Refusal.CROWDED: 1}
    for caller in (silent, talking, new):
        caller.close()
    monkeypatch.undo()


_FLOODED = """
import os, pickle, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[1])))
from streaming_source.gateway import GatewayServer
from tests.gateway.support import RecordingListener
server = GatewayServer(RecordingListener(), None)
print(pickle.dumps(server.start()).hex(), flush=True)
for line in sys.stdin:
    print(len(os.listdir("/proc/self/fd")), flush=True)
server.close()
"""


def test_silent_connections_neither_shut_out_who_has_the_token_nor_take_the_descriptors_of_the_process() -> None:
    limit = 256
    command = [sys.executable, "-c", _FLOODED, str(limit)]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
        contextlib.ExitStack() as stack,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        stack.callback(process.stdin.close)
        address = pickle.loads(bytes.fromhex(process.stdout.readline()))

        def new_client() -> GatewayClient:
            client = GatewayClient(address)
            stack.callback(client.close)
            return client

        known = new_client()
        assert known.for_task(0, 0, 0).send_reports([REPORT])
        for number in range(300):
            silent = socket.create_connection((address.host, address.port), timeout=20)
            stack.enter_context(silent)
            if number % 30 == 0:
                assert new_client().for_task(1, number, 0).send_reports([REPORT])
        assert new_client().for_task(2, 0, 0).send_reports([REPORT])
        assert known.for_task(2, 1, 0).send_reports([REPORT])
        print(file=process.stdin, flush=True)
        assert int(process.stdout.readline()) < limit / 2


def test_who_shows_no_token_within_two_seconds_is_cut_off(
    address: GatewayAddress, server: GatewayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gateway_server._TOKEN_S == 2
    monkeypatch.setattr(gateway_server, "_TOKEN_S", 0.2)
    with socket.create_connection((address.host, address.port), timeout=5) as slow:
        slow.sendall(request(address)[:40])
        assert slow.recv(1) == b""
    assert server.refused == {Refusal.SLOW: 1}
    monkeypatch.undo()


def test_who_has_shown_no_token_makes_room_first(
    address: GatewayAddress, server: GatewayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_server, "_MAX_CONNECTIONS", 2)
    known, new = Stranger(address), Stranger(address)
    assert known.call(path(number=0), BODY, credentials(address)) == OK
    with socket.create_connection((address.host, address.port), timeout=20) as silent:
        assert new.call(path(number=1), BODY, credentials(address)) == OK
        assert silent.recv(1) == b""
    assert known.call(path(number=2), BODY, credentials(address)) == OK
    assert server.refused == {Refusal.CROWDED: 1}
    for caller in (known, new):
        caller.close()
    monkeypatch.undo()


@pytest.mark.soak
def test_thousands_of_refusals_leave_no_memory_behind_and_one_line_a_minute_in_the_log(
    stranger: Stranger, server: GatewayServer, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(times: int) -> None:
        for _ in range(times):
            assert stranger.call(path(), bytes(200_000), []) == (401, "no token")

    refuse(100)
    before = memory_kb("VmRSS")
    refuse(1_000)
    # What was sent is 200 MB; what may remain is the allocators' slack.
    assert memory_kb("VmRSS") - before < 30_000
    assert server.refused == {Refusal.NO_TOKEN: 1_100}
    server._logs_at = 0.0  # the minute is over
    refuse(2)
    logged = [record.message.rpartition(": ")[2] for record in caplog.records if "refused" in record.message]
    assert logged == ["1 no token", "1101 no token"]


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

"""A gateway that cannot be reached, hangs, or is another one by now: no task fails, and none is slowed down by much."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from alignment.events import RangeReport
from streaming_source.gateway import GatewayAddress, GatewayClient, GatewayServer, Refusal
from streaming_source.gateway import client as gateway_client
from tests.gateway.support import REPORT, SERIALIZER, AskForMore, RecordingListener

ADDRESS = GatewayAddress("gateway.invalid", 4711, "0123456789abcdef", "confidential token")


# ---- on a clock and a connection of the test's own ----------------------------------------------------------------


@dataclass
class Clock:
    seconds: float = 100.0

    def __call__(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        self.seconds += seconds


@dataclass
class Wire:
    """A connection to nowhere: each call takes as long as it may, unless it was told what happens."""

    clock: Clock
    outcomes: list[Exception | Refusal | None] = field(default_factory=list)
    calls: int = 0
    fails_after_s: float = 2.5
    answers_after_s: float = 0.0
    meanwhile: Callable[[], object] = bool

    def client(self) -> GatewayClient:
        client = GatewayClient(ADDRESS, clock=self.clock)
        client._exchange = self.exchange  # type: ignore[method-assign]
        return client

    def exchange(self, path: str, body: bytes, within_s: float) -> tuple[int, str, bytes]:
        assert 0 < within_s <= 2.5
        self.calls += 1
        self.meanwhile()
        outcome = self.outcomes.pop(0) if self.outcomes else TimeoutError()
        if isinstance(outcome, TimeoutError):
            self.clock.advance(self.fails_after_s)
        if isinstance(outcome, Exception):
            raise outcome
        self.clock.advance(self.answers_after_s)
        return (200, "OK", b"[]") if outcome is None else (outcome.status, outcome.text, b"")


@pytest.fixture
def wire() -> Wire:
    return Wire(Clock())


def test_a_task_waits_five_seconds_at_most_and_the_next_ones_not_at_all(wire: Wire) -> None:
    client = wire.client()
    began = wire.clock.seconds
    first = client.for_task(0, 0, 0)
    assert [first.send_reports([REPORT]) for _ in range(50)] == [False] * 50
    assert wire.clock.seconds - began <= 5.1
    after_first = wire.clock.seconds
    for task in range(1, 50):
        assert not client.for_task(0, task, 0).send_reports([REPORT])
    assert wire.clock.seconds == after_first


def test_after_each_failure_a_worker_lets_the_gateway_alone_for_twice_as_long_up_to_a_limit(wire: Wire) -> None:
    client = wire.client()
    began: list[float] = []
    wire.meanwhile = lambda: began.append(wire.clock.seconds)
    for task in range(800):
        client.for_task(task, 0, 0).send_reports([REPORT])
        wire.clock.advance(0.5)
    # The first task has two tries.
    waits = [after - before - 2.5 for before, after in pairwise(began[1:])]
    assert waits[:8] == pytest.approx([2, 4, 8, 16, 32, 64, 64, 64], abs=0.5)


def test_when_the_wait_is_over_one_task_tries_and_the_others_wait_for_it(wire: Wire) -> None:
    client = wire.client()
    client.for_task(0, 0, 0).send_reports([REPORT])
    wire.clock.advance(2)
    wire.meanwhile = lambda: outcomes.append(client.for_task(1, 1, 0).send_reports([REPORT]))
    wire.outcomes = [None]
    outcomes: list[bool] = []
    outcomes.append(client.for_task(1, 0, 0).send_reports([REPORT]))
    assert outcomes == [False, True]
    assert wire.calls == 3


def test_after_a_success_the_wait_is_short_again(wire: Wire) -> None:
    client = wire.client()
    for batch in range(3):
        client.for_task(batch, 0, 0).send_reports([REPORT])
        wire.clock.advance(64)
    wire.outcomes = [None]
    assert client.for_task(3, 0, 0).send_reports([REPORT])
    assert not client.for_task(4, 0, 0).send_reports([REPORT])
    wire.clock.advance(2)
    wire.outcomes = [None]
    assert client.for_task(5, 0, 0).send_reports([REPORT])


def test_a_task_that_was_slowed_down_gives_up_though_the_gateway_is_back(wire: Wire) -> None:
    messages = wire.client().for_task(0, 0, 0)
    wire.outcomes = [TimeoutError(), None] * 2
    assert [messages.send_reports([REPORT]) for _ in range(3)] == [True, False, False]
    assert wire.calls == 3


def test_a_call_for_which_no_time_is_left_is_not_made(wire: Wire) -> None:
    wire.fails_after_s = 9.0
    messages = wire.client().for_task(0, 0, 0)
    assert not messages.send_reports([REPORT])
    assert wire.calls == 1


def test_a_task_that_asks_for_events_for_long_still_reports(wire: Wire) -> None:
    messages = wire.client().for_task(0, 0, 0, SERIALIZER)
    wire.outcomes = [None] * 2_001
    wire.answers_after_s = 0.003
    assert [messages.take_events() for _ in range(2_000)] == [[]] * 2_000
    assert messages.send_reports([REPORT])
    assert wire.calls == 2_001


def test_a_try_that_fails_is_repeated_once(wire: Wire) -> None:
    wire.outcomes = [ConnectionRefusedError(), None]
    assert wire.client().for_task(0, 0, 0).send_reports([REPORT])
    assert wire.calls == 2


def test_a_message_whose_answer_was_lost_has_arrived(wire: Wire) -> None:
    wire.outcomes = [TimeoutError(), Refusal.REPLAYED]
    assert wire.client().for_task(0, 0, 0).send_reports([REPORT])


def test_a_message_that_is_a_repetition_at_once_has_not_arrived(wire: Wire) -> None:
    wire.outcomes = [Refusal.REPLAYED]
    assert not wire.client().for_task(0, 0, 0).send_reports([REPORT])


def test_events_are_not_asked_for_again(wire: Wire) -> None:
    wire.outcomes = [ConnectionRefusedError(), None]
    assert wire.client().for_task(0, 0, 0, SERIALIZER).take_events() == []
    assert wire.calls == 1


def test_a_gateway_that_answers_again_is_told_everything_again(wire: Wire) -> None:
    client = wire.client()
    wire.outcomes = [ConnectionRefusedError()] * 2
    assert not client.for_task(0, 0, 0).send_reports([REPORT])
    wire.clock.advance(2)
    wire.outcomes = [None] * 3
    assert [client.for_task(1, task, 0).send_reports([REPORT]) for task in range(3)] == [True] * 3


def test_a_lost_event_is_no_error(wire: Wire) -> None:
    assert not wire.client().for_task(0, 0, 0, SERIALIZER).send_event(AskForMore("confidential split", 7))


def test_it_is_said_once_and_without_the_token(wire: Wire, caplog: pytest.LogCaptureFixture) -> None:
    client = wire.client()
    for task in range(20):
        client.for_task(0, task, 0).send_reports([REPORT])
        wire.clock.advance(100)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "gateway.invalid:4711" in caplog.text
    assert "confidential" not in caplog.text


# ---- over real sockets ---------------------------------------------------------------------------------------------


class Patience:
    """The real clock, and a way to have a back-off behind oneself."""

    def __init__(self) -> None:
        self._skipped = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self._skipped

    def skip(self, seconds: float) -> None:
        self._skipped += seconds


def test_somebody_listens_who_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_client, "_CALL_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        client = GatewayClient(replace(ADDRESS, host="127.0.0.1", port=mute.getsockname()[1]))
        assert not client.for_task(0, 0, 0).send_reports([REPORT])
        client.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n[",
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"\0" * 20_000,
        b"",
    ],
)
def test_something_else_answers(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        client = GatewayClient(replace(ADDRESS, host="127.0.0.1", port=other.getsockname()[1]))
        messages = client.for_task(0, 0, 0)
        outcome: list[bool] = []
        with answering(other, answer):
            outcome.append(messages.send_reports([REPORT]))
        assert outcome == [False]
        client.close()


@pytest.mark.parametrize("body", [b"", b"{}", b"7", b"nonsense", b'[7, [1], [1, "x"], null]', b"[" * 100_000])
def test_events_from_something_else_are_left_out(body: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        client = GatewayClient(replace(ADDRESS, host="127.0.0.1", port=other.getsockname()[1]))
        with answering(other, b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)):
            assert client.for_task(0, 0, 0, SERIALIZER).take_events() == []
        client.close()


def test_an_answer_that_comes_byte_by_byte_is_not_awaited_for_longer_than_a_call() -> None:
    with socket.create_server(("127.0.0.1", 0)) as slow:
        client = GatewayClient(replace(ADDRESS, host="127.0.0.1", port=slow.getsockname()[1]))
        done = threading.Event()

        def drip() -> None:
            connection, _ = slow.accept()
            with connection:
                while not done.wait(0.05):
                    with contextlib.suppress(OSError):
                        connection.sendall(b"H")

        thread = threading.Thread(target=drip)
        thread.start()
        began = time.monotonic()
        assert client.call("/reports/0/0/0/0", b"", within_s=0.5, tries=1) is None
        assert time.monotonic() - began < 10
        done.set()
        thread.join()
        client.close()


def test_a_connection_that_the_gateway_has_closed_is_not_used_again(listener: RecordingListener) -> None:
    before = GatewayServer(listener, SERIALIZER)
    address = before.start()
    client = GatewayClient(address)
    messages = client.for_task(0, 0, 0, SERIALIZER)
    assert messages.send_reports([REPORT])
    before.close()
    with socket.create_server((address.host, address.port)) as again:
        accepted = threading.Thread(target=lambda: again.accept()[0].close())
        accepted.start()
        # One try alone: it goes over a new connection.
        assert messages.take_events() == []
        accepted.join()
    client.close()


@contextmanager
def answering(listening: socket.socket, answer: bytes) -> Iterator[None]:
    """Answer every connection with some bytes, and close it."""

    def answer_all() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                connection.sendall(answer)

    thread = threading.Thread(target=answer_all, daemon=True)
    thread.start()
    yield
    listening.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_a_server_that_started_again_at_the_same_port_is_another_one(listener: RecordingListener) -> None:
    clock = Patience()
    before = GatewayServer(listener, None)
    address = before.start()
    client = GatewayClient(address, clock=clock)
    messages = client.for_task(0, 0, 0)
    assert messages.send_reports([REPORT])
    before.close()
    assert not messages.send_reports([REPORT])

    after = GatewayServer(listener, None, port=address.port)
    new_address = after.start()
    clock.skip(100)
    # A task of the run before: refused, and no failure.
    assert not client.for_task(1, 0, 0).send_reports([REPORT])
    assert after.refused == {Refusal.OTHER_QUERY: 1}
    new_client = GatewayClient(new_address)
    assert new_client.for_task(0, 0, 0).send_reports([REPORT])
    assert len(listener.reports) == 2
    new_client.close()
    client.close()
    after.close()


_SERVE = """
import pickle, sys
from streaming_source.gateway import GatewayServer
from tests.gateway.support import RecordingListener
server = GatewayServer(RecordingListener(), None)
sys.stdout.write(pickle.dumps(server.start()).hex() + "\\n")
sys.stdout.flush()
sys.stdin.read()
server.close()
"""


@pytest.fixture
def elsewhere() -> Iterator[tuple[GatewayAddress, Callable[[signal.Signals], None]]]:
    """A gateway in a process of its own, and how to send that process a signal."""
    process = subprocess.Popen([sys.executable, "-c", _SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        address = pickle.loads(bytes.fromhex(process.stdout.readline()))

        def send_signal(number: signal.Signals) -> None:
            process.send_signal(number)
            if number is signal.SIGSTOP:  # it takes effect a little later
                os.waitpid(process.pid, os.WUNTRACED)

        yield address, send_signal
        process.send_signal(signal.SIGCONT)
        process.stdin.close()
        process.wait()


def test_a_gateway_that_hangs_is_let_alone_until_it_goes_on(
    elsewhere: tuple[GatewayAddress, Callable[[signal.Signals], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, send_signal = elsewhere
    clock = Patience()
    client = GatewayClient(address, clock=clock)
    assert client.for_task(0, 0, 0).send_reports([REPORT])
    send_signal(signal.SIGSTOP)
    monkeypatch.setattr(gateway_client, "_CALL_S", 0.2)
    messages = client.for_task(1, 0, 0)
    assert not messages.send_reports([RangeReport("orders", 10, 20)])
    monkeypatch.undo()
    send_signal(signal.SIGCONT)
    clock.skip(100)
    assert client.for_task(2, 0, 0).send_reports([REPORT])
    client.close()


def test_a_gateway_that_was_killed_is_out_of_reach(
    elsewhere: tuple[GatewayAddress, Callable[[signal.Signals], None]],
) -> None:
    address, send_signal = elsewhere
    client = GatewayClient(address)
    messages = client.for_task(0, 0, 0)
    assert messages.send_reports([REPORT])
    send_signal(signal.SIGKILL)
    assert not messages.send_reports([REPORT])
    client.close()

"""What readers say arrives, and what the enumerator answers."""

from __future__ import annotations

import os
import pickle
import threading

import pytest

from alignment.events import RangeReport
from streaming_source.api import SourceEvent
from streaming_source.exceptions import OptionError
from streaming_source.gateway import GatewayAddress, GatewayClient, GatewayServer, Refusal
from tests.gateway.support import REPORT, SERIALIZER, Answer, AskForMore, RecordingListener


def test_reports_arrive_as_they_were_sent(address: GatewayAddress, listener: RecordingListener) -> None:
    reports = [REPORT, RangeReport("größe/ü", start=5, stop=5), RangeReport("b", 0, 2**62, -3, 3, 1)]
    messages = GatewayClient.of(address).for_task(batch=0, subtask_id=0, attempt=0)
    assert messages.send_reports(reports)
    assert listener.reports == reports


def test_no_reports_are_no_message(address: GatewayAddress, listener: RecordingListener) -> None:
    assert GatewayClient.of(address).for_task(batch=0, subtask_id=0, attempt=0).send_reports([])
    assert listener.reports == []


def test_many_reports_go_in_messages_that_the_gateway_takes(
    address: GatewayAddress, listener: RecordingListener, server: GatewayServer
) -> None:
    reports = [RangeReport(f"{number:08}" * 100, 0, number) for number in range(5_000)]
    assert GatewayClient.of(address).for_task(batch=0, subtask_id=0, attempt=0).send_reports(reports)
    assert listener.reports == reports
    assert server.refused == {}


def test_what_the_gateway_would_refuse_as_too_large_is_not_sent(
    address: GatewayAddress, listener: RecordingListener, server: GatewayServer, caplog: pytest.LogCaptureFixture
) -> None:
    messages = GatewayClient.of(address).for_task(0, 0, 0, SERIALIZER)
    assert not messages.send_event(AskForMore("x" * (1 << 20), 7))
    assert "is not sent" in caplog.text
    reports = [RangeReport(f"{number:04}" + "ü" * 8000, 0, number) for number in range(50)]
    assert messages.send_reports(reports)
    assert listener.reports == reports
    assert server.refused == {}


def test_an_event_that_cannot_be_written_does_not_take_the_others_with_it(
    address: GatewayAddress, listener: RecordingListener, caplog: pytest.LogCaptureFixture
) -> None:
    listener.outgoing = {0: [Answer(True), AskForMore("confidential", "7"), Answer(False)]}  # type: ignore[arg-type]
    assert GatewayClient.of(address).for_task(0, 0, 0, SERIALIZER).take_events() == [Answer(True), Answer(False)]
    assert "a AskForMore for a reader is left out: TypeError" in caplog.text
    assert "confidential" not in caplog.text


def test_an_event_arrives_with_the_number_of_its_reader(address: GatewayAddress, listener: RecordingListener) -> None:
    messages = GatewayClient.of(address).for_task(batch=4, subtask_id=3, attempt=9, event_serializer=SERIALIZER)
    assert messages.send_event(AskForMore("orders", 7))
    assert messages.send_event(Answer(True, 0.5, ("a", "b")))
    assert listener.events == [(3, AskForMore("orders", 7)), (3, Answer(True, 0.5, ("a", "b")))]


def test_a_reader_takes_its_own_events_once(address: GatewayAddress, listener: RecordingListener) -> None:
    listener.outgoing = {0: [Answer(True), Answer(False)], 1: [Answer(True, 1.0)]}
    client = GatewayClient.of(address)
    first, second = (client.for_task(0, reader, 0, SERIALIZER) for reader in (0, 1))
    assert first.take_events() == [Answer(True), Answer(False)]
    assert first.take_events() == []
    assert second.take_events() == [Answer(True, 1.0)]


def test_a_gateway_of_a_source_without_events_refuses_them(listener: RecordingListener) -> None:
    server = GatewayServer(listener, None)
    messages = GatewayClient.of(server.start()).for_task(0, 0, 0, SERIALIZER)
    assert not messages.send_event(AskForMore("orders", 7))
    assert messages.take_events() == []
    assert messages.send_reports([REPORT])
    assert server.refused == {Refusal.UNKNOWN_ACTION: 2}
    server.close()


def test_another_attempt_at_a_task_is_heard_as_well(address: GatewayAddress, listener: RecordingListener) -> None:
    client = GatewayClient.of(address)
    for attempt in (0, 1):
        assert client.for_task(batch=0, subtask_id=0, attempt=attempt).send_reports([REPORT])
    assert listener.reports == [REPORT, REPORT]


def test_tasks_at_once_are_all_heard(address: GatewayAddress, listener: RecordingListener) -> None:
    def report(subtask_id: int) -> None:
        messages = GatewayClient.of(address).for_task(0, subtask_id, 0)
        arrived.extend(messages.send_reports([RangeReport(f"{subtask_id}", n, n + 1)]) for n in range(20))

    arrived: list[bool] = []
    threads = [threading.Thread(target=report, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert arrived == [True] * 160
    assert {(report.split_id, report.start) for report in listener.reports} == {
        (f"{task}", n) for task in range(8) for n in range(20)
    }


def test_tasks_one_after_another_share_a_connection(address: GatewayAddress, server: GatewayServer) -> None:
    for task in range(20):
        assert GatewayClient.of(address).for_task(0, task, 0).send_reports([REPORT])
    assert len(server._connections) == 1


def test_a_process_has_one_client_for_an_address(address: GatewayAddress) -> None:
    copied = pickle.loads(pickle.dumps(address))
    assert GatewayClient.of(copied) is GatewayClient.of(address)


def test_a_listener_that_fails_is_not_told_again_and_says_nothing_of_the_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Failing(RecordingListener):
        def on_event(self, subtask_id: int, event: SourceEvent) -> None:
            super().on_event(subtask_id, event)
            raise ValueError(f"cannot take {event}")

    listener = Failing()
    server = GatewayServer(listener, SERIALIZER)
    messages = GatewayClient.of(server.start()).for_task(0, 0, 0, SERIALIZER)
    assert not messages.send_event(AskForMore("confidential", 7))
    assert messages.send_reports([REPORT])
    server.close()
    assert len(listener.events) == 1
    assert "ValueError" in caplog.text
    assert "confidential" not in caplog.text


def test_the_text_of_an_address_does_not_show_its_token(address: GatewayAddress) -> None:
    assert address.token not in f"{address} {address!r} {[address]}"


def test_every_server_has_a_token_and_a_query_of_its_own(listener: RecordingListener) -> None:
    servers = [GatewayServer(listener, None) for _ in range(2)]
    one, other = (server.start() for server in servers)
    assert one.token != other.token
    assert one.query_id != other.query_id
    assert len(one.token) >= 40
    for server in servers:
        server.close()


def test_start_may_be_repeated_but_not_after_close(server: GatewayServer) -> None:
    assert server.start() is server.start()
    for _ in range(2):
        server.close()
        GatewayServer(RecordingListener(), None).close()  # was never started
    with pytest.raises(RuntimeError, match="closed"):
        server.start()


def test_a_closed_server_leaves_no_thread_and_no_file(listener: RecordingListener) -> None:
    threads, handles = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        server = GatewayServer(listener, None)
        client = GatewayClient(server.start())
        assert client.for_task(0, 0, 0).send_reports([REPORT])
        client.close()
        server.close()
    assert set(threading.enumerate()) <= threads
    assert len(os.listdir("/proc/self/fd")) <= handles


def test_close_does_not_wait_for_a_listener_that_never_returns() -> None:
    entered, released = threading.Event(), threading.Event()

    class Stuck(RecordingListener):
        def on_reports(self, reports: list[RangeReport]) -> None:
            entered.set()
            released.wait()

    server = GatewayServer(Stuck(), None)
    messages = GatewayClient.of(server.start()).for_task(0, 0, 0)
    sender = threading.Thread(target=messages.send_reports, args=([REPORT],))
    sender.start()
    entered.wait()
    server.close()
    assert not released.is_set()
    released.set()
    sender.join()


def test_a_port_that_is_taken_is_an_error_that_names_the_options(
    address: GatewayAddress, listener: RecordingListener
) -> None:
    other = GatewayServer(listener, None, port=address.port)
    with pytest.raises(OptionError, match=f"gatewayHost = '127.0.0.1', gatewayPort = {address.port}"):
        other.start()
    other.close()


@pytest.mark.parametrize(("host", "port"), [("no.such.host.invalid", 0), ("192.0.2.1", 0), ("127.0.0.1", 65_536)])
def test_an_address_that_cannot_be_had_is_an_error_that_names_the_options(host: str, port: int) -> None:
    server = GatewayServer(RecordingListener(), None, host=host, port=port)
    with pytest.raises(OptionError, match=r"gatewayPort = \d+"):
        server.start()
    server.close()


def test_it_listens_on_the_loopback_of_ipv6(listener: RecordingListener) -> None:
    server = GatewayServer(listener, None, host="::1")
    try:
        address = server.start()
    except OptionError:
        pytest.skip("this machine has no IPv6")
    assert GatewayClient(address).for_task(0, 0, 0).send_reports([REPORT])
    server.close()

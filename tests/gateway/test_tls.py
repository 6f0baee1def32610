"""The gateway behind TLS: the certificate is verified, and nothing goes over the wire in the clear."""

from __future__ import annotations

import pickle
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streaming_source.exceptions import OptionError
from streaming_source.gateway import GatewayClient, GatewayServer, Refusal
from streaming_source.gateway import server as gateway_server
from tests.gateway.support import REPORT, SERIALIZER, Answer, RecordingListener


def make_certificate(directory: Path, name: str, host: str = "IP:127.0.0.1") -> tuple[Path, Path]:
    """A certificate that vouches for itself, and its key."""
    certificate, key = directory / f"{name}.pem", directory / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command, "-addext", f"subjectAltName={host}", *files], check=True, capture_output=True)
    return certificate, key


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("own"), "gateway")


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("foreign"), "foreign")


@contextmanager
def gateway(
    listener: RecordingListener, files: tuple[Path, Path], **changes: Any
) -> Iterator[tuple[GatewayServer, GatewayClient]]:
    """A gateway behind a certificate, and a client that has its address, with some of it changed."""
    server = GatewayServer(listener, SERIALIZER, certificate=files[0], key=files[1])
    client = GatewayClient(replace(pickle.loads(pickle.dumps(server.start())), **changes))
    yield server, client
    client.close()
    server.close()


def test_messages_go_both_ways_over_one_connection(own: tuple[Path, Path], listener: RecordingListener) -> None:
    listener.outgoing[0] = [Answer(True)]
    with gateway(listener, own) as (server, client):
        assert client.address.certificate == own[0].read_bytes()
        messages = client.for_task(0, 0, 0, SERIALIZER)
        assert [messages.send_reports([REPORT]) for _ in range(3)] == [True] * 3
        assert messages.take_events() == [Answer(True)]
        assert len(server._connections) == 1
        (connection,) = client._connections
        assert isinstance(connection, ssl.SSLSocket)
        assert connection.version() in ("TLSv1.2", "TLSv1.3")
    assert server.refused == {}


def test_a_private_key_beside_the_certificate_does_not_travel_to_the_tasks(
    own: tuple[Path, Path], tmp_path: Path, listener: RecordingListener
) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(own[1].read_bytes() + own[0].read_bytes())
    with gateway(listener, (both, both)) as (_, client):
        assert client.for_task(0, 0, 0).send_reports([REPORT])
        assert client.address.certificate is not None
        assert b"PRIVATE KEY" not in client.address.certificate


@pytest.mark.parametrize("trusted", [True, False])
def test_nothing_goes_to_a_server_with_another_certificate_or_in_the_clear(
    trusted: bool, own: tuple[Path, Path], foreign: tuple[Path, Path], listener: RecordingListener
) -> None:
    with gateway(listener, foreign, certificate=own[0].read_bytes() if trusted else None) as (server, client):
        assert not client.for_task(0, 0, 0).send_reports([REPORT])
    assert listener.reports == []
    assert server.refused == {}


def test_a_certificate_for_another_host_is_not_enough(tmp_path: Path, listener: RecordingListener) -> None:
    with gateway(listener, make_certificate(tmp_path, "elsewhere", "DNS:elsewhere.invalid")) as (_, client):
        assert not client.for_task(0, 0, 0).send_reports([REPORT])
    assert listener.reports == []


def test_garbage_instead_of_a_handshake_does_no_harm_and_one_that_never_comes_is_cut_off(
    own: tuple[Path, Path], listener: RecordingListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    with gateway(listener, own) as (server, client):
        at = (client.address.host, client.address.port)
        for garbage in (b"POST /reports/0/0/0/0 HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"\0" * 1_000, b"\0"):
            with socket.create_connection(at) as connection:
                connection.sendall(garbage)
        with socket.create_connection(at):
            assert client.for_task(0, 0, 0).send_reports([REPORT])
        monkeypatch.setattr(gateway_server, "_REQUEST_S", 0.2)
        with socket.create_connection(at, timeout=20) as silent:
            assert silent.recv(1) == b""
        assert server.refused == {Refusal.SLOW: 1}


def test_a_certificate_without_a_key_is_refused(own: tuple[Path, Path]) -> None:
    server = GatewayServer(RecordingListener(), None, certificate=own[0])
    with pytest.raises(OptionError, match="needs both"):
        server.start()
    server.close()


def test_a_file_that_is_no_certificate_is_an_error_that_names_it(own: tuple[Path, Path], tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate")
    server = GatewayServer(RecordingListener(), None, certificate=wrong, key=own[1])
    with pytest.raises(OptionError, match=r"wrong\.pem"):
        server.start()
    server.close()


def test_a_key_behind_a_passphrase_is_an_error_and_no_question(own: tuple[Path, Path], tmp_path: Path) -> None:
    locked = tmp_path / "locked.key"
    lock = ["openssl", "rsa", "-aes256", "-passout", "pass:confidential", "-in", str(own[1]), "-out", str(locked)]
    subprocess.run(lock, check=True, capture_output=True)
    server = GatewayServer(RecordingListener(), None, certificate=own[0], key=locked)
    with pytest.raises(OptionError, match=r"locked\.key"):
        server.start()
    server.close()

"""The gateway behind TLS: the certificate is verified, and nothing goes over the wire in the clear."""

from __future__ import annotations

import pickle
import socket
import ssl
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from streaming_source.exceptions import OptionError
from streaming_source.gateway import GatewayClient, GatewayServer
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


def test_messages_go_both_ways(own: tuple[Path, Path], listener: RecordingListener) -> None:
    certificate, key = own
    server = GatewayServer(listener, SERIALIZER, certificate=certificate, key=key)
    address = pickle.loads(pickle.dumps(server.start()))
    assert address.certificate == certificate.read_bytes()
    client = GatewayClient(address)
    messages = client.for_task(0, 0, 0, SERIALIZER)
    listener.outgoing[0] = [Answer(True)]
    assert [messages.send_reports([REPORT]) for _ in range(3)] == [True] * 3
    assert messages.take_events() == [Answer(True)]
    assert len(server._connections) == 1, "all of it went over one connection"
    client.close()
    server.close()
    assert server.refused == {}


def test_a_private_key_beside_the_certificate_does_not_travel_to_the_tasks(
    own: tuple[Path, Path], listener: RecordingListener, tmp_path: Path
) -> None:
    certificate, key = own
    both = tmp_path / "both.pem"
    both.write_bytes(key.read_bytes() + certificate.read_bytes())
    server = GatewayServer(listener, None, certificate=both, key=both)
    address = server.start()
    client = GatewayClient(address)
    assert client.for_task(0, 0, 0).send_reports([REPORT])
    client.close()
    server.close()
    assert address.certificate is not None
    assert b"PRIVATE KEY" not in address.certificate


def test_a_server_with_another_certificate_is_told_nothing(
    own: tuple[Path, Path], foreign: tuple[Path, Path], listener: RecordingListener
) -> None:
    certificate, key = foreign
    server = GatewayServer(listener, None, certificate=certificate, key=key)
    client = GatewayClient(replace(server.start(), certificate=own[0].read_bytes()))
    assert not client.for_task(0, 0, 0).send_reports([REPORT])
    client.close()
    server.close()
    assert listener.reports == []
    assert server.refused == {}


def test_a_certificate_for_another_host_is_not_enough(tmp_path: Path, listener: RecordingListener) -> None:
    certificate, key = make_certificate(tmp_path, "elsewhere", "DNS:elsewhere.invalid")
    server = GatewayServer(listener, None, certificate=certificate, key=key)
    client = GatewayClient(server.start())
    assert not client.for_task(0, 0, 0).send_reports([REPORT])
    client.close()
    server.close()
    assert listener.reports == []


def test_a_task_that_speaks_in_the_clear_is_not_heard(own: tuple[Path, Path], listener: RecordingListener) -> None:
    certificate, key = own
    server = GatewayServer(listener, None, certificate=certificate, key=key)
    client = GatewayClient(replace(server.start(), certificate=None))
    assert not client.for_task(0, 0, 0).send_reports([REPORT])
    client.close()
    server.close()
    assert listener.reports == []


def test_the_handshake_agrees_on_a_version_of_tls_that_is_not_broken(
    own: tuple[Path, Path], listener: RecordingListener
) -> None:
    certificate, key = own
    server = GatewayServer(listener, None, certificate=certificate, key=key)
    address = server.start()
    context = ssl.create_default_context(cafile=str(certificate))
    plain = socket.create_connection((address.host, address.port))
    with plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as secured:
        assert secured.version() in ("TLSv1.2", "TLSv1.3")
    server.close()


def test_garbage_instead_of_a_handshake_and_none_at_all_do_no_harm(
    own: tuple[Path, Path], listener: RecordingListener
) -> None:
    certificate, key = own
    server = GatewayServer(listener, None, certificate=certificate, key=key)
    address = server.start()
    for garbage in (b"POST /reports/0/0/0/0 HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"\0" * 1_000, b"\0"):
        with socket.create_connection((address.host, address.port)) as connection:
            connection.sendall(garbage)
    client = GatewayClient(address)
    with socket.create_connection((address.host, address.port)):
        assert client.for_task(0, 0, 0).send_reports([REPORT])
    client.close()
    server.close()


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

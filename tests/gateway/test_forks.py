"""Spark forks its workers: each has a client of its own, and none hangs in what its parent left it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

pytestmark = pytest.mark.slow

Run = Callable[[str], int]

SETUP = """
import os, sys
from streaming_source.gateway import GatewayClient, GatewayServer
from tests.gateway.support import REPORT, RecordingListener

def send(address, task):
    return GatewayClient.of(address).for_task(0, task, os.getpid()).send_reports([REPORT])

def in_child(action):
    pid = os.fork()
    if pid == 0:
        # Ends as Python ends: what it has inherited is let go of.
        sys.exit(0 if action() else 1)
    assert os.waitpid(pid, 0)[1] == 0

"""

SERVE = """
import pickle, sys
from streaming_source.gateway import GatewayServer
from tests.gateway.support import RecordingListener
listener = RecordingListener()
server = GatewayServer(listener, None)
print(pickle.dumps(server.start()).hex(), flush=True)
for line in sys.stdin:
    print(len(listener.reports), flush=True)
server.close()
"""


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Runs a program in a process of its own, with a gateway's address in another; gives how much arrived there."""
    serving = subprocess.Popen([sys.executable, "-c", SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with serving as gateway:
        assert gateway.stdin is not None
        assert gateway.stdout is not None
        answers = gateway.stdout
        address = answers.readline().strip()
        arrived = [0]

        def run(code: str) -> int:
            begin = f"{SETUP}\nimport pickle\naddress = pickle.loads(bytes.fromhex({address!r}))\n"
            command = [sys.executable, "-c", begin + code]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            assert done.returncode == 0, done.stderr
            print(file=gateway.stdin, flush=True)
            arrived.append(int(answers.readline()))
            return arrived[-1] - arrived[-2]

        yield run
        gateway.stdin.close()


def test_workers_forked_by_a_daemon_that_never_used_it_each_reach_the_gateway(run: Run) -> None:
    assert run("for task in range(4): in_child(lambda: send(address, task))") == 4


def test_a_child_of_a_process_that_used_it_uses_it_as_well_and_so_does_its_parent(run: Run) -> None:
    code = """
assert send(address, 0)
for task in (1, 2):
    in_child(lambda: send(address, task))
in_child(lambda: GatewayClient.of(address).close() is None)
assert send(address, 3)
"""
    assert run(code) == 4


def test_a_child_has_a_connection_of_its_own_for_what_its_parent_has_begun(run: Run) -> None:
    code = """
messages = GatewayClient.of(address).for_task(0, 0, 7)
assert messages.send_reports([REPORT])
in_child(lambda: GatewayClient.of(address).for_task(0, 1, 8).send_reports([REPORT]) and messages.send_reports([REPORT]))
assert messages.send_reports([REPORT]) is False  # the child has sent one of that number
assert messages.send_reports([REPORT])
"""
    assert run(code) == 4


def test_a_child_that_is_forked_in_the_middle_of_a_call_makes_its_own(run: Run) -> None:
    code = """
import socket, threading
from streaming_source.gateway import client
client._CALL_S = 0.5
with socket.create_server(("127.0.0.1", 0)) as mute:
    from dataclasses import replace
    hangs = replace(address, port=mute.getsockname()[1])
    calling = threading.Thread(target=send, args=(hangs, 0))
    calling.start()
    with mute.accept()[0]:
        in_child(lambda: send(address, 0))
    calling.join()
"""
    assert run(code) == 1


def test_a_child_that_closes_its_parents_server_leaves_it_in_peace(run: Run) -> None:
    code = """
server = GatewayServer(RecordingListener(), None)
own = server.start()
in_child(lambda: server.close() is None and send(own, 0))
assert send(own, 1)
server.close()
"""
    assert run(code) == 0


def test_a_child_of_a_process_that_listens_may_listen_as_well(run: Run) -> None:
    code = """
server = GatewayServer(RecordingListener(), None)
assert send(server.start(), 0)

def listens():
    own = GatewayServer(RecordingListener(), None)
    try:
        return send(own.start(), 0)
    finally:
        own.close()

in_child(listens)
server.close()
"""
    assert run(code) == 0


def test_a_process_that_closes_nothing_ends_all_the_same_and_has_loaded_no_pandas(run: Run) -> None:
    code = """
server = GatewayServer(RecordingListener(), None)
assert send(server.start(), 0)
assert send(address, 0)
assert "pandas" not in sys.modules
"""
    assert run(code) == 1

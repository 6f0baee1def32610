"""Lets the planners that Spark starts be forks of a process that has imported what they need.

Spark forks the Python processes of its tasks from one of its own, but starts each planner anew: half a second of
processor time for each source of each start of a query. A copy of this module lies in the home of Spark of the tests,
whose `sitecustomize` calls `hand_over` in each planner, where Python has not yet begun to run it.
"""

from __future__ import annotations

import _socket
import array
import contextlib
import gc
import importlib
import marshal
import os
import select
import signal
import sys
import time
import zlib

__all__ = ["PLACE", "RUNNER", "hand_over"]

PLACE = "STREAMING_SOURCE_FORKED_PLANNERS"
"""Variable with the process at whose end all of this ends, and a folder of the user's own for sockets: `71:/tmp/x`."""

RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
"""The module that is a planner's process in Spark."""

_KIND = _socket.AF_UNIX, getattr(_socket, "SOCK_SEQPACKET", 0)
"""Of sockets whose messages come one by one, each as a whole."""
_IMPORTED = (
    RUNNER,
    "streaming_source.connectors.delta",
    "streaming_source.connectors.files",
    "streaming_source.connectors.kafka",
    "streaming_source.spark.datasource",
    "streaming_source.spark.planning",
)
_LONGEST = 1 << 20
"""Bytes of a planner's folder and environment."""


def hand_over() -> None:
    """Let a fork be this planner, and end as it ends. Returns in the fork, and where there is nobody to fork yet.

    Such a planner leaves somebody for the next ones. Those of another path of Python have another.
    """
    owner, _, folder = os.environ.get(PLACE, "").partition(":")
    if not folder or not hasattr(os, "pidfd_open"):
        return
    place = f"{folder}/{zlib.crc32(repr(sys.path).encode())}"
    forks = _socket.socket(*_KIND)
    try:
        forks.connect(place)
    except OSError:
        if not os.fork():
            _fork_for_others(place, int(owner))
        return
    _end_as(forks)


def _end_as(fork: _socket.socket) -> None:
    """Say how this planner was started, hand on its end by Spark, and end as the fork does."""
    started = marshal.dumps((os.getcwd(), dict(os.environ)))
    fork.sendmsg([started], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
    pid = int(fork.recv(20) or 0)
    if not pid:
        os._exit(1)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))
    code = int(fork.recv(20) or 1)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _fork_for_others(place: str, owner: int) -> None:
    """Fork for each planner that asks, until the owner has ended; returns in the forks."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    listening = _socket.socket(*_KIND)
    try:
        listening.bind(place)
    except OSError:
        os._exit(0)
    # They may ask from now on, and wait.
    listening.listen(64)
    for name in _IMPORTED:
        importlib.import_module(name)
    # The interpreter goes on with it in each fork.
    del sys.modules[RUNNER]
    # A collection in a fork would write to, and so copy, the pages that it shares with the others.
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    ended = os.pidfd_open(owner)
    poll = select.poll()
    for number in (ended, listening.fileno()):
        poll.register(number, select.POLLIN)
    while all(number != ended for number, _ in poll.poll()):
        asking = _socket.socket(fileno=listening._accept()[0])
        if not os.fork():
            listening.close()
            os.close(ended)
            return _become(asking)
        asking.close()
    os._exit(0)


def _become(asking: _socket.socket) -> None:
    """Return in a fork that is as the planner which asks was started; watch over it until one of the two has ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    started, sent, *_ = asking.recvmsg(_LONGEST, _socket.CMSG_SPACE(12))
    if not sent:
        os._exit(0)
    streams = array.array("i", sent[0][2])
    if pid := os.fork():
        for stream in streams:
            os.close(stream)
        asking.send(b"%d" % pid)
        poll = select.poll()
        poll.register(ended := os.pidfd_open(pid), select.POLLIN)
        poll.register(asking.fileno(), select.POLLIN)
        if all(number != ended for number, _ in poll.poll()):
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(OSError):
            asking.send(b"%d" % os.waitstatus_to_exitcode(status))
        os._exit(0)
    asking.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    folder, variables = marshal.loads(started)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    time.tzset()

"""Which process may use gRPC: Spark forks its workers, and gRPC does not survive a fork.

In a child of a process that used gRPC every call hangs, whatever its deadline, and so does letting go of a connection.
Spark's own daemon never runs our code before it forks, so this meets only programs that fork by themselves: there the
child does without the gateway. A child of a process that *listens* has to end with `os._exit`, as those of
multiprocessing do: Arrow shuts its servers down when Python ends, which hangs there as well.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any, TypeVar

__all__ = ["is_own", "use"]

T = TypeVar("T")

_used_in: int | None = None
_IN_USE: weakref.WeakSet[Any] = weakref.WeakSet()


def use(thing: T) -> T:
    """Say that this process uses gRPC, through an Arrow client or server; gives that back. O(1)."""
    global _used_in
    if _used_in is None:
        _used_in = os.getpid()
    _IN_USE.add(thing)
    return thing


def is_own() -> bool:
    """Whether this process may use gRPC: neither it nor its parents did, or it was this one itself."""
    return _used_in in (None, os.getpid())


def _keep_for_good() -> None:
    """Never let go, not even as Python ends: one reference to each is nobody's."""
    for thing in _IN_USE:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


os.register_at_fork(after_in_child=_keep_for_good)

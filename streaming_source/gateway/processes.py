"""Which process may use gRPC: Spark forks its workers, and gRPC does not survive a fork.

In a child of a process that used gRPC every call hangs, whatever its deadline. Spark's own daemon never runs our code
before it forks, so this meets only programs that fork by themselves; there the child does without the gateway.
"""

from __future__ import annotations

import os

__all__ = ["is_own", "use"]

_used_in: int | None = None


def use() -> None:
    """Say that this process begins to use gRPC, for good."""
    global _used_in
    if _used_in is None:
        _used_in = os.getpid()


def is_own() -> bool:
    """Whether this process may use gRPC: neither it nor its parents did, or it was this one itself."""
    return _used_in in (None, os.getpid())

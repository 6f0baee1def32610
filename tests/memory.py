"""Memory that a call takes, traced in a process of its own."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, NamedTuple

__all__ = ["Traced", "traced"]


class Traced(NamedTuple):
    """What a call returned, the bytes that it held when it did, and the most that it had taken until then."""

    result: Any
    held: int
    peak: int


def traced(call: Callable[..., Any], *args: Any) -> Traced:
    """Call a function of a module; what it returns is pickled, and freed only behind the measuring.

    `tracemalloc.stop()` may crash a process in which another thread takes memory at that moment
    (https://github.com/python/cpython/issues/128679), and the processes of tests have such threads. So it is never
    called here: the process ends.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(_traced, call, args).result()


def _traced(call: Callable[..., Any], args: tuple[Any, ...]) -> Traced:
    tracemalloc.start()
    result = call(*args)
    return Traced(result, *tracemalloc.get_traced_memory())

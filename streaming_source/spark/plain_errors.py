"""Errors that Spark shows: without the trace of where in this library they arose."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from alignment.exceptions import AlignmentError

__all__ = ["plainly", "without_trace"]

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger(__name__)


def plainly(call: Callable[P, T]) -> Callable[P, T]:
    """Wrap a function that Spark calls: errors of the library are raised without their traceback."""

    @wraps(call)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except AlignmentError as error:
            raise without_trace(error) from None

    return called


def without_trace(error: AlignmentError) -> AlignmentError:
    """Return the error without its traceback, and log the whole error at level debug.

    Spark shows the traceback that its Python processes print. Fifty lines of the planner's calls would push the
    sentence that names the file off the screen.
    """
    _log.debug("an error of the library", exc_info=True)
    return error.with_traceback(None)

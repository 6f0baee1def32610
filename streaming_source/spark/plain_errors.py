"""Errors that say what to do, without the trace of where they were raised: from the planner to the user's own call."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from typing import Final, ParamSpec, TypeVar

from pyspark.errors import PySparkException

from alignment.exceptions import AlignmentError

__all__ = ["as_our_own", "bare", "plainly"]

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger(__name__)

_OURS: Final = re.compile(r"^(streaming_source|alignment)\.exceptions\.(\w+): (.*?)(?=\n? SQLSTATE: |\Z)", re.M | re.S)


def plainly(call: Callable[P, T]) -> Callable[P, T]:
    """`bare` errors from each call of a function that Spark calls."""

    @wraps(call)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except AlignmentError as error:
            raise bare(error) from None

    return called


def bare(error: AlignmentError) -> AlignmentError:
    """The error as if it were raised anew; the whole of it is logged, at level debug.

    Spark shows what its Python processes write of an error. Fifty lines of how the planner came to open a file would
    push the sentence that names the file off the screen.
    """
    _log.debug("an error of the library", exc_info=True)
    return error.with_traceback(None)


@contextmanager
def as_our_own() -> Iterator[None]:
    """Raise an error of this library that Spark passes on as what it was."""
    try:
        yield
    except PySparkException as error:
        found = _OURS.findall(str(error))
        if not found:
            raise
        package, kind, message = found[-1]
        raise getattr(import_module(f"{package}.exceptions"), kind)(" ".join(message.split())) from None

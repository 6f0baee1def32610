"""Everything this library raises about sources, options, data and offsets, and how Spark is to show it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from alignment.exceptions import AlignmentError
from alignment.shown import log_of

__all__ = [
    "CheckpointError",
    "ClaimError",
    "DataLossError",
    "FileGoneError",
    "LateRecordError",
    "MalformedDataError",
    "NoDataError",
    "NoSchemaError",
    "OffsetError",
    "OptionError",
    "OutOfRangeError",
    "PathNotFoundError",
    "SchemaError",
    "SourceError",
    "StoreError",
    "StoreUnavailableError",
    "UnsupportedOperationError",
]

ERROR_IN_TEXT: Final = r"\b(alignment|streaming_source)\.exceptions\.(\w+): "
"""A pattern of how an error of this library begins in the text of one of Spark's: its package and its class."""

_log = log_of(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class SourceError(AlignmentError):
    """Base of all errors about a source."""


class OptionError(SourceError, ValueError):
    """An option is unknown, has a wrong value, or contradicts another one."""


class PathNotFoundError(SourceError, FileNotFoundError):
    """There is nothing at a path to read."""


class SchemaError(SourceError, ValueError):
    """Columns are missing, clash, or have types that do not fit."""


class NoSchemaError(SchemaError):
    """The columns cannot be taken from the data: the user has to give them."""


class NoDataError(NoSchemaError):
    """There is no data yet to take the columns from."""


class MalformedDataError(SourceError, ValueError):
    """A file or record cannot be read as what it should be."""


class DataLossError(SourceError):
    """Records that were planned or were to come are not there any more."""


class FileGoneError(DataLossError):
    """A file was deleted before it was read."""


class StoreError(SourceError, OSError):
    """A file system refused access, or failed in a way that does not pass by itself."""


class StoreUnavailableError(SourceError, OSError):
    """A file system did not answer, or not to the end, and was tried again for as long as is of use."""


class OffsetError(SourceError, ValueError):
    """An offset is of a newer version, of another source, or damaged."""


class CheckpointError(SourceError, ValueError):
    """A directory is no checkpoint of a streaming query, or cannot be read as one."""


class ClaimError(SourceError, ValueError):
    """Up to when a table is complete does not follow from what its writer has committed."""


class LateRecordError(SourceError):
    """A record is late, and option `late` is `fail`."""


class OutOfRangeError(SourceError):
    """A record lies outside of the range of `eventTimeFrom` and `eventTimeUntil`, and option `overlap` is `fail`."""


class UnsupportedOperationError(SourceError, NotImplementedError):
    """A connector does not offer an optional operation that was called."""


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

    Spark shows what its Python processes print. Calls of the planner, and Spark's own in its process, would push the
    sentence that names the file off the screen, and out of the first line of Spark's message. A process of Spark ends
    with the first error that leaves it, so that Spark's switch hides the traceback of this one alone.
    """
    _log.debug("an error of the library", exc_info=True)
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name.startswith("pyspark."):
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
    return error.with_traceback(None)

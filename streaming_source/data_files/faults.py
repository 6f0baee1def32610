"""Errors of files and of their stores: which are transient, and what the others are raised as."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa

from alignment.exceptions import AlignmentError
from streaming_source.api import RetryPolicy
from streaming_source.data_files.file import StoredFile
from streaming_source.exceptions import FileGoneError, MalformedDataError, StoreUnavailableError

__all__ = ["StoreRetries", "is_transient", "malformed_as", "opened"]

RETRY_S = 30.0

_TRANSIENT: Final = {
    *(errno.EAGAIN, errno.EBUSY, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTDOWN),
    *(errno.EHOSTUNREACH, errno.EINTR, errno.EIO, errno.EMFILE, errno.ENETDOWN, errno.ENETRESET, errno.ENETUNREACH),
    *(errno.ENFILE, errno.ENOTCONN, errno.EPIPE, errno.ESTALE, errno.ETIMEDOUT),
}
_TRANSIENT_TEXT: Final = re.compile(
    r"AWS Error (NETWORK_CONNECTION|INTERNAL_FAILURE|SERVICE_UNAVAILABLE|SLOW_DOWN|THROTTLING|REQUEST_TIMEOUT)"
    r"|HTTP status 5\d\d|HTTP response code 5\d\d|curlCode|UNAVAILABLE|DEADLINE_EXCEEDED"
    r"|\[Errno (?P<errno>\d+)\]"
)
"""Transient errors that have no `errno`: those of cloud stores, and those that a decoder passes on as text."""


def is_transient(error: BaseException) -> bool:
    """Return whether a store may succeed if the call is made again.

    The error of a file that is gone or malformed stays.
    """
    if isinstance(error, StoreUnavailableError | ConnectionError | TimeoutError):
        return True
    if not isinstance(error, OSError):
        return False
    if error.errno is not None:
        return error.errno in _TRANSIENT
    found = _TRANSIENT_TEXT.search(str(error))
    return found is not None and (found["errno"] is None or int(found["errno"]) in _TRANSIENT)


class StoreRetries(RetryPolicy):
    """Repeats calls of a file system that failed with a transient error, in addition to what its client repeats."""

    def __init__(self) -> None:
        super().__init__(RETRY_S)

    def passes(self, error: Exception) -> bool:
        return is_transient(error)


@contextmanager
def opened(file: StoredFile) -> Iterator[pa.NativeFile]:
    """Open a file, and close it afterwards."""
    try:
        stream = file.filesystem.open_input_file(file.path) if file.opening is None else file.opening.result()
    except FileNotFoundError:
        raise FileGoneError(_gone(file)) from None
    except OSError as error:
        raise _unavailable(file.path, error) if is_transient(error) else error from None
    with stream:
        yield stream


@contextmanager
def malformed_as(what: str, fix: str = "") -> Iterator[None]:
    """Raise the errors of a decoder as a `MalformedDataError` that begins with `what`.

    A transient error of the store is raised as a `StoreUnavailableError`: the file may be in order.
    """
    try:
        yield
    except AlignmentError:
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        if is_transient(error):
            raise _unavailable(what, error) from None
        raise MalformedDataError(f"{what}: {str(error).rstrip('.')}{fix}") from None


def _gone(file: StoredFile) -> str:
    if not file.file.origin:
        return (
            f"{file.path} is gone: it was deleted after it had been listed and before it was read. Restore it, or set "
            "ignoreMissingFiles = true"
        )
    return (
        f"{file.path} of {file.file.origin} was deleted before it was read: the table no longer refers to it, and a "
        "vacuum or the expiry of snapshots removed it. Restore it, set ignoreMissingFiles = true to go on "
        "without its records, or use a new checkpointLocation"
    )


def _unavailable(what: str, error: BaseException) -> StoreUnavailableError:
    return StoreUnavailableError(f"{what}: the store failed: {str(error).rstrip('.')}; start again when it answers")

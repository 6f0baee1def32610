"""Errors of files and of their stores: which are transient, and what the others are raised as."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

import pyarrow as pa

from alignment.exceptions import AlignmentError
from alignment.shown import printable, without_secrets
from streaming_source.api import RetryPolicy
from streaming_source.data_files.file import StoredFile
from streaming_source.exceptions import (
    DataLossError,
    FileGoneError,
    MalformedDataError,
    PathNotFoundError,
    SourceError,
    StoreError,
    StoreUnavailableError,
)

T = TypeVar("T")

RETRY_S = 30.0

_TRANSIENT: Final = {
    *(errno.EAGAIN, errno.EBUSY, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTDOWN),
    *(errno.EHOSTUNREACH, errno.EINTR, errno.EIO, errno.EMFILE, errno.ENETDOWN, errno.ENETRESET, errno.ENETUNREACH),
    *(errno.ENFILE, errno.ENOTCONN, errno.EPIPE, errno.ESTALE, errno.ETIMEDOUT),
}
_TRANSIENT_TEXT: Final = re.compile(
    r"AWS Error (NETWORK_CONNECTION|INTERNAL_FAILURE|SERVICE_UNAVAILABLE|SLOW_DOWN|THROTTLING|REQUEST_TIMEOUT)"
    r"|HTTP status 5\d\d|HTTP response code 5\d\d|curlCode|UNAVAILABLE|DEADLINE_EXCEEDED"
    r"|error sending request|operation timed out|non-2xx status code: 5\d\d"
    r"|(\[Errno |\(os error )(?P<errno>\d+)[\])]"
)
"""Transient errors that have no `errno`: those of cloud stores, and those that a decoder passes on as text."""

_REFUSED_TEXT: Final = re.compile(
    r"AWS Error (ACCESS_DENIED|INVALID_ACCESS_KEY_ID|INVALID_CLIENT_TOKEN_ID|SIGNATURE_DOES_NOT_MATCH|EXPIRED"
    r"|MISSING_AUTH|UNRECOGNIZED_CLIENT|INVALID_SIGNATURE)|HTTP (status|response code) 40[13]"
    r"|non-2xx status code: 40[13]"
    r"|lacked the necessary privileges|PERMISSION_DENIED|UNAUTHENTICATED|InvalidAccessKeyId|SignatureDoesNotMatch"
)
_NO_BUCKET_TEXT: Final = re.compile(r"NO_SUCH_BUCKET|NoSuchBucket|ContainerNotFound|bucket does not exist", re.I)
_OPTIONS: Final = "the options storage.*"
_CHANGED_OF_FILES: Final = (
    "it was appended to or rewritten. Let writers rename complete files into place; set ignoreChangedFiles = true to "
    "go on"
)
_SHOWN: Final = 400
_LOOKED_AT: Final = 4_000
"""Characters of an answer of a store or its client that are used."""


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
    found = _TRANSIENT_TEXT.search(_in_one_line(error))
    return found is not None and (found["errno"] is None or int(found["errno"]) in _TRANSIENT)


class StoreRetries(RetryPolicy):
    """Repeats calls of a file system that failed with a transient error, in addition to what its client repeats.

    `what` is called, for errors; it is repeated `retries` times at most, None for as often as the time allows.
    """

    def __init__(self, what: str = "", retries: int | None = None) -> None:
        super().__init__(RETRY_S, retries=retries)
        self._what = what

    def passes(self, error: Exception) -> bool:
        return is_transient(error)

    def _raised_for(self, error: Exception) -> Exception:
        if isinstance(error, OSError) and not isinstance(error, AlignmentError | FileNotFoundError):
            return store_fault(error, self._what)
        return error


@contextmanager
def faults_of(what: str = "", options: str = _OPTIONS) -> Iterator[None]:
    """Raise what a store raises as `store_fault`. A file that is not there is left to the caller."""
    try:
        yield
    except (AlignmentError, FileNotFoundError):
        raise
    except OSError as error:
        raise store_fault(error, what, options) from None


def store_fault(error: OSError, what: str = "", options: str = _OPTIONS) -> SourceError:
    """Return the error of a file system or its client as one line: what was read, the cause, and what to correct.

    `options` are where the user has set the store's endpoint and keys.
    """
    cause, local = printable(_in_one_line(error)), error.errno in (errno.EACCES, errno.EPERM)
    is_refused, no_bucket = local or _REFUSED_TEXT.search(cause), _NO_BUCKET_TEXT.search(cause)
    cause = cause if len(cause) <= _SHOWN else f"{cause[: _SHOWN // 2]} ... {cause[-_SHOWN // 2 :]}"
    what = f"{what}: " if what else ""
    if isinstance(error, FileNotFoundError):
        return PathNotFoundError(f"{what}what it needs is not in its store: {cause}. Restore it, or correct the path")
    if no_bucket:
        fix = f"Correct its name, or the endpoint in {options}"
        return PathNotFoundError(f"{what}there is no such bucket: {cause}. {fix}")
    if is_transient(error):
        fix = f"correct the endpoint in {options}" if error.errno is None else "see to the device or the network"
        return StoreUnavailableError(f"{what}the store does not answer: {cause}. Start again when it does, or {fix}")
    if is_refused:
        fix = f"Correct the keys in {options}, or the rights of their user"
        fix = "Give this process the right to it" if local else fix
        return StoreError(f"{what}the store refuses access: {cause}. {fix}")
    return StoreError(f"{what}the store failed: {cause}. Correct the path or {options}, or see to the store")


def _in_one_line(error: BaseException) -> str:
    """Return the message of a store's client in one line, free of colours and XML."""
    # A store may answer with anything: only its beginning is looked at, and by nothing that goes back and forth in it.
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)[:_LOOKED_AT])
    before, _, xml = text.partition("<?xml")
    if code := _between(xml, "<Code>", "</Code>"):
        text = f"{before}{code}: {_between(xml, '<Message>', '</Message>')}"
    levels = [" ".join(level.split()) for level in text.removeprefix("Kernel error -> ").split("\u21b3")]
    return without_secrets(": ".join(levels)).rstrip(".: ")


def _between(text: str, begin: str, end: str) -> str:
    found, is_there, _ = text.partition(begin)[2].partition(end)
    return found if is_there else ""


@contextmanager
def opened(file: StoredFile) -> Iterator[pa.NativeFile]:
    """Open a file, and close it afterwards. Raises a `DataLossError` if it has another size than it must have."""
    try:
        stream = file.filesystem.open_input_file(file.file.path) if file.opening is None else file.opening.result()
    except FileNotFoundError:
        raise FileGoneError(_gone(file)) from None
    except OSError as error:
        raise _unavailable(file.path, error) if is_transient(error) else store_fault(error, file.path) from None
    except pa.ArrowInvalid as error:
        name = printable(file.path)
        raise MalformedDataError(f"{name}: no file can have this name: {error}; correct what names it") from None
    with stream:
        wanted = file.file.size if file.checks_size else None
        if wanted is not None and (size := stream.size()) != wanted:
            raise DataLossError(
                f"{file.path} has {size} bytes, and had {wanted} when its records were planned: {_CHANGED_OF_FILES}"
            )
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
    except (pa.ArrowException, OSError, EOFError, ValueError, OverflowError) as error:
        if is_transient(error):
            raise _unavailable(what, error) from None
        if isinstance(error, OSError) and _REFUSED_TEXT.search(_in_one_line(error)):
            raise store_fault(error, what) from None
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

"""Stores that do not answer for a moment: which errors pass, and for how long they are tried again."""

from __future__ import annotations

import errno
import re
from typing import Final

from streaming_source.api import RetryPolicy
from streaming_source.exceptions import StoreUnavailableError

__all__ = ["StoreRetries", "may_pass"]

RETRY_S = 30.0

_PASSING: Final = frozenset(
    getattr(errno, name)
    for name in (
        *("EAGAIN", "EBUSY", "ECONNABORTED", "ECONNREFUSED", "ECONNRESET", "EHOSTDOWN", "EHOSTUNREACH", "EINTR"),
        *("EIO", "EMFILE", "ENETDOWN", "ENETRESET", "ENETUNREACH", "ENFILE", "ENOTCONN", "EPIPE", "ESTALE"),
        *("ETIMEDOUT",),
    )
)
_PASSING_TEXT: Final = re.compile(
    r"AWS Error (NETWORK_CONNECTION|INTERNAL_FAILURE|SERVICE_UNAVAILABLE|SLOW_DOWN|THROTTLING|REQUEST_TIMEOUT)"
    r"|HTTP status 5\d\d|HTTP response code 5\d\d|curlCode|UNAVAILABLE|DEADLINE_EXCEEDED"
    r"|\[Errno (?P<errno>\d+)\]"
)
"""pyarrow's errors about clouds have no number, and what was raised within a decoder is left as text."""


def may_pass(error: BaseException) -> bool:
    """Whether a store failed in a way that it may not the next time; not a file that is gone or malformed."""
    if isinstance(error, StoreUnavailableError | ConnectionError | TimeoutError):
        return True
    if not isinstance(error, OSError):
        return False
    if error.errno is not None:
        return error.errno in _PASSING
    found = _PASSING_TEXT.search(str(error))
    return found is not None and (found["errno"] is None or int(found["errno"]) in _PASSING)


class StoreRetries(RetryPolicy):
    """Tries calls of a file system again, beside what its own client does."""

    def __init__(self) -> None:
        super().__init__(RETRY_S)

    def passes(self, error: Exception) -> bool:
        return may_pass(error)

"""Files that are gone or broken, where the user wants to go on without them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from streaming_source.exceptions import FileGoneError, MalformedDataError

__all__ = ["Tolerance"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What a source goes on without.

    Attributes
    ----------
    missing
        Files that are gone.
    corrupt
        Files that cannot be read, or from where they cannot be read on.
    """

    missing: bool = False
    corrupt: bool = False

    def allows(self, error: BaseException) -> bool:
        """Whether it goes on after this error; then it is logged."""
        if isinstance(error, FileGoneError):
            allowed = self.missing
        else:
            allowed = self.corrupt and isinstance(error, MalformedDataError)
        if allowed:
            _log.warning("ignored: %s", error)
        return allowed

    @contextmanager
    def tolerated(self) -> Iterator[None]:
        """Go on after what fails inside, where that is allowed."""
        try:
            yield
        except (FileGoneError, MalformedDataError) as error:
            if not self.allows(error):
                raise

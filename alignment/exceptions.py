"""Every exception the event-time engine raises, in one flat module.

All of them derive from :class:`AlignmentError`, and from the built-in exception of the same meaning, so that
both ``except AlignmentError`` and ``except ValueError`` work. All survive pickling, since they travel between
processes.
"""

from __future__ import annotations

__all__ = [
    "AlignmentError",
    "DuplicateSplitError",
    "InvalidArgumentError",
    "InvalidTimestampError",
    "UnknownMemberError",
    "UnknownSplitError",
]


class AlignmentError(Exception):
    """Base of everything that the package ``alignment`` raises on purpose."""


class InvalidArgumentError(AlignmentError, ValueError):
    """An argument or option breaks a rule; the message names it, its value, the rule and the fix."""


class InvalidTimestampError(AlignmentError, ValueError):
    """A record has no readable event time where one is required."""


class _UnknownKeyError(AlignmentError, KeyError):
    """A key that is not there, with a readable text."""

    def __str__(self) -> str:
        # KeyError shows the repr of its argument, which turns a sentence into a quoted and escaped one.
        return Exception.__str__(self)


class UnknownSplitError(_UnknownKeyError):
    """The split was never registered, or has been unregistered."""


class UnknownMemberError(_UnknownKeyError):
    """The member never joined the alignment group, has left it, or its lease has ended."""


class DuplicateSplitError(AlignmentError, ValueError):
    """The split is registered already; a split id stands for one split only."""

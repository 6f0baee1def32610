"""Every exception the event-time engine raises, in one flat module.

All of them derive from :class:`AlignmentError`, and from the built-in exception of the same meaning, so that
both ``except AlignmentError`` and ``except ValueError`` work. All survive pickling, since they travel between
processes.
"""

from __future__ import annotations

import re
import textwrap
from typing import Final

from alignment.shown import shown

WIDTH: Final = 110
"""Characters of a line of a message: with a traceback's indentation, or the name of its class, it fits a screen."""


class AlignmentError(Exception):
    """Base of everything that the package ``alignment`` raises on purpose.

    A message that is too long for one line is broken, where it can be between sentences: what is to be done is at
    the end of a message, and so on the last line that a user sees.
    """

    def __str__(self) -> str:
        # Not that of the built-in exception that a class derives from as well: KeyError, say, quotes and escapes.
        text = shown(Exception.__str__(self))
        return text if len(text) <= WIDTH else _folded(text)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({shown(Exception.__str__(self))!r})"


def _folded(text: str) -> str:
    lines = [""]
    for sentence in re.split(r"(?<=[.;:]) (?=[A-Za-z])", text):
        longer = f"{lines[-1]} {sentence}".lstrip()
        if len(longer) > WIDTH >= len(sentence):
            lines.append(sentence)
        else:
            lines[-1:] = textwrap.wrap(longer, WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


class InvalidArgumentError(AlignmentError, ValueError):
    """An argument or option breaks a rule; the message names it, its value, the rule and the fix."""


class InvalidTimestampError(AlignmentError, ValueError):
    """A record has no readable event time where one is required; at `position` of its split, where that is known."""

    position: int | None = None


class _UnknownKeyError(AlignmentError, KeyError):
    """A key that is not there."""


class UnknownSplitError(_UnknownKeyError):
    """The split was never registered, or has been unregistered."""


class UnknownMemberError(_UnknownKeyError):
    """The member never joined the alignment group, has left it, or its lease has ended."""


class DuplicateSplitError(AlignmentError, ValueError):
    """The split is registered already; a split id is of one split only."""

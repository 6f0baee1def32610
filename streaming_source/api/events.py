"""Messages between an enumerator and its readers (FLIP-27)."""

from __future__ import annotations

__all__ = ["SourceEvent"]


class SourceEvent:
    """A message of a connector's own, from its enumerator to its readers or back.

    Subclass it with what the message carries, best as a frozen dataclass. Events travel between processes: they are
    picklable, and their classes are importable by name.
    """

    __slots__ = ()

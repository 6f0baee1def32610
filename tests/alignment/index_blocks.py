"""How much an index keeps."""

from __future__ import annotations

from alignment.index import EventTimeIndex


def n_blocks(index: EventTimeIndex) -> int:
    """Return the number of blocks kept, after all that was added is taken in."""
    index._settle()
    return index._blocks.first.size

"""What an index keeps."""

from __future__ import annotations

import numpy as np

from alignment.index import EventTimeIndex


def n_blocks(index: EventTimeIndex) -> int:
    """Return the number of blocks kept, after all that was added is taken in."""
    index._settle()
    return index._table.blocks.first.size


def check_kept_times(index: EventTimeIndex) -> None:
    """Assert what always holds of the times that are kept."""
    index._settle()
    loaded = index._loaded
    blocks = index._table.blocks
    kept = np.flatnonzero(blocks.at >= 0)
    kept = kept[np.argsort(blocks.at[kept])]
    ends = blocks.at[kept] + blocks.rows(kept)
    assert (ends[:-1] <= blocks.at[kept][1:]).all(), (blocks.at[kept], ends)
    assert (ends <= loaded.filled).all(), (ends, loaded.filled)
    assert loaded.filled <= loaded.exact.size == loaded.latest.size, (loaded.filled, loaded.exact.size)
    for block, at, end in zip(kept.tolist(), blocks.at[kept].tolist(), ends.tolist(), strict=True):
        base = int(blocks.base[block])
        assert (loaded.latest[at + base : end] == np.maximum.accumulate(loaded.times(block)[base:])).all(), block

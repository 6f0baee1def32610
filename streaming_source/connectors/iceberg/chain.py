"""The snapshots of a table's main branch: which come after another one, and what becomes of a stream without one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from streaming_source.exceptions import DataLossError

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

__all__ = ["BEFORE_ALL", "ancestry", "snapshots_after"]

BEFORE_ALL: Final = -1
"""Where a table is that has no snapshot yet; no snapshot has this id."""

_FIX: Final = "Start with a new checkpointLocation, which reads the table as it is now"
_KEEP: Final = "keep snapshots longer than a query may be down (history.expire.max-snapshot-age-ms)"


def ancestry(metadata: TableMetadata, head: int | None) -> list[Snapshot]:
    """Return a snapshot and its ancestors, newest first, as far as the table has them. O(snapshots)."""
    known = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    found: list[Snapshot] = []
    while head is not None and head in known:
        found.append(known.pop(head))
        head = found[-1].parent_snapshot_id
    return found


def snapshots_after(title: str, metadata: TableMetadata, after: int, head: int | None) -> Sequence[Snapshot]:
    """Return the snapshots behind `after` up to `head`, oldest first.

    Raises
    ------
    DataLossError
        If `after` is no ancestor of `head` any more (a rollback, a branch set elsewhere, a table replaced), or a
        snapshot between them has expired.
    """
    if head == after or (head is None and after == BEFORE_ALL):
        return ()
    found: list[Snapshot] = []
    for snapshot in ancestry(metadata, head):
        if snapshot.snapshot_id == after:
            return found[::-1]
        found.append(snapshot)
    first = None if not found else found[-1].parent_snapshot_id
    if found and first == (None if after == BEFORE_ALL else after):
        return found[::-1]
    if found and first is not None and not any(one.snapshot_id == after for one in metadata.snapshots):
        raise DataLossError(
            f"{title}: snapshot {first} has expired, and what was committed after snapshot {after} was not all read. "
            f"{_FIX}; {_KEEP}"
        )
    if (
        found
        and found[-1].sequence_number not in (0, 1, None)
        and after not in {one.snapshot_id for one in metadata.snapshots}
    ):
        # pyiceberg lets go of what came before where it expires snapshots.
        raise DataLossError(
            f"{title}: snapshot {after}, which was read, has expired, and whether all that was committed between it "
            f"and snapshot {found[-1].snapshot_id} was read is not known any more. {_FIX}; {_KEEP}"
        )
    now = f"its main branch is at snapshot {head}" if head is not None else "its main branch has no snapshot now"
    raise DataLossError(
        f"{title}: snapshot {after}, which was read, is no ancestor any more: {now}. It was rolled back, replaced, or "
        f"its branch set to another snapshot. {_FIX}"
    )

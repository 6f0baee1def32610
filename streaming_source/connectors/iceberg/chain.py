"""The snapshots of a table's main branch: which come after another one, and whether all of these are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from streaming_source.connectors.tables.lister import BEFORE_ALL

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot


def ancestry(metadata: TableMetadata, head: int | None) -> list[Snapshot]:
    """Return a snapshot and its ancestors, newest first, as far as the table has them. O(snapshots)."""
    known = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    found: list[Snapshot] = []
    while head is not None and head in known:
        found.append(known.pop(head))
        head = found[-1].parent_snapshot_id
    return found


def rolled_back(metadata: TableMetadata, there: Sequence[Snapshot]) -> list[Snapshot]:
    """Return the snapshots that the main branch had after the oldest that is `there`, and has no more. O(snapshots).

    As far as the table still has them: `there` are the ancestors of the current one.
    """
    had, kept = [entry.snapshot_id for entry in metadata.snapshot_log], {one.snapshot_id for one in there}
    first = next((place for place, snapshot in enumerate(had) if snapshot in kept), len(had))
    gone = {*had[first:]} - kept
    return [one for one in metadata.snapshots if one.snapshot_id in gone]


def is_first(metadata: TableMetadata, snapshot: Snapshot, inherits: Callable[[Snapshot], bool]) -> bool:
    """Return whether nothing was committed before a snapshot without a parent.

    `pyiceberg` clears the parent of a snapshot where it lets that expire, so that a missing parent shows nothing.
    Commits are numbered without gaps: each lower number belongs to a snapshot that the table still has, of another
    branch. Commits from before format version 2 have no number: then the files of the snapshot, which `inherits` looks
    into, are all its own.
    """
    if snapshot.parent_snapshot_id is not None:
        return False
    number = snapshot.sequence_number or 0
    lower = {one.sequence_number for one in metadata.snapshots if 0 < (one.sequence_number or 0) < number}
    return len(lower) >= number - 1 and not inherits(snapshot)


def chain_between(
    metadata: TableMetadata, after: int, head: int | None, inherits: Callable[[Snapshot], bool]
) -> tuple[list[Snapshot], str | None]:
    """Return the snapshots after `after` up to `head`, and why some of them are not known, as a clause. O(snapshots).

    That is so if `after` is no ancestor of `head` any more (a rollback, a branch set elsewhere, a table replaced), or a
    snapshot between them has expired. `inherits` says whether a snapshot has files that others have added.
    """
    if head == after or (head is None and after == BEFORE_ALL):
        return [], None
    if head is None:
        return [], f"the main branch has no snapshot now, and snapshot {after} was read"
    found: list[Snapshot] = []
    for snapshot in ancestry(metadata, head):
        if snapshot.snapshot_id == after:
            return found[::-1], None
        found.append(snapshot)
    if not found:
        return [], f"snapshot {head} has expired"
    parent, from_the_first = found[-1].parent_snapshot_id, after == BEFORE_ALL
    if parent == after or (from_the_first and is_first(metadata, found[-1], inherits)):
        return found[::-1], None
    if not from_the_first and metadata.snapshot_by_id(after) is not None:
        broken = (
            f"snapshot {after}, which was read, is no ancestor of snapshot {head} any more: the main branch was rolled "
            "back, replaced or set to another snapshot, or a snapshot between them has expired"
        )
    else:
        read = "nothing before it was read" if from_the_first else f"snapshot {after} was the last that was read"
        expired = f"snapshot {parent}" if parent is not None else f"what came before snapshot {found[-1].snapshot_id}"
        broken = f"{expired} has expired, and {read}"
    return found[::-1], broken

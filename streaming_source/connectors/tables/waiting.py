"""Files of a table that wait for their turn, and up to where they were begun.

Files are begun in the order of their keys: lower bound, path, version. What was begun of a group of versions is thus
all up to a key, and that key is what an offset has to keep of it, however many files these are. A commit may bring
files with lower keys than were begun: it is a step of its own, with a lower key, until its files have caught up. So
`Progress.steps` is as long as there are commits with such files waiting, and mostly has one entry.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from alignment import arrow_compute as pc
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK
from streaming_source.connectors.tables.files import FILES, TableFile
from streaming_source.exceptions import OffsetError

__all__ = ["Key", "Progress", "Step", "WaitingTableFiles", "divided", "key_of"]

_KEYS: Final = (("low_us", "ascending"), ("path", "ascending"), ("version", "ascending"))


class Key(NamedTuple):
    """A place in the order of files. Those without any valid event time come first: they hold nothing back."""

    low_us: int
    path: str
    version: int


def key_of(file: TableFile) -> Key:
    """Return where the turn of a file is; its bounds are known."""
    assert file.low_us is not None, "its turn depends on its event times"
    return Key(NO_TIMESTAMP if file.low_us == MAX_WATERMARK else file.low_us, file.path, file.version)


class Step(NamedTuple):
    """Of the versions behind those of the step before, up to `upto`: files up to the key `begun` were begun."""

    upto: int
    begun: Key | None


@dataclass(frozen=True, slots=True)
class Progress:
    """Up to where the files of a table were begun.

    All files of versions up to `after` were, but for those of the snapshot of that version if `in_snapshot`: these
    belong to the first step. Later versions are in `steps`, whose keys fall; what is behind these is not listed.
    """

    after: int
    in_snapshot: bool = False
    steps: tuple[Step, ...] = ()

    @property
    def listed(self) -> int:
        """The last version whose files are known."""
        return self.steps[-1].upto if self.steps else self.after


class _Group:
    """Files of consecutive versions, sorted by their keys; `next` is the first that waits."""

    __slots__ = ("_files", "count", "next", "upto")

    def __init__(self, files: pa.Table, upto: int, count: int) -> None:
        self._files = files
        self.upto = upto
        self.count = count
        self.next = 0

    def __len__(self) -> int:
        return int(self._files.num_rows) - self.next

    def file(self, place: int) -> TableFile:
        return TableFile(**{name: self._files[name][place].as_py() for name in FILES.names})

    @property
    def head(self) -> Key:
        return key_of(self.file(self.next))

    def release(self) -> None:
        """Let go of the files, which were all begun: what is left is up to which version they were."""
        self._files, self.next = self._files.slice(0, 0).combine_chunks(), 0


class WaitingTableFiles:
    """Files that wait, as columns: about as many bytes as their paths and bounds have.

    With n files in a group of versions, adding them costs O(n log n); taking the next of g groups O(log g).
    """

    def __init__(self, after: int, *, in_snapshot: bool = False) -> None:
        self._after = after
        self._in_snapshot = in_snapshot
        # In the order of their versions; all but the first ones may be read to their ends.
        self._groups: list[_Group] = []
        self._heads: list[tuple[Key, int, _Group]] = []
        self._steps: list[Step] = []
        self._count = self._added = 0
        self.size = 0
        """Bytes of the files that wait."""

    def __len__(self) -> int:
        return self._count

    def add(self, files: pa.Table, upto: int, begun: Key | None = None, count: int = 1) -> None:
        """Add the files of `count` versions up to `upto`; those up to the key `begun` were begun before a restart.

        `files` are columns of `FILES`, whose bounds are known. The first group of a snapshot is the snapshot's.
        """
        _, waiting = divided(files, begun)
        group = _Group(waiting, upto, count)
        self._groups.append(group)
        self._count += len(group)
        self.size += pc.sum(waiting["size"]).as_py() or 0
        if len(group):
            self._added += 1
            heapq.heappush(self._heads, (group.head, self._added, group))
        last = self._steps[-1] if self._steps else None
        if last is not None and (not len(group) or (last.begun is not None and group.head > last.begun)):
            begun = last.begun
        self._steps.append(Step(upto, begun))
        self._merge(begun)

    def pop(self) -> TableFile:
        """Take the next file; an `IndexError` if none waits."""
        if not self._heads:
            raise IndexError("no file waits")
        key, number, group = self._heads[0]
        file = group.file(group.next)
        group.next += 1
        self._count -= 1
        self.size -= file.size
        if len(group):
            heapq.heapreplace(self._heads, (group.head, number, group))
        else:
            heapq.heappop(self._heads)
            group.release()
        self._merge(key)
        return file

    @property
    def versions(self) -> int:
        """How many versions have files that wait, counting those that were listed together. O(groups)."""
        return sum(group.count for _, _, group in self._heads)

    @property
    def earliest_us(self) -> int:
        """No waiting file has a valid event time before this; `MAX_WATERMARK` if none has any. O(groups)."""
        times = [key.low_us for key, _, _ in self._heads]
        if NO_TIMESTAMP not in times:
            return min(times, default=MAX_WATERMARK)
        # Rare: such files are begun first, and whatever else waits in their group is not looked at for it.
        known = [_first_time(group) for _, _, group in self._heads]
        return min(known, default=MAX_WATERMARK)

    def among(self, paths: set[str]) -> set[str]:
        """Return those of the paths that wait. O(n)."""
        wanted = pa.array(sorted(paths), pa.string())
        found: set[str] = set()
        for _, _, group in self._heads:
            waiting = group._files["path"].slice(group.next)
            found.update(waiting.filter(pc.is_in(waiting, wanted)).to_pylist())
        return found

    @property
    def paths(self) -> Iterator[str]:
        """The paths of the files that wait, in no order. O(n)."""
        for _, _, group in self._heads:
            yield from group._files["path"].slice(group.next).to_pylist()

    @property
    def progress(self) -> Progress:
        """What an offset keeps. O(n) with n groups; those of which no file waits are let go, but for one a step."""
        steps, left = {step.upto for step in self._steps}, list[_Group]()
        for group in self._groups:
            if len(group) or (left and left[-1].upto in steps):
                left.append(group)
            elif left:
                # When the group before is done, so is this one.
                left[-1].upto = group.upto
            else:
                self._after, self._in_snapshot = group.upto, False
                if self._steps and self._steps[0].upto == group.upto:
                    del self._steps[0]
        self._groups = left
        return Progress(self._after, self._in_snapshot, tuple(self._steps))

    def _merge(self, begun: Key | None) -> None:
        """After the lowest waiting file was begun, all waiting ones have higher keys: so far each step has come."""
        upto = self._steps[-1].upto
        while self._steps and _reaches(begun, self._steps[-1].begun):
            self._steps.pop()
        self._steps.append(Step(upto, begun))


def _reaches(begun: Key | None, other: Key | None) -> bool:
    return begun == other or (begun is not None and (other is None or other < begun))


def divided(files: pa.Table, begun: Key | None) -> tuple[pa.Table, pa.Table]:
    """Return the files up to the key `begun`, and those behind it, in the order of their keys. O(n log n)."""
    low = files["low_us"]
    turns = pc.if_else(pc.equal(low, MAX_WATERMARK), NO_TIMESTAMP, low)
    keys = files.select(["path", "version"]).append_column("low_us", turns)
    ordered = files.take(pc.sort_indices(keys, sort_keys=_KEYS)).combine_chunks()
    if begun is None:
        return ordered.slice(0, 0), ordered
    _check_order(ordered, begun)
    first = _first_behind(ordered, begun)
    return ordered.slice(0, first), ordered.slice(first)


def _check_order(files: pa.Table, begun: Key) -> None:
    """Refuse to go on where the last file that was begun is at another place now: others would be passed over."""
    is_same = pc.and_(pc.equal(files["path"], begun.path), pc.equal(files["version"], begun.version))
    for low_us in files.filter(is_same)["low_us"].to_pylist():
        if low_us not in (begun.low_us, MAX_WATERMARK):
            raise OffsetError(
                f"the checkpoint has {begun.low_us} as the first event time of {begun.path}, in microseconds since "
                f"1970, and now it is {low_us}: files begin in the order of these, so files that wait would be passed "
                "over. The table's statistics were computed anew, or an earlier version of this library wrote the "
                "checkpoint; let that version read the files that wait, or use a new checkpointLocation"
            )


def _first_behind(files: pa.Table, begun: Key) -> int:
    """Return the number of the first sorted file behind a key. O(log n), beside files of one lower bound."""
    low = files["low_us"].to_numpy()
    low = np.where(low == MAX_WATERMARK, NO_TIMESTAMP, low)
    first, last = (int(np.searchsorted(low, begun.low_us, side)) for side in ("left", "right"))
    paths = files["path"].slice(first, last - first).to_pylist()
    versions = files["version"].slice(first, last - first).to_pylist()
    behind = sum((path, version) <= (begun.path, begun.version) for path, version in zip(paths, versions, strict=True))
    return first + behind


def _first_time(group: _Group) -> int:
    low = group._files["low_us"].slice(group.next).to_numpy()
    return int(low.min(initial=MAX_WATERMARK))

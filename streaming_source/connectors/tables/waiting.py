"""Files of a table that wait, and up to where they were opened.

Files are opened in the order of their keys: lower bound, path, version. So those of some versions that were opened are
all up to a key, and that key is what an offset has of them, however many they are. A commit may bring files with lower
keys than were opened: it is a step of its own, with a lower key, until its files have caught up. So `Progress.steps` is
as long as there are commits with such files waiting, and mostly has one entry.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple

import numpy as np
import pyarrow as pa

from alignment import arrow_compute as pc
from alignment.arrow_times import format_timestamp
from alignment.codec import Wire
from alignment.durations import format_duration
from alignment.shown import log_of
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK
from streaming_source.connectors.tables.files import FILES, TableFile
from streaming_source.exceptions import OffsetError

_log = log_of(__name__)

_AGAIN_MS: Final = 3_600_000
"""Milliseconds after which the same is logged again."""

_SHORT_MS: Final = 24 * 3_600_000
"""So little time left is worth a warning, however fast the files are read."""


class ExpiringFiles:
    """Removed files that wait, by path, and until when each stays readable. `now_ms` is the clock.

    The pace is that at which files were opened since the first look.
    """

    def __init__(self, title: str, now_ms: Callable[[], int]) -> None:
        self._title, self._now_ms = title, now_ms
        self._until_ms: dict[str, int] = {}
        self._first_look_ms: int | None = None
        self._opened = 0
        self._warned_ms: int | None = None

    def __len__(self) -> int:
        return len(self._until_ms)

    def add(self, until_ms: Mapping[str, int]) -> None:
        """Take in files that wait."""
        self._until_ms |= until_ms

    def open(self, path: str) -> None:
        """Take out a file that does not wait any more."""
        self._opened += 1
        self._until_ms.pop(path, None)

    def warn(self, waiting: int) -> None:
        """Log how much time is left, where `waiting` files may take longer; once an hour. O(files that expire)."""
        now_ms = self._now_ms()
        if self._first_look_ms is None:
            self._first_look_ms = now_ms
        if not self._until_ms or (self._warned_ms is not None and now_ms < self._warned_ms + _AGAIN_MS):
            return
        until_ms = min(self._until_ms.values())
        left_ms, elapsed_ms = until_ms - now_ms, now_ms - self._first_look_ms
        needed_ms = waiting * elapsed_ms // self._opened if self._opened else None
        if left_ms > _SHORT_MS and (needed_ms is None or needed_ms <= left_ms):
            return
        self._warned_ms = now_ms
        pace = "none was opened yet" if needed_ms is None else f"at this pace that takes {_about(needed_ms)}"
        _log.warning(
            "%s: %d of the %d files that wait to be read are not in the table any more, and stay until %s at least "
            "(%s left); %s. Raise the table's retention (delta.deletedFileRetentionDuration, or "
            "history.expire.max-snapshot-age-ms), or read more in a micro-batch",
            self._title,
            len(self._until_ms),
            waiting,
            format_timestamp(until_ms * 1000),
            _about(max(left_ms, 0)),
            pace,
        )


def _about(duration_ms: int) -> str:
    """A duration in minutes, in seconds where it is short."""
    unit_ms = 60_000 if duration_ms >= 120_000 else 1_000
    return format_duration(duration_ms // unit_ms * unit_ms * 1000)


_KEYS: Final = (("low_us", "ascending"), ("path", "ascending"), ("version", "ascending"))


class Key(NamedTuple):
    """The key by which files are ordered. Those without any valid event time come first: they hold nothing back."""

    low_us: int
    path: str
    version: int


def key_of(file: TableFile) -> Key:
    """Return the key of a file whose bounds are known."""
    assert file.low_us is not None, "the order is by event times"
    return Key(NO_TIMESTAMP if file.low_us == MAX_WATERMARK else file.low_us, file.path, file.version)


class Step(NamedTuple):
    """Of the versions after those of the step before, to `last`: files up to the key `opened` were opened."""

    last: int
    opened: Key | None


@dataclass(frozen=True, slots=True)
class Progress:
    """Up to where the files of a table were opened.

    All files of versions up to `after` were, but for those of the snapshot of that version if `in_snapshot`: these
    belong to the first step. Later versions are in `steps`, whose keys fall; versions after these are not listed.
    """

    after: int
    in_snapshot: Annotated[bool, Wire("snapshot")] = False
    steps: tuple[Step, ...] = ()

    @property
    def last(self) -> int:
        """The last version whose files are known."""
        return self.steps[-1].last if self.steps else self.after


class _Versions:
    """The files of `count` consecutive versions, to `last`, sorted by their keys; `next` is the first that waits."""

    __slots__ = ("_files", "count", "last", "next")

    def __init__(self, files: pa.Table, last: int, count: int) -> None:
        self._files = files
        self.last = last
        self.count = count
        self.next = 0

    def __len__(self) -> int:
        return int(self._files.num_rows) - self.next

    def file(self, number: int) -> TableFile:
        return TableFile(**{name: self._files[name][number].as_py() for name in FILES.names})

    @property
    def versions(self) -> list[int]:
        return list(pc.unique(self._files["version"].slice(self.next)).to_pylist())

    @property
    def head(self) -> Key:
        return key_of(self.file(self.next))

    def release(self) -> None:
        """Forget the files, which were all opened: what is left is their last version."""
        self._files, self.next = self._files.slice(0, 0).combine_chunks(), 0


class WaitingTableFiles:
    """Files that wait, as columns: about as many bytes as their paths and bounds have.

    Files that are added together are sorted together, n in O(n log n): they are a run. The next file of g runs is found
    in O(log g).
    """

    def __init__(self, after: int, *, in_snapshot: bool = False) -> None:
        self._after = after
        self._in_snapshot = in_snapshot
        # Oldest first. Those of which no file waits leave it with `settle`.
        self._runs: list[_Versions] = []
        # A heap of those of which some wait, by the key of the next one, and as added.
        self._heads: list[tuple[Key, int, _Versions]] = []
        # Rising versions and falling keys; the last version is that of the last one of `_runs`.
        self._steps: list[Step] = []
        self._count = self._added = 0
        self.size = 0
        """Bytes of the files that wait."""

    def __len__(self) -> int:
        return self._count

    def add(self, files: pa.Table, last: int, opened: Key | None = None, count: int = 1) -> None:
        """Add the files of `count` versions, to `last`; those up to the key `opened` were opened before a restart.

        `files` are columns of `FILES`, whose bounds are known. What is added first of a snapshot is the snapshot.
        """
        _, waiting = divided(files, opened)
        run = _Versions(waiting, last, count)
        self._runs.append(run)
        self._count += len(run)
        self.size += pc.sum(waiting["size"]).as_py() or 0
        if len(run):
            self._added += 1
            heapq.heappush(self._heads, (run.head, self._added, run))
        before = self._steps[-1] if self._steps else None
        if before is not None and (not len(run) or (before.opened is not None and run.head > before.opened)):
            opened = before.opened
        self._steps.append(Step(last, opened))
        self._merge(opened)

    def pop(self) -> tuple[TableFile, None]:
        """See `FileQueue`: a file's blocks are in its footer, which is read when it is opened."""
        if not self._heads:
            raise IndexError("no file waits")
        key, number, run = self._heads[0]
        file = run.file(run.next)
        run.next += 1
        self._count -= 1
        self.size -= file.size
        if len(run):
            heapq.heapreplace(self._heads, (run.head, number, run))
        else:
            heapq.heappop(self._heads)
            run.release()
        self._merge(key)
        return file, None

    @property
    def versions(self) -> int:
        """Return how many versions have files that wait, counting those that were added together. O(g) for g runs."""
        return sum(run.count for _, _, run in self._heads)

    @property
    def earliest_us(self) -> int:
        """No waiting file has a valid event time before this; `MAX_WATERMARK` if none has any. O(g)."""
        times = [key.low_us for key, _, _ in self._heads]
        if NO_TIMESTAMP not in times:
            return min(times, default=MAX_WATERMARK)
        # Rare: such files are opened first, and whatever else waits with them is not looked at for it.
        low = (run._files["low_us"].slice(run.next).to_numpy() for _, _, run in self._heads)
        return min(int(one.min(initial=MAX_WATERMARK)) for one in low)

    def among(self, paths: set[str]) -> set[str]:
        """Return those of the paths that wait. O(n)."""
        searched = pa.array(sorted(paths), pa.string())
        found: set[str] = set()
        for _, _, run in self._heads:
            waiting = run._files["path"].slice(run.next)
            found.update(waiting.filter(pc.is_in(waiting, searched)).to_pylist())
        return found

    @property
    def paths(self) -> Iterator[str]:
        """The paths of the files that wait, in no order. O(n)."""
        for _, _, run in self._heads:
            yield from run._files["path"].slice(run.next).to_pylist()

    @property
    def waiting_versions(self) -> set[int]:
        """The versions of the files that wait. O(n)."""
        return {version for _, _, run in self._heads for version in run.versions}

    def settle(self) -> Progress:
        """Forget the runs of which no file waits, but for one a step, and return what an offset has. O(g)."""
        steps, left = {step.last for step in self._steps}, list[_Versions]()
        for run in self._runs:
            if len(run) or (left and left[-1].last in steps):
                left.append(run)
            elif left:
                # When the run before is done, so is this one.
                left[-1].last = run.last
            else:
                self._after, self._in_snapshot = run.last, False
                if self._steps and self._steps[0].last == run.last:
                    del self._steps[0]
        self._runs = left
        return Progress(self._after, self._in_snapshot, tuple(self._steps))

    def _merge(self, opened: Key | None) -> None:
        """All files up to the lowest waiting key are open or read: each step has come so far, and they are one."""
        last = self._steps[-1].last
        while self._steps and _reaches(opened, self._steps[-1].opened):
            self._steps.pop()
        self._steps.append(Step(last, opened))


def _reaches(opened: Key | None, other: Key | None) -> bool:
    return opened == other or (opened is not None and (other is None or other < opened))


def divided(files: pa.Table, opened: Key | None) -> tuple[pa.Table, pa.Table]:
    """Return the files up to the key `opened`, and those after it, in the order of their keys. O(n log n)."""
    low = files["low_us"]
    by_time = pc.if_else(pc.equal(low, MAX_WATERMARK), NO_TIMESTAMP, low)
    keys = files.select(["path", "version"]).append_column("low_us", by_time)
    ordered = files.take(pc.sort_indices(keys, sort_keys=_KEYS)).combine_chunks()
    if opened is None:
        return ordered.slice(0, 0), ordered
    _check_order(ordered, opened)
    first = _first_after(ordered, opened)
    return ordered.slice(0, first), ordered.slice(first)


def _check_order(files: pa.Table, opened: Key) -> None:
    """Refuse to go on where the last file that was opened has another key now: others would be passed over."""
    is_same = pc.and_(pc.equal(files["path"], opened.path), pc.equal(files["version"], opened.version))
    for low_us in files.filter(is_same)["low_us"].to_pylist():
        if low_us not in (opened.low_us, MAX_WATERMARK):
            raise OffsetError(
                f"the checkpoint has {format_timestamp(opened.low_us)} as the first event time of {opened.path}, and "
                f"now it is {format_timestamp(low_us)}: files are opened in the order of these, so files that wait "
                "would be passed over. The table's statistics were computed anew, or an earlier version of this "
                "library wrote the checkpoint; let that version read the files that wait, or use a new "
                "checkpointLocation"
            )


def _first_after(files: pa.Table, opened: Key) -> int:
    """Return the number of the first sorted file after a key. O(log n), beside files of one lower bound."""
    low = files["low_us"].to_numpy()
    low = np.where(low == MAX_WATERMARK, NO_TIMESTAMP, low)
    first, last = (int(np.searchsorted(low, opened.low_us, side)) for side in ("left", "right"))
    paths = files["path"].slice(first, last - first).to_pylist()
    versions = files["version"].slice(first, last - first).to_pylist()
    same_time = zip(paths, versions, strict=True)
    return first + sum((path, version) <= (opened.path, opened.version) for path, version in same_time)

"""Scanning the files of a directory one after another, while what is known of them is planned and read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK, Int64Array
from streaming_source.connectors.files.listing import ListedFile, NewFile
from streaming_source.data_files.faults import StoreRetries
from streaming_source.data_files.file import FileBlocks
from streaming_source.data_files.formats.base import FileScan

_FIRST_ROWS: Final = 16_384
_ENOUGH_ROWS: Final = 65_536
_ENOUGH_FILES: Final = 16
"""A part of a scan has so many rows, or files, or a few more; the first parts, for which a plan waits, less."""

_WHOLE_BYTES: Final = 64 << 20
"""Files up to this size are described several at once where fewer splits are left than can be scanned."""

_SCANNED_AGAIN: Final = 3
"""How often a file is scanned once more that was written on meanwhile."""


_Describe: TypeAlias = Callable[[ListedFile], tuple[ListedFile, FileBlocks | None]]


class ScannedFile(NamedTuple):
    """The next blocks of a file, which `begins` with the first of them, and `ends` with the last.

    `times` are the event times of its blocks, if they are kept. `changed` is what was found in its place then, if it
    had changed meanwhile.
    """

    new: NewFile
    times: Sequence[Int64Array] = ()
    begins: bool = True
    ends: bool = True
    changed: ListedFile | None = None


class LogScan:
    """The files of a directory that wait for their scan, in order; they have no blocks yet.

    `bytes` are those of all of them. `describe` returns a file as it was when it was described as a whole, `open_scan`
    begins one in parts, None where files are described as wholes; `look` returns a file as it is now, `map_on_workers`
    is that of the context. Used by one thread at a time.
    """

    def __init__(
        self,
        files: Sequence[NewFile],
        describe: _Describe,
        open_scan: Callable[[ListedFile], FileScan] | None,
        look: Callable[[ListedFile], ListedFile],
        map_on_workers: Callable[[_Describe, Sequence[ListedFile]], list[tuple[ListedFile, FileBlocks | None]]],
        retries: StoreRetries,
    ) -> None:
        self._files = deque(files)
        self.bytes = sum(new.file.size for new in files)
        self._describe, self._open_scan, self._look = describe, open_scan, look
        self._map, self._run, self._has_begun = map_on_workers, retries.run, False
        self._current: tuple[NewFile, FileScan] | None = None
        self._rows = 0
        self.latest_us = self._latest_in_file_us = NO_TIMESTAMP
        self.disorder_us = 0
        """How far a block goes back behind one before it in its file, at most."""

    @property
    def is_done(self) -> bool:
        return not self._files and self._current is None

    def advance(self, limit_us: int | None, at_once: int = 1) -> list[ScannedFile]:
        """Scan the next part, and return what it has of each file. Event times from `limit_us` on are invalid.

        After the first part, which a plan waits for, a part has `at_once` files if these are not large.
        """
        found, rows, enough = self._wholes(at_once), 0, min(max(self._rows, _FIRST_ROWS), _ENOUGH_ROWS)
        while not found or (rows < enough and len(found) < _ENOUGH_FILES and at_once == 1 and not self.is_done):
            found.append(self._next(enough - rows))
            rows += 0 if (blocks := found[-1].new.blocks) is None else int(blocks.rows.sum())
        self._has_begun = True
        for part in found:
            if part.new.blocks is not None:
                self._rows += int(part.new.blocks.rows.sum())
                self._note(part.new.blocks, begins=part.begins, limit_us=limit_us)
        return found

    def _wholes(self, at_once: int) -> list[ScannedFile]:
        """Describe the next files as wholes, several at once; none where they are to be scanned in parts."""
        files = list(islice(self._files, at_once if self._has_begun else 1))
        if self._open_scan is not None:
            files = [new for new in files if new.file.size <= _WHOLE_BYTES]
        if self._current is not None or (self._open_scan is not None and len(files) < max(at_once, 2)):
            return []
        described = self._run(lambda: self._map(self._describe, [new.file for new in files]))
        for _ in files:
            self._files.popleft()
        return [
            ScannedFile(NewFile(file, blocks, max(new.newest_ms, file.modified_ms)))
            for new, (file, blocks) in zip(files, described, strict=True)
        ]

    def _next(self, enough: int, again: int = _SCANNED_AGAIN) -> ScannedFile:
        if self._current is not None:
            new, scan = self._current
        else:
            assert self._open_scan is not None, "else files are described as wholes"
            file, _, newest_ms = self._files[0]
            file = self._run(lambda: self._look(file))
            new, scan = NewFile(file, None, max(newest_ms, file.modified_ms)), self._open_scan(file)
        begins, (blocks, times) = not scan.rows, self._run(lambda: scan.advance(enough))
        self._current, part = (new, scan), new._replace(blocks=blocks)
        if not scan.is_done:
            return ScannedFile(part, times, begins, ends=False)
        self._current, now = None, self._run(lambda: self._look(new.file))
        has_changed = now.version != new.file.version
        if has_changed and begins and again:
            # Nothing is known of it yet: it was not complete when it was listed.
            return self._next(enough, again - 1)
        self._files.popleft()
        return ScannedFile(part, times, begins, changed=now if has_changed else None)

    def _note(self, blocks: FileBlocks, *, begins: bool, limit_us: int | None) -> None:
        valid = blocks.max_us < (MAX_WATERMARK if limit_us is None else limit_us)
        latest = np.maximum.accumulate(np.where(valid, blocks.max_us, NO_TIMESTAMP))
        if not latest.size:
            return
        before = np.append(NO_TIMESTAMP if begins else self._latest_in_file_us, latest[:-1])
        behind = valid & (before > blocks.valid_min_us) & (blocks.valid_min_us > NO_TIMESTAMP)
        if behind.any():
            self.disorder_us = max(self.disorder_us, int((before - blocks.valid_min_us)[behind].max()))
        self._latest_in_file_us = int(latest[-1])
        self.latest_us = max(self.latest_us, self._latest_in_file_us)

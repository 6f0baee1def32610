"""Directories as splits: each is a log, its files in the order of their names."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from alignment.arrow_times import format_timestamp
from alignment.durations import format_duration
from alignment.shown import log_of
from alignment.watermarks import Int64Array
from streaming_source.api import SplitEnumeratorContext
from streaming_source.api.enumerator import Scanned, SupportsScan
from streaming_source.connectors.files.config import FilesConfig
from streaming_source.connectors.files.enumerator import FileSplitEnumerator
from streaming_source.connectors.files.listing import ListedFile, Lister, NewFile, list_directory
from streaming_source.connectors.files.split import FilesCheckpoint, FileSplit
from streaming_source.data_files.file import NO_BLOCKS, FileBlocks
from streaming_source.data_files.ranges import FileLog, LoggedFile
from streaming_source.exceptions import DataLossError, FileGoneError, MalformedDataError

if TYPE_CHECKING:
    from streaming_source.connectors.files.log_scan import LogScan, ScannedFile

_SCANS_OF_A_STORE: Final = 8
"""Files that are scanned at once in a store that is not on this machine, for which each scan waits."""

_log = log_of(__name__)

_IN_ORDER_OF_NAMES = (
    "With splitBy = directory a directory is a log whose files come in the order of their names. Let later files have "
    "later names, or read with splitBy = file"
)


class ChangedFile(NamedTuple):
    """A file as it is now, and as it was when it was found; None if that is not known."""

    now: ListedFile
    was: ListedFile | None


@dataclass(slots=True)
class FoundInDirectories:
    """The result of one listing: new files in the order of names, splits without a file yet, and files that changed."""

    new: list[NewFile]
    empty: list[str]
    changed: list[ChangedFile]


@dataclass(slots=True)
class DirectoryDiscovery:
    """Finds new files where each directory is a split, its files in the order of their names; and those that changed.

    A `restored` split has reached a file: its files before that one are read. All files of `finished` splits are read.
    `describe` returns files as it found them, with None for one that the source skips.

    It keeps, for each directory, the names in its last two listings, each with the version of its file, the highest
    name of all, and when the newest file was modified. A file that two listings in a row lack is forgotten: if one of
    its name appears later, that one is out of order.
    """

    describe: Callable[[list[ListedFile]], list[tuple[ListedFile, FileBlocks | None]]]
    restored: Mapping[str, FileSplit]
    finished: frozenset[str]
    # Of a restored split, how many files there were up to the one that it has reached.
    _read: Counter[str] = field(default_factory=Counter)
    _seen: dict[str, dict[str, int]] = field(default_factory=dict)
    _missing: dict[str, set[str]] = field(default_factory=dict)
    _last: dict[str, str] = field(default_factory=dict)
    _newest_ms: dict[str, int] = field(default_factory=dict)

    def find_new(self, lister: Lister) -> FoundInDirectories:
        """Return the files that were not found before, described. Called by one thread at a time."""
        listed, new = set(), list[ListedFile]()
        empty, changed = list[str](), list[ChangedFile]()
        for directory in lister.list_changed():
            split_id, files = directory.path or ".", directory.files
            if directory.is_empty and directory.path and not (split_id in self._seen or split_id in self.finished):
                empty.append(split_id)
            seen = self._seen.get(split_id, ())
            if directory.may_have_come and any(file.name not in seen for file in files):
                # A file may have come while this was listed, and be missing here although a later one is not. A second
                # listing has it.
                last = max(files)
                files = [file for file in lister.list_again(directory.path) if file.name <= last.name]
            new += [file for file in files if self._is_new(file, changed)]
            self._forget_missing(split_id, {file.name for file in files})
            listed.add(split_id)
        if lister.lists_all:
            for split_id in self._seen.keys() - listed:
                self._forget_missing(split_id, set())
        new.sort()
        self._check_renamed(lister, new)
        found = []
        for file, blocks in self.describe(new):
            newest_ms = self.remember(file)
            split_id = _split_of(file)
            self._last[split_id] = max(file.name, self._last.get(split_id, ""))
            found.append(NewFile(file, blocks, newest_ms))
        self._check_read()
        self._seen.update((split_id, {}) for split_id in empty)
        return FoundInDirectories(found, sorted(empty), changed)

    def remembered(self) -> int:
        """Return how many names are remembered, without the highest name of each directory."""
        return sum(map(len, self._seen.values()))

    def _forget_missing(self, split_id: str, listed: set[str]) -> None:
        # On a network file system one listing may lack a file that is there.
        seen = self._seen.get(split_id, {})
        missing = seen.keys() - listed
        gone = missing & self._missing.pop(split_id, set())
        for name in gone:
            del seen[name]
        if still := missing - gone:
            self._missing[split_id] = still

    def remember(self, file: ListedFile) -> int:
        """Remember a file that was found, and return when the newest of its directory was modified, up to this one."""
        split_id = _split_of(file)
        self._seen.setdefault(split_id, {})[file.name] = file.version
        newest_ms = self._newest_ms.get(split_id)
        if newest_ms is None:
            reached = self.restored.get(split_id, FileSplit(split_id))
            newest_ms = max(reached.newest_ms or 0, reached.modified_ms or 0)
        self._newest_ms[split_id] = max(newest_ms, file.modified_ms)
        return self._newest_ms[split_id]

    def _is_new(self, file: ListedFile, changed: list[ChangedFile]) -> bool:
        split_id = _split_of(file)
        if split_id in self.finished:
            return False
        version = self._seen.get(split_id, {}).get(file.name)
        if version is not None:
            if version != file.version:
                changed.append(ChangedFile(file, file.at(version)))
                self.remember(file)
            return False
        reached = self.restored.get(split_id, FileSplit(split_id))
        if reached.is_rewritten(file):
            was = file._replace(modified_ms=reached.modified_ms or 0, size=reached.size or 0)
            changed.append(ChangedFile(file, was if file.name == reached.file else None))
        if file.name < reached.file or (file.name == reached.file and reached.row is None):
            self._read[split_id] += 1
            self.remember(file)
            return False
        last = self._last.get(split_id, "")
        if file.name <= last:
            what = f"appeared after {last}, which was listed before"
            if file.name == last:
                what = "was deleted, and a file of that name is there again"
            raise MalformedDataError(f"{file.relative_path} {what}. {_IN_ORDER_OF_NAMES}")
        return True

    def _check_renamed(self, lister: Lister, new: Sequence[ListedFile]) -> None:
        """Raise if a directory that was not there before has the files of one that is gone."""
        known = self._seen.keys() | self.restored.keys()
        came: dict[str, list[ListedFile]] = {}
        for file in new:
            if _split_of(file) not in known:
                came.setdefault(_split_of(file), []).append(file)
        for split_id, files in came.items():
            for before in known:
                had = next((file for file in files if self._had(before, file)), None)
                if had is not None and not lister.list_again("" if before == "." else before):
                    raise DataLossError(
                        f"{before} is gone, and {split_id} has the same files, {had.name} for one: was the directory "
                        f"renamed? With splitBy = directory its records would all be read once more, as those of "
                        f"another split. Name it {before} again; to read them once more, use a new checkpointLocation"
                    )

    def _had(self, split_id: str, file: ListedFile) -> bool:
        """Return whether a directory had this very file, by its name, time and bytes."""
        reached = self.restored.get(split_id, FileSplit(split_id))
        is_reached = (reached.file, reached.modified_ms, reached.size) == (file.name, file.modified_ms, file.size)
        return is_reached or self._seen.get(split_id, {}).get(file.name) == file.version

    def _check_read(self) -> None:
        for split_id, count in self._read.items():
            reached = self.restored[split_id]
            read = reached.files - (reached.row is not None)
            if count > read:
                raise MalformedDataError(
                    f"{split_id} has {count} files up to {reached.file}, but only {read} of them were read: the others "
                    f"were added later under earlier names. {_IN_ORDER_OF_NAMES}"
                )


def _split_of(file: ListedFile) -> str:
    return file.directory or "."


def _size_and_time(file: ListedFile) -> str:
    return f"{file.size:,} bytes of {format_timestamp(1000 * file.modified_ms)}"


class DirectoryEnumerator(SupportsScan[FileSplit], FileSplitEnumerator):
    """Assigns each directory as soon as it is found, and indexes its files as they come.

    Those of the first listing may be a backlog: where it `scans_in_parts` they are indexed as they are scanned, and the
    next listing comes after that.
    """

    def __init__(
        self, config: FilesConfig, context: SplitEnumeratorContext[FileSplit], checkpoint: FilesCheckpoint
    ) -> None:
        super().__init__(config, context, checkpoint)
        # All files of all directories are found at once, and so read by one plan.
        self._counts_alone = self._may_count_alone and not context.needs_event_times
        self._finished = set(checkpoint.finished)
        self.scans_at_once = (os.cpu_count() or 1) if self._filesystem.type_name == "local" else _SCANS_OF_A_STORE
        self._discovery = DirectoryDiscovery(self._describe_found, self._restored, frozenset(self._finished))
        self._listed = False
        # By split, what is left of the first listing.
        self._scans: dict[str, LogScan] = {}
        self._warned_of_disorder = self._told_of_scan = False
        # A file that cannot be read is skipped as a whole.
        self._is_whole = config.ignore_corrupt_files or config.ignore_missing_files
        # Of each split its position in the next state, and the files that reach beyond it with their last positions.
        self._positions: dict[str, int] = {}
        self._unread: dict[str, deque[tuple[str, int]]] = {}
        # Of each split the file that was read in part.
        self._in_work: dict[str, ListedFile] = {}

    # ---- discovery ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._discovery.restored, self._discovery.finished = dict(self._restored), frozenset(self._finished)
        # Copied on a worker, in one step.
        self._list = self._discover(
            self._discovery.find_new,
            self._on_found,
            lambda: list(self._in_work.values()),
            repeats=not self.scans_in_parts,
        )

    def _on_found(self, found: FoundInDirectories) -> None:
        for file in found.changed:
            self._take_change(file.now, self._has_changed(file))
        for split_id in found.empty:
            self._assign(split_id)
        if not self._listed:
            self._check_restored(found.new)
        if self.scans_in_parts and not self._listed:
            self._begin_scans(found.new)
        else:
            for new in found.new:
                self._add_file(new)
        self._listed = True
        if self._config.bounded:
            if self._until_ms is None:
                self._until_ms = max((new.file.modified_ms for new in found.new), default=0)
            for split_id in {*self._logs, *self._restored} - self._scans.keys():
                self._context.complete_split(split_id)
            self._no_more_splits()

    def _check_restored(self, new: Sequence[NewFile]) -> None:
        """Raise if a file that was read in part before a restart is not in the first listing."""
        first: dict[str, str] = {}
        for one in new:
            first.setdefault(_split_of(one.file), one.file.name)
        for split_id, split in self._restored.items():
            if split.file and split.row is not None and first.get(split_id) != split.file:
                raise self._gone(split)

    def _has_changed(self, changed: ChangedFile) -> DataLossError:
        now, was = changed
        split_id = _split_of(now)
        log = self._logs.get(split_id)
        reached = self._restored.get(split_id, FileSplit(split_id))
        position = self._positions.get(split_id, reached.position)
        left = [file for file in log.files if file.name == now.name and file.end > position] if log is not None else []
        fix = "take the file out of the directory, put what is new into a file with a later name, and start again"
        what = "was appended to or rewritten after it was read"
        if left and left[0].position >= position:
            what, fix = "was appended to or rewritten after it was found", "start again, which reads it as it is now"
        elif left or (now.name == reached.file and reached.row is not None):
            fix = "restore it with its time, or start with a new checkpointLocation"
            what = "was appended to or rewritten while it was read"
        before = "" if was is None else f", and had {_size_and_time(was)}"
        return DataLossError(
            f"{self._path(now.relative_path)} {what}: it has {_size_and_time(now)}{before}. With splitBy = directory a "
            "file is complete when it appears, and stays as it is: let writers rename complete files into place, each "
            f"with a later name. To go on, {fix}; or set ignoreChangedFiles = true, and what is new is not read"
        )

    # ---- scanning ----------------------------------------------------------------------------------------------------

    @property
    def may_scan(self) -> bool:
        return not (self._counts_alone or self._format.has_statistics)

    def _describe_found(self, files: list[ListedFile]) -> list[tuple[ListedFile, FileBlocks | None]]:
        if self.scans_in_parts and not self._listed:
            return [(file, None) for file in files]
        return self._describe_as_found(files)

    def _begin_scans(self, new: Sequence[NewFile]) -> None:
        # Imported here: most files have statistics.
        from streaming_source.connectors.files.log_scan import LogScan

        files: dict[str, list[NewFile]] = {}
        for one in new:
            files.setdefault(_split_of(one.file), []).append(one)
        for split_id, of_split in files.items():
            self._assign(split_id)
            self._scans[split_id] = LogScan(
                of_split,
                lambda file: self._describe_as_found([file])[0],
                None if self._is_whole else self._open_scan,
                self._as_it_is,
                self._context.map_on_workers,
                self._retries,
            )
        if not files:
            self._list()

    def unscanned_splits(self) -> Collection[str]:
        return self._scans.keys()

    def scan(self, split_id: str, *, keeps_times: bool) -> Scanned:
        scan = self._scans[split_id]
        found = scan.advance(self._context.event_time_limit_us, max(self.scans_at_once // len(self._scans), 1))
        is_last = scan.is_done
        # What was read before a restart is not planned again.
        keeps_times &= not self._restored.get(split_id, FileSplit(split_id)).position
        found = found if keeps_times else [part._replace(times=()) for part in found]
        kept = sum(times.size for part in found for times in part.times)
        add = partial(self._add_scanned, split_id, found, scan.disorder_us, is_last=is_last)
        return Scanned(add, scan.latest_us, is_last, kept)

    def _add_scanned(
        self, split_id: str, found: list[ScannedFile], disorder_us: int, *, is_last: bool
    ) -> list[tuple[int, Int64Array]]:
        kept: list[tuple[int, Int64Array]] = []
        for part in found:
            if part.begins:
                self._discovery.remember(part.new.file)
                self._check_new_columns(self._path(part.new.file.relative_path), (part.new.blocks or NO_BLOCKS).columns)
            self._add_file(part.new, begins=part.begins, ends=part.ends)
            position = self._logs[split_id].files[-1].end - sum(times.size for times in part.times)
            for times in part.times:
                kept.append((position, times))
                position += times.size
            if part.changed is not None:
                self._take_change(part.changed, self._has_changed(ChangedFile(part.changed, part.new.file)))
        bound_us = self._context.out_of_orderness_us
        if bound_us is not None and disorder_us > bound_us and not self._warned_of_disorder:
            self._warned_of_disorder = True
            _log.warning(
                "records of %r are up to %s earlier than records before them in their file, and maxOutOfOrderness is "
                "%s: windows wait until its files, %.1f MiB, were scanned to their ends and such records were read. "
                "Files whose records are in the order of their event times let windows out as they are read",
                split_id,
                format_duration(disorder_us),
                format_duration(bound_us),
                self._scans[split_id].bytes / 2**20,
            )
        if is_last:
            del self._scans[split_id]
            if self._config.bounded:
                self._context.complete_split(split_id)
            if not self._scans:
                self._list()
        return kept

    # ---- files -------------------------------------------------------------------------------------------------------

    def _add_file(self, new: NewFile, *, begins: bool = True, ends: bool = True) -> None:
        """Add a file to its split, or the next blocks of the last one."""
        file, blocks = new.file, new.blocks or NO_BLOCKS
        split_id = _split_of(file)
        log = self._assign(split_id)
        restored = self._restored.get(split_id, FileSplit(split_id))
        # After a restart the first file was read in part: its rows before that are not indexed again.
        read = (restored.row or 0) if file.name == restored.file else 0
        if not begins:
            last = log.files[-1]
            log.files[-1] = logged = replace(last, blocks=last.blocks.followed_by(blocks))
            self._index_blocks(split_id, blocks, max(read - int(last.blocks.rows.sum()), 0))
            self._note_unread(split_id, file, logged, ends=ends)
            return
        position = log.files[-1].end if log.files else restored.position - read
        number = log.files[-1].number + 1 if log.files else restored.files + (file.name != restored.file)
        logged = LoggedFile(
            self._data_file(file),
            position,
            blocks,
            number=number,
            size=file.size,
            modified_ms=file.modified_ms,
            newest_ms=new.newest_ms,
        )
        self._append_file(split_id, logged, read)
        self._note_unread(split_id, file, logged, ends=ends)

    def _note_unread(self, split_id: str, file: ListedFile, logged: LoggedFile, *, ends: bool) -> None:
        if ends and self._cleaner is not None:
            self._unread.setdefault(split_id, deque()).append((file.relative_path, logged.end))

    def _assign(self, split_id: str) -> FileLog:
        log = self._logs.get(split_id)
        if log is None:
            log = self._logs[split_id] = FileLog()
            if split_id not in self._restored:
                self._context.assign_split(FileSplit(split_id), self._reader_of(split_id))
        return log

    # ---- SplitEnumerator ---------------------------------------------------------------------------------------------

    def split_at(self, split_id: str, position: int) -> FileSplit:
        self._positions[split_id] = position
        log = self._logs.get(split_id)
        file = log.locate(position) if log else None
        if file is None:
            return self._restored.get(split_id, FileSplit(split_id))
        split = self._state_in(split_id, position, file)
        if split.row:
            directory = "" if split_id == "." else split_id
            self._in_work[split_id] = ListedFile(directory, split.file or "", file.modified_ms, file.size)
        else:
            self._in_work.pop(split_id, None)
        return split

    def _state_in(self, split_id: str, position: int, file: LoggedFile) -> FileSplit:
        row = position - file.position if position < file.end else None
        newest_ms = None if file.newest_ms == file.modified_ms else file.newest_ms
        return FileSplit(
            split_id,
            position,
            file=file.name,
            row=row,
            files=file.number,
            modified_ms=file.modified_ms,
            size=file.size,
            newest_ms=newest_ms,
        )

    def place_of(self, split_id: str, position: int) -> str | None:
        log = self._logs.get(split_id)
        file = log.locate(position) if log else None
        if file is None or position >= file.end:
            return None
        return self._state_in(split_id, position, file).place

    def finish_split(self, split_id: str) -> None:
        super().finish_split(split_id)
        self._finished.add(split_id)
        self._in_work.pop(split_id, None)

    def read_at(
        self, splits: Sequence[FileSplit], known: Mapping[str, FileSplit], checkpoint: FilesCheckpoint
    ) -> Sequence[int]:
        """By the file that a directory was read up to: a `DataLossError` if files before it are gone."""
        finished = frozenset(checkpoint.finished)
        return [
            split.position if split.split_id in finished else self._read_at(split, known.get(split.split_id))
            for split in splits
        ]

    def _read_at(self, split: FileSplit, reached: FileSplit | None) -> int:
        if reached is None or not reached.file:
            return 0
        log = self._logs[split.split_id]
        file = next((file for file in log.files if file.name == reached.file), None)
        position = None if file is None else file.end if reached.row is None else file.position + reached.row
        if position != reached.position:
            there = f"{reached.file} is gone" if position is None else f"{position} of them are there now"
            self._config.skip(
                FileGoneError(
                    f"{self._path(split.path)}: the query has read {reached.position} records up to {reached.file}, "
                    f"and {there}: files were removed or rewritten since, and windows may lack records of theirs; "
                    "restore them, or set ignoreMissingFiles = true to repair with what is there"
                )
            )
        if position is None:
            return max((file.end for file in log.files if file.name < reached.file), default=0)
        return position

    def snapshot_state(self, checkpoint_id: int) -> FilesCheckpoint:
        self._finished_logs.clear()
        if self._scans and not self._told_of_scan:
            self._told_of_scan = True
            _log.info(
                "a micro-batch is read while files of %d splits, %.1f MiB, are scanned for event times: what is not "
                "scanned may be earlier than any window, so the watermark waits for it",
                len(self._scans),
                sum(scan.bytes for scan in self._scans.values()) / 2**20,
            )
        if self._cleaner is not None:
            for split_id, files in self._unread.items():
                while files and files[0][1] <= self._positions.get(split_id, 0):
                    self._cleaner.add(checkpoint_id, files.popleft()[0])
        after_ms = self._config.root.after_ms
        return FilesCheckpoint(tuple(sorted(self._finished)), until_ms=self._until_ms, after_ms=after_ms)

    def _rebuild(self, start: FileSplit, end: FileSplit) -> FileLog:
        # A plan that counts records has those of files, too, that the source skips because their event times cannot be
        # read.
        for counts_alone in (False, True) if self._may_count_alone else (False,):
            if (log := self._find_again(start, end, counts_alone=counts_alone)) is not None:
                return log
        raise self._changed(start, end)

    def _find_again(self, start: FileSplit, end: FileSplit, *, counts_alone: bool) -> FileLog | None:
        """Return the files between two states of a split; None if their records are not where they were planned."""
        log = FileLog()
        position = start.position - (start.row or 0)
        for listed in list_directory(self._config.root, end.split_id):
            # A file whose row is None was read to its end.
            is_read = listed.name < start.file or (listed.name == start.file and start.row is None)
            if is_read or listed.name > end.file:
                continue
            if start.is_rewritten(listed) or end.is_rewritten(listed):
                self._take_change(listed, self._changed(start, end))
            file = self._data_file(listed)
            # A backlog must not be scanned again before what was planned of it is read.
            is_cut = listed.name == end.file and self.may_scan and not (counts_alone or self._is_whole)
            blocks = self._described(file, counts_alone=counts_alone, rows=end.row if is_cut else None) or NO_BLOCKS
            log.files.append(LoggedFile(file, position, blocks))
            position = log.files[-1].end
        last = log.locate(end.position) if log.files else None
        if (
            last is None
            or last.name != end.file
            or (start.row is not None and start.file not in ("", log.files[0].name))
        ):
            return None
        stop = last.end if end.row is None else last.position + end.row
        has_more = end.row is None and self._config.ignore_changed_files and end.position < stop
        return log if (end.position == stop or has_more) and log.covers(start.position, end.position) else None

"""The files of a table, opened in the order of their lower bounds: a snapshot's, then those of its commits."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, takewhile
from typing import Any, Final

import numpy as np
import pyarrow as pa

from alignment import arrow_compute as pc
from alignment.arrow_times import format_timestamp
from alignment.claims import Claims, SinkCommit
from alignment.timestamps import NO_TIMESTAMP
from streaming_source.api import SplitEnumeratorContext
from streaming_source.connectors.tables.claimed import LATE_OF, NAMED, ClaimedCommits
from streaming_source.connectors.tables.commits import Commit, Commits
from streaming_source.connectors.tables.files import FILES, TableFile, whole_milliseconds
from streaming_source.connectors.tables.lister import Table, TableLister
from streaming_source.connectors.tables.split import TableCheckpoint, TableSplit, split_id_of
from streaming_source.connectors.tables.waiting import ExpiringFiles, Key, Progress, WaitingTableFiles, divided
from streaming_source.data_files.file import NO_BLOCKS, DataFile, FileBlocks
from streaming_source.data_files.queued import QueuedFileEnumerator
from streaming_source.exceptions import DataLossError, MalformedDataError, OffsetError

_FEW: Final = 1_000
"""Versions whose writers are remembered after their files were read."""


@dataclass(frozen=True, slots=True)
class _Added:
    """The files of `count` versions, to `last`, of which those up to the key `opened` were opened.

    `digest` is that of the commit of `last`; None of versions whose files were known before a restart.
    """

    files: pa.Table
    last: int
    opened: Key | None = None
    count: int = 1
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class _Listed:
    """The result of one look at the table. The first one has where it `starts`, and the files that were open.

    `digest` is that of the last commit whose files are known; commits before `from_ms` are passed over. With
    `watermarkFrom` it has the `claims` by now, and whose the new versions are (`writers`).
    """

    starts: Progress | None = None
    reopened: Sequence[tuple[TableFile, FileBlocks]] = ()
    added: Sequence[_Added] = ()
    digest: str | None = None
    from_ms: int | None = None
    expiring_ms: Mapping[str, int] = field(default_factory=dict)
    claims: Claims | None = None
    writers: Mapping[int, str] = field(default_factory=dict)


class TableEnumerator(QueuedFileEnumerator[TableFile, TableSplit, TableCheckpoint]):
    """Each file of a table is a split; those that wait hold the watermark by their lower bounds.

    Where a file's bounds are wrong is found when it is opened, by its own footer: a `MalformedDataError`.
    """

    bytes_beside_id = 84

    def __init__(self, table: Table, context: SplitEnumeratorContext[TableSplit], checkpoint: TableCheckpoint) -> None:
        super().__init__(table, table.open_files(), context)
        self._table = table
        self._checkpoint = checkpoint
        self._opening = threading.Lock()
        self._is_bounded = table.bounded
        self._snapshots: dict[int, pa.Table] = {}
        self._waiting: WaitingTableFiles | None = None
        self._expiring = ExpiringFiles(table.title, lambda: time.time_ns() // 1_000_000)
        # The last version whose files are known, and the digest of its commit; of the thread that lists.
        self._last: int | None = None
        self._last_digest = checkpoint.digest
        # That digest, once its files wait.
        self._digest = checkpoint.digest
        # See `Start`: of the thread that lists, and of the next state.
        self._passes_until_ms = self._from_ms = checkpoint.from_ms
        # Where the stream started, until the first state has it; None after a restart.
        self._first: Progress | None = None
        # Of the thread that lists; None without claims, or before the first listing.
        self._claims_of_commits: ClaimedCommits | None = None
        self._claims = checkpoint.claims
        # How many late records each writer has brought; and whose the versions are of which files are open or wait, but
        # those of the writer that is named first.
        self._late_by, self._whose = Counter(checkpoint.late_by), dict(checkpoint.writers)

    # ---- discovery ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        period_s = None if self._is_bounded else self._table.discovery_interval_us / 1e6
        self._in_background(lambda: self._retries.run(self._list), self._on_listed, period_seconds=period_s)

    @cached_property
    def _opened_lister(self) -> TableLister:
        lister = self._table.open_lister(self._context.schema, self._context.timestamp_assigner)
        known = self._checkpoint.table_id
        if known is not None and lister.table_id != known:
            raise OffsetError(
                f"{self._table.title} has the id {lister.table_id}, and the checkpoint is of the table {known}: it "
                "was dropped and made anew, and its versions are others; use a new checkpointLocation"
            )
        return lister

    @property
    def _lister(self) -> TableLister:
        with self._opening:
            return self._opened_lister

    def _list(self) -> _Listed:
        """Look at the table: at first as a whole. Called on a worker, by one thread at a time."""
        if self._last is not None:
            passed, from_ms = self._pass_over(self._last), self._passes_until_ms
            self._last = passed[-1].last if passed else self._last
            found = self._new(self._last) if from_ms is None else None
            if found is None:
                return _Listed(added=passed, digest=self._last_digest, from_ms=from_ms)
            added, commits = found
            self._last, self._last_digest = added.last, added.digest
            more = {"digest": added.digest, "expiring_ms": commits.expiring_ms, **self._claimed()}
            return _Listed(added=[*passed, added], **more)
        listed = self._list_first()
        assert listed.starts is not None, "the first look has where the stream starts"
        self._last = listed.added[-1].last if listed.added else listed.starts.after
        self._last_digest = listed.digest
        return listed

    def _list_first(self) -> _Listed:
        progress = self._checkpoint.progress
        reopened = self._context.map_on_workers(self._reopen, list(self._restored.values()))
        added: list[_Added] = []
        if progress is None:
            start = self._lister.start()
            self._passes_until_ms = start.from_ms
            passed = self._pass_over(start.version)
            progress = Progress(passed[-1].last if passed else start.version, start.has_snapshot)
        schema, assigner = self._context.schema, self._context.timestamp_assigner
        claims = self._claims_of_commits = self._table._open_claims(schema, assigner, self._checkpoint.claims)
        if claims is not None and self._checkpoint.progress is None:
            newest = self._table.newest_micro_batches(claims.writers.ids, progress.after).commits
            claims.writers.take(
                SinkCommit(version, [(query, batch)]) for query, (batch, version) in reversed([*newest.items()])
            )
        expiring: dict[str, int] = {}
        after, steps = progress.after, progress.steps
        if progress.in_snapshot:
            added.append(_Added(self._snapshot(after), after, steps[0].opened if steps else None))
            self._snapshots.clear()
        for step in steps:
            if step.last != after and (found := self._new(after, step.last, step.opened)) is not None:
                added.append(found[0])
                expiring |= found[1].expiring_ms
            after = step.last
        added += self._pass_over(after)
        after, from_ms = added[-1].last if added else after, self._passes_until_ms
        # What was committed before the first micro-batch is in it: a watermark must not pass it.
        is_complete = self._is_bounded and (self._checkpoint.progress is not None or progress.in_snapshot)
        if not is_complete and from_ms is None and (found := self._new(after)) is not None:
            added.append(found[0])
            expiring |= found[1].expiring_ms
            digest = found[0].digest
        else:
            digest = self._check_digest(after)
        starts = Progress(progress.after, progress.in_snapshot)
        return _Listed(starts, reopened, added, digest, from_ms, expiring, **self._claimed())

    def _pass_over(self, after: int) -> list[_Added]:
        """The commits after a version that are older than what the user wants, without their files, until one is not.

        From that one on the clocks of commits say nothing.
        """
        if self._passes_until_ms is None:
            return []
        commits = self._lister.commits(after).whole()
        older = _older(commits, self._passes_until_ms)
        if len(older) < len(commits):
            self._passes_until_ms = None
        return [_Added(FILES.empty_table(), older[-1].version, count=len(older))] if older else []

    def _check_digest(self, version: int) -> str | None:
        """Return the digest of the last version whose files are known; an error if it was another one then."""
        known, found = self._last_digest, self._lister.digest(version)
        if found is None or known is None:
            return found or known
        if found != known:
            raise DataLossError(
                f"{self._table.title}: what is there is not the commit that was read as version {version}: an older "
                "state of its log was restored, and written on. Start with a new checkpointLocation, which reads the "
                "table as it is now"
            )
        return found

    def _commits(self, after: int, last: int) -> Commits | None:
        return Commits.of(self._lister.commits(after, last), self._table._change_rules)

    def _new(self, after: int, last: int | None = None, opened: Key | None = None) -> tuple[_Added, Commits] | None:
        """The files of the commits after a version, and these; takes what they claim. None if there are none."""
        known = self._lister.commits(after, last)
        commits = Commits.of(known, self._table._change_rules)
        if commits is None:
            return None
        digest = None
        if last is None:
            self._check_digest(after)
            digest = self._lister.digest(commits.last)
        added = _Added(self._wanted(commits.files), commits.last, opened, commits.count, digest)
        # Behind all that a store may fail at, which is then done again.
        if self._claims_of_commits is not None:
            self._claims_of_commits.take(known.whole(), added.files, again=last is not None)
        return added, commits

    def _claimed(self) -> dict[str, Any]:
        of_commits = self._claims_of_commits
        return {} if of_commits is None else {"claims": of_commits.claims, "writers": of_commits.take_whose()}

    def _snapshot(self, version: int) -> pa.Table:
        """The files of a version; known until the first listing, if a micro-batch is read again before it."""
        if version not in self._snapshots:
            self._snapshots[version] = self._wanted(self._lister.snapshot(version))
        return self._snapshots[version]

    def _wanted(self, listed: pa.Table) -> pa.Table:
        """Leave out files that are wholly before the event times that the query wants; look into those without bounds.

        What is after these times is opened, and not read: it moves the watermark over their end.
        """
        files, wanted = listed.select(FILES.names), self._context.event_time_range
        if wanted.from_us is not None and wanted.overlap == "drop":
            is_before = pc.and_(pc.less(files["high_us"], wanted.from_us), listed["complete"])
            files = files.filter(pc.invert(pc.fill_null(is_before, False)))
        return self._with_bounds(files)

    def _with_bounds(self, files: pa.Table) -> pa.Table:
        """Look into those files of which the table has no bounds."""
        unknown = np.flatnonzero(pc.is_null(files["low_us"]).to_numpy())
        if not unknown.size:
            return files
        rows = files.take(pa.array(unknown)).to_pylist()
        described = self._describe_all(self._lister.data_file(TableFile(**row)) for row in rows)
        low, high = (pc.fill_null(files[name], 0).to_numpy().copy() for name in ("low_us", "high_us"))
        for number, blocks in zip(unknown.tolist(), described, strict=True):
            low[number], high[number] = _times_in(blocks or NO_BLOCKS)
        # Not those of the table: whether it has a file's bounds must not decide in which order others are opened.
        low[unknown] = whole_milliseconds(low[unknown])
        for name, column in (("low_us", low), ("high_us", high)):
            files = files.set_column(FILES.get_field_index(name), FILES.field(name), pa.array(column, pa.int64()))
        return files

    def _on_listed(self, listed: _Listed) -> None:
        if listed.starts is not None:
            self._queue = self._waiting = WaitingTableFiles(listed.starts.after, in_snapshot=listed.starts.in_snapshot)
            self._first = listed.starts if self._checkpoint.progress is None else None
            for split, (file, blocks) in zip(list(self._restored.values()), listed.reopened, strict=True):
                self._index(split, file, blocks)
        assert self._waiting is not None
        for one in listed.added:
            self._waiting.add(one.files, one.last, one.opened, one.count)
        if listed.starts is not None:
            self._lister.retain(chain((file.path for file in self._open_files.values()), self._waiting.paths))
        if listed.expiring_ms:
            removed = self._waiting.among({*listed.expiring_ms})
            self._expiring.add({path: listed.expiring_ms[path] for path in removed})
        self._digest, self._from_ms = listed.digest, listed.from_ms
        self._expiring.warn(len(self._waiting))
        if listed.claims is not None and self._claims_of_commits is not None:
            self._claims, holder = listed.claims.known, self._claims_of_commits.writers.writer(listed.claims.holder)
            self._whose |= listed.writers
            # The files of these versions hold the watermark.
            self._context.emit_watermark(listed.claims.until_us, holder.checkpoint)
        self._publish_queue()

    # ---- files that are opened, and finished -------------------------------------------------------------------------

    def _split_of(self, file: TableFile) -> TableSplit:
        return TableSplit(file)

    def _file_of(self, split: TableSplit) -> TableFile:
        return split.file

    def _data_file(self, file: TableFile) -> DataFile:
        return self._lister.data_file(file)

    def _may_open(self, file: TableFile | None) -> bool:
        if file is not None:
            self._expiring.open(file.path)
        return True

    def _open(self, file: TableFile, blocks: FileBlocks) -> None:
        """Compare the bounds of the table with those of the rows that the file has and the table has not deleted."""
        low_us, high_us = _times_in(blocks)
        if file.low_us is not None and file.high_us is not None and (low_us < file.low_us or high_us > file.high_us):
            of_table, of_file = (
                f"{format_timestamp(low)} to {format_timestamp(high)}"
                for low, high in ((file.low_us, file.high_us), (low_us, high_us))
            )
            raise MalformedDataError(
                f"{split_id_of(file)}: {self._table.title} has event times from {of_table} for it, but the file itself "
                f"has some from {of_file}: the table's statistics are wrong, and records would be read too late by "
                "them. Write the file's rows again, or have the statistics computed anew and use a new "
                "checkpointLocation"
            )
        super()._open(file, blocks)

    # ---- SplitEnumerator ---------------------------------------------------------------------------------------------

    def split_at(self, split_id: str, position: int) -> TableSplit:
        return TableSplit(self._open_files[split_id], position)

    def metrics(self) -> Mapping[str, int]:
        """Files that wait, by the names of Delta's own source."""
        if self._waiting is None:
            return {}
        return {
            "numFilesOutstanding": len(self._waiting),
            "numBytesOutstanding": self._waiting.size,
            "numVersionsOutstanding": self._waiting.versions,
            **{f"{LATE_OF}{writer}": count for writer, count in self._late_by.items()},
        }

    def count_late(self, late: Mapping[str, int]) -> None:
        for split_id, count in late.items() if self._table.emits_watermark else ():
            self._late_by[self._whose.get(self._open_files[split_id].version, NAMED)] += count

    def _finish(self, file: TableFile) -> None:
        self._lister.release(file)

    def _checkpoint_of(self, checkpoint_id: int) -> TableCheckpoint:
        if self._waiting is None:
            return self._checkpoint
        first, self._first = self._first, None
        # Those of files that wait are listed again after a restart.
        opened = {file.version for file in self._open_files.values()}
        whose = {version: self._whose[version] for version in sorted(opened & self._whose.keys())}
        if len(self._whose) > _FEW + 2 * (len(whose) + self._waiting.versions):
            there = opened | self._waiting.waiting_versions
            self._whose = {version: one for version, one in self._whose.items() if version in there}
        return TableCheckpoint(
            table_id=self._lister.table_id,
            progress=self._waiting.settle(),
            digest=self._digest,
            indexing=self._config.indexing,
            bounded=self._table.bounded,
            first=first,
            from_ms=self._from_ms,
            claims=self._claims,
            late_by=dict(self._late_by),
            writers=whose,
        )

    def _find_finished(
        self, left: Sequence[TableSplit], start: TableCheckpoint | None, end: TableCheckpoint, in_work: Collection[str]
    ) -> Sequence[TableSplit]:
        since = end.first if start is None or start.progress is None else start.progress
        assert since is not None, "the first state has where the stream started"
        assert end.progress is not None, "else no finished split is left out"
        if start is not None and start.from_ms is not None:
            older = _older(self._lister.commits(since.after, end.progress.last).whole(), start.from_ms)
            since = Progress(older[-1].version if older else since.after)
        opened = map(TableSplit, self._opened_between(since, end.progress))
        return [*left, *(split for split in opened if split.split_id not in in_work)]

    def read_at(
        self, splits: Sequence[TableSplit], known: Mapping[str, TableSplit], checkpoint: TableCheckpoint
    ) -> Sequence[int]:
        """All of it: `for_batch_at` reads the last version whose files the stream knew."""
        return [split.position for split in splits]

    def _opened_between(self, since: Progress, end: Progress) -> list[TableFile]:
        """The files that were opened between two points of progress."""
        found: list[TableFile] = []
        if since.in_snapshot:
            _, files = divided(self._snapshot(since.after), since.steps[0].opened if since.steps else None)
            if end.in_snapshot:
                files, _ = divided(files, end.steps[0].opened)
            found += _rows(files)
        before = {split_id_of(file) for file in self._opened_of_commits(since, since.after)}
        return found + [file for file in self._opened_of_commits(end, since.after) if split_id_of(file) not in before]

    def _opened_of_commits(self, progress: Progress, after: int) -> Iterator[TableFile]:
        """The files of versions after one that were opened at a point of progress."""
        if progress.after != after and (commits := self._commits(after, progress.after)) is not None:
            yield from _rows(self._wanted(commits.files))
        after = progress.after
        for last, opened in progress.steps:
            if last != after and (commits := self._commits(after, last)) is not None:
                yield from _rows(divided(self._wanted(commits.files), opened)[0])
            after = last

    def _check_new_columns(self, path: str, columns: Sequence[str]) -> None:
        """Which columns a table has, its lister knows: a file may have others, which the table has dropped."""

    def _changed(self, start: TableSplit, end: TableSplit) -> DataLossError:
        return DataLossError(
            f"{end.split_id} of {self._table.title} has changed: the rows {start.position} to {end.position} that were "
            "planned are not in it; restore it, or start with a new checkpointLocation"
        )


def _older(commits: Sequence[Commit], than_ms: int) -> Sequence[Commit]:
    """The commits until one that was made then or later."""
    return list(takewhile(lambda commit: commit.made_ms is not None and commit.made_ms < than_ms, commits))


def _rows(files: pa.Table) -> Iterator[TableFile]:
    return (TableFile(**row) for row in files.select(FILES.names).to_pylist())


def _times_in(blocks: FileBlocks) -> tuple[int, int]:
    """Earliest and latest valid event time; where the earliest is not known, the smallest number."""
    return blocks.earliest_us, int(blocks.max_us.max(initial=NO_TIMESTAMP))

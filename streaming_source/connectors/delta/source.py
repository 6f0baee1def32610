"""A source over a Delta table: what a user decides of it, as attributes and options."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from os import PathLike, fspath
from typing import Any, Final, Literal, TypeAlias, get_args

import deltalake
import pyarrow as pa
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow import fs

from alignment.arrow_times import format_timestamp
from alignment.shown import log_of, without_secrets
from alignment.timestamps import TimestampAssigner
from streaming_source.api import OptionSet
from streaming_source.api.options import arguments, choice, flag_field, integer, option, option_field, text
from streaming_source.connectors.delta.columns import DeltaColumns
from streaming_source.connectors.delta.commits import (
    LogFiles,
    check_features,
    check_protocol,
    commit_digest,
    latest_protocol,
    newest_commits,
    read_commit,
)
from streaming_source.connectors.delta.lister import DeltaLister
from streaming_source.connectors.delta.storage import open_copy, storage_options
from streaming_source.connectors.tables.commits import ChangeRules, Commit, CommitKind, MicroBatch, NewestMicroBatches
from streaming_source.connectors.tables.lister import Start
from streaming_source.connectors.tables.source import TableSource, table_options
from streaming_source.data_files.faults import faults_of
from streaming_source.data_files.stores import Root, StorageOptions
from streaming_source.exceptions import DataLossError, MalformedDataError, OptionError, PathNotFoundError

_log = log_of(__name__)

FilesOutside: TypeAlias = Literal["read", "fail"]

_EVENT_TIME: Final = "files are read in the order of their event times in any case; leave it out"
_CHANGES: Final = "rows that a rewrite writes again would be read twice; skipChangeCommits skips such versions"

_FOREIGN: Final = {
    "withEventTimeOrder": _EVENT_TIME,
    "ignoreChanges": _CHANGES,
    "ignoreFileDeletion": _CHANGES,
    "readChangeFeed": "a change feed is not read; leave it out, or use spark.readStream.format('delta')",
    "readChangeData": "a change feed is not read; leave it out, or use spark.readStream.format('delta')",
    "schemaTrackingLocation": "a query that is started again has the table's columns of then; see schemaEvolution",
    "schemaLocation": "a query that is started again has the table's columns of then; see schemaEvolution",
    "excludeRegex": "all files of the table are read; leave it out, and filter the rows",
    "failOnDataLoss": "files that were deleted are an error; ignoreMissingFiles = true goes on without them",
    "mergeSchema": "it is an option of writers; leave it out, and see schemaEvolution",
    "endingVersion": "a stream has no end version; read the table in batches with versionAsOf",
    "endingTimestamp": "a stream has no end; read the table in batches with timestampAsOf",
}


def _first_line(error: DeltaError) -> str:
    """Behind the first line comes a trace of where `deltalake` has it from."""
    return without_secrets(str(error)).strip().splitlines()[0].rstrip(".")


def _version_or_latest(name: str, value: str) -> str:
    if value.strip().lower() == "latest":
        return "latest"
    return str(integer(0)(name, value))


@dataclass(frozen=True, repr=False)
class DeltaSource(TableSource):
    """A Delta table: its files by event time, first those of a snapshot, then those that commits add.

    The options describe the attributes, those of how files are read are in `ReadingConfig`. `storage` has arguments of
    the file system, which show nowhere. An `OptionError` if a value is wrong, or has no meaning with others.

    Examples
    --------
    >>> DeltaSource("/data/clicks", starting_version=17, skip_change_commits=True).name
    'aligned_delta'
    """

    name = "aligned_delta"

    path: str = field(
        metadata=option("path", text, "Folder of the table, a path or URI; also the argument of `load`.", "required")
    )
    starting_version: int | str | None = option_field(
        None,
        "startingVersion",
        _version_or_latest,
        "A stream starts with what this version added, and reads no snapshot; `latest`: with the next version.",
    )
    starting_timestamp: datetime | str | None = option_field(
        None,
        "startingTimestamp",
        text,
        "A stream starts with the first version committed at this time or later, ISO-8601.",
    )
    ignore_deletes: bool = flag_field(
        "ignoreDeletes", "Go on after versions that only delete rows which were read already."
    )
    skip_change_commits: bool = flag_field(
        "skipChangeCommits", "Skip versions that delete or change rows which were there before, with all that they add."
    )
    version_as_of: int | None = option_field(
        None, "versionAsOf", integer(0), "A batch, or a stream with bounded = true, reads this version of the table."
    )
    timestamp_as_of: datetime | str | None = option_field(
        None,
        "timestampAsOf",
        text,
        "A batch, or a stream with bounded = true, reads the table as it was at this time, ISO-8601.",
    )
    files_outside: FilesOutside = option_field(
        "read",
        "filesOutside",
        choice(*get_args(FilesOutside)),
        "How to treat files that the log names outside of the table's folder, as in a shallow clone: `read` or "
        "`fail`. Who may write to the table can name any file there that this query may read.",
    )

    def __post_init__(self) -> None:
        if isinstance(self.path, PathLike):
            object.__setattr__(self, "path", fspath(self.path))
        if not isinstance(self.path, str) or not self.path.strip():
            raise OptionError(
                f"path = {self.path!r}: must be the folder of a Delta table; give one, as in .load('/data/clicks')"
            )
        if isinstance(self.starting_version, str) and self.starting_version != "latest":
            object.__setattr__(self, "starting_version", integer(0)("startingVersion", self.starting_version))
        super().__post_init__()
        for first, second in (("starting_version", "starting_timestamp"), ("version_as_of", "timestamp_as_of")):
            if getattr(self, first) is not None and getattr(self, second) is not None:
                raise OptionError(f"{first} and {second} are both given; give one of them")
        for name in ("starting_timestamp", "timestamp_as_of"):
            if getattr(self, name) is not None:
                self._time_of(name, getattr(self, name))

    @staticmethod
    def options() -> OptionSet:
        """The options of `readStream.format("aligned_delta")`, without those of every format."""
        return table_options(DeltaSource, _FOREIGN)

    @classmethod
    def from_options(cls, values: Mapping[str, Any]) -> DeltaSource:
        if not values["path"]:
            raise OptionError("option path is missing: give the folder of the table, as in .load('/data/clicks')")
        return cls(**{**arguments(cls, values), "storage": StorageOptions.of_options(values)})

    @property
    def identity(self) -> str:
        """The path of the table in one spelling; which table is there, the checkpoint has."""
        return self.root.spellings[0]

    @property
    def former_identities(self) -> tuple[str, ...]:
        return self.root.spellings[1:]

    @property
    def root(self) -> Root:
        return Root(self.path, self.storage)

    @property
    def title(self) -> str:
        return f"Delta table {without_secrets(self.path)}"

    @property
    def reads_zoneless_times(self) -> bool:
        """Of options; whether the values of partitions are such, its lister finds."""
        return (self.starting_timestamp is not None or self.timestamp_as_of is not None) and self.time_zone is None

    def in_zone(self, zone: str) -> DeltaSource:
        return replace(self, time_zone=zone) if self.time_zone is None else self

    def for_batch(self) -> DeltaSource:
        """All rows of one version."""
        for name, instead in (("starting_version", "versionAsOf"), ("starting_timestamp", "timestampAsOf")):
            if getattr(self, name) is not None:
                raise OptionError(
                    f"{name} = {getattr(self, name)!r} is where a stream starts; a batch reads one version: give "
                    f"{instead}"
                )
        return replace(self, bounded=True, watermark_from=None)

    def _at_version(self, version: int) -> DeltaSource:
        # A stream from version 0 on has all rows, as a batch has.
        begins = None if self.starting_version == 0 else self.starting_version
        if version < self._log().oldest_whole:
            raise self._version_gone(f"version {version}", "its log was cleaned up (delta.logRetentionDuration)")
        return replace(replace(self, starting_version=begins).for_batch(), version_as_of=version, timestamp_as_of=None)

    def open_files(self) -> fs.FileSystem:
        return self.root.open()[0]

    def table_schema(self) -> pa.Schema:
        table = self._open_first()
        self._check_start(table)
        return DeltaColumns.of_table(table).schema

    def newest_micro_batches(
        self, queries: Collection[str], last: int | None = None, known: NewestMicroBatches | None = None
    ) -> NewestMicroBatches:
        filesystem, root = self.root.open()
        if last is not None and last < 0:
            # A stream that begins with the first commit.
            return NewestMicroBatches(last, frozenset(queries), {})
        if (
            known is not None
            and known.queries >= {*queries}
            and known.digest == commit_digest(filesystem, root, known.last)
        ):
            reached, commits = newest_commits(self.title, filesystem, root, queries, last, known.last)
            commits += known.as_commits(self.title)
        else:
            reached, commits = newest_commits(self.title, filesystem, root, queries, last, None)
            for query in {*queries} - {batch.query for commit in commits for batch in commit.micro_batches}:
                # The transactions of all queries are in a checkpoint of the log, without the versions they are of.
                table = self._open_table(last)
                if (number := table.transaction_version(query)) is not None:
                    newest = MicroBatch(query, int(number))
                    commits.append(Commit(table.version(), self.title, CommitKind.APPEND, (newest,)))
        return NewestMicroBatches.among(commits, queries, reached, commit_digest(filesystem, root, reached))

    @property
    def _change_rules(self) -> ChangeRules:
        deletes = self.ignore_deletes or self.skip_change_commits
        return ChangeRules(("ignoreDeletes", deletes), ("skipChangeCommits", self.skip_change_commits))

    def open_lister(self, schema: pa.Schema, assigner: TimestampAssigner) -> DeltaLister:
        filesystem, root = self.root.open()
        return DeltaLister(
            title=self.title,
            filesystem=filesystem,
            root=root,
            table=self._open_first(),
            open_table=self._open_table,
            locate=self._locate,
            reads_outside=self.files_outside == "read",
            start=self._start,
            schema=schema,
            assigner=assigner,
            schema_evolution=self.schema_evolution,
            zone=self.time_zone,
        )

    def files_came(self) -> dict[str, int]:
        # The log has no version of a file that a checkpoint has taken over.
        actions = pa.table(self._open_first().get_add_actions())
        columns = (actions["path"].to_pylist(), actions["modification_time"].cast(pa.int64()).to_pylist())
        return dict(zip(*columns, strict=True))

    @property
    def _as_of(self) -> dict[str, object]:
        return {"versionAsOf": self.version_as_of, "timestampAsOf": self.timestamp_as_of}

    def _open_first(self) -> deltalake.DeltaTable:
        """Load the version that a batch reads, else the newest one."""
        newest = self._open_table(None)
        version = self._batch_version(newest)
        if version is None:
            return newest
        if version < (oldest := self._log().oldest_whole):
            name, value = next((name, value) for name, value in self._as_of.items() if value is not None)
            raise OptionError(
                f"{name} = {value}: version {version} of {self.title} cannot be read any more, as its log was cleaned "
                f"up (delta.logRetentionDuration); the oldest that can be is {oldest}: give that, or a later one"
            )
        return self._open_table(version)

    def _log(self) -> LogFiles:
        return LogFiles.listed(*self.root.open())

    def _open_table(self, version: int | None) -> deltalake.DeltaTable:
        """Load a version; the newest one for None."""
        filesystem, root = self.root.open()
        try:
            table = self._load_table(filesystem, root, version)
        except TableNotFoundError as error:
            if version is not None:
                # What the log has of a version may be cleaned up altogether.
                raise self._lost(version, error) from None
            what = f"path: there is no Delta table in {without_secrets(self.path)}"
            with faults_of(what):
                found = filesystem.get_file_info(fs.FileSelector(root, allow_not_found=True))
            if not found:
                raise PathNotFoundError(f"{what}; correct it") from None
            raise PathNotFoundError(
                f"{what}: the folder has {found[0].base_name} and no _delta_log. Correct it, or read a folder of files "
                "with format aligned_files"
            ) from None
        except DeltaError as error:
            if version is None:
                raise MalformedDataError(
                    f"path: {without_secrets(self.path)} cannot be read as a Delta table: {_first_line(error)}; "
                    "restore its log, or give another path"
                ) from None
            raise self._lost(version, error) from None
        protocol = table.protocol()
        check_features(self.title, table.version(), protocol.min_reader_version, protocol.reader_features or ())
        return table

    def _load_table(self, filesystem: fs.FileSystem, root: str, version: int | None) -> deltalake.DeltaTable:
        is_local = filesystem.type_name == "local"
        options = storage_options(self.path, self.storage)
        if not (is_local and "%" in root):
            try:
                return deltalake.DeltaTable(root if is_local else self.path, version=version, storage_options=options)
            except TableNotFoundError:
                raise
            except DeltaError as error:
                # It names no feature of a table that it does not understand, or one alone.
                if (found := latest_protocol(filesystem, root)) is not None:
                    check_protocol(self.title, *found)
                if version is not None and version > self._log().newest:
                    raise
                _log.warning("%s: %s; what its log has is read without that", self.title, _first_line(error))
        return open_copy(filesystem, root, lambda folder: deltalake.DeltaTable(folder, version=version))

    def _lost(self, version: int, error: DeltaError) -> DataLossError:
        return DataLossError(
            f"{self.title} has no version {version} any more: {_first_line(error)}. Start with a new "
            "checkpointLocation, which reads the table as it is now"
        )

    def _locate(self, uri: str) -> str | None:
        """Return where a file that is not in the table's folder is in its file system; None if it is in another one."""
        known = self.open_files()
        kinds = {Root(one).spellings[0].partition(":")[0] for one in (uri, self.path)}
        if known.type_name == "local" or len(kinds) > 1:
            # Who writes to the table must not have another store asked, with the keys of this process.
            return None
        filesystem, path = self.storage.located(uri, [self.path])
        return path if filesystem.equals(known) else None

    def _batch_version(self, table: deltalake.DeltaTable) -> int | None:
        if self.version_as_of is not None:
            if self.version_as_of > table.version():
                raise OptionError(
                    f"versionAsOf = {self.version_as_of}: {self.title} has the versions up to {table.version()}; give "
                    "one of them"
                )
            return self.version_as_of
        if self.timestamp_as_of is not None:
            at_us = self._time_of("timestampAsOf", self.timestamp_as_of)
            known = [version for version, at_ms in self._commit_times() if at_ms * 1000 <= at_us]
            if not known:
                raise OptionError(
                    f"timestampAsOf = {self.timestamp_as_of}: {self.title} has no version as old as that; give a later "
                    "time"
                )
            return known[-1]
        return None

    def _start(self, table: deltalake.DeltaTable) -> Start:
        version = table.version()
        if self.starting_version == "latest":
            return Start(version, has_snapshot=False)
        self._check_start(table)
        if isinstance(self.starting_version, int):
            if self.starting_version <= version and self.starting_version < (oldest := self._log().oldest_commit):
                have = f"the oldest is {oldest}: give that, or" if oldest <= version else "give latest, or"
                raise OptionError(
                    f"startingVersion = {self.starting_version}: this version is not in the log of {self.title} any "
                    f"more, which was cleaned up (delta.logRetentionDuration); {have} leave the option out to start "
                    "with the whole table"
                )
            return Start(self.starting_version - 1, has_snapshot=False)
        if self.starting_timestamp is not None:
            return Start(self._first_version_from(self.starting_timestamp) - 1, has_snapshot=False)
        return Start(version)

    def _check_start(self, table: deltalake.DeltaTable) -> None:
        """Refuse to start after the newest version, as soon as that is known."""
        version, from_time = table.version(), self.starting_timestamp
        if isinstance(self.starting_version, int) and self.starting_version > version + 1:
            raise OptionError(
                f"startingVersion = {self.starting_version}: {self.title} has the versions up to {version}; give "
                "one of them, or latest"
            )
        if from_time is not None:
            newest = read_commit(*self.root.open(), version)
            newest_ms = None if newest is None else newest.timestamp_ms
            if newest_ms is not None and newest_ms * 1000 < self._time_of("starting_timestamp", from_time):
                # An earlier one may be later, where clocks go back.
                self._first_version_from(from_time)

    def _commit_times(self) -> list[tuple[int, int]]:
        """Versions whose commits are in the log, with their times in milliseconds, rising."""
        return self._log().times_ms(*self.root.open())

    def _first_version_from(self, value: datetime | str) -> int:
        name = "startingTimestamp"
        from_us = self._time_of(name, value)
        times = self._commit_times()
        known = [version for version, at_ms in times if at_ms * 1000 >= from_us]
        if known and known[0] == times[0][0] > 0 and times[0][1] * 1000 > from_us:
            first = format_timestamp(times[0][1] * 1000)
            raise OptionError(
                f"{name} = {value}: the log of {self.title} starts with version {known[0]}, of {first}, and what was "
                "committed before that is not known any more; give a later time, or leave it out to start with the "
                "whole table"
            )
        if not known:
            raise OptionError(
                f"{name} = {value}: {self.title} has no version as new as that; give an earlier time, or "
                "startingVersion = latest"
            )
        return known[0]

    def _time_of(self, name: str, value: datetime | str) -> int:
        if (time_us := self.time_us(value)) is None:
            raise OptionError(f"{name} = {value!r}: must be an ISO-8601 time, like 2026-01-31T00:00:00Z")
        return time_us

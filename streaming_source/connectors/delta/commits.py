"""The commits of a Delta table, read from its log: what each adds and removes, and what it says of the table.

`deltalake` gives the files of a version, but of a commit not which of its files are new data and which a compaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from itertools import accumulate, chain, count, takewhile
from typing import Any, Final, TypeVar, cast
from urllib.parse import unquote

from pyarrow import fs

from streaming_source.connectors.tables.commits import Commit, CommitKind, MicroBatch
from streaming_source.exceptions import MalformedDataError, UnsupportedOperationError
from streaming_source.from_data import as_json

T = TypeVar("T")

_LOOKED_BACK: Final = 1_000
"""Commits in which the last one of a query, and a RESTORE, is looked for."""
_RESTORE: Final = "RESTORE"
_OVERWRITES: Final = (("outputMode", "complete"), ("mode", "overwrite"))
"""Marks of a commit that overwrites the table: of a streaming query, and of a batch."""
_BEGINNING: Final = 4_096
"""Bytes in which two commits of one version differ: the time of the commit, or the name of a file, is in them."""
_METADATA: Final = {"schemaString": str, "partitionColumns": list | None, "configuration": dict | None}
_READERS: Final = 16
"""Commits that are read at once."""


@dataclass(frozen=True, slots=True)
class Actions:
    """The actions of one version in the log, as the protocol has them.

    `adds` and `removes` are of all files, `dataChange` or not. `metadata` and `protocol` are None where it leaves them
    as they were. `operation` is what its writer calls it, empty where it does not say; `timestamp_ms` is when it was
    made, None where it does not say. `micro_batches` are its transactions: Delta's sink commits the id of its query
    and the number of the micro-batch as one, also without rows. It `overwrites` if its writer says so.
    """

    version: int
    adds: list[Mapping[str, Any]] = field(default_factory=list)
    removes: list[Mapping[str, Any]] = field(default_factory=list)
    metadata: Mapping[str, Any] | None = None
    protocol: Mapping[str, Any] | None = None
    operation: str = ""
    timestamp_ms: int | None = None
    micro_batches: tuple[MicroBatch, ...] = ()
    overwrites: bool = False

    @property
    def new_files(self) -> list[Mapping[str, Any]]:
        """Return what it adds as data."""
        return [add for add in self.adds if add.get("dataChange", True)]

    def commit(self, table: str) -> Commit:
        """Return it without its files; `table` is the table in messages."""
        title = f"{table}, version {self.version}" + (f" ({self.operation})" if self.operation else "")
        restores = self.operation == _RESTORE
        return Commit(self.version, title, self.kind, self.micro_batches, restores, overwrites=self.overwrites)

    @property
    def kind(self) -> CommitKind:
        """Return what they do to the rows of earlier versions."""
        if any(remove.get("dataChange", True) for remove in self.removes):
            return CommitKind.OVERWRITE if self.new_files else CommitKind.DELETE
        return CommitKind.REWRITE if (self.adds or self.removes) and not self.new_files else CommitKind.APPEND


def log_path(root: str, version: int) -> str:
    """Return where the log has a version."""
    return f"{root}/_delta_log/{version:020d}.json"


def path_in_table(written: str) -> str:
    """Return what the log calls a file as a path in the table's folder, or a path or URI of a file elsewhere.

    Shallow clones have files elsewhere; those of the local file system are written in several ways.
    """
    path = unquote(written)
    return "/" + path.removeprefix("file:").lstrip("/") if path.startswith("file:") else path


def read_commit(filesystem: fs.FileSystem, root: str, version: int) -> Actions | None:
    """Read one version; None if the log has no file of it. O(its actions)."""
    path = log_path(root, version)
    if (written := _read(filesystem, path)) is None:
        return None
    adds, removes, micro_batches = [], [], []
    latest: dict[str, Any] = {}
    try:
        for line in written.splitlines():
            if not line.strip():
                continue
            action = as_json(line)
            if (add := action.get("add")) is not None:
                adds.append(_file(add, size=int))
            elif (remove := action.get("remove")) is not None:
                removes.append(_file(remove, deletionTimestamp=int | None))
            elif (transaction := action.get("txn")) is not None:
                micro_batches.append(MicroBatch(str(transaction["appId"]), int(transaction["version"])))
            else:
                latest |= action
        info = latest.get("commitInfo") or {}
        said = info.get("operationParameters") or {}
        modes = {(name, value.strip('"').lower()) for name, value in said.items() if isinstance(value, str)}
        made = info.get("inCommitTimestamp")
        made = info.get("timestamp") if made is None else made
        return Actions(
            version,
            adds,
            removes,
            metadata=_checked(latest.get("metaData"), **_METADATA),
            protocol=_checked(latest.get("protocol"), minReaderVersion=int | None, readerFeatures=list | None),
            operation=str(info.get("operation") or ""),
            timestamp_ms=None if made is None else int(made),
            micro_batches=tuple(micro_batches),
            overwrites=not modes.isdisjoint(_OVERWRITES),
        )
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        raise MalformedDataError(
            f"{path} cannot be read as a commit of a Delta table: {error}; restore it, or use a new checkpointLocation"
        ) from None


def _file(action: Any, **fields: Any) -> Mapping[str, Any]:
    _checked(action, path=str, partitionValues=dict | None, **fields)
    values = (action.get("partitionValues") or {}).values()
    if "\0" in action["path"] or not all(value is None or isinstance(value, str) for value in values):
        raise TypeError("a file has a path or values of its partition that are no texts")
    return cast(Mapping[str, Any], action)


def _checked(action: Any, **fields: Any) -> Mapping[str, Any] | None:
    """Return an action whose fields have these types; None if there is none."""
    if action is not None:
        for name, kind in fields.items():
            if not isinstance(action.get(name), kind):
                raise TypeError(f"{name} is {str(action.get(name))[:80]!r}")
    return cast("Mapping[str, Any] | None", action)


def _read(filesystem: fs.FileSystem, path: str, size: int | None = None) -> bytes | None:
    try:
        with filesystem.open_input_stream(path) as stream:
            return bytes(stream.read(size))
    except FileNotFoundError:
        return None


def commit_digest(filesystem: fs.FileSystem, root: str, version: int) -> str | None:
    """Return a digest of how the file of a version begins, with ids and times; None if the log has none. O(1)."""
    written = _read(filesystem, log_path(root, version), _BEGINNING)
    return None if written is None else blake2b(written, digest_size=6).hexdigest()


def whole_checkpoints(names: Iterable[str]) -> dict[int, list[str]]:
    """Return the files of the checkpoints in a log, by version, without those of which a part is missing.

    A checkpoint has one file, or `parts` that are numbered: `VERSION.checkpoint.PART.PARTS.parquet`.
    """
    found = dict[int, list[str]]()
    parts = dict[tuple[int, int], list[str]]()
    for name in names:
        number, *rest = name.split(".")
        if not (number.isdigit() and rest[:1] == ["checkpoint"]):
            continue
        if len(rest) == 4 and rest[2].isdigit():
            parts.setdefault((int(number), int(rest[2])), []).append(name)
        elif rest[-1] in ("parquet", "json"):
            found.setdefault(int(number), []).append(name)
    for (version, expected), of in parts.items():
        if len(of) == expected:
            found.setdefault(version, of)
    return found


@dataclass(frozen=True)
class LogFiles:
    """The files in the folder of a log.

    `commits` has when the file of each commit was written, in nanoseconds, by version; None where the store does not
    say. `checkpoints` are versions that are written down as a whole, in files of which none is missing.
    """

    commits: Mapping[int, int | None]
    checkpoints: frozenset[int]

    @staticmethod
    def listed(filesystem: fs.FileSystem, root: str) -> LogFiles:
        """List the log. O(its files)."""
        commits = dict[int, int | None]()
        found = filesystem.get_file_info(fs.FileSelector(f"{root}/_delta_log", allow_not_found=True))
        for entry in found:
            number, _, rest = entry.base_name.partition(".")
            if number.isdigit() and rest == "json":
                commits[int(number)] = entry.mtime_ns
        return LogFiles(commits, frozenset(whole_checkpoints(entry.base_name for entry in found)))

    @cached_property
    def newest(self) -> int:
        """The newest version; -1 without one."""
        return max((*self.commits, *self.checkpoints), default=-1)

    @cached_property
    def oldest_commit(self) -> int:
        """The version from which on each commit is there, up to the newest one; the next version where none is."""
        version = self.newest + 1
        while version - 1 in self.commits:
            version -= 1
        return version

    @cached_property
    def oldest_whole(self) -> int:
        """The oldest version that can be read as a whole: made of a checkpoint and the commits after it."""
        if self.oldest_commit == 0:
            return 0
        return min((version for version in self.checkpoints if version >= self.oldest_commit - 1), default=self.newest)

    def times_ms(self, filesystem: fs.FileSystem, root: str) -> list[tuple[int, int]]:
        """Return when each of the newest commits without a gap was made, in milliseconds, rising.

        As the commit says it, else by the time of its file. One that is not after the one before it, as its clock went
        back, is taken to be a millisecond after it, as in Spark. O(commits), each of which is read. A
        `MalformedDataError` if neither is known of a commit.
        """

        def time_ms(version: int) -> int:
            commit, written_ns = read_commit(filesystem, root, version), self.commits[version]
            if commit is not None and commit.timestamp_ms is not None:
                return commit.timestamp_ms
            if written_ns is None:
                raise MalformedDataError(
                    f"{log_path(root, version)} has no time of its commit, and its store has none of the file; choose "
                    "a version by its number"
                )
            return written_ns // 1_000_000

        versions = range(self.oldest_commit, self.newest + 1)
        rising = accumulate(_of_each(versions, time_ms), lambda before, at_ms: max(at_ms, before + 1))
        return list(zip(versions, rising, strict=True))


def _of_each(versions: range, read: Callable[[int], T]) -> list[T]:
    """Read of each version of a log, on some threads: a task for each of these, as one for a version costs more."""
    many = -(-len(versions) // _READERS) or 1
    parts = [versions[first : first + many] for first in range(0, len(versions), many)]
    with ThreadPoolExecutor(_READERS) as pool:
        return [*chain.from_iterable(pool.map(lambda part: [*map(read, part)], parts))]


def reached_version(filesystem: fs.FileSystem, root: str) -> int:
    """Return a version that the table has reached, at least that of the last checkpoint; -1 of a table that is gone.

    O(1) where the log has the commit of the checkpoint that it names.
    """
    # It need not be named.
    with suppress(ValueError, KeyError, TypeError):
        version = int(as_json(_read(filesystem, f"{root}/_delta_log/_last_checkpoint") or b"")["version"])
        if filesystem.get_file_info(log_path(root, version)).type != fs.FileType.NotFound:
            return version
    return LogFiles.listed(filesystem, root).newest


def newest_commits(
    title: str, filesystem: fs.FileSystem, root: str, queries: Collection[str], last: int | None, after: int | None
) -> tuple[int, list[Commit]]:
    """Return the newest version, and the commits that tell what these queries claim, newest first; without their files.

    These are the last commit of each query, those that restore, and the last of each query before one that restores.
    They are looked for up to the version `last`, None for the newest, and above `after`; without that in those since
    the last checkpoint of the log, and in a thousand before. O(these), each of which is read; few are parsed.
    """
    ids = {query: query.encode() for query in queries}
    words = [_RESTORE.encode(), *ids.values()]

    def words_of(version: int) -> set[bytes] | None:
        """Return which of the words a version has; None if the log has none."""
        written = _read(filesystem, log_path(root, version))
        return None if written is None else {word for word in words if word in written}

    if (start := last if after is None else after) is None:
        start = max(reached_version(filesystem, root), 0)
    later = [] if last is not None else [*takewhile(lambda found: found is not None, map(words_of, count(start + 1)))]
    newest = start + len(later)
    before = range(start, start if after is not None else max(start - _LOOKED_BACK, -1), -1)
    looked = zip(range(newest, -1, -1), chain(reversed(later), _of_each(before, words_of)), strict=False)
    found, missing = list[Commit](), {*ids}
    for version, said in looked:
        if not said or said.isdisjoint([words[0], *(ids[query] for query in missing)]):
            continue
        if (commit := read_commit(filesystem, root, version)) is not None:
            found.append(commit.commit(title))
            missing = {*ids} if found[-1].restores else missing - {one.query for one in commit.micro_batches}
    return newest, found


def latest_protocol(filesystem: fs.FileSystem, root: str) -> tuple[int, Mapping[str, Any]] | None:
    """Return the newest `protocol` action among the commits that the log has as JSON, and its version; None without.

    For a table that `deltalake` does not open; commits that cannot be read are passed over. O(commits).
    """
    for version in sorted(LogFiles.listed(filesystem, root).commits, reverse=True):
        try:
            commit = read_commit(filesystem, root, version)
        except MalformedDataError:
            continue
        if commit is not None and commit.protocol is not None:
            return version, commit.protocol
    return None


_UNDERSTOOD: Final = frozenset(
    {
        *("columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "typeWidening-preview"),
        *("v2Checkpoint", "vacuumProtocolCheck"),
    }
)

_READER_VERSION: Final = 3

_INSTEAD: Final = {
    "catalogManaged": "its commits are known to its catalog alone",
    "catalogOwned-preview": "its commits are known to its catalog alone",
    "variantType": "columns of variants are not read",
    "variantType-preview": "columns of variants are not read",
    "variantShredding-preview": "columns of variants are not read",
}


def check_features(title: str, version: int, reader_version: int, features: Collection[str]) -> None:
    """Raise an `UnsupportedOperationError` where a table needs a reader that knows more."""
    unknown = sorted({*features} - _UNDERSTOOD)
    if reader_version > _READER_VERSION:
        unknown.append(f"minReaderVersion {reader_version}")
    if unknown:
        why = next((f": {_INSTEAD[name]}" for name in unknown if name in _INSTEAD), "")
        raise UnsupportedOperationError(
            f"{title}, version {version}, needs a reader that understands {', '.join(unknown)}{why}. Read it with "
            "spark.readStream.format('delta') and withWatermark, or drop the feature from the table (ALTER TABLE ... "
            "DROP FEATURE)"
        )


def check_protocol(title: str, version: int, action: Mapping[str, Any]) -> None:
    """Do so of a `protocol` action of the log."""
    check_features(title, version, action.get("minReaderVersion") or 1, [*map(str, action.get("readerFeatures") or ())])

"""Offsets of Spark's own sources, parsed, and the log of its file source: which files it has read, in which entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from streaming_source.checkpoint.offset_log import RESTORE, CheckpointFiles
from streaming_source.exceptions import CheckpointError
from streaming_source.from_data import as_json


class LoggedFile(NamedTuple):
    """A file: the entry of the log that it is in, its URI, and when it had been modified, in milliseconds."""

    entry: int
    uri: str
    modified_ms: int | None


def file_log(files: CheckpointFiles, source: str, last: int) -> list[LoggedFile]:
    """Return all files that a source has listed up to an entry of the log, in the order of the entries.

    Raises
    ------
    CheckpointError
        If the log is missing, has a gap, or is damaged.
    """
    folder = f"sources/{source}"
    found = files.list_folder(folder)
    if found is None:
        raise CheckpointError(
            f"{files.checkpoint}/{folder}, the log of the files that were read, is missing; {RESTORE}"
        )
    compact = max((int(n.removesuffix(".compact")) for n in found if n.endswith(".compact")), default=-1)
    later = sorted(int(n) for n in found if n.isdigit() and int(n) > compact)
    if compact < 0 and not later:
        raise CheckpointError(f"{files.checkpoint}/{folder} has no log of the files that were read; {RESTORE}")
    if lost := sorted(set(range(compact + 1, last + 1)) - set(later)):
        raise CheckpointError(f"{files.checkpoint}/{folder}/{lost[0]} is missing; {RESTORE}")
    names = [f"{compact}.compact"] if compact >= 0 else []
    entries = [
        one
        for name in [*names, *(str(number) for number in later if number <= last)]
        for one in _entry(files, f"{folder}/{name}")
    ]
    return sorted((one for one in entries if one.entry <= last), key=lambda one: one.entry)


def _entry(files: CheckpointFiles, name: str) -> list[LoggedFile]:
    version, *lines = (files.text(name) or "").split("\n")
    try:
        if version != "v1":
            raise ValueError(f"version {version!r}")
        logged = [as_json(line) for line in lines if line]
        return [
            LoggedFile(int(one["batchId"]), str(one["path"]), int(one.get("timestamp") or 0))
            for one in logged
            if one.get("action", "add") == "add"
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{files.checkpoint}/{name} is damaged ({error!r}); {RESTORE}") from None


_Parsed = TypeVar("_Parsed")

_OURS: Final = {"v", "source", "id", "n", "splits"}


def kind_of(text: str) -> str | None:
    """Return the kind of source that wrote an offset: `files`, `kafka`, `delta`, `iceberg`; `ours`; None: another."""
    try:
        offset = as_json(text)
    except ValueError:
        return None
    if not isinstance(offset, Mapping):
        return None
    if is_ours(offset):
        return "ours"
    for field, kind in (("logOffset", "files"), ("reservoirVersion", "delta"), ("snapshot_id", "iceberg")):
        if field in offset:
            return kind
    return "kafka" if offset and all(isinstance(parts, Mapping) for parts in offset.values()) else None


def is_ours(offset: Any) -> bool:
    """Return whether a source of this library wrote an offset, as JSON."""
    return isinstance(offset, Mapping) and offset.keys() >= _OURS


def parse_file_offset(text: str) -> int:
    """Return the number of the last entry of its log that a file source has read."""
    return int(as_json(text)["logOffset"])


def parse_kafka_offset(text: str) -> dict[tuple[str, int], int]:
    """Return the end by topic and partition of `{"orders": {"0": 23}}`."""
    topics = as_json(text)
    return {(name, int(number)): int(end) for name, ends in topics.items() for number, end in ends.items()}


class TableOffset(NamedTuple):
    """The place of Spark's own source in a table: all up to a version, of which it has read the first `files`.

    `files` is None for all of them; they are what the version added or, `in_snapshot`, all that it has. `version` is -1
    before the first one. `table_id` is None where the offset does not name the table.
    """

    version: int
    files: int | None
    in_snapshot: bool = False
    table_id: str | None = None


def table_offset(kind: str, text: str, fix: str = RESTORE) -> TableOffset:
    """Parse an offset of Spark's own Delta or Iceberg source; `kind` is `delta` or `iceberg`.

    A `CheckpointError` with a `fix` if it is none.
    """
    parse = _parse_delta_offset if kind == "delta" else _parse_iceberg_offset
    return parsed(parse, text, f"an offset of Spark's own {kind.capitalize()} source", fix)


def _parse_delta_offset(text: str) -> TableOffset:
    """Parse `{"reservoirId": .., "reservoirVersion": 7, "index": 3, "isStartingVersion": false}`.

    `index` is the number of the last file that was read. A negative one is before the first file: of a commit, that is
    after all of the version before.
    """
    found = as_json(text)
    version, last, in_snapshot = int(found["reservoirVersion"]), int(found["index"]), bool(found["isStartingVersion"])
    if last < 0 and not in_snapshot:
        return TableOffset(version - 1, None, table_id=str(found["reservoirId"]))
    return TableOffset(version, max(last + 1, 0), in_snapshot, str(found["reservoirId"]))


def _parse_iceberg_offset(text: str) -> TableOffset:
    """Parse `{"version": 1, "snapshot_id": 17, "position": 3, "scan_all_files": false}`.

    `position` is the number of the next file; the snapshot -1 is before all.
    """
    found = as_json(text)
    if found["version"] != 1:
        raise ValueError(f"version {found['version']}")
    snapshot_id, position = int(found["snapshot_id"]), max(int(found["position"]), 0)
    return TableOffset(snapshot_id, None if snapshot_id < 0 else position, bool(found["scan_all_files"]))


def parsed(parse: Callable[[str], _Parsed], text: str, what: str, fix: str = RESTORE) -> _Parsed:
    """Parse an offset; a `CheckpointError` with a `fix` if it is not `what` a source writes."""
    try:
        return parse(text)
    except (ValueError, TypeError, LookupError, AttributeError):
        raise CheckpointError(f"{text[:80]!r} is where {what} should be; {fix}") from None

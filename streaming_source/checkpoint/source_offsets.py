"""Readers of the offsets of Spark's own sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from streaming_source.checkpoint.files import RESTORE
from streaming_source.exceptions import CheckpointError
from streaming_source.from_data import as_json

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

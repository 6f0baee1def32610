"""What the offsets of Spark's own sources say."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from streaming_source.checkpoint.files import RESTORE
from streaming_source.exceptions import CheckpointError

__all__ = ["is_ours", "kind_of", "parse_file_offset", "parse_kafka_offset", "parsed"]

_Parsed = TypeVar("_Parsed")

_OURS: Final = {"v", "source", "id", "n", "splits"}


def kind_of(text: str) -> str | None:
    """Return the kind of source that wrote an offset: `files`, `kafka`, `delta`, `iceberg`; `ours`; None: another."""
    try:
        offset = json.loads(text)
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
    return int(json.loads(text)["logOffset"])


def parse_kafka_offset(text: str) -> dict[tuple[str, int], int]:
    """Return the end by topic and partition of `{"orders": {"0": 23}}`."""
    topics = json.loads(text)
    return {(name, int(number)): int(end) for name, ends in topics.items() for number, end in ends.items()}


def parsed(parse: Callable[[str], _Parsed], text: str, what: str, fix: str = RESTORE) -> _Parsed:
    """Parse an offset; a `CheckpointError` with a `fix` if it is not `what` a source writes."""
    try:
        return parse(text)
    except (ValueError, TypeError, LookupError, AttributeError):
        raise CheckpointError(f"{text[:80]!r} is where {what} should be; {fix}") from None

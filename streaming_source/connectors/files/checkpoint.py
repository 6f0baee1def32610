"""What a source over files remembers beside its splits: files that are finished, and how they are known."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from streaming_source.api import SimpleVersionedSerializer
from streaming_source.api.serializer import check_version
from streaming_source.exceptions import OffsetError

__all__ = ["FileOrder", "FilesCheckpoint", "FilesCheckpointSerializer", "OrderKey", "Remembered", "Segment"]

FileOrder: TypeAlias = Literal["eventTime", "name", "modificationTime"]

OrderKey: TypeAlias = tuple[int, str]
"""The place of a file in the order in which files are remembered: when it was modified, and its path."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Finished files, 12 bytes each (see `finished.MARK`), with keys after the segment before and at most `upto`."""

    upto: OrderKey
    marks: bytes


@dataclass(frozen=True, slots=True)
class Remembered:
    """The finished files of an offset.

    Files up to the key `forgotten` are ignored, unless they are in work. Those after it are in `segments`, in order of
    keys; or they are written down in a `log`, of which this is the id, and the last state that it has an entry of.
    """

    forgotten: OrderKey | None = None
    segments: tuple[Segment, ...] = ()
    log: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class FilesCheckpoint:
    """What is remembered beside the splits in work.

    `finished` has the ids of finished splits, sorted, where splits are directories; `remembered` the finished ones
    where they are files. Of a bounded source, files modified after `until_ms` were not there at its start; None before
    that. By name or modification time, `latest_us` is the latest event time in the files that were begun, None before
    any. `split_by` is what a split is; where it is a file, `order` is in which order they are begun; with `by_name`
    they are known by their names alone.
    """

    finished: tuple[str, ...] = ()
    remembered: Remembered = field(default_factory=Remembered)
    until_ms: int | None = None
    latest_us: int | None = None
    split_by: Literal["directory", "file"] = "directory"
    order: FileOrder = "eventTime"
    by_name: bool = False


class FilesCheckpointSerializer(SimpleVersionedSerializer[FilesCheckpoint]):
    """`{"finished": [id], "forgotten": key, "remembered": [[key, marks in base 64]], "log": [id, state], ...}`.

    Entries that are empty or the default are left out, but for `finished`.
    """

    version = 1

    def serialize(self, value: FilesCheckpoint) -> bytes:
        state = {
            "finished": value.finished,
            "forgotten": value.remembered.forgotten,
            "remembered": [[s.upto, b64encode(s.marks).decode()] for s in value.remembered.segments] or None,
            "log": value.remembered.log,
            "until": value.until_ms,
            "latest": value.latest_us,
            "splitBy": value.split_by,
            "order": None if value.order == "eventTime" else value.order,
            "byName": value.by_name or None,
        }
        known = {name: entry for name, entry in state.items() if entry is not None}
        return json.dumps(known, separators=(",", ":"), sort_keys=True).encode()

    def deserialize(self, version: int, data: bytes) -> FilesCheckpoint:
        check_version(version, self.version, "enumerator")
        try:
            state = json.loads(data)
            segments = tuple(Segment((ms, path), b64decode(marks)) for (ms, path), marks in state.get("remembered", ()))
            remembered = Remembered(_pair(state.get("forgotten")), segments, _pair(state.get("log")))
            return FilesCheckpoint(
                finished=tuple(state["finished"]),
                remembered=remembered,
                until_ms=state.get("until"),
                latest_us=state.get("latest"),
                split_by=state.get("splitBy", "directory"),
                order=state.get("order", "eventTime"),
                by_name=state.get("byName", False),
            )
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise OffsetError(f"damaged offset: {data!r} has no finished files: {error!r}") from error


def _pair(value: list[Any] | None) -> tuple[Any, Any] | None:
    return None if value is None else (value[0], value[1])

"""The checkpoint of the enumerator: which files are finished, and how a finished file is known again."""

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
"""The key by which finished files are ordered: time of modification, and path."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Finished files, 12 bytes each (see `marks.MARK`): those with keys above the previous segment, up to `upto`."""

    upto: OrderKey
    marks: bytes


@dataclass(frozen=True, slots=True)
class Remembered:
    """The finished files of an offset.

    Files up to the key `forgotten` are ignored, unless they are in work. Finished files after it are in `segments`, in
    the order of keys; or they are in a `log`, given by its id and the last state that it has an entry of.
    """

    forgotten: OrderKey | None = None
    segments: tuple[Segment, ...] = ()
    log: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class FilesCheckpoint:
    """What an offset has in addition to the splits in work.

    `split_by` is what a split is. If it is a directory, `finished` has the ids of finished splits, sorted. If it is a
    file, `remembered` has the finished files; `order` is the order in which files begin; with `by_name` files are known
    by their names alone. In the order of names or modification times `latest_us` is the latest event time in the files
    that were begun, None before any. A bounded source reads no file modified after `until_ms`; None before the first
    listing.
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

"""The checkpoint of the enumerator: which files are finished, and how a finished file is known again."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from alignment.watermarks import Claim
from streaming_source.api import SimpleVersionedSerializer
from streaming_source.api.serializer import check_version
from streaming_source.exceptions import OffsetError

__all__ = ["FileOrder", "FilesCheckpoint", "FilesCheckpointSerializer", "OrderKey", "Remembered", "Segment"]

FileOrder: TypeAlias = Literal["eventTime", "name", "modificationTime"]

OrderKey: TypeAlias = tuple[int, str]
"""The key by which finished files are ordered: time of modification, and path."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Finished files, 12 bytes each (see `marks.MARK`), whose keys are not above `upto`."""

    upto: OrderKey
    marks: bytes


@dataclass(frozen=True, slots=True)
class Remembered:
    """The finished files of an offset.

    Of files up to the key `forgotten` those are finished that the `sketch` has (see `marks.MarkSketch`); all of them in
    offsets of version 1, which have no sketch. Other finished files are in `segments`, and in `last`, which has those
    that the last micro-batch finished; or in a `log`, given by its id and the last state that it has an entry of.
    `unread` files, as marks, have keys up to `forgotten` and are not finished: they came late.
    """

    forgotten: OrderKey | None = None
    segments: tuple[Segment, ...] = ()
    log: tuple[str, int] | None = None
    last: Segment | None = None
    sketch: bytes = b""
    unread: bytes = b""


@dataclass(frozen=True, slots=True)
class FilesCheckpoint:
    """What an offset has in addition to the splits in work.

    `split_by` is what a split is. If it is a directory, `finished` has the ids of finished splits, sorted. If it is a
    file, `remembered` has the finished files, and if it `names_finished` those of the last micro-batch are no splits of
    the offset; `order` is the order in which files are opened; with `by_name` files are known by their names
    alone. In the order of names or modification times `latest_us` is the latest event time in the files that were
    opened, None before any. A bounded source reads no file modified after `until_ms`; None before the first listing.
    `after_ms` is `modifiedAfter` of the first start: a later one with a later time leaves out no more files.
    With `watermarkFrom` the writer's last claim is in `claims`.
    """

    finished: tuple[str, ...] = ()
    remembered: Remembered = field(default_factory=Remembered)
    until_ms: int | None = None
    after_ms: int | None = None
    latest_us: int | None = None
    split_by: Literal["directory", "file"] = "directory"
    order: FileOrder = "eventTime"
    by_name: bool = False
    names_finished: bool = False
    claims: tuple[Claim, ...] = ()


class FilesCheckpointSerializer(SimpleVersionedSerializer[FilesCheckpoint]):
    """`{"finished": [id], "forgotten": key, "remembered": [[key, marks in base 64]], "log": [id, state], ...}`.

    Entries that are empty or the default are left out, but for `finished`. Version 1 has none of `last`, `sketch`,
    `unread` and `names`.
    """

    version = 2

    def serialize(self, value: FilesCheckpoint) -> bytes:
        remembered = value.remembered
        state = {
            "finished": value.finished,
            "forgotten": remembered.forgotten,
            "remembered": [_written(segment) for segment in remembered.segments] or None,
            "last": None if remembered.last is None else _written(remembered.last),
            "sketch": b64encode(remembered.sketch).decode() or None,
            "unread": b64encode(remembered.unread).decode() or None,
            "log": remembered.log,
            "until": value.until_ms,
            "after": value.after_ms,
            "latest": value.latest_us,
            "splitBy": value.split_by,
            "order": None if value.order == "eventTime" else value.order,
            "byName": value.by_name or None,
            "names": value.names_finished or None,
            "claims": [[*claim] for claim in value.claims] or None,
        }
        known = {name: entry for name, entry in state.items() if entry is not None}
        return json.dumps(known, separators=(",", ":"), sort_keys=True).encode()

    def deserialize(self, version: int, data: bytes) -> FilesCheckpoint:
        check_version(version, self.version, "enumerator")
        try:
            state = json.loads(data)
            remembered = Remembered(
                forgotten=_pair(state.get("forgotten")),
                segments=tuple(map(_segment, state.get("remembered", ()))),
                log=_log(state.get("log")),
                last=_segment(state["last"]) if "last" in state else None,
                sketch=b64decode(state.get("sketch", "")),
                unread=b64decode(state.get("unread", "")),
            )
            return FilesCheckpoint(
                finished=tuple(state["finished"]),
                remembered=remembered,
                until_ms=state.get("until"),
                after_ms=state.get("after"),
                latest_us=state.get("latest"),
                split_by=state.get("splitBy", "directory"),
                order=state.get("order", "eventTime"),
                by_name=state.get("byName", False),
                names_finished=state.get("names", False),
                claims=Claim.from_json(state.get("claims", ())),
            )
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise OffsetError(f"damaged offset: {data!r} has no finished files: {error!r}") from error


def _written(segment: Segment) -> list[Any]:
    return [segment.upto, b64encode(segment.marks).decode()]


def _segment(value: list[Any]) -> Segment:
    (ms, path), marks = value
    return Segment((ms, path), b64decode(marks))


def _log(value: list[Any] | None) -> tuple[str, int] | None:
    if value is None:
        return None
    # Imported here: few queries have option stateLocation.
    from streaming_source.from_data import as_id

    return as_id(value[0]), int(value[1])


def _pair(value: list[Any] | None) -> tuple[Any, Any] | None:
    return None if value is None else (value[0], value[1])

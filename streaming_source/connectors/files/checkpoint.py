"""The checkpoint of the enumerator: which files are finished, and how a finished file is known again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias

from alignment.codec import Codec, Form, Wire
from alignment.watermarks import Claim
from streaming_source.api.serializer import CodecSerializer

FileOrder: TypeAlias = Literal["eventTime", "name", "modificationTime"]

OrderKey: TypeAlias = tuple[int, str]
"""The key by which finished files are ordered: time of modification, and path."""


class Segment(NamedTuple):
    """Finished files, 12 bytes each (see `marks.MARK`), whose keys are not above `upto`."""

    upto: OrderKey
    marks: bytes


def _log(found: Any) -> tuple[str, int]:
    # Imported here: few queries have option stateLocation.
    from streaming_source.from_data import as_id

    log_id, sequence = found
    return as_id(log_id), int(sequence)


_LOG: Final = Form(tuple, _log)


@dataclass(frozen=True, slots=True)
class Remembered:
    """The finished files of an offset.

    Of files up to the key `forgotten` those are finished that the `sketch` has (see `marks.MarkSketch`); all of them in
    offsets of version 1, which have no sketch. Other finished files are in `segments`, and in `last`, which has those
    that the last micro-batch finished; or in a `log`, given by its id and the last state that it has an entry of.
    `unread` files, as marks, have keys up to `forgotten` and are not finished: they came late.
    """

    forgotten: OrderKey | None = None
    segments: Annotated[tuple[Segment, ...], Wire("remembered")] = ()
    log: Annotated[tuple[str, int] | None, Wire(form=_LOG)] = None
    last: Segment | None = None
    sketch: bytes = b""
    unread: bytes = b""


@dataclass(frozen=True, slots=True)
class FilesCheckpoint:
    """The part of an offset that stands beside the splits in work.

    `split_by` is what a split is. If it is a directory, `finished` has the ids of finished splits, sorted. If it is a
    file, `remembered` has the finished files, and if it `names_finished` those of the last micro-batch are no splits of
    the offset; `order` is the order in which files are opened; with `by_name` files are known by their names
    alone. In the order of names or modification times `latest_us` is the latest event time in the files that were
    opened, None before any. A bounded source reads no file modified after `until_ms`; None before the first listing.
    `after_ms` is `modifiedAfter` of the first start: a later one with a later time leaves out no more files.
    With `watermarkFrom` the writer's last claim is in `claims`.
    """

    finished: Annotated[tuple[str, ...], Wire(needed=True)] = ()
    remembered: Annotated[Remembered, Wire(flat=True)] = field(default_factory=Remembered)
    until_ms: Annotated[int | None, Wire("until")] = None
    after_ms: Annotated[int | None, Wire("after")] = None
    latest_us: Annotated[int | None, Wire("latest")] = None
    split_by: Annotated[Literal["directory", "file"], Wire("splitBy", always=True)] = "directory"
    order: FileOrder = "eventTime"
    by_name: Annotated[bool, Wire("byName")] = False
    names_finished: Annotated[bool, Wire("names")] = False
    claims: tuple[Claim, ...] = ()


class FilesCheckpointSerializer(CodecSerializer[FilesCheckpoint]):
    """`{"finished": [id], "forgotten": key, "remembered": [[key, marks in base 64]], "log": [id, state], ...}`.

    Entries that are empty or the default are left out, but for `finished`. Version 1 has none of `last`, `sketch`,
    `unread` and `names`.
    """

    version = 2

    codec = Codec(FilesCheckpoint)
    what = "enumerator"

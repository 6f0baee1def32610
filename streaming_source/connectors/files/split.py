"""All that an offset has of files: splits over them, which files are finished, and how one of them is known again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias

from alignment.codec import Codec, Form, Wire
from alignment.watermarks import Claim
from streaming_source.api.serializer import CodecSerializer
from streaming_source.connectors.files.listing import ListedFile
from streaming_source.data_files.ranges import Arrival, FileRange, RangedSplit


@dataclass(frozen=True, slots=True)
class FileSplit(RangedSplit):
    """A directory that is a log of files, or a single file.

    `split_id` is the path below the source's root, with `@modified_ms` for a file that was rewritten. `position` is the
    number of the next record.

    For a directory, `file` is the name of the file that has this record, and `row` is its row there; all files with
    lower names are read. If `row` is None, `file` is read too, and the next record is in a later file. At the origin
    they are empty and 0. `files` is how many files there were up to `file`: if a restart finds more, some are out of
    order.

    `modified_ms` is when the single file, or `file`, was modified, and `size` its bytes; None where they are not known.
    `newest_ms` is when the latest of the files up to `file` was modified, None if that is `file`. `ranges` are for
    readers.
    """

    split_id: str = field()  # declared as a field: else the property of the base class is taken for its default
    position: Annotated[int, Wire(needed=True)] = 0
    file: Annotated[str, Wire(always=True)] = ""
    row: Annotated[int | None, Wire(always=True)] = 0
    files: Annotated[int, Wire(always=True)] = 0
    modified_ms: int | None = None
    size: int | None = None
    newest_ms: int | None = None
    ranges: tuple[FileRange, ...] = ()

    @staticmethod
    def of_file(file: ListedFile, *, is_rewritten: bool = False) -> FileSplit:
        """Return the split of a single file before its first record; a rewritten file gets another id."""
        path = file.relative_path
        split_id = f"{path}@{file.modified_ms}" if is_rewritten else path
        return FileSplit(split_id, modified_ms=file.modified_ms, size=file.size)

    @property
    def path(self) -> str:
        """Of the directory or file below the source's root."""
        return self.split_id if self.file else self.split_id.removesuffix(f"@{self.modified_ms}")

    def is_rewritten(self, file: ListedFile) -> bool:
        """Return whether the single file, or one up to `file`, has changed; False of others, and if it is not known.

        Of a file before `file` it is known that it was modified no later than `newest_ms`.
        """
        if self.modified_ms is None or (self.file and file.name > self.file):
            return False
        if self.file and file.name < self.file:
            return file.modified_ms > (self.newest_ms or self.modified_ms)
        return file.modified_ms != self.modified_ms or self.size not in (None, file.size)

    @property
    def place(self) -> str:
        """`row 17 of AA/part-003.parquet`; see `SourceSplit`."""
        row, name = (self.row or 0, f"/{self.file}") if self.file else (self.position, "")
        return f"row {row} of {self.path}{name}"

    def with_ranges(self, ranges: tuple[FileRange, ...]) -> FileSplit:
        return replace(self, ranges=ranges)

    def arrival_of(self, part: FileRange) -> Arrival:
        """The files of a directory come in the order of their names; a single file when it was modified."""
        if self.modified_ms is None or self.file:
            return Arrival(self.split_id, part.position - part.start, "names in each directory")
        return Arrival("", self.modified_ms, "modification times")

    def origin(self) -> FileSplit:
        if self.file:
            return FileSplit(self.split_id)
        return FileSplit(self.split_id, modified_ms=self.modified_ms, size=self.size)


_OF_A_FILE: Final = Codec(FileSplit, ("split_id", "position", "modified_ms", "size"))


class FileSplitSerializer(CodecSerializer[FileSplit]):
    """Of a directory `[split id, position, file, row, files, modified_ms, size, newest_ms]`, the last ones if known.

    Of a file `[split id, position, modified_ms, size]`.
    """

    codec = Codec(FileSplit, ("split_id", "position", "file", "row", "files", "modified_ms", "size", "newest_ms"))

    def _codec_for(self, value: FileSplit) -> Codec[FileSplit]:
        return self.codec if value.file or value.modified_ms is None else _OF_A_FILE

    def _codec_of(self, found: object) -> Codec[FileSplit]:
        return _OF_A_FILE if isinstance(found, list) and len(found) <= 4 else self.codec

    def check(self, value: FileSplit) -> None:
        names = value.path, value.file
        if any(".." in name or name[:1] == "/" or "\0" in name for name in names) or "/" in value.file:
            # Imported here: hardly any name may be a way out.
            from streaming_source.from_data import is_relative

            if not is_relative(value.path) or not is_relative(value.file) or "/" in value.file:
                raise ValueError("a name leads out of option path")


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

"""Splits over files, and how they are written in offsets."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

from streaming_source.api import SimpleVersionedSerializer
from streaming_source.api.serializer import check_version
from streaming_source.connectors.files.listing import ListedFile
from streaming_source.data_files.ranges import Arrival, FileRange, RangedSplit
from streaming_source.exceptions import OffsetError

__all__ = ["FileSplit", "FileSplitSerializer"]


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
    position: int = 0
    file: str = ""
    row: int | None = 0
    files: int = 0
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


class FileSplitSerializer(SimpleVersionedSerializer[FileSplit]):
    """Of a directory `[split id, position, file, row, files, modified_ms, size, newest_ms]`, the last ones if known.

    Of a file `[split id, position, modified_ms, size]`.
    """

    version = 1

    def to_json(self, value: FileSplit) -> list[object]:
        if not value.file and value.modified_ms is not None:
            return [value.split_id, value.position, value.modified_ms, value.size]
        version = [value.modified_ms, value.size, value.newest_ms]
        while version and version[-1] is None:
            version.pop()
        return [value.split_id, value.position, value.file, value.row, value.files, *version]

    def serialize(self, value: FileSplit) -> bytes:
        return json.dumps(self.to_json(value), separators=(",", ":")).encode()

    def deserialize(self, version: int, data: bytes) -> FileSplit:
        check_version(version, self.version, "splits")
        try:
            split_id, position, *rest = json.loads(data)
            if len(rest) <= 2:
                modified_ms, size = [*rest, None][:2]
                split = FileSplit(split_id, position, modified_ms=modified_ms, size=size)
            else:
                names = ("file", "row", "files", "modified_ms", "size", "newest_ms")
                if not 3 <= len(rest) <= len(names):
                    raise ValueError(f"{len(rest)} entries after the position")
                split = FileSplit(split_id, position, **dict(zip(names, rest, strict=False)))
            _check_types(split)
        except (ValueError, TypeError) as error:
            raise OffsetError(f"damaged offset: {data!r} is no split of files: {error}") from error
        return split


def _check_types(split: FileSplit) -> None:
    names: tuple[object, ...] = (split.split_id, split.file)
    counts = (split.position, split.row or 0, split.files)
    numbers: tuple[object, ...] = (*counts, split.modified_ms or 0, split.size or 0, split.newest_ms or 0)
    if not all(isinstance(name, str) for name in names) or not all(isinstance(number, int) for number in numbers):
        raise TypeError("a name is no text, or a number no number")
    if any(".." in name or name[:1] == "/" or "\0" in name for name in (split.path, split.file)) or "/" in split.file:
        # Imported here: hardly any name may be a way out.
        from streaming_source.from_data import is_relative

        if not is_relative(split.path) or not is_relative(split.file) or "/" in split.file:
            raise ValueError("a name leads out of option path")

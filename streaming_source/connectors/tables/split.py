"""All that an offset has of a table: its open files, which table it is, and up to where files were opened."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final
from urllib.parse import unquote

from alignment.codec import Codec, Form, Wire
from alignment.watermarks import Claim
from streaming_source.api import SimpleVersionedSerializer
from streaming_source.api.serializer import CodecSerializer, check_version
from streaming_source.connectors.tables.files import Deletes, TableFile
from streaming_source.connectors.tables.waiting import Progress
from streaming_source.data_files.ranges import Arrival, FileRange, RangedSplit
from streaming_source.exceptions import OffsetError
from streaming_source.from_data import as_json


def split_id_of(file: TableFile) -> str:
    """A file that was removed and added again is another split."""
    return f"{file.path}@v{file.version}"


@dataclass(frozen=True, slots=True)
class TableSplit(RangedSplit):
    """A file of a table. `position` is the number of the next row; `ranges` are for a reader only: what to read."""

    file: TableFile
    position: int = 0
    ranges: tuple[FileRange, ...] = field(default=())

    @property
    def split_id(self) -> str:
        return split_id_of(self.file)

    @property
    def place(self) -> str:
        """`row 17 of part-003.parquet of version 4`; see `SourceSplit`."""
        return f"row {self.position} of {unquote(self.file.path)} of version {self.file.version}"

    def arrival_of(self, part: FileRange) -> Arrival:
        """The files of a table come with the commit that added them."""
        return Arrival("", self.file.version, "commits")

    def with_ranges(self, ranges: tuple[FileRange, ...]) -> TableSplit:
        return replace(self, ranges=ranges)


def _detail(file: TableFile) -> dict[str, object]:
    """`{"p": partition, "dv": 1}` or `{"p": partition, "d": [sequence, partition]}`: as far as the file has them."""
    detail: dict[str, object] = {"p": dict(file.partition)} if file.partition else {}
    if file.deletes is not None:
        detail |= {"d": file.deletes} if file.deletes.partition else {"dv": 1}
    return detail


def _of_detail(detail: dict[str, Any], version: int) -> dict[str, Any]:
    partition = tuple((name, _text(value)) for name, value in detail.get("p", {}).items())
    deletes = Deletes(version) if "dv" in detail else Deletes(*detail["d"]) if "d" in detail else None
    return {"partition": partition, "deletes": deletes}


def _text(value: Any) -> str | None:
    """Offsets of earlier versions have numbers and booleans as such."""
    return value if value is None or isinstance(value, str) else json.dumps(value)


class TableSplitSerializer(SimpleVersionedSerializer[TableSplit]):
    """`[split id, position, size, low_us, high_us, detail]`, the last one left out where it is empty.

    The id has path and version.
    """

    version = 1

    def to_json(self, value: TableSplit) -> list[object]:
        file = value.file
        detail = _detail(file)
        more = [json.dumps(detail, separators=(",", ":"))] if detail else []
        return [value.split_id, value.position, file.size, file.low_us, file.high_us, *more]

    def serialize(self, value: TableSplit) -> bytes:
        return json.dumps(self.to_json(value), separators=(",", ":")).encode()

    def deserialize(self, version: int, data: bytes) -> TableSplit:
        check_version(version, self.version, "splits")
        try:
            split_id, position, size, low_us, high_us, *rest = as_json(data)
            path, _, of_version = split_id.rpartition("@v")
            (detail,) = rest or ("{}",)
            if not all(isinstance(number, int) for number in (position, size, low_us or 0, high_us or 0)):
                raise TypeError("a number is none")
            found = {"version": int(of_version), "size": size, "low_us": low_us, "high_us": high_us}
            file = TableFile(path, **found, **_of_detail(as_json(detail), found["version"]))
        except (ValueError, TypeError, AttributeError) as error:
            raise OffsetError(f"damaged offset: {data!r} is no split of a table: {error}") from error
        return TableSplit(file, position)


_START: Final = Codec(Progress, ("after", "in_snapshot"), whole=True)


@dataclass(frozen=True, slots=True)
class TableCheckpoint:
    """The memory of a table beside its open files; all of it is None before the table was looked at.

    `digest` is that of the last commit whose files are known, None where `TableLister` has none.
    `indexing` is the option of that name: where a table has no statistics, the order of its files follows from it. A
    `bounded` source ends with what was listed at its start. `first` is where the stream started, in the state of its
    first micro-batch alone: any other starts where the state before ends. What is committed before `from_ms` is passed
    over; None once something was committed then. With `watermarkFrom` it has the last `claims`
    of the table's writers, how many late records each writer has brought (`late_by`), and whose the versions are of
    which files are open (`writers`).
    """

    table_id: Annotated[str | None, Wire("table", needed=True)] = None
    progress: Annotated[Progress | None, Wire(flat=True)] = None
    digest: str | None = None
    indexing: str = "auto"
    bounded: bool = False
    first: Annotated[Progress | None, Wire(form=Form(_START.write, _START.read))] = None
    from_ms: Annotated[int | None, Wire("from")] = None
    claims: tuple[Claim, ...] = ()
    late_by: Annotated[Mapping[str, int], Wire("lateBy")] = field(default_factory=dict)
    writers: Mapping[int, str] = field(default_factory=dict)


class TableCheckpointSerializer(CodecSerializer[TableCheckpoint]):
    """`{"table": id, "after": version, "snapshot": true, "steps": [[version, key], ...], ...}`.

    `"first": [version, is a snapshot]` is where the stream started. Entries that are the default are left out; a key is
    `[low_us, path, version]`.
    """

    codec = Codec(TableCheckpoint)
    what = "enumerator"

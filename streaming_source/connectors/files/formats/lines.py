"""Files of lines: cut into runs of whole records, which begin at a byte that a reader can go to."""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from alignment.timestamps import TimestampAssigner
from streaming_source.api import RecordBlock
from streaming_source.connectors.files.formats.base import (
    BlockList,
    FileBlocks,
    FileFormat,
    FileRows,
    StoredFile,
    malformed_as,
    opened,
    replaced,
    times_alone,
)
from streaming_source.connectors.files.formats.options import COMPRESSIONS
from streaming_source.exceptions import MalformedDataError, OptionError, SchemaError

__all__ = ["LineFile", "LineFormat", "Records", "Run", "line_ends"]

_BLOCK_BYTES: Final = 4 * 1024 * 1024
_PEEK_BYTES: Final = 64 * 1024
_LONGEST_RECORD: Final = 64 * 1024 * 1024
_BYTE_ORDER_MARK: Final = codecs.BOM_UTF8
_NEWLINE: Final = ord("\n")
_BY_ENDING: Final = dict(gz="gzip", gzip="gzip", bz2="bz2", lz4="lz4", zst="zstd", zstd="zstd", br="brotli")  # noqa: C408
_NOT_STREAMED: Final = (".snappy", ".sz", ".deflate")


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive records as they stand in a file: `count` of them from row `row` on."""

    row: int
    count: int
    data: bytes


class Records(NamedTuple):
    """Some records of a file in the wanted columns, and the place of each among all; None where all are there."""

    batch: pa.RecordBatch
    numbers: npt.NDArray[np.int64] | None = None


def line_ends(data: bytes) -> npt.NDArray[np.int64]:
    r"""Where each line of some bytes ends: at a ``\n``, or with the bytes."""
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _NEWLINE)
    return ends if data.endswith(b"\n") else np.append(ends, len(data))


class LineFile:
    """An open file, run of records by run of records.

    Its bytes are in UTF-8 and not compressed. `end_of_records` says where the last whole record in some bytes ends, 0
    for no whole one. A run has `block_bytes`, unless a single record is longer.
    """

    def __init__(
        self, path: str, stream: pa.NativeFile, end_of_records: Callable[[bytes], int], block_bytes: int, *, seeks: bool
    ) -> None:
        self.path = path
        self.seeks = seeks
        self._stream = stream
        self._end_of_records = end_of_records
        self._block_bytes = block_bytes
        self._offset = 0
        # Read from the stream, but not returned.
        self._ahead = b""
        self._fill(len(_BYTE_ORDER_MARK))
        if self._ahead == _BYTE_ORDER_MARK:
            self._offset, self._ahead = len(_BYTE_ORDER_MARK), b""

    def go_to(self, offset: int) -> None:
        """Go on at this byte, if the stream can."""
        if self.seeks and offset != self._offset:
            self._stream.seek(offset)
            self._offset, self._ahead = offset, b""

    def take_record(self) -> bytes | None:
        """The next record alone: a header. None at the end."""
        # A few bytes do: who goes on at another byte needs no more of the beginning.
        taken = self._whole_records(_PEEK_BYTES)
        if taken:
            end = self._first_end(taken)
            self._ahead = taken[end:] + self._ahead
            taken = taken[:end]
        self._offset += len(taken)
        return taken or None

    def put_back(self, data: bytes) -> None:
        """Have what was taken last read again."""
        self._ahead = data + self._ahead
        self._offset -= len(data)

    def runs(self) -> Iterator[tuple[int, bytes]]:
        """`(offset, bytes)` of all further records, each run whole records; the last line may have no end.

        Where a run ends depends on where it begins and on nothing else.

        Raises
        ------
        MalformedDataError
            If a record is longer than can be held.
        """
        while run := self._whole_records(self._block_bytes):
            yield self._offset, run
            self._offset += len(run)

    def _first_end(self, records: bytes) -> int:
        end = 0
        while end < len(records):
            end = records.find(b"\n", end) + 1 or len(records)
            if self._end_of_records(records[:end]) == end:
                break
        return end

    def _whole_records(self, size: int) -> bytes:
        """Whole records of at most `size` bytes, or one that is longer; empty at the end."""
        wanted = size
        while True:
            ended = self._fill(wanted)
            end = len(self._ahead) if ended else self._end_of_records(self._ahead[:wanted])
            if end or ended:
                taken, self._ahead = self._ahead[:end], self._ahead[end:]
                return taken
            if wanted > _LONGEST_RECORD:
                raise MalformedDataError(
                    f"{self.path}: the record at byte {self._offset} has no end within {_LONGEST_RECORD >> 20} MiB"
                )
            wanted += size

    def _fill(self, size: int) -> bool:
        """Read until so many bytes are ahead; whether the stream ended before, and there is nothing beyond them."""
        while len(self._ahead) < size:
            with malformed_as(f"{self.path}: cannot be read after byte {self._offset + len(self._ahead)}"):
                more: bytes = self._stream.read(size - len(self._ahead))
            if not more:
                return True
            self._ahead += more
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFormat(FileFormat, ABC):
    """Blocks are runs of records of `block_bytes`; their time column is read to describe them.

    A file in UTF-8 that is not compressed can be begun at any block. Any other is read from its beginning.
    """

    compression: str = "auto"
    encoding: str = "UTF-8"
    block_bytes: int = _BLOCK_BYTES

    name: ClassVar[str]

    def __post_init__(self) -> None:
        if self.compression not in COMPRESSIONS:
            raise OptionError(f"compression = {self.compression!r}: must be one of {', '.join(COMPRESSIONS)}")
        try:
            codecs.lookup(self.encoding)
        except (LookupError, ValueError):
            raise OptionError(
                f"encoding = {self.encoding!r}: Python knows no such encoding; UTF-8, ISO-8859-1 and UTF-16 are some"
            ) from None

    # ---- for formats to implement ------------------------------------------------------------------------------------

    @abstractmethod
    def _begun(self, file: LineFile, schema: pa.Schema) -> tuple[str, ...]:
        """Read what comes before the records; the names of all columns of the file.

        Raises
        ------
        SchemaError
            If one of `schema` is not among them.
        """

    @abstractmethod
    def _count(self, data: bytes) -> int:
        """How many records these whole records are."""

    @abstractmethod
    def _all_records(self, path: str, run: Run, names: tuple[str, ...], schema: pa.Schema) -> pa.RecordBatch:
        """All records of a run with the columns of `schema`, for the planner."""

    def _records(self, path: str, run: Run, names: tuple[str, ...], schema: pa.Schema) -> Records:
        """Those that a reader emits; by default all."""
        return Records(self._all_records(path, run, names, schema))

    def _said_columns(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the names that the file itself says; by default none."""
        return ()

    def _end_of_records(self, data: bytes) -> int:
        """Where the last whole record ends."""
        return data.rfind(b"\n") + 1

    def _stream(self, stream: pa.NativeFile) -> tuple[pa.NativeFile, bool]:
        """What is read in place of a stream, and whether it begins at the same bytes."""
        return stream, True

    # ---- FileFormat --------------------------------------------------------------------------------------------------

    def describe(self, file: StoredFile, schema: pa.Schema, assigner: TimestampAssigner, indexing: str) -> FileBlocks:
        found = BlockList()
        row = 0
        with self._opened(file) as lines:
            names = self._begun(lines, schema)
            columns = times_alone(schema, assigner)
            for offset, data in lines.runs():
                if count := self._count(data):
                    batch = self._all_records(file.path, Run(row, count, data), names, columns)
                    found.add(assigner.extract(batch, None).values, offset)
                    row += count
            return found.blocks(self._said_columns(names), with_places=lines.seeks, one_range=not lines.seeks)

    def event_times(self, rows: FileRows, schema: pa.Schema, assigner: TimestampAssigner) -> npt.NDArray[np.int64]:
        """See `FileFormat`. Reads on from the block's first byte, where the file can be begun there."""
        parts = [np.empty(0, np.int64)]
        with self._opened(rows.file) as lines:
            names = self._begun(lines, schema)
            columns = times_alone(schema, assigner)
            for run in self._runs(lines, rows):
                times = assigner.extract(self._all_records(rows.file.path, run, names, columns), None).values
                parts.append(times[max(rows.start - run.row, 0) : rows.stop - run.row])
        return np.concatenate(parts)

    def read_rows(self, rows: FileRows, schema: pa.Schema) -> Iterator[RecordBlock]:
        with self._opened(rows.file) as lines:
            names = self._begun(lines, schema)
            for run in self._runs(lines, rows):
                yield from _within(self._records(rows.file.path, run, names, schema), run.row, rows)

    # ---- inside ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _opened(self, file: StoredFile) -> Iterator[LineFile]:
        path = file.path
        with opened(file) as raw:
            codec = _codec_of(path, self.compression)
            stream = raw if codec is None else pa.CompressedInputStream(raw, codec)
            utf_8 = codecs.lookup(self.encoding).name == "utf-8"
            if not utf_8:
                stream = pa.transcoding_input_stream(stream, self.encoding, "utf-8")
            with malformed_as(f"{path}: cannot be read"):
                stream, same_bytes = self._stream(stream)
            seeks = codec is None and utf_8 and same_bytes
            try:
                yield LineFile(path, stream, self._end_of_records, self.block_bytes, seeks=seeks)
            except pa.ArrowNotImplementedError as error:
                raise SchemaError(f"{path}: a column has a type that {self.name} cannot be read as: {error}") from None

    def _runs(self, lines: LineFile, rows: FileRows) -> Iterator[Run]:
        """The runs that have some of the rows."""
        row = 0
        if rows.place is not None and lines.seeks:
            row = rows.place.row
            lines.go_to(rows.place.at)
        for _, data in lines.runs():
            count = self._count(data)
            if count and row + count > rows.start:
                yield Run(row, count, data)
            row += count
            if row >= rows.stop:
                return
        if row < rows.stop:
            raise replaced(rows, row)


def _within(records: Records, row: int, rows: FileRows) -> Iterator[RecordBlock]:
    """Those of the rows, with their numbers; `row` is that of the first record."""
    batch, numbers = records
    if numbers is None:
        begin, end = max(rows.start - row, 0), min(rows.stop - row, batch.num_rows)
        if begin < end:
            yield RecordBlock(batch.slice(begin, end - begin), row + begin)
        return
    begin, end = np.searchsorted(numbers + row, [rows.start, rows.stop]).tolist()
    if begin < end:
        yield RecordBlock(batch.slice(begin, end - begin), numbers[begin:end] + row)


def _codec_of(path: str, compression: str) -> str | None:
    """The codec of a file as pyarrow calls it; None where it is not compressed.

    Raises
    ------
    MalformedDataError
        If the ending of the name is that of a compression that cannot be read piece by piece, or the codec is missing
        in this build of pyarrow.
    """
    if compression == "auto":
        name = path.lower()
        if name.endswith(_NOT_STREAMED):
            raise MalformedDataError(
                f"{path}: pyarrow does not decompress this piece by piece; compress it with gzip, bz2, lz4 or zstd, or "
                "write Parquet, ORC or Arrow, which compress with snappy inside. If it is not compressed, set option "
                "compression = none"
            )
        codec = _BY_ENDING.get(name.rpartition(".")[2]) if "." in name else None
    else:
        codec = None if compression == "none" else compression
    if codec is not None and not pa.Codec.is_available(codec):
        raise MalformedDataError(
            f"{path} is compressed with {codec}, which this build of pyarrow cannot read; compress it with gzip"
        )
    return codec

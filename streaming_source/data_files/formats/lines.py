"""Formats of lines, and text: files are cut into runs of whole records, and a reader can seek to each run.

`TextFormat` is the format of plain text.
"""

from __future__ import annotations

import codecs
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from alignment import arrow_compute as pc
from alignment.watermarks import BoolArray
from streaming_source.api.options import choice, option_field, text
from streaming_source.data_files.faults import is_transient, malformed_as, opened
from streaming_source.data_files.file import FileRows, StoredFile
from streaming_source.data_files.formats.base import ALL_ROWS, Chunk, FileFormat, OpenFile
from streaming_source.exceptions import MalformedDataError, OptionError, SchemaError

_COMPRESSIONS: Final = ("auto", "none", "gzip", "bz2", "lz4", "zstd", "brotli")
_BLOCK_BYTES: Final = 1024 * 1024
_MOST_BLOCKS: Final = 4
_REQUEST_BYTES: Final = 4 * 1024 * 1024
"""Bytes that are read at once of a store, for which each read waits."""

INFERRED_BLOCKS: Final = 4
"""Blocks of records of which the types of columns are inferred."""

_PEEK_BYTES: Final = 64 * 1024
LONGEST_RECORD: Final = 64 * 1024 * 1024
_BYTE_ORDER_MARK: Final = codecs.BOM_UTF8
_NEWLINE: Final = ord("\n")
_RETURN_ALONE: Final = re.compile(rb"\r(?!\n)")
_BY_ENDING: Final = dict(gz="gzip", gzip="gzip", bz2="bz2", lz4="lz4", zst="zstd", zstd="zstd", br="brotli")  # noqa: C408
_NOT_STREAMED: Final = (".snappy", ".sz", ".deflate")


def line_ends(data: bytes) -> npt.NDArray[np.int64]:
    r"""Return where each line ends: at a ``\n``, or at the end of the bytes."""
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _NEWLINE)
    return ends if data.endswith(b"\n") else np.append(ends, len(data))


def line_text(line: bytes) -> str:
    """Return a line without its end, as text."""
    return line.decode("utf-8", "replace").removesuffix("\n").removesuffix("\r")


class LineFile(OpenFile):
    """An open file, read in runs of whole records, as decompressed UTF-8.

    A block is a run of at most `block_bytes` of the format, unless a single record is longer. `names` are the names of
    all columns. `again` opens a compressed stream once more, to find where it breaks; runs are read by `at_once` bytes.
    """

    def __init__(
        self,
        file_format: LineFormat,
        path: str,
        stream: pa.NativeFile,
        *,
        seeks: bool,
        again: Callable[[], pa.NativeFile] | None = None,
        at_once: int = 0,
    ) -> None:
        self.path = path
        self.seeks = seeks
        self.names: tuple[str, ...] = ()
        self.case_sensitive = False
        self.has_told = False
        self._format = file_format
        self._stream = stream
        self._again = again
        self._at_once = at_once
        self._offset = 0
        # Bytes that were read from the stream and not returned yet.
        self._ahead = b""
        self._fill(len(_BYTE_ORDER_MARK))
        if self._ahead == _BYTE_ORDER_MARK:
            self._offset, self._ahead = len(_BYTE_ORDER_MARK), b""

    def chunks(self, schema: pa.Schema, rows: FileRows) -> Iterator[Chunk]:
        row = 0
        if rows.seek_point is not None and self.seeks:
            row = rows.seek_point.row
            self._go_to(rows.seek_point.at)
        size = block = self._format.block_bytes
        while data := self._next_run(size):
            count, self.next_at = self._format.count(data), self._offset
            yield Chunk(row, count, self._offset - len(data), data)
            row += count
            # Blocks of a file that is described are the finest; of a range more is read at once the longer it is.
            if rows.stop != ALL_ROWS:
                size = min(2 * size, _MOST_BLOCKS * block)
                if count:
                    size = min(size, (rows.stop - row) * len(data) // count + _PEEK_BYTES)

    def cut(self, chunk: Chunk, begin: int, stop: int) -> Chunk:
        if (begin, stop) == (0, chunk.rows):
            return chunk
        ends = line_ends(chunk.content)
        # With more lines than records, locating a record in the lines takes as long as reading all of them.
        if len(ends) != chunk.rows:
            return chunk
        first = int(ends[begin - 1]) + 1 if begin else 0
        return chunk._replace(
            first=chunk.first + begin, rows=stop - begin, content=chunk.content[first : int(ends[stop - 1]) + 1]
        )

    def decoded(self, chunk: Chunk, schema: pa.Schema) -> tuple[pa.RecordBatch, BoolArray | None]:
        return self._format.decoded(self, chunk, schema)

    def _go_to(self, offset: int) -> None:
        if offset != self._offset:
            self._stream.seek(offset)
            self._offset, self._ahead = offset, b""

    def take_record(self) -> bytes | None:
        """Read and return one record, such as a header; None at the end."""
        # A small piece suffices: a reader that seeks afterwards needs only this much of the beginning.
        taken = self._whole_records(_PEEK_BYTES)
        if taken:
            end = self.first_end(taken)
            self._ahead = taken[end:] + self._ahead
            taken = taken[:end]
        self._offset += len(taken)
        return taken or None

    def put_back(self, data: bytes) -> None:
        """Put back the bytes that were read last, so that they are read again."""
        self._ahead = data + self._ahead
        self._offset -= len(data)

    def runs(self, blocks: int) -> Iterator[bytes]:
        """Yield runs of whole records of at most so many blocks, up to the end; the last line may have no line end."""
        while run := self._next_run(blocks * self._format.block_bytes):
            yield run

    def _next_run(self, size: int) -> bytes:
        """Return the next run of at most `size` bytes; empty at the end. It ends by where it begins and its size."""
        run = self._whole_records(size, self._at_once)
        self._offset += len(run)
        return run

    def first_end(self, records: bytes) -> int:
        """Return where the first of some whole records ends."""
        end = 0
        while end < len(records):
            end = records.find(b"\n", end) + 1 or len(records)
            if self._format.end_of_records(records[:end]) == end:
                break
        return end

    def _whole_records(self, size: int, at_once: int = 0) -> bytes:
        """Return whole records of at most `size` bytes, or one longer record; empty at the end of the file."""
        wanted = size
        while True:
            ended = self._fill(wanted, at_once)
            end = len(self._ahead) if ended else self._format.end_of_records(self._ahead[:wanted])
            if end or ended:
                taken, self._ahead = self._format._with_line_ends(self._ahead[:end]), self._ahead[end:]
                if self.seeks and self._ahead and len(self._ahead) <= len(taken) >> 4:
                    # To read part of a record again takes less than to join it with what follows.
                    self._stream.seek(self._offset + end)
                    self._ahead = b""
                return taken
            if wanted > LONGEST_RECORD:
                raise MalformedDataError(
                    f"{self.path}: the record at byte {self._offset} has no end within {LONGEST_RECORD >> 20} MiB"
                )
            wanted += size

    def _fill(self, size: int, at_once: int = 0) -> bool:
        """Read until `size` bytes are ahead, or more. Return whether the stream ended before that."""
        while len(self._ahead) < size:
            try:
                more: bytes = self._stream.read(max(size - len(self._ahead), at_once))
            except (pa.ArrowException, OSError, EOFError, ValueError) as error:
                at = self._offset + len(self._ahead)
                if self._again is not None and not is_transient(error):
                    at = _readable(self._again)
                with malformed_as(f"{self.path}: cannot be read after byte {at}"):
                    raise
            if not more:
                return True
            self._ahead += more
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFormat(FileFormat):
    """A format whose blocks are runs of records of `block_bytes`; their time column is read to describe them.

    Readers can begin at any block of an uncompressed file in UTF-8. Any other file is read from its beginning.
    """

    compression: str = option_field(
        "auto",
        "compression",
        choice(*_COMPRESSIONS),
        "csv, json, text: how files are compressed; `auto`: by the endings of their names.",
    )
    encoding: str = option_field("UTF-8", "encoding", text, "csv, json, text: encoding of the files.")
    block_bytes: int = _BLOCK_BYTES

    def __post_init__(self) -> None:
        if self.compression not in _COMPRESSIONS:
            raise OptionError(f"compression = {self.compression!r}: must be one of {', '.join(_COMPRESSIONS)}")
        try:
            codecs.lookup(self.encoding)
        except (LookupError, ValueError):
            raise OptionError(
                f"encoding = {self.encoding!r}: Python knows no such encoding; UTF-8, ISO-8859-1 and UTF-16 are some"
            ) from None

    @abstractmethod
    def begin(self, file: LineFile, schema: pa.Schema) -> tuple[str, ...]:
        """Read the header, if there is one, and return the names of all columns of the file.

        Raises
        ------
        SchemaError
            If none of `schema` is among them.
        """

    @abstractmethod
    def count(self, data: bytes) -> int:
        """Return the number of records in some bytes, which are whole records."""

    @abstractmethod
    def decoded(self, file: LineFile, run: Chunk, schema: pa.Schema) -> tuple[pa.RecordBatch, BoolArray | None]:
        """Decode a run; see `OpenFile.decoded`."""

    def _with_line_ends(self, data: bytes) -> bytes:
        r"""Return whole records with ``\n`` in place of each ``\r`` that ends a line by itself, as for Spark."""
        if b"\r" in data and data.count(b"\r") != data.count(b"\r\n"):
            return _RETURN_ALONE.sub(b"\n", data)
        return data

    def end_of_records(self, data: bytes) -> int:
        """Return where the last whole record in some bytes ends; 0 if there is none."""
        return data.rfind(b"\n") + 1

    def _stream(self, stream: pa.NativeFile) -> tuple[pa.NativeFile, bool]:
        """Return the stream to read in place of this one, and whether both have the same bytes."""
        return stream, True

    @contextmanager
    def _opened(self, file: StoredFile, schema: pa.Schema) -> Iterator[LineFile]:
        path = file.path
        with opened(file) as raw:
            codec = _codec_of(path, self.compression)
            utf_8 = codecs.lookup(self.encoding).name == "utf-8"

            def in_utf_8(stored: pa.NativeFile, *, by_steps: bool = False) -> pa.NativeFile:
                stream = stored if codec is None else _decompressed(stored, codec, by_steps=by_steps)
                return stream if utf_8 else pa.transcoding_input_stream(stream, self.encoding, "utf-8")

            def again() -> pa.NativeFile:
                return in_utf_8(file.filesystem.open_input_file(path), by_steps=True)

            stream = in_utf_8(raw)
            with malformed_as(f"{path}: cannot be read"):
                stream, same_bytes = self._stream(stream)
            try:
                seeks = codec is None and utf_8 and same_bytes
                at_once = 0 if file.filesystem.type_name == "local" else _REQUEST_BYTES
                again_if = again if codec and same_bytes else None
                lines = LineFile(self, path, stream, seeks=seeks, again=again_if, at_once=at_once)
                lines.case_sensitive = file.case_sensitive
                lines.names = self.begin(lines, schema)
                yield lines
            except pa.ArrowNotImplementedError as error:
                raise SchemaError(f"{path}: a column has a type that {self.name} cannot be read as: {error}") from None


def _decompressed(raw: pa.NativeFile, codec: str, *, by_steps: bool) -> pa.NativeFile:
    """Open a compressed stream; `by_steps` it gives what comes before the place where it breaks."""
    # Imported here: few files are read so. pyarrow decompresses a megabyte at once, and reads bz2 up to an empty part.
    if codec == "gzip" and by_steps:
        import gzip

        return pa.PythonFile(gzip.GzipFile(fileobj=raw), mode="r")
    if codec == "bz2":
        import bz2

        return pa.PythonFile(bz2.BZ2File(raw), mode="r")
    return pa.CompressedInputStream(raw, codec)


def _readable(again: Callable[[], pa.NativeFile]) -> int:
    """Return how many bytes of a compressed stream can be read before it breaks."""
    count = 0
    for size in (_PEEK_BYTES, 1_024, 1):
        stream = again()
        try:
            stream.read(count)
            while data := stream.read(size):
                count += len(data)
        except Exception:
            # Whatever it is, this is where it breaks.
            continue
    return count


def _codec_of(path: str, compression: str) -> str | None:
    """Return pyarrow's name of a file's codec; None if the file is not compressed."""
    if compression == "auto":
        name = path.lower()
        if name.endswith(_NOT_STREAMED):
            raise MalformedDataError(
                f"{path}: pyarrow does not decompress this in parts; compress it with gzip, bz2, lz4 or zstd, or "
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


# ---- text ------------------------------------------------------------------------------------------------------------

_TEXT_SCHEMA: Final = pa.schema([("value", pa.string())])


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFormat(LineFormat):
    """Lines, also empty ones, as the column `value`, or as the one column of the schema.

    Bytes that are no UTF-8 are replaced by U+FFFD.
    """

    name: ClassVar[str] = "text"
    fixed_schema: ClassVar[pa.Schema | None] = _TEXT_SCHEMA

    def schema_of(self, file: StoredFile) -> pa.Schema:
        return _TEXT_SCHEMA

    def begin(self, file: LineFile, schema: pa.Schema) -> tuple[str, ...]:
        if len(schema) > 1 or any(field.type != pa.string() for field in schema):
            columns = ", ".join(f"{field.name} {field.type}" for field in schema)
            raise SchemaError(f"columns {columns}: text has one column of type string; name no other in dataSchema")
        return tuple(schema.names)

    def count(self, data: bytes) -> int:
        return len(line_ends(data))

    def decoded(self, file: LineFile, run: Chunk, schema: pa.Schema) -> tuple[pa.RecordBatch, BoolArray | None]:
        data = run.content.removesuffix(b"\n")
        if not data.isascii():
            data = data.decode("utf-8", "replace").encode()
        lines = pc.split_pattern(pa.array([data], pa.binary()), b"\n").flatten()
        if b"\r" in data:
            lines = pc.replace_substring_regex(lines.cast(pa.string()), r"\r\z", "")
        columns = [lines.cast(pa.string()) for _ in schema]
        if not columns:
            return pa.RecordBatch.from_arrays([lines], ["value"]).select([]), None
        return pa.RecordBatch.from_arrays(columns, schema=schema), None

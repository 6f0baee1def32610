"""Manifests and lists of them, checked before `pyiceberg` decodes them.

Its compiled decoder trusts each length in a file. By one beyond the end of a block it reads other memory of this
process, which may end it, or stand in an error as the path of a file. So a file is walked through first, by its schema.
"""

from __future__ import annotations

import bz2
import copy
import re
import zlib
from collections.abc import Callable
from functools import lru_cache, partial
from io import BytesIO
from typing import Any, Final, NamedTuple, cast

from pyiceberg.avro.codecs import KNOWN_CODECS
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile
from pyiceberg.table import Table

from streaming_source.from_data import Location, as_json

_MAGIC: Final = b"Obj\x01"
_SYNC: Final = 16
_MOST_BYTES: Final = 128 << 20
"""Most bytes that a block becomes, beside twenty times those of the file."""
_MOST_STEPS: Final = 10_000
"""Most types in one record, each counted where it is used."""
_FIXED: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}

Walk = Callable[[bytes, int], int]
"""Returns the end of a value that begins at a position; an `IndexError` or a `ValueError` where there is none."""


class _Type(NamedTuple):
    """A walk over values of a type, the fewest bytes of one, and how many types it has in it.

    Of one that `is_numbers` each byte begins or continues a number.
    """

    walk: Walk
    least: int
    steps: int = 1
    is_numbers: bool = False


def with_checked_manifests(table: Table) -> Table:
    """Return the table, which reads manifests where they may be, and only those that are whole."""
    found = copy.copy(table)
    found.io = _Checked(table.io)
    return found


class _Checked(FileIO):
    def __init__(self, files: FileIO) -> None:
        super().__init__(files.properties)
        self._files = files

    def new_input(self, location: str) -> InputFile:
        # The metadata say by whom a store is asked, and `pyiceberg` opens a location as it is.
        Location.of(location, [self.properties.get("warehouse", "")])
        return _CheckedFile(self._files.new_input(location))

    def new_output(self, location: str) -> OutputFile:
        return self._files.new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        self._files.delete(location)


class _CheckedFile(InputFile):
    def __init__(self, file: InputFile) -> None:
        super().__init__(file.location)
        self._file = file

    def __len__(self) -> int:
        return len(self._file)

    def exists(self) -> bool:
        return self._file.exists()

    def open(self, seekable: bool = True) -> InputStream:
        with self._file.open(seekable) as stream:
            return cast(InputStream, BytesIO(checked(stream.read())))


def checked(file: bytes) -> bytes:
    """Return an Avro file with all its records in one block, which is not compressed.

    Raises an `Exception`, such as a `ValueError`, if it cannot be read.
    """
    head, sync, at = _head(file)
    record = _of(as_json(head[b"avro.schema"]), {})
    if record.least == 0 or record.steps > _MOST_STEPS:
        raise ValueError("its schema bounds no record")
    codec, count, most = head.get(b"avro.codec", b"null").decode(), 0, _MOST_BYTES + 20 * len(file)
    blocks = list[bytes]()
    while at < len(file):
        records, at = _long(file, at)
        size, at = _long(file, at)
        if size < 0 or file[at + size : at + size + _SYNC] != sync:
            raise ValueError("a block ends elsewhere")
        blocks.append(_decompressed(codec, file[at : at + size], most))
        if (most := most - len(blocks[-1])) < 0:
            raise ValueError("its blocks become too many bytes")
        _walk_records(record.walk, blocks[-1], records)
        count, at = count + records, at + size + _SYNC
    texts = (b"avro.codec", b"null", b"avro.schema", head[b"avro.schema"])
    header = b"".join(_written(len(one)) + one for one in texts)
    block = b"".join(blocks)
    return b"".join((_MAGIC, _written(2), header, b"\0", sync, _written(count), _written(len(block)), block, sync))


def _head(file: bytes) -> tuple[dict[bytes, bytes], bytes, int]:
    """The metadata of a file, what ends each of its blocks, and where the first begins."""
    if not file.startswith(_MAGIC):
        raise ValueError("it is no Avro file")
    found, at = dict[bytes, bytes](), len(_MAGIC)
    while True:
        count, at = _long(file, at)
        if count < 0:
            count, (_, at) = -count, _long(file, at)
        if count == 0:
            return found, file[at : at + _SYNC], at + _SYNC
        for _ in range(count):
            key, at = _text(file, at)
            found[key], at = _text(file, at)


def _decompressed(codec: str, block: bytes, most: int) -> bytes:
    if codec in ("deflate", "bzip2"):
        opened: Any = zlib.decompressobj(-zlib.MAX_WBITS) if codec == "deflate" else bz2.BZ2Decompressor()
        found = cast(bytes, opened.decompress(block, most + 1))
        if not opened.eof and len(found) <= most:
            raise ValueError("a block ends within its records")
        return found
    if codec not in KNOWN_CODECS:
        raise ValueError(f"it is compressed by {codec}")
    known = KNOWN_CODECS[codec]
    return block if known is None else known.decompress(block)


def _walk_records(walk: Walk, block: bytes, count: int) -> None:
    at = 0
    for _ in range(count):
        at = walk(block, at)
        if at > len(block):
            break
    if at != len(block):
        raise ValueError("a block has more or fewer bytes than its records")


# ---- types -----------------------------------------------------------------------------------------------------------


def _of(schema: Any, named: dict[str, _Type]) -> _Type:
    """Return how values of a schema are passed over; `named` are the types that it may refer to."""
    if isinstance(schema, list):
        return _of_union([_of(one, named) for one in schema])
    kind = schema if isinstance(schema, str) else schema["type"]
    if not isinstance(kind, str):
        return _of(kind, named)
    match kind:
        case "int" | "long" | "enum":
            return _Type(_pass_long, 1, is_numbers=True)
        case "bytes" | "string":
            return _Type(_pass_text, 1)
        case "record":
            found = _of_record([_of(field["type"], named) for field in schema["fields"]])
        case "fixed":
            found = _fixed(int(schema["size"]))
        case "array":
            return _of_items(_of(schema["items"], named))
        case "map":
            return _of_items(_of_record([_Type(_pass_text, 1), _of(schema["values"], named)]))
        case _:
            # A type that contains itself is not known yet.
            return _fixed(_FIXED[kind]) if kind in _FIXED else named[kind]
    named[schema["name"]] = found
    return found


def _fixed(size: int) -> _Type:
    if size < 0:
        raise ValueError("a type has a negative size")
    return _Type(lambda data, at: at + size, size)


def _of_union(branches: list[_Type]) -> _Type:
    # The number of a branch is written as twice that.
    walks = {2 * number: one.walk for number, one in enumerate(branches)}

    def walk(data: bytes, at: int) -> int:
        return walks[data[at]](data, at + 1)

    return _Type(walk, 1 + min(one.least for one in branches), 1 + sum(one.steps for one in branches))


def _of_record(fields: list[_Type]) -> _Type:
    steps = 1 + sum(one.steps for one in fields)
    if steps > _MOST_STEPS:
        raise ValueError("its schema has too many types")
    walks = [one.walk for one in fields]
    if walks and {*walks} == {_pass_long}:
        return _Type(partial(_pass_longs, count=len(walks)), len(walks), steps, is_numbers=True)
    if walks == [_pass_long, _pass_text]:
        return _Type(_pass_bound, 2, steps)

    def walk(data: bytes, at: int) -> int:
        for of_field in walks:
            at = of_field(data, at)
        return at

    return _Type(walk, sum(one.least for one in fields), steps)


def _of_items(item: _Type) -> _Type:
    if item.least == 0:
        raise ValueError("its schema bounds no array")

    walk_item, least = item.walk, item.least

    def walk(data: bytes, at: int) -> int:
        while data[at]:
            count, at = _long(data, at)
            if count < 0:
                count, (_, at) = -count, _long(data, at)
            if count * least > len(data) - at:
                raise ValueError("an array is longer than its block")
            if item.is_numbers:
                at = _pass_longs(data, at, count * least)
                continue
            for _ in range(count):
                at = walk_item(data, at)
        return at + 1

    return _Type(walk, 1, 1 + item.steps)


# ---- values ----------------------------------------------------------------------------------------------------------


def _pass_long(data: bytes, at: int) -> int:
    return at + 1 if data[at] < 128 else _long(data, at)[1]


@lru_cache(maxsize=256)
def _longs(count: int) -> re.Pattern[bytes]:
    return re.compile(rb"(?:[\x80-\xff]{0,9}+[\x00-\x7f]){%d}" % count)


def _pass_longs(data: bytes, at: int, count: int) -> int:
    """Numbers one after the other are passed over at once."""
    if (found := _longs(count).match(data, at)) is None:
        raise ValueError("its numbers end within one")
    return found.end()


def _pass_bound(data: bytes, at: int) -> int:
    """The id of a column, and a short text mostly."""
    if data[at] < 128 and (size := data[at + 1]) < 128 and not size & 1:
        return at + 2 + (size >> 1)
    return _pass_text(data, _pass_long(data, at))


def _pass_text(data: bytes, at: int) -> int:
    size, at = _long(data, at)
    if not 0 <= size <= len(data) - at:
        raise ValueError("a text is longer than its block")
    return at + size


def _text(data: bytes, at: int) -> tuple[bytes, int]:
    end = _pass_text(data, at)
    return data[_long(data, at)[1] : end], end


def _long(data: bytes, at: int) -> tuple[int, int]:
    if (number := data[at]) < 128:
        return number >> 1 ^ -(number & 1), at + 1
    number &= 127
    for shift in range(7, 70, 7):
        at += 1
        number |= (data[at] & 127) << shift
        if data[at] < 128:
            return number >> 1 ^ -(number & 1), at + 1
    raise ValueError("a number has more than ten bytes")


def _written(number: int) -> bytes:
    """A number that is not negative, as Avro writes it."""
    number, found = number << 1, bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])

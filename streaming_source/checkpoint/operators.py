"""The stateful operators of a query, by what Spark keeps beside their state; and the keys in it, newest first.

The keys are in the files of `HDFSBackedStateStoreProvider`: `<version>.delta` for each micro-batch, and sometimes a
`<version>.snapshot` of all entries. Files of other providers are not read.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from typing import Any, Final, NamedTuple

import pyarrow as pa

from streaming_source.checkpoint.offset_log import RESTORE, CheckpointFiles
from streaming_source.exceptions import CheckpointError, OptionError
from streaming_source.from_data import as_json

AGGREGATE: Final = "stateStoreSave"
SESSIONS: Final = "sessionWindowStateStoreSaveExec"
JOIN: Final = "symmetricHashJoin"
BY_ROW: Final = ("dedupe", "dedupeWithinWatermark", JOIN)
_TITLES: Final = {
    AGGREGATE: "aggregation",
    SESSIONS: "session windows",
    "dedupe": "dropDuplicates",
    "dedupeWithinWatermark": "dropDuplicatesWithinWatermark",
    JOIN: "stream-stream join",
}
NAMED: Final = {
    "aggregation": AGGREGATE,
    "sessionWindow": SESSIONS,
    "dropDuplicates": "dedupe",
    "dropDuplicatesWithinWatermark": "dedupeWithinWatermark",
    "join": JOIN,
}
"""Names of operators that a user may give, with Spark's own name for each."""
_VALUES: Final = {"__dummy__": "dedupe", "expiresAtMicros": "dedupeWithinWatermark"}
"""Columns in the state of one operator alone."""
_DELAY: Final = "spark.watermarkDelayMs"
_JOINED: Final = re.compile(r"(left|right)-keyWithIndexToValue.*")


@dataclass(frozen=True, slots=True)
class EventTimeField:
    """A column of the state with a watermark: its name, the delay, and whether it is a window."""

    name: str
    delay_us: int
    is_window: bool


@dataclass(frozen=True, slots=True)
class Operator:
    """One stateful operator. `event_times` are columns of its key, or of each side of a join with a watermark.

    They are known if `is_known`: if the schema of its state is of a supported version. `key` and `value` have the names
    of the columns of its state.
    """

    number: int
    name: str
    event_times: Sequence[EventTimeField]
    is_known: bool
    key: Sequence[str] = ()
    value: Sequence[str] = ()

    @property
    def title(self) -> str:
        """The operator as users call it."""
        if self.name == AGGREGATE and any(field.is_window for field in self.event_times):
            return "windowed aggregation"
        return _TITLES.get(self.name, self.name)

    @property
    def window_column(self) -> int | None:
        """The index of the key's column that is a window, of an aggregation; None if none is."""
        names = [field.name for field in self.event_times if field.is_window]
        return self.key.index(names[0]) if names and self.name == AGGREGATE else None

    @property
    def time_column(self) -> int | None:
        """The index of the key's column, a window or a time, that the watermark is compared with; None if none is."""
        if self.window_column is not None or self.name != AGGREGATE or not self.event_times:
            return self.window_column
        return self.key.index(self.event_times[0].name)

    @property
    def depends_on_mode(self) -> bool:
        """True if the output mode decides what is dropped or emitted: it aggregates by event time."""
        return self.name == SESSIONS or self.time_column is not None

    @property
    def session_column(self) -> int | None:
        """The index of the value's column that is a session; None of another operator."""
        names = [field.name for field in self.event_times if field.is_window]
        return self.value.index(names[0]) if names and self.name == SESSIONS else None

    @property
    def is_join(self) -> bool:
        """True if it joins two streams."""
        return self.name == JOIN


def operators_of(files: CheckpointFiles, named: Sequence[str] = ()) -> list[Operator] | None:
    """Return the stateful operators in the order of their numbers: results of a later one go to an earlier one.

    None if there is no folder `state`: the query has none, or the folder was lost. `named` are the operators of a query
    of Spark 3, which does not keep what they are: keys of `NAMED`, in the query's order.

    Raises
    ------
    CheckpointError
        If Spark 3 wrote the state, and none are `named`; or it is damaged.
    OptionError
        If `named` are not those of the state.
    """
    folders = files.numbered("state")
    if folders is None:
        return None
    if missing := sorted(set(range(max(folders, default=0) + 1)) - folders.keys()):
        raise CheckpointError(f"{files.checkpoint}/state/{missing[0]}, of an operator, is missing; {RESTORE}")
    if named and len(named) != len(folders):
        raise OptionError(
            f"operator is given {len(named)} times, and the query has {len(folders)} stateful operators: name each, in "
            "the order in which the query has them"
        )
    return [
        _operator(files, number, name)
        for number, name in zip(folders, reversed(named or (None,) * len(folders)), strict=True)
    ]


def _operator(files: CheckpointFiles, number: int, named: str | None) -> Operator:
    folder = f"state/{number}"
    data = files.bytes_of(f"{folder}/_metadata/metadata") or files.bytes_of(f"{folder}/_metadata/v2/0")
    if data is None and not files.list_folder(f"{folder}/_metadata"):
        name, stores = _of_spark_3(files, folder, named)
    else:
        name, stores = _kept(files, folder, data)
        if named is not None:
            raise OptionError(f"operator = {named!r}: the checkpoint has its operators; leave it out")
    event_times: list[EventTimeField] = []
    structs = None
    for schema_file in _schema_files(folder, stores):
        if (schema := files.bytes_of(schema_file)) is None:
            raise CheckpointError(f"{files.checkpoint}/{schema_file}, of operator {name}, is missing; {RESTORE}")
        if (read := _structs(schema, f"{files.checkpoint}/{schema_file}")) is not None:
            structs = structs or read
            # Sessions and joins have their event times in the value.
            event_times += _event_times(read[1 if name in (SESSIONS, JOIN) else 0])
    key, value = ([str(field["name"]) for field in one["fields"]] for one in structs or ({"fields": ()},) * 2)
    return Operator(number, name, event_times, structs is not None, key, value)


def _kept(files: CheckpointFiles, folder: str, data: bytes | None) -> tuple[str, Sequence[str]]:
    """Return the name of an operator and those of its stores, as Spark 4.0 and later keep them."""
    try:
        _, _, text = (data or b"").decode().partition("\n")
        known = as_json(text)
        return known["operatorInfo"]["operatorName"], [store["storeName"] for store in known["stateStoreInfo"]]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{files.checkpoint}/{folder}/_metadata/metadata is damaged ({error!r}); {RESTORE}"
        ) from None


def _of_spark_3(files: CheckpointFiles, folder: str, named: str | None) -> tuple[str, Sequence[str]]:
    """Return what the user says that an operator of Spark 3 is, if its state may be that."""
    if named is not None and named not in NAMED:
        raise OptionError(f"operator = {named!r}: must be one of {', '.join(NAMED)}; correct it")
    stores = [name for name in files.list_folder(f"{folder}/0") or () if _JOINED.fullmatch(name)] or ["default"]
    schema = None if stores != ["default"] else files.bytes_of(f"{folder}/0/_metadata/schema")
    structs = None if schema is None else _structs(schema, f"{files.checkpoint}/{folder}/0/_metadata/schema")
    found = JOIN if stores != ["default"] else None if structs is None else _shown_by(structs[1])
    shown = next((title for title, name in NAMED.items() if name == found), None)
    if named is None:
        like = "" if shown is None else f" {shown}, which its state looks like"
        raise CheckpointError(
            f"{files.checkpoint}/{folder} has no metadata of its operator, which Spark 4.0 and later keep: the query "
            f"was run by an older one, or the file was lost; {RESTORE}, name the operator of a query of Spark 3.5 with "
            f"--operator{like}, or run one micro-batch of it with Spark 4"
        )
    if shown is not None and shown != named:
        raise OptionError(f"operator = {named!r}: the state is that of {shown}; give --operator {shown}")
    return NAMED[named], stores


def _shown_by(value: Mapping[str, Any]) -> str:
    """Return Spark's name for the operator whose state has such values."""
    if any(field.is_window for field in _event_times(value)):
        return SESSIONS
    return next((_VALUES[field["name"]] for field in value["fields"] if field["name"] in _VALUES), AGGREGATE)


def _schema_files(folder: str, stores: Sequence[str]) -> Iterator[str]:
    for store in stores:
        if store == "default":
            yield f"{folder}/0/_metadata/schema"
        elif _JOINED.fullmatch(store):
            yield f"{folder}/0/{store}/_metadata/schema"


def _structs(schema: bytes, path: str) -> list[Mapping[str, Any]] | None:
    """Return the key and the value of a schema file; None if it is of an unknown version."""
    stream = BytesIO(schema)

    def text() -> str:
        (length,) = struct.unpack(">H", stream.read(2))
        return stream.read(length).decode()

    def long_text() -> str:
        (pieces,) = struct.unpack(">i", stream.read(4))
        return "".join(text() for _ in range(pieces))

    try:
        version = text()
        if version not in ("v1", "v2"):
            return None
        return [as_json(text() if version == "v1" else long_text()) for _ in range(2)]
    except (ValueError, struct.error) as error:
        raise CheckpointError(f"{path} is damaged ({error}); {RESTORE}") from None


def _event_times(columns: Mapping[str, Any]) -> Iterator[EventTimeField]:
    for field in columns["fields"]:
        metadata = field.get("metadata", {})
        if _DELAY in metadata:
            is_window = isinstance(field["type"], Mapping)
            yield EventTimeField(str(field["name"]), int(metadata[_DELAY]) * 1_000, is_window)


_FILE: Final = re.compile(r"(\d+)(_[\w-]+)?\.(delta|snapshot)")
_MAGIC: Final = b"LZ4Block"
_HEADER: Final = struct.Struct("<8sBiii")
_RAW: Final = 0x10
_WORD: Final = 8
_READERS: Final = 16
_LOOKS: Final = 3
"""At a state whose files are removed while they are read."""


def partitions_of(files: CheckpointFiles, operator: int) -> list[str]:
    """Return the folders with the state of an operator, by its number."""
    folder = f"state/{operator}"
    return [f"{folder}/{number}" for number in files.numbered(folder) or ()]


def versions_of(files: CheckpointFiles, folder: str) -> list[tuple[int, str]]:
    """Return the files of a partition with their versions, newest first: version n + 1 is of micro-batch n."""
    found = ((match, name) for name in files.list_folder(folder) or () if (match := _FILE.fullmatch(name)))
    return sorted(((int(match[1]), f"{folder}/{name}") for match, name in found), reverse=True)


def entries_of(files: CheckpointFiles, file: str, most: int | None = None) -> list[tuple[bytes, bytes | None]] | None:
    """Return keys and values in the order of writing, `most` of them; a key without a value was removed.

    None if the file cannot be read: it has another compression, or is being written.
    """
    try:
        return list(islice(_entries(files.bytes_of(file) or b""), most))
    except (struct.error, ValueError, pa.ArrowException):
        return None


def window_in(row: bytes, columns: int, place: int) -> tuple[int, int] | None:
    """Return start and end, in microseconds, of the window in a column of an `UnsafeRow`; None if it is null."""
    where = time_in(row, columns, place)
    if where is None:
        return None
    start, end = struct.unpack_from("<qq", row, (where >> 32) + _WORD)
    return start, end


class WindowLengths:
    """The lengths of the windows that the state of an operator has: its key has one at `place`.

    A file is read once, and again if it was written anew. A query that was started anew may have other windows.
    """

    def __init__(self, files: CheckpointFiles, operator: Operator, place: int) -> None:
        self._files, self._operator, self._columns, self._place = files, operator.number, len(operator.key), place
        self._read: dict[_StateFile, int] = {}
        self._last_us: int | None = None

    def longest_us(self) -> int | None:
        """Return the length of the longest one, in microseconds; None if it is not known."""
        with ThreadPoolExecutor(_READERS) as pool:
            for _ in range(_LOOKS):
                listed = list(pool.map(self._listed, partitions_of(self._files, self._operator)))
                # A partition without its beginning has older windows as well.
                if not all(any(one.is_whole for one in files) for files in listed if files):
                    return None
                there = [one for files in listed for one in files]
                found = zip(there, pool.map(self._longest_in, there), strict=True)
                self._read = {one: us for one, us in found if us is not None}
                if len(self._read) == len(there):
                    # Where all windows are out the next ones are as long as those before, as far as the state shows.
                    self._last_us = max(self._read.values(), default=0) or self._last_us
                    return self._last_us
        return None

    def _listed(self, folder: str) -> list[_StateFile]:
        found = ((_FILE.fullmatch(name), name, info) for name, info in (self._files.list_folder(folder) or {}).items())
        return [
            _StateFile(f"{folder}/{name}", info.mtime_ns, info.size, match[3] == "snapshot" or int(match[1]) == 1)
            for match, name, info in found
            if match
        ]

    def _longest_in(self, file: _StateFile) -> int | None:
        """Return the longest of a file, 0 without any; None if it cannot be read, or is gone."""
        if (known := self._read.get(file)) is not None:
            return known
        if (entries := entries_of(self._files, file.name)) is None:
            return None
        windows = (window_in(key, self._columns, self._place) for key, _ in entries)
        return max((window[1] - window[0] for window in windows if window is not None), default=0)


class _StateFile(NamedTuple):
    """A file of a state as it is now; one that `is_whole` needs none of an older version."""

    name: str
    mtime_ns: int | None
    size: int
    is_whole: bool


def time_in(row: bytes, columns: int, place: int) -> int | None:
    """Return the timestamp, in microseconds, in a column of an `UnsafeRow`; None if it is null."""
    (nulls,) = struct.unpack_from("<q", row, place // 64 * _WORD)
    if nulls >> place % 64 & 1:
        return None
    return int(struct.unpack_from("<q", row, (-(-columns // 64) + place) * _WORD)[0])


def _blocks(data: bytes) -> Iterator[bytes]:
    """Decompress a stream as lz4-java writes it, block by block."""
    codec, at = pa.Codec("lz4_raw"), 0
    while at < len(data):
        magic, token, stored, size, _ = _HEADER.unpack_from(data, at)
        if magic != _MAGIC:
            raise ValueError("no LZ4 stream of Java")
        at += _HEADER.size
        block = data[at : at + stored]
        at += stored
        if size:
            yield block if token & 0xF0 == _RAW else bytes(codec.decompress(block, size))


def _entries(data: bytes) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield keys and values. A file has sizes before keys and values: -1 for no value, and at the end."""
    blocks, rest, at = _blocks(data), b"", 0

    def take(size: int) -> bytes:
        nonlocal rest, at
        while len(rest) - at < size:
            if not (more := next(blocks, b"")):
                raise ValueError("the file was cut")
            rest, at = rest[at:] + more, 0
        at += size
        return rest[at - size : at]

    def number() -> int:
        return int.from_bytes(take(4), "big", signed=True)

    while (length := number()) >= 0:
        key, size = take(length), number()
        yield key, None if size < 0 else take(size)

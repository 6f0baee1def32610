"""Each format and each way to write it, beside a reader of it in plain Python."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import ipc, orc
from pyarrow import parquet as pq

from streaming_source.connectors.files import (
    ArrowFormat,
    CsvFormat,
    FileFormat,
    JsonFormat,
    OrcFormat,
    ParquetFormat,
    TextFormat,
)

Row = tuple[int | None, int | None, str | None]
"""Event time in microseconds, a number, a text."""

SCHEMA: Final = pa.schema([("t", pa.timestamp("us", "UTC")), ("n", pa.int64()), ("s", pa.string())])
TEXT_SCHEMA: Final = pa.schema([("value", pa.string())])
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
STYLES: Final[Sequence[Callable[[datetime], str]]] = (
    lambda t: t.isoformat(),
    lambda t: t.replace(tzinfo=None).isoformat(" "),
    lambda t: t.isoformat().replace("+00:00", "Z"),
    lambda t: t.astimezone().isoformat(),
)


def said(t: int | None) -> str | None:
    """A time as text, in one style or another."""
    return None if t is None else STYLES[t % len(STYLES)](EPOCH + timedelta(microseconds=t))


local_zone: Final[ContextVar[tzinfo]] = ContextVar("local_zone", default=UTC)
"""Of times that are written without one."""


def understood(text: str | None) -> int | None:
    if not text:
        return None
    time = datetime.fromisoformat(text)
    time = time if time.tzinfo else time.replace(tzinfo=local_zone.get()).astimezone(UTC)
    return (time - EPOCH) // timedelta(microseconds=1)


@dataclass(frozen=True)
class Sample:
    """One way to write files.

    Attributes
    ----------
    write
        `(path, rows, rows of a block)`.
    read
        The file's rows, by plain Python.
    reads_as
        The format, with blocks of about so many bytes.
    options
        The same for `readStream`.
    """

    id: str
    ending: str
    write: Callable[[Path, Sequence[Row], int], None]
    read: Callable[[Path], list[tuple[Any, ...]]]
    reads_as: Callable[[int], FileFormat]
    options: dict[str, str]
    schema: pa.Schema = SCHEMA
    line_ends_in_text: bool = True
    ranges: bool = True
    time: str = "t"
    needs_schema: bool = field(default=False)


# ---- columnar --------------------------------------------------------------------------------------------------------


def _table(rows: Sequence[Row], *, nulls: bool = False) -> pa.Table:
    """In types as narrow as values let them be, as pandas writes them; of the null type too where a format has it."""
    t, n, s = list(zip(*rows, strict=True)) or [[], [], []]
    unit = "us" if any((time or 0) % 1000 for time in t) else "ms"
    times = pa.array(t, pa.timestamp("us", "UTC")).cast(pa.timestamp(unit, "UTC"))
    numbers, texts = pa.array(n, pa.int64()), pa.array(s, pa.string())
    if all(abs(number or 0) < 2**31 for number in n):
        numbers = numbers.cast(pa.int32())
    if nulls:
        numbers, texts = (pa.nulls(len(a)) if a.null_count == len(a) else a for a in (numbers, texts))
    return pa.table({"t": times, "n": numbers, "s": texts})


def _rows(table: pa.Table) -> list[tuple[Any, ...]]:
    table = table.set_column(0, "t", table.column("t").cast(pa.timestamp("us", "UTC"), safe=False).cast(pa.int64()))
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _write_parquet(path: Path, rows: Sequence[Row], block: int) -> None:
    pq.write_table(_table(rows, nulls=True), path, row_group_size=block)


def _write_parquet_without_statistics(path: Path, rows: Sequence[Row], block: int) -> None:
    pq.write_table(_table(rows), path, row_group_size=block, write_statistics=False)


def _write_orc(path: Path, rows: Sequence[Row], block: int) -> None:
    orc.write_table(_table(rows), path, stripe_size=1, batch_size=block)


def _write_arrow_file(path: Path, rows: Sequence[Row], block: int) -> None:
    table = _table(rows, nulls=True)
    with ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, block)


def _write_arrow_stream(path: Path, rows: Sequence[Row], block: int) -> None:
    options = ipc.IpcWriteOptions(compression="zstd")
    table = _table(rows)
    with ipc.new_stream(path, table.schema, options=options) as writer:
        writer.write_table(table, block)


def _read_parquet(path: Path) -> list[tuple[Any, ...]]:
    return _rows(pq.read_table(path))


def _read_orc(path: Path) -> list[tuple[Any, ...]]:
    return _rows(orc.read_table(path))


def _read_arrow_file(path: Path) -> list[tuple[Any, ...]]:
    return _rows(ipc.open_file(path).read_all())


def _read_arrow_stream(path: Path) -> list[tuple[Any, ...]]:
    return _rows(ipc.open_stream(path).read_all())


# ---- lines -----------------------------------------------------------------------------------------------------------


def _csv(sep: str = ",", end: str = "\n", header: bool = True, encoding: str = "utf-8") -> Callable[..., bytes]:
    def made(rows: Sequence[Row]) -> bytes:
        records = [["t", "n", "s"]] * header + [[said(t), n, s] for t, n, s in rows]
        return "".join(f"{_record(record)}{end}" for record in records).encode(encoding)

    def _record(fields: Sequence[Any]) -> str:
        # By itself, with CRLF at its end: so that a field with either of these is quoted.
        out = io.StringIO(newline="")
        csv.writer(out, delimiter=sep, lineterminator="\r\n").writerow(fields)
        return out.getvalue().removesuffix("\r\n")

    return made


def _of_csv(sep: str = ",", header: bool = True, encoding: str = "utf-8") -> Callable[[bytes], list[tuple[Any, ...]]]:
    def read(data: bytes) -> list[tuple[Any, ...]]:
        lines = list(csv.reader(io.StringIO(data.decode(encoding), newline=""), delimiter=sep))
        return [(understood(t), int(n) if n else None, s or None) for t, n, s in lines[header:]]

    return read


def _json_lines(rows: Sequence[Row]) -> bytes:
    # Nulls are written or left out; blank lines stand between.
    records = [{"t": said(t), "x": [n, {}], "n": n, "s": s} for t, n, s in rows]
    for number, record in enumerate(records):
        if number % 2:
            records[number] = {name: value for name, value in record.items() if value is not None}
    return b"".join(
        json.dumps(r, ensure_ascii=i % 2 == 0).encode() + (b"\r\n\n" if i % 3 == 0 else b"\n")
        for i, r in enumerate(records)
    )


def _json_document(rows: Sequence[Row]) -> bytes:
    return json.dumps([{"t": said(t), "n": n, "s": s} for t, n, s in rows], indent=2).encode()


def _of_json(data: bytes) -> list[tuple[Any, ...]]:
    text = data.decode()
    records = json.loads(text) if text.startswith("[") else [json.loads(li) for li in text.split("\n") if li.strip()]
    return [(understood(r.get("t")), r.get("n"), r.get("s")) for r in records]


def _text(rows: Sequence[Row]) -> bytes:
    return "\n".join(said(t) or s or "" for t, _, s in rows).encode() + b"\n" * bool(rows)


def _of_text(data: bytes) -> list[tuple[Any, ...]]:
    lines = data.decode().split("\n")
    return [(line,) for line in (lines if lines[-1] else lines[:-1])]


def _lz4(data: bytes) -> bytes:
    return _packed(data, "lz4")


def _zstd(data: bytes) -> bytes:
    return _packed(data, "zstd")


def _packed(data: bytes, codec: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as out:
        out.write(data)
    return sink.getvalue().to_pybytes()


def _unpacked(codec: str) -> Callable[[bytes], bytes]:
    return lambda data: pa.CompressedInputStream(pa.BufferReader(data), codec).read()


def _plain(data: bytes) -> bytes:
    return data


def _lines(
    name: str,
    ending: str,
    make: Callable[[Sequence[Row]], bytes],
    parse: Callable[[bytes], list[tuple[Any, ...]]],
    kind: type[FileFormat],
    options: dict[str, str],
    pack: Callable[[bytes], bytes] = _plain,
    unpack: Callable[[bytes], bytes] = _plain,
    **more: Any,
) -> Sample:
    as_attributes = {"multiLine": "multi_line", "header": "header", "sep": "sep", "encoding": "encoding"}
    as_attributes |= {"escape": "escape"}
    # Python doubles quotes.
    options |= {"escape": '"'} if kind is CsvFormat else {}
    attributes = {as_attributes[o]: {"true": True, "false": False}.get(v, v) for o, v in options.items()}

    def write(path: Path, rows: Sequence[Row], block: int) -> None:
        path.write_bytes(pack(make(rows)))

    return Sample(
        name,
        ending,
        write,
        lambda path: parse(unpack(path.read_bytes())),
        lambda size: kind(block_bytes=size, **attributes),  # type: ignore[call-arg]
        {"fileFormat": kind.name, **options},
        needs_schema=kind is not TextFormat,
        **more,
    )


_ONE_LINE: Final = {"line_ends_in_text": False}
_WHOLE: Final = {"ranges": False}

SAMPLES: Final = [
    Sample("parquet", ".parquet", _write_parquet, _read_parquet, lambda _: ParquetFormat(), {"fileFormat": "parquet"}),
    Sample(
        "parquet without statistics",
        ".parquet",
        _write_parquet_without_statistics,
        _read_parquet,
        lambda _: ParquetFormat(),
        {"fileFormat": "parquet"},
    ),
    Sample(
        "arrow file", ".arrow", _write_arrow_file, _read_arrow_file, lambda _: ArrowFormat(), {"fileFormat": "arrow"}
    ),
    Sample(
        "arrow stream",
        ".arrows",
        _write_arrow_stream,
        _read_arrow_stream,
        lambda _: ArrowFormat(),
        {"fileFormat": "arrow"},
        ranges=False,
    ),
    Sample("orc", ".orc", _write_orc, _read_orc, lambda _: OrcFormat(), {"fileFormat": "orc"}),
    _lines("csv", ".csv", _csv(), _of_csv(), CsvFormat, {"header": "true"}, **_ONE_LINE),
    _lines(
        "csv without header, by semicolon, with CRLF",
        ".csv",
        _csv(";", "\r\n", header=False),
        _of_csv(";", header=False),
        CsvFormat,
        {"sep": ";"},
        **_ONE_LINE,
    ),
    _lines("csv multiLine", ".csv", _csv(), _of_csv(), CsvFormat, {"header": "true", "multiLine": "true"}),
    _lines(
        "csv in UTF-16",
        ".csv",
        _csv(encoding="utf-16"),
        _of_csv(encoding="utf-16"),
        CsvFormat,
        {"header": "true", "encoding": "utf-16"},
        **_ONE_LINE,
        **_WHOLE,
    ),
    _lines(
        "csv gzip",
        ".csv.gz",
        _csv(),
        _of_csv(),
        CsvFormat,
        {"header": "true"},
        gzip.compress,
        gzip.decompress,
        **_ONE_LINE,
        **_WHOLE,
    ),
    _lines("json", ".json", _json_lines, _of_json, JsonFormat, {}),
    _lines("json zstd", ".json.zst", _json_lines, _of_json, JsonFormat, {}, _zstd, _unpacked("zstd"), **_WHOLE),
    _lines("json lz4", ".json.lz4", _json_lines, _of_json, JsonFormat, {}, _lz4, _unpacked("lz4"), **_WHOLE),
    _lines("json multiLine", ".json", _json_document, _of_json, JsonFormat, {"multiLine": "true"}, **_WHOLE),
    _lines("text", ".txt", _text, _of_text, TextFormat, {}, schema=TEXT_SCHEMA, time="value", **_ONE_LINE),
    _lines(
        "text bz2",
        ".txt.bz2",
        _text,
        _of_text,
        TextFormat,
        {},
        bz2.compress,
        bz2.decompress,
        schema=TEXT_SCHEMA,
        time="value",
        **_ONE_LINE,
        **_WHOLE,
    ),
]

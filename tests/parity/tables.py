"""Random tables: all types of Spark, also inside of others, with their extremes, nulls, and names of any kind."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Callable
from decimal import Decimal
from operator import eq
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

from tests.parity.oracle import FILE, Case

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["orc_case", "parquet_case", "table", "write_by_spark"]

FILES: Final = 10
_NAMES: Final = ("a", "Val", "Ünï", "with blank", "x.y", "_metadata2", "select", "日本")
_TEXTS: Final = ("", " ", "1", "NaN", "é\u0301", "😀", "\0", "line\nend", '"', "x" * 300)
_FLOATS: Final = (-0.0, 0.0, 1.5, -1e300, 1e-45, math.nan, math.inf, -math.inf, 3.4e38)
_DAYS: Final = (-719_162, -141_428, -141_427, -1, 0, 1, 19_723, 2_932_896)
_MICROS: Final = 86_400_000_000

_Value = Callable[[random.Random], Any]


def _whole(bits: int) -> _Value:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    return lambda r: r.choice([low, -1, 0, 1, high, r.randint(low, high)])


def _day(r: random.Random) -> int:
    return r.choice([*_DAYS, r.randint(_DAYS[0], _DAYS[-1])])


def _time(r: random.Random) -> int:
    return _day(r) * _MICROS + r.choice([0, 1, _MICROS - 1, r.randrange(_MICROS)])


def _float32(r: random.Random) -> float:
    return r.choice([number for number in _FLOATS if math.isnan(number) or abs(number) < 1e39 or math.isinf(number)])


_PLAIN: Final[tuple[tuple[pa.DataType, _Value], ...]] = (
    (pa.bool_(), lambda r: r.random() < 0.5),
    *((kind, _whole(bits)) for bits, kind in ((8, pa.int8()), (16, pa.int16()), (32, pa.int32()), (64, pa.int64()))),
    (pa.float32(), _float32),
    (pa.float64(), lambda r: r.choice([*_FLOATS, r.uniform(-1, 1)])),
    (pa.decimal128(12, 3), lambda r: Decimal(r.randint(-(10**9), 10**9)).scaleb(-3)),
    (pa.decimal128(5, 0), lambda r: Decimal(r.randint(-99_999, 99_999))),
    (pa.decimal128(38, 18), lambda r: Decimal(r.randint(-(10**30), 10**30)).scaleb(-18)),
    (pa.string(), lambda r: r.choice(_TEXTS)),
    (pa.binary(), lambda r: r.randbytes(r.randint(0, 5))),
    (pa.date32(), _day),
    (pa.timestamp("us", "UTC"), _time),
    (pa.timestamp("us"), _time),
)


def _column(r: random.Random, depth: int = 0) -> tuple[pa.DataType, _Value]:
    kind = r.randint(0, 9) if depth < 3 else 9
    if kind == 0:
        of, value = _column(r, depth + 1)
        return pa.list_(of), lambda r: [_or_null(r, value) for _ in range(r.randint(0, 3))]
    if kind == 1:
        of, value = _column(r, depth + 1)
        return pa.map_(pa.string(), of), lambda r: [
            (key, _or_null(r, value)) for key in r.sample("abü", r.randint(0, 3))
        ]
    if kind == 2:
        inner = {name: _column(r, depth + 1) for name in ["A", "b", "c d"][: r.randint(1, 3)]}
        struct = pa.struct([(name, of) for name, (of, _) in inner.items()])
        return struct, lambda r: {name: _or_null(r, value) for name, (_, value) in inner.items()}
    return r.choice(_PLAIN)


def _or_null(r: random.Random, value: _Value) -> Any:
    return None if r.random() < 0.2 else value(r)


def table(r: random.Random, files: int = FILES) -> pa.Table:
    """Return a table of one to five columns, and `FILE`, in its order: up to six rows of each of the files."""
    of_files = sorted(number for number in range(files) for _ in range(r.randint(1, 6)))
    columns = {}
    for name in r.sample(_NAMES, r.randint(1, 5)):
        kind, value = _column(r)
        columns[name] = pa.array([_or_null(r, value) for _ in of_files], kind)
    return pa.table({**columns, FILE: pa.array(of_files, pa.int32())})


def _cut(rows: pa.Table, number: int) -> pa.Table:
    at = [row for row, of in enumerate(rows[FILE].to_pylist()) if of == number]
    return rows.slice(at[0], len(at)).drop_columns([FILE]).combine_chunks()


def parquet_case(r: random.Random) -> Case:
    """Return files that pyarrow writes in random ways."""
    rows, files = table(r), []
    for number in range(FILES):
        sink = io.BytesIO()
        pq.write_table(
            _cut(rows, number),
            sink,
            row_group_size=r.choice([1, 2, 100]),
            store_schema=r.random() < 0.5,
            version=r.choice(["1.0", "2.4", "2.6"]) if _has_no_nanoseconds(rows) else "2.6",
            compression=r.choice(["none", "snappy", "zstd"]),
            data_page_version=r.choice(["1.0", "2.0"]),
            use_dictionary=r.random() < 0.5,
        )
        files.append(sink.getvalue())
    return Case("parquet", "parquet", tuple(files))


def _has_no_nanoseconds(rows: pa.Table) -> bool:
    return "[ns" not in str(rows.schema)


def orc_case(r: random.Random) -> Case:
    """Return files that pyarrow writes in random ways."""
    rows, files = table(r), []
    for number in range(FILES):
        sink = io.BytesIO()
        codec, version = r.choice(["uncompressed", "zlib", "snappy", "zstd", "lz4"]), r.choice(["0.11", "0.12"])
        orc.write_table(_cut(rows, number), sink, compression=codec, file_version=version)
        files.append(sink.getvalue())
    return Case("orc", "orc", tuple(files), alike=_but_for_zeros)


def _but_for_zeros(ours: Any, sparks: Any) -> bool:
    """Return whether rows are the same but for the signs of zeros, of which Spark may read one for the other in ORC."""
    return repr(ours).replace("'-0.0'", "'0.0'") == repr(sparks).replace("'-0.0'", "'0.0'")


def write_by_spark(spark: SparkSession, r: random.Random, root: Path) -> Case:
    """Write files by Spark, in random ways."""
    settings = {
        "spark.sql.parquet.outputTimestampType": r.choice(["INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"]),
        "spark.sql.parquet.writeLegacyFormat": r.choice(["true", "false"]),
    }
    before = {name: str(spark.conf.get(name)) for name in settings}
    file_format, given = r.choice(["parquet", "orc"]), root.with_name("given.parquet")
    pq.write_table(table(r), given)
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        spark.read.parquet(str(given)).coalesce(1).write.partitionBy(FILE).format(file_format).save(str(root))
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
    return Case(file_format, file_format, in_order=False, alike=_but_for_zeros if file_format == "orc" else eq)

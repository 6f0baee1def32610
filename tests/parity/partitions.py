"""Random names of directories: values of columns in paths, in any type that Spark infers, escaped as it does."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from tests.parity.oracle import FILE, Case

__all__ = ["PathCase", "path_case"]

_VALUES: Final = (
    ("1", "-5", "007", "0", "2147483647"),
    ("2147483648", "9223372036854775807", "1"),
    ("9223372036854775808", "12345678901234567890123", "1"),
    ("1.5", "1e3", "-0.0", "2", "NaN", "1d", ".5"),
    ("2024-01-01", "2024-1-5", "0001-01-01", "9999-12-31"),
    ("2024-01-01 10:20:30", "2024-03-31 02:30:00.5", "0001-01-01 00:00:00", "9999-12-31 23:59:59", "2024-01-01"),
    (
        "2024-01-01T10:20:30",
        "2024-01-01 10:20",
        "2024-01-01 10:20:30.25",
        "2024-01-01 10:20:30Z",
        "2024-02-30 00:00:00",
    ),
    ("true", "false", "null", "a"),
    ("eu", "Eu", "é", "日本", "e\u0301", "a b", "100%", "a=b", "a:b", "a/b", "x+y", "😀", "'", '"'),
)
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"


class PathCase(Case):
    """Files of Parquet in directories that name columns."""

    def write(self, root: Path) -> None:
        for number, content in enumerate(self.files):
            path = root / content.decode() / "f.parquet"
            path.parent.mkdir(parents=True)
            pq.write_table(pa.table({"n": [number], "i": [number + 10]}), path)


def path_case(r: random.Random) -> Case:
    """Return directories of one to three columns."""
    names = r.sample(["p", "Day", "ü", "日本", "a b", "i", "I"], r.randint(1, 2))
    if len({name.lower() for name in names}) < len(names):
        names = names[:1]
    kinds = [r.choice([*_VALUES, tuple(one for kind in _VALUES for one in kind)]) for _ in names]
    folders = []
    for number in range(6):
        values = [_NULL if r.random() < 0.1 else _escaped(r, r.choice(kind)) for kind in kinds]
        parts = [f"{name}={value}" for name, value in zip(names, values, strict=True)]
        folders.append("/".join([f"{FILE}={number}", *parts]))
    return PathCase("parquet", "parquet", tuple(folder.encode() for folder in folders))


def _escaped(r: random.Random, value: str) -> str:
    # Spark escapes no letters; others do, byte by byte. Java reads letters by the locale of its process.
    as_they_are = r.random() < 0.8
    return "".join(one if as_they_are and not one.isascii() else quote(one, safe=" +'") for one in value)

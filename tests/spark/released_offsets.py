"""Writes the offsets of this version into the folder `released`, where those of each release are kept for ever.

`python -m tests.spark.released_offsets` adds a folder for the version that is installed, and changes none.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from streaming_source import __version__
from streaming_source.spark.datasource import AlignedDataSource
from tests.spark.reading import Reading, rows_emitted

__all__ = ["CASES", "RELEASED", "begin", "rows_of", "write_input"]

RELEASED: Final = Path(__file__).with_name("released")
_EXACT: Final = {"watermarkRows": "true", "bounded": "true", "maxRowsPerTrigger": "7", "timeZone": "UTC"}
_CSV: Final = {
    "path": "{in}",
    "fileFormat": "csv",
    "dataSchema": "t timestamp, n bigint",
    "eventTimeColumn": "t",
    "maxOutOfOrderness": "2 seconds",
}
CASES: Final[dict[str, tuple[str, dict[str, str]]]] = {
    "files-directory": ("aligned_files", {**_EXACT, **_CSV, "splitBy": "directory"}),
    "files-file": ("aligned_files", {**_EXACT, **_CSV, "splitBy": "file"}),
    "files-file-by-name": ("aligned_files", {**_EXACT, **_CSV, "splitBy": "file", "fileOrder": "name"}),
    "datagen": ("aligned_datagen", {**_EXACT, "splits": "3", "rowsPerSplit": "20", "skew": "3"}),
    "datagen-plain": (
        "aligned_datagen",
        {"bounded": "true", "splits": "2", "rowsPerSplit": "20", "maxRowsPerTrigger": "5"},
    ),
}


def write_input(folder: Path) -> None:
    """Six files of ten rows in two directories; sizes and times are the same on each machine."""
    for number in range(6):
        path = folder / "ab"[number % 2] / f"{number}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"2024-01-01 00:0{number}:0{row},{row}\n" for row in range(10)))
        os.utime(path, (1_704_067_200 + number, 1_704_067_200 + number))


@contextmanager
def begin(name: str, folder: Path) -> Iterator[Reading]:
    """The source of a case, over files below a folder."""
    kind, given = CASES[name]
    options = {option: value.replace("{in}", str(folder)) for option, value in given.items()}
    source = AlignedDataSource.of_format(kind, rows_emitted({**options, "includeMetadata": "true"}))
    reading = Reading(source.stream_reader(source.schema()))
    try:
        yield reading
    finally:
        reading.reader.stop()


def rows_of(table: Any) -> list[list[Any]]:
    """Split and position of each record."""
    found = zip(table["_split"].to_pylist(), table["_position"].to_pylist(), strict=True)
    return sorted([split, position] for split, position in found if split is not None)


def _write(name: str, path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_input(Path(folder))
        with begin(name, Path(folder)) as reading:
            rows = []
            for _ in range(4):
                start, table = reading.offset, reading.next()
                rows += [] if table is None else rows_of(table)
            last = rows_of(table)
            content = {
                "start": start,
                "end": reading.offset,
                "last": last,
                "before": sorted(r for r in rows if r not in last),
            }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    place = RELEASED / __version__
    place.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        if not (place / f"{case}.json").exists():
            _write(case, place / f"{case}.json")

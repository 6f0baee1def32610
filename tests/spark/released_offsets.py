"""Writes the offsets of this version into the folder `released`, where those of each release are kept for ever.

`python -m tests.spark.released_offsets` adds a folder for the version that is installed, and changes none. With
`kafka` it starts a broker, and writes the offsets over Kafka too.

A case of `CASES` is a query that goes on: the rows of each micro-batch are kept beside its offsets. Of `STATES` and
`KAFKA` offsets are kept with the positions in them, and are read as states: a topic or a catalog of the machine that
wrote them is gone.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import pyarrow as pa

from alignment.strategy import WatermarkStrategy
from alignment.watermarks import WatermarkGenerator, WatermarkOutput
from streaming_source import __version__
from streaming_source.api import Source
from streaming_source.connectors.files import CsvFormat, FileSource
from streaming_source.connectors.iceberg import IcebergSource
from streaming_source.connectors.kafka import KafkaSource
from streaming_source.coordinator import SourceState
from streaming_source.data_files import queued
from streaming_source.spark.datasource import AlignedDataSource
from streaming_source.spark.offsets import OffsetCodec
from streaming_source.testing import SourceHarness
from tests.iceberg import tables as iceberg_tables
from tests.spark.reading import Reading, rows_emitted

if TYPE_CHECKING:
    from tests.kafka.topics import Topic

__all__ = [
    "CASES",
    "KAFKA",
    "RELEASED",
    "STATES",
    "begin",
    "generated",
    "put_beside",
    "rows_of",
    "state_source",
    "write_input",
]

RELEASED: Final = Path(__file__).with_name("released")
DELTA: Final = Path(__file__).resolve().parents[1] / "delta" / "by_spark" / "clustered"
_EXACT: Final = {"watermarkRows": "true", "bounded": "true", "maxRowsPerTrigger": "7", "timeZone": "UTC"}
_CSV: Final = {
    "path": "{in}",
    "fileFormat": "csv",
    "dataSchema": "t timestamp, n bigint",
    "eventTimeColumn": "t",
    "maxOutOfOrderness": "2 seconds",
}
_BESIDE: Final = ("state", "log")
_LATE: Final = {"late": "route", "lateLocation": "{in}-log", "maxFutureSkew": "1 day", "invalidTimestamp": "null"}
CASES: Final[dict[str, tuple[str, dict[str, str]]]] = {
    "files-directory": ("aligned_files", {**_EXACT, **_CSV, "splitBy": "directory"}),
    "files-file": ("aligned_files", {**_EXACT, **_CSV, "splitBy": "file"}),
    "files-file-by-name": ("aligned_files", {**_EXACT, **_CSV, "splitBy": "file", "fileOrder": "name"}),
    "datagen": ("aligned_datagen", {**_EXACT, "splits": "3", "rowsPerSplit": "20", "skew": "3"}),
    "datagen-plain": (
        "aligned_datagen",
        {"bounded": "true", "splits": "2", "rowsPerSplit": "20", "maxRowsPerTrigger": "5"},
    ),
    # Half of the records are late: they are counted and left out, and the offset names their log.
    "files-late-routed": ("aligned_files", {**_EXACT, **_CSV, **_LATE, "path": "{in}-late", "splitBy": "directory"}),
    "files-remembered-beside": ("aligned_files", {**_EXACT, **_CSV, "splitBy": "file", "stateLocation": "{in}-state"}),
    "delta": ("aligned_delta", {**_EXACT, "path": "{in}-table", "eventTimeColumn": "ts", "maxRowsPerTrigger": "4"}),
}


def write_input(folder: Path) -> None:
    """Six files of ten rows in two directories, a file with late rows, and a table: the same on each machine."""
    shutil.copytree(DELTA, f"{folder}-table")
    late = Path(f"{folder}-late") / "a" / "0.csv"
    late.parent.mkdir(parents=True)
    rows = [(minute, row) for minute in (2, 0, 3, 1) for row in range(10)]
    late.write_text("".join(f"2024-01-01 00:0{minute}:0{row},{row}\n" for minute, row in rows))
    os.utime(late, (1_704_067_200, 1_704_067_200))
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


class LatestSeen(WatermarkGenerator):
    """A generator of a user's own, with a state that offsets keep."""

    def __init__(self) -> None:
        self.latest_us = 0

    def on_event(self, record: Any, timestamp: int, output: WatermarkOutput) -> None:
        """The watermark is two seconds behind the latest record."""
        self.latest_us = max(self.latest_us, timestamp)
        output.emit_watermark(self.latest_us - 2_000_000)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Nothing comes by the clock."""

    def snapshot_state(self) -> Any:
        return {"latest_us": self.latest_us}

    def restore_state(self, version: int, state: Any) -> None:
        self.latest_us = state["latest_us"]


def generated(folder: Path) -> SourceHarness:
    """A source of files whose splits have the watermarks of `LatestSeen`."""
    schema = pa.schema([("t", pa.timestamp("us", "UTC")), ("n", pa.int64())])
    source = FileSource(str(folder), format=CsvFormat(), data_schema=schema, split_by="directory", bounded=True)
    strategy = WatermarkStrategy.for_generator(LatestSeen).with_timestamp_assigner("t")
    return SourceHarness(source, strategy, max_rows=7)


def state_source(name: str, folder: Path) -> Source[Any, Any]:
    """The source of a case whose offsets are read as states."""
    if name.startswith("iceberg"):
        return IcebergSource("db.t", catalog=iceberg_tables.properties_in(folder))
    if name.startswith("kafka"):
        return KafkaSource.of("nowhere:1", "orders")
    write_input(folder)
    return generated(folder).source


def rows_of(table: Any) -> list[list[Any]]:
    """Split and position of each record."""
    found = zip(table["_split"].to_pylist(), table["_position"].to_pylist(), strict=True)
    return sorted([split, position] for split, position in found if split is not None)


def _write(name: str, path: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "in"
        write_input(folder)
        with begin(name, folder) as reading:
            rows = []
            for _ in range(4):
                start, table = reading.offset, reading.next()
                rows += [] if table is None else rows_of(table)
            last, end = rows_of(table), reading.offset
            before = sorted(row for row in rows if row not in last)
            beside = _beside(folder)
            rest = []
            while (table := reading.next()) is not None:
                rest += rows_of(table)
    content = {"start": start, "end": end, "last": last, "before": before, "rest": sorted(rest), "beside": beside}
    _keep(path, content)


def _beside(folder: Path) -> dict[str, str]:
    """What a query keeps beside its offsets: by path the content of each file, in base64."""
    found = [file for kind in _BESIDE for file in Path(f"{folder}-{kind}").rglob("*") if file.is_file()]
    return {
        str(file.relative_to(folder.parent)): base64.b64encode(file.read_bytes()).decode() for file in sorted(found)
    }


def put_beside(folder: Path, beside: Mapping[str, str]) -> None:
    """Put there what a query kept beside its offsets."""
    for name, content in beside.items():
        (folder.parent / name).parent.mkdir(parents=True, exist_ok=True)
        (folder.parent / name).write_bytes(base64.b64decode(content))


def _states(harness: SourceHarness) -> list[list[Any]]:
    """The offsets of the first four micro-batches of a source, with the positions in them."""
    codec, kept = OffsetCodec(harness.source), []
    for _ in range(4):
        harness.run_batch()
        kept.append(_with_positions(codec, codec.encode(harness.state)))
    harness.close()
    return kept


def _with_positions(codec: OffsetCodec, offset: dict[str, Any]) -> list[Any]:
    state: SourceState[Any, Any] = codec.decode(offset)
    return [offset, {split.split_id: split.position for split in state.splits}]


def _write_files_generator(folder: Path) -> list[list[Any]]:
    write_input(folder)
    return _states(generated(folder))


def _write_iceberg(folder: Path) -> list[list[Any]]:
    table = iceberg_tables.create(folder)
    for first in (0, 20, 5):
        iceberg_tables.append(table, [(first + n) * 1_000_000 for n in range(10)])
    return _states(iceberg_tables.harness(folder, max_rows=7))


def _write_iceberg_snapshot(folder: Path) -> list[list[Any]]:
    """Most files of the snapshot wait, and then those of commits; some of these have earlier records."""
    table = iceberg_tables.create(folder)
    for first in (0, 10, 40, 50, 60):
        iceberg_tables.append(table, [(first + n) * 1_000_000 for n in range(10)])
    with patch.object(queued, "FILES_OPEN", 2):
        harness = iceberg_tables.harness(folder, {"indexing": "scan"}, max_rows=15)
    codec, kept = OffsetCodec(harness.source), []
    for firsts in ((), (20, 70), (), (30,)):
        for first in firsts:
            iceberg_tables.append(table, [(first + n) * 1_000_000 for n in range(10)])
        harness.clock.advance("2 seconds")
        harness.run_batch()
        kept.append(_with_positions(codec, codec.encode(harness.state)))
    harness.close()
    return kept


def _write_kafka(topic: Topic, **options: Any) -> list[list[Any]]:
    from tests.kafka.support import reading
    from tests.kafka.topics import Record

    topic.create(2)
    records = []
    for number in range(20):
        # Of the second partition every fifth record is late.
        late = 8000 if number % 5 == 4 else 0
        for partition in range(2):
            at_ms = 1_700_000_040_000 + number * 1000 - partition * late
            records.append(Record(at_ms, b"%d" % number, partition=partition))
    topic.write(records)
    kept = []
    with reading(topic, maxOutOfOrderness="2 seconds", maxRowsPerTrigger=7, watermarkRows="true", **options) as begun:
        begun.reader.prepareForTriggerAvailableNow()
        while begun.next() is not None and len(kept) < 5:
            codec = OffsetCodec(begun.reader.source)
            kept.append(_with_positions(codec, json.loads(json.dumps(begun.offset))))
    return kept


STATES: Final[dict[str, Callable[[Path], list[list[Any]]]]] = {
    "files-generator": _write_files_generator,
    "iceberg": _write_iceberg,
    "iceberg-snapshot": _write_iceberg_snapshot,
}
KAFKA: Final[dict[str, dict[str, Any]]] = {
    "kafka-reports": {"indexing": "off"},
    "kafka-values-late": {"indexing": "scan", "late": "drop", "maxFutureSkew": "1 day"},
}


def _keep(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _write_all(place: Path, *, with_kafka: bool) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for name in CASES:
        if not (place / f"{name}.json").exists():
            _write(name, place / f"{name}.json")
    for name, write in STATES.items():
        if not (place / f"{name}.json").exists():
            with tempfile.TemporaryDirectory() as folder:
                _keep(place / f"{name}.json", {"offsets": write(Path(folder) / "in")})
    if with_kafka:
        from tests.kafka.broker import KafkaBroker
        from tests.kafka.topics import Topic

        with tempfile.TemporaryDirectory() as folder:
            broker = KafkaBroker.from_cache(Path(folder))
            broker.start()
            try:
                for name, options in KAFKA.items():
                    if not (place / f"{name}.json").exists():
                        _keep(place / f"{name}.json", {"offsets": _write_kafka(Topic(broker, name), **options)})
            finally:
                broker.stop()


if __name__ == "__main__":
    _write_all(RELEASED / __version__, with_kafka="kafka" in sys.argv[1:])

"""Between two runs of a query an option changes: the second run goes on with each row once, or says why it does not."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

from alignment.watermarks import MIN_WATERMARK
from streaming_source.connectors.datagen import DataGeneratorSource
from streaming_source.connectors.files import FileSource
from streaming_source.connectors.kafka import KafkaSource
from streaming_source.connectors.kafka.config import KAFKA_OPTIONS
from streaming_source.connectors.kafka.split import KafkaCheckpoint
from streaming_source.coordinator import SourceState
from streaming_source.exceptions import AlignmentError, OffsetError
from streaming_source.spark.datasource import AlignedDataSource
from streaming_source.spark.offsets import OffsetCodec
from streaming_source.spark.options import FRAME_OPTIONS, STRATEGY_OPTIONS
from streaming_source.testing import TestingEnumeratorContext
from tests.spark import changed_options
from tests.spark.changed_options import DATAGEN, FILES, FRAME, KAFKA, NOT_BY_HAND, STRATEGY, Change
from tests.spark.reading import T0, Reading, rows_emitted

RELIABILITY = Path(__file__).parents[2] / "docs" / "reliability.md"
ROWS = 7
NAMES = ("a/0", "a/1", "a/2", "b/3", "b/4", "b/5")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six files in two directories, in three formats: `t` and `u` say no zone, and `n` is a number."""
    root = tmp_path_factory.mktemp("data")
    for number, name in enumerate(NAMES):
        times = [T0 + (number % 3 * ROWS + row) * 1_000_000 for row in range(ROWS)]
        stamps = pa.array(times, pa.timestamp("us"))
        table = pa.table({"t": stamps, "n": pa.array(times), "u": stamps})
        for kind in ("parquet", "csv", "json"):
            path = root / kind / f"{name}.{kind}"
            path.parent.mkdir(parents=True, exist_ok=True)
            if kind == "parquet":
                text = pa.array([str(stamp) for stamp in stamps])
                pq.write_table(table.append_column("s", text), path, row_group_size=3)
            elif kind == "csv":
                whole = table.set_column(0, "t", stamps.cast(pa.timestamp("s"))).set_column(
                    2, "u", stamps.cast(pa.timestamp("s"))
                )
                pc.write_csv(whole, path, pc.WriteOptions(include_header=False))
            else:
                lines = ({"t": str(t)[:19], "n": n, "u": str(t)[:19]} for t, n in zip(stamps, times, strict=True))
                path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return root


def filled(given: dict[str, str], **places: Any) -> dict[str, str]:
    return {name: value.format(**places) for name, value in given.items() if value}


def read(options: dict[str, str], kind: str, at: Any, micro_batches: int = 1000) -> tuple[list[Any], Any, list[int]]:
    """Rows by split and position, the offset behind them, and the watermarks on the way."""
    source = AlignedDataSource.of_format(kind, rows_emitted({"includeMetadata": "true", **options}))
    begun = Reading(source.stream_reader(source.schema()))
    if at is not None:
        begun.offset = at
    rows: list[Any] = []
    watermarks: list[int] = []
    try:
        while micro_batches and (table := begun.next()) is not None:
            found = zip(table["_split"].to_pylist(), table["_position"].to_pylist(), strict=True)
            rows += [row for row in found if row[0] is not None]
            said = begun.offset["watermark"]
            watermarks.append(MIN_WATERMARK if said is None else said)
            micro_batches -= 1
        return rows, json.loads(json.dumps(begun.offset)), watermarks
    finally:
        begun.reader.stop()


def run_twice(kind: str, before: dict[str, str], after: dict[str, str], change: Change) -> list[Any]:
    """The rows of both runs; [] of a change that is refused, as it must be."""
    first, at, watermarks = read(before, kind, None, micro_batches=3)
    assert first
    if change.refused:
        with pytest.raises(AlignmentError, match=change.refused):
            read(after, kind, at)
        # What is refused leaves the checkpoint as it is: the first run's options go on.
        second, _, later = read(before, kind, at)
    else:
        second, _, later = read(after, kind, at)
    assert second
    assert [*watermarks, *later] == sorted([*watermarks, *later])
    return sorted([*first, *second])


def in_soak(changes: Sequence[Change], *, all_of_them: bool = False) -> list[Any]:
    """Those that leave nothing in an offset are left to `make soak`."""
    can_wait = [all_of_them or change.state.startswith("none") for change in changes]
    return [pytest.param(c, marks=[pytest.mark.soak] if w else []) for c, w in zip(changes, can_wait, strict=True)]


@pytest.mark.parametrize("change", in_soak((*STRATEGY, *FRAME, *FILES)), ids=lambda change: change.label)
def test_files_with_another_option(change: Change, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    places = {"in": tmp_path / "in", "csv": data / "csv", "json": data / "json", "tmp": tmp_path}
    # What is read is deleted by some.
    for name in NAMES:
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        os.link(data / "parquet" / f"{name}.parquet", tmp_path / "in" / f"{name}.parquet")
    common = {"path": "{in}", "eventTimeColumn": "t", "bounded": "true", "maxRowsPerTrigger": "8", "timeZone": "UTC"}
    before, after = (filled({**common, **given}, **places) for given in (change.before, change.after))
    rows = run_twice("aligned_files", before, after, change)
    by_split: dict[str, list[int]] = {}
    for split, position in rows:
        by_split.setdefault(split, []).append(position)
    per_split = ROWS if len(by_split) == len(NAMES) else ROWS * 3
    assert len(by_split) in (2, len(NAMES))
    assert all(positions == list(range(per_split)) for positions in by_split.values())


OF_A_COLUMN = ("eventTimeColumn", "timestampUnit", "timePattern", "timeZone")
"""Its event time comes with the record."""


# What every format has is tested over files; it is one code.
@pytest.mark.parametrize(
    "change",
    [*DATAGEN, *in_soak([one for one in (*STRATEGY, *FRAME) if one.option not in OF_A_COLUMN], all_of_them=True)],
    ids=lambda change: change.label,
)
def test_datagen_with_another_option(change: Change, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    common = {"splits": "3", "rowsPerSplit": "40", "bounded": "true", "maxRowsPerTrigger": "7"}
    before, after = (filled({**common, **given}, tmp=tmp_path) for given in (change.before, change.after))
    rows = run_twice("aligned_datagen", before, after, change)
    assert rows == sorted((f"split-{split}", position) for split in range(3) for position in range(40))


@pytest.mark.parametrize("change", [change for change in KAFKA if change.refused], ids=lambda change: change.label)
def test_kafka_with_an_option_that_must_stay(change: Change) -> None:
    common = {"kafka.bootstrap.servers": "nowhere:1", "subscribe": "{topic}"}
    before, after = (
        KafkaSource.from_options(KAFKA_OPTIONS.parse(filled({**common, **given}, topic="orders")))
        for given in (change.before, change.after)
    )
    state = SourceState.initial()
    at = OffsetCodec(before).encode(replace(state, checkpoint=KafkaCheckpoint(end=before.end_description)))
    with pytest.raises(OffsetError, match=change.refused):
        after.restore_enumerator(TestingEnumeratorContext(), OffsetCodec(after).decode(at).checkpoint)


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ((*STRATEGY, *FRAME), STRATEGY_OPTIONS | FRAME_OPTIONS),
        (FILES, FileSource.options()),
        (KAFKA, KAFKA_OPTIONS),
        (DATAGEN, DataGeneratorSource.options()),
    ],
)
def test_the_table_has_each_option(changes: tuple[Change, ...], options: Any) -> None:
    names = {option.name for option in options if option.same_as is None} - NOT_BY_HAND
    assert names - {change.option for change in changes} == set()


def test_the_page_has_the_table() -> None:
    assert changed_options.table() in RELIABILITY.read_text(encoding="utf-8"), "see tests/spark/changed_options.py"

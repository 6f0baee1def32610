"""What is there when a query starts is never late, in whatever order its files have their rows: no bound is needed."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC as UTC_ZONE
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from alignment import WatermarkStrategy
from alignment.plan import PlanningRules
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MIN_WATERMARK
from streaming_source.api import Source
from streaming_source.connectors import DeltaSource, FileSource, IcebergSource
from streaming_source.connectors.files import CsvFormat, JsonFormat, OrcFormat, ParquetFormat
from streaming_source.coordinator import ReadRules, SourceCoordinator
from streaming_source.coordinator.rules import FrameOptions
from streaming_source.testing import FakeClock, InlineWorkers, SourceHarness
from tests.examples import each_once, one_in
from tests.iceberg.tables import properties_in
from tests.tables.reading import SECOND, rows
from tests.tables.rewritten import COMMITS, REWRITES, iceberg_in_order, in_order, overwritten

BOUNDS = ("0 seconds", "1 minute")


def strategy(bound: str) -> WatermarkStrategy:
    return WatermarkStrategy.for_bounded_out_of_orderness(bound).with_timestamp_assigner("ts")


def late(done: SourceHarness) -> int:
    """How many records came at or below the watermark that was announced before their micro-batch."""
    announced, count = MIN_WATERMARK, 0
    for batch in done.batches:
        count += sum(NO_TIMESTAMP < record.time_us <= announced for record in batch.all_records)
        announced = batch.watermark
    return count


def read_with_kills(
    source: Source, bounded: WatermarkStrategy, max_rows: int | None, chance: random.Random
) -> SourceHarness:
    """Read all that is there, while the planner is killed now and then."""
    done = SourceHarness(source, bounded, max_rows=max_rows)
    while done.run_batch() is not None:
        if chance.random() < 0.2:
            done.plan()
            done.restart(loses_plan=chance.random() < 0.5)
    return done


def counts(done: SourceHarness) -> Counter[int]:
    return Counter(time for records in done.records().values() for _, time in records)


# ---- tables that were rewritten --------------------------------------------------------------------------------------

EACH = 30
TIMES = [n * SECOND for n in range(COMMITS * EACH)]


@pytest.mark.parametrize(("bound", "rewrite"), each_once(BOUNDS, list(REWRITES)))
def test_all_rows_of_a_rewritten_delta_table_are_on_time(rewrite: str, bound: str, tmp_path: Path) -> None:
    REWRITES[rewrite](in_order(tmp_path / "t", EACH))

    done = read_with_kills(DeltaSource(str(tmp_path / "t")), strategy(bound), 100, random.Random(1))

    assert (counts(done), late(done)) == (Counter(TIMES), 0)
    assert len(done.batches) > 5


@pytest.mark.parametrize("bound", one_in(2, BOUNDS))
def test_all_rows_of_an_iceberg_table_in_any_order_are_on_time(bound: str, tmp_path: Path) -> None:
    chance = random.Random(2)
    overwritten(iceberg_in_order(tmp_path, EACH), chance)

    done = read_with_kills(IcebergSource("db.t", catalog=properties_in(tmp_path)), strategy(bound), 100, chance)

    assert (counts(done), late(done)) == (Counter(TIMES), 0)


# ---- any order, in any kind of file ----------------------------------------------------------------------------------

UTC = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class Shape:
    """In which column a file has its event times: the path of the column, its unit, and how a time is written there."""

    column: str
    unit: str | None
    kind: pa.DataType
    value: Callable[[int, random.Random], Any]

    @property
    def schema(self) -> pa.Schema:
        name, *inner = self.column.split(".")
        return pa.schema([(name, pa.struct([(inner[0], self.kind)]) if inner else self.kind)])


def _text(time_us: int, chance: random.Random) -> str:
    """In any zone, with or without a fraction: texts do not sort as their times do."""
    ahead = chance.choice([-11, -1, 0, 5, 14])
    local = datetime.fromtimestamp(time_us / SECOND, UTC_ZONE).astimezone(timezone(timedelta(hours=ahead)))
    return local.isoformat(chance.choice([" ", "T"]), chance.choice(["auto", "milliseconds"]))


SHAPES = {
    "a timestamp": Shape("ts", None, UTC, lambda time_us, _: time_us),
    "a field": Shape("s.ts", None, UTC, lambda time_us, _: time_us),
    "text": Shape("ts", None, pa.string(), _text),
    "milliseconds": Shape("ts", "ms", pa.int64(), lambda time_us, _: time_us // 1000),
    "seconds": Shape("ts", "s", pa.float64(), lambda time_us, _: time_us / SECOND),
}
# Text files have their times as text, however they are declared.
KINDS = {"parquet": list(SHAPES), "plain.parquet": list(SHAPES), "orc": ["a timestamp", "a field", "milliseconds"]}
KINDS |= {"csv": ["a timestamp", "text"], "json": ["a timestamp", "a field", "text"]}


def written(folder: Path, kind: str, chance: random.Random) -> tuple[Source, WatermarkStrategy, Counter[int]]:
    """Files with event times in any order, some without one; return the source, its strategy, and the times."""
    shape = SHAPES[chance.choice(KINDS[kind])]
    expected: Counter[int] = Counter()
    for number in range(chance.randint(1, 5)):
        first = chance.randint(0, 300)
        times = [(first + chance.randint(0, chance.choice([3, 400]))) * SECOND for _ in range(chance.randint(1, 60))]
        if chance.random() < 0.1:
            # A record with a clock that was never set.
            times[-1] = SECOND
        gaps: list[int | None] = [None if chance.random() < 0.03 else time for time in times]
        expected.update(NO_TIMESTAMP if time is None else time for time in gaps)
        _write(folder / f"dir{number % 2}" / f"part-{number}.{kind}", kind, shape, gaps, chance)
    split_by = chance.choice(["file", "directory"])
    formats = {"csv": CsvFormat(header=True), "json": JsonFormat(), "orc": OrcFormat()}
    source = FileSource(
        str(folder), format=formats.get(kind, ParquetFormat()), data_schema=shape.schema, split_by=split_by
    )
    bounded = WatermarkStrategy.for_bounded_out_of_orderness(chance.choice(BOUNDS))
    return source, bounded.with_timestamp_assigner(shape.column, shape.unit), expected


def _write(path: Path, kind: str, shape: Shape, times: list[int | None], chance: random.Random) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind in ("csv", "json"):
        texts = ["" if time is None else _text(time, chance) for time in times]
        if kind == "csv":
            path.write_text("ts\n" + "".join(f'"{text}"\n' for text in texts))
            return
        values = [f'"{text}"' if text else "null" for text in texts]
        line = '{"s": {"ts": %s}}\n' if "." in shape.column else '{"ts": %s}\n'
        path.write_text("".join(line % value for value in values))
        return
    values = [None if time is None else shape.value(time, chance) for time in times]
    if shape.unit == "s":
        # In statistics a number that is none is hidden.
        values = [float("nan") if value is None else value for value in values]
    array = pa.array(values, shape.kind)
    if "." in shape.column:
        # A struct that is null has no time in it either.
        array = pa.StructArray.from_arrays([array], ["ts"], mask=array.is_null() if chance.random() < 0.5 else None)
    table = pa.table({shape.schema.names[0]: array})
    if kind == "orc":
        orc.write_table(table, path, stripe_size=chance.choice([64, 1 << 20]), batch_size=chance.choice([7, 1024]))
    else:
        pq.write_table(table, path, row_group_size=chance.choice([7, 1000]), write_statistics=kind == "parquet")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", one_in(10, range(40)))
def test_files_in_any_order_are_on_time_with_any_bound(kind: str, seed: int) -> None:
    chance = random.Random(f"{kind} {seed}")
    with tempfile.TemporaryDirectory() as folder:
        source, bounded, expected = written(Path(folder), kind, chance)

        done = read_with_kills(source, bounded, chance.choice([None, 5, 20]), chance)

        assert counts(done) == expected, f"{kind}, seed {seed}"
        assert late(done) == 0, f"{kind}, seed {seed}"
        done.close()


def test_event_times_before_1970_hide_none_that_is_valid(tmp_path: Path) -> None:
    """With the exact watermark they are invalid, and the smallest of their row group by its statistics."""
    for name, seconds in {"a": [10, 90, 91, -5, 12, 95], "b": [20, 30]}.items():
        (tmp_path / name).mkdir()
        pq.write_table(rows([second * SECOND for second in seconds]), tmp_path / name / "0.parquet", row_group_size=3)
    source = FileSource(str(tmp_path), format=ParquetFormat(), split_by="directory")
    planning = PlanningRules(0, lateness="none")
    rules = ReadRules(strategy("0 seconds"), planning, FrameOptions(watermark_rows=True), time_limit_us=2**60)
    clock = FakeClock()
    planner = SourceCoordinator(source, rules, source.schema(), clock.now_us, workers=InlineWorkers(clock))
    planner.restore(state := planner.state)
    watermarks = []
    while (after := planner.advance(2)) is not state:
        watermarks.append(after.table.combined // SECOND)
        planner.notify_committed(state.sequence)
        state = after
    planner.close()
    assert watermarks == [9, 11, 11, 29]


@pytest.mark.parametrize("seed", one_in(10, range(60)))
def test_delta_tables_in_any_order_are_on_time_with_any_bound(seed: int) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        expected: Counter[int] = Counter()
        for _ in range(chance.randint(1, 4)):
            first = chance.randint(0, 300)
            times = [(first + chance.randint(0, 200)) * SECOND for _ in range(chance.randint(1, 60))]
            expected.update(times)
            deltalake.write_deltalake(folder, rows(times), mode="append")
        if chance.random() < 0.5:
            deltalake.DeltaTable(folder).optimize.compact()

        done = read_with_kills(
            DeltaSource(folder), strategy(chance.choice(BOUNDS)), chance.choice([None, 5, 20]), chance
        )

        assert (counts(done), late(done)) == (expected, 0), f"seed {seed}"
        done.close()


# ---- the plain door --------------------------------------------------------------------------------------------------


def test_without_the_exact_watermark_disorder_is_warned_of_before_spark_drops_a_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    in_order(tmp_path / "t", EACH).optimize.compact()
    plain = SourceHarness(DeltaSource(str(tmp_path / "t")), strategy("1 minute"), max_rows=100, exact=False)
    read_us, dropped = NO_TIMESTAMP, 0
    while not dropped:
        warned = [record for record in caplog.records if "Spark drops them" in record.getMessage()]
        batch = plain.run_batch()
        assert batch is not None
        # Spark drops what is at or below the latest event time of earlier micro-batches, less the delay.
        dropped = sum(record.time_us <= read_us - 60 * SECOND for record in batch.all_records)
        read_us = max(read_us, *(record.time_us for record in batch.all_records))
    assert len(warned) == 1
    message = warned[0].getMessage()
    assert "are up to 19 minutes 58 seconds behind those that were read, and maxOutOfOrderness is 1 minute" in message
    assert "Use the exact watermark" in message
    assert "a larger delay, above 19 minutes 58 seconds" in message


def test_where_records_come_in_order_nothing_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    in_order(tmp_path / "t", EACH)
    plain = SourceHarness(DeltaSource(str(tmp_path / "t")), strategy("0 seconds"), max_rows=100, exact=False)
    plain.run()
    assert (counts(plain), caplog.records) == (Counter(TIMES), [])

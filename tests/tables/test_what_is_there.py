"""What is there when a query starts is never late, in whatever order its files have their rows: no bound is needed."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from pathlib import Path

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from alignment import WatermarkStrategy
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MIN_WATERMARK
from streaming_source.api import Source
from streaming_source.connectors import DeltaSource, FileSource, IcebergSource
from streaming_source.connectors.files import CsvFormat, JsonFormat, ParquetFormat
from streaming_source.testing import SourceHarness
from tests.examples import examples
from tests.iceberg.tables import create, properties_in
from tests.tables.reading import SECOND, rows

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


def read_with_kills(source: Source, bound: str, max_rows: int | None, chance: random.Random) -> SourceHarness:
    """Read all that is there, while the planner is killed now and then."""
    done = SourceHarness(source, strategy(bound), max_rows=max_rows)
    while done.run_batch() is not None:
        if chance.random() < 0.2:
            done.plan()
            done.restart(loses_plan=chance.random() < 0.5)
    return done


def counts(done: SourceHarness) -> Counter[int]:
    return Counter(time for records in done.records().values() for _, time in records)


# ---- tables that were rewritten --------------------------------------------------------------------------------------

COMMITS, EACH = 40, 30
TIMES = [n * SECOND for n in range(COMMITS * EACH)]


def in_order(path: Path) -> deltalake.DeltaTable:
    """Write a table in the order of event time: disorder 0."""
    for first in range(0, len(TIMES), EACH):
        part = TIMES[first : first + EACH]
        key = [(7 * time // SECOND) % 100 for time in part]
        deltalake.write_deltalake(str(path), rows(part, key=key), mode="append")
    return deltalake.DeltaTable(str(path))


def merged(table: deltalake.DeltaTable) -> None:
    changed = rows(TIMES[::3], key=[1] * len(TIMES[::3]))
    merge = table.merge(changed, "s.ts = t.ts", source_alias="s", target_alias="t")
    merge.when_matched_update_all().execute()


REWRITES = {
    "compacted": lambda table: table.optimize.compact(),
    "z-ordered by another column": lambda table: table.optimize.z_order(["key"]),
    "z-ordered, in small files": lambda table: table.optimize.z_order(["key"], target_size=4_000),
    "merged into": merged,
}


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("rewrite", REWRITES)
def test_all_rows_of_a_rewritten_delta_table_are_on_time(rewrite: str, bound: str, tmp_path: Path) -> None:
    REWRITES[rewrite](in_order(tmp_path / "t"))

    done = read_with_kills(DeltaSource(str(tmp_path / "t")), bound, 100, random.Random(1))

    assert (counts(done), late(done)) == (Counter(TIMES), 0)
    assert len(done.batches) > 5


@pytest.mark.parametrize("bound", BOUNDS)
def test_all_rows_of_an_iceberg_table_in_any_order_are_on_time(bound: str, tmp_path: Path) -> None:
    chance = random.Random(2)
    table = create(tmp_path, rows([0], key=1).schema)
    table.append(rows(TIMES[:600], key=1))
    shuffled = TIMES.copy()
    chance.shuffle(shuffled)
    # What a rewrite leaves: one file, its row groups and rows in any order.
    with table.transaction() as change:
        change.set_properties({"write.parquet.row-group-limit": "100"})
    table.overwrite(rows(shuffled, key=1))

    done = read_with_kills(IcebergSource("db.t", catalog=properties_in(tmp_path)), bound, 100, chance)

    assert (counts(done), late(done)) == (Counter(TIMES), 0)


# ---- any order, in any kind of file ----------------------------------------------------------------------------------


def written(folder: Path, kind: str, chance: random.Random) -> tuple[Source, Counter[int]]:
    """Files with event times in any order, some without one; return the source, and the times."""
    expected: Counter[int] = Counter()
    for number in range(chance.randint(1, 5)):
        first = chance.randint(0, 300)
        times = [(first + chance.randint(0, chance.choice([3, 400]))) * SECOND for _ in range(chance.randint(1, 60))]
        if chance.random() < 0.1:
            # A record with a clock that was never set.
            times[-1] = SECOND
        expected.update(times)
        gaps: list[int | None] = [None if chance.random() < 0.03 else time for time in times]
        expected[NO_TIMESTAMP] += gaps.count(None)
        expected.subtract(time for time, gap in zip(times, gaps, strict=True) if gap is None)
        _write(folder / f"dir{number % 2}" / f"part-{number}.{kind}", kind, gaps, chance)
    split_by = chance.choice(["file", "directory"])
    formats = {"csv": CsvFormat(header=True), "json": JsonFormat()}
    schema = pa.schema([("ts", pa.timestamp("us", "UTC"))])
    format_ = formats.get(kind, ParquetFormat())
    return FileSource(str(folder), format=format_, data_schema=schema, split_by=split_by), +expected


def _write(path: Path, kind: str, times: list[int | None], chance: random.Random) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = rows(times)
    if kind.endswith("parquet"):
        has_statistics = kind == "parquet"
        pq.write_table(table, path, row_group_size=chance.choice([7, 1000]), write_statistics=has_statistics)
    else:
        texts = ["" if time is None else np.datetime64(time, "us").item().isoformat() + "Z" for time in times]
        if kind == "csv":
            path.write_text("ts,n\n" + "".join(f"{text},1\n" for text in texts))
        else:
            path.write_text("".join('{"ts": null}\n' if not text else f'{{"ts": "{text}"}}\n' for text in texts))


@pytest.mark.parametrize("kind", ["parquet", "plain.parquet", "csv", "json"])
@pytest.mark.parametrize("seed", range(examples(15)))
def test_files_in_any_order_are_on_time_with_any_bound(kind: str, seed: int) -> None:
    chance = random.Random(f"{kind} {seed}")
    with tempfile.TemporaryDirectory() as folder:
        source, expected = written(Path(folder), kind, chance)

        done = read_with_kills(source, chance.choice(BOUNDS), chance.choice([None, 5, 20]), chance)

        assert counts(done) == expected, f"{kind}, seed {seed}"
        assert late(done) == 0, f"{kind}, seed {seed}"
        done.close()


@pytest.mark.parametrize("seed", range(examples(15)))
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

        done = read_with_kills(DeltaSource(folder), chance.choice(BOUNDS), chance.choice([None, 5, 20]), chance)

        assert (counts(done), late(done)) == (expected, 0), f"seed {seed}"
        done.close()


# ---- the plain door --------------------------------------------------------------------------------------------------


def test_without_the_exact_watermark_disorder_is_warned_of_before_spark_drops_a_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    in_order(tmp_path / "t").optimize.compact()
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
    in_order(tmp_path / "t")
    plain = SourceHarness(DeltaSource(str(tmp_path / "t")), strategy("0 seconds"), max_rows=100, exact=False)
    plain.run()
    assert (counts(plain), caplog.records) == (Counter(TIMES), [])

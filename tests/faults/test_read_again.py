"""A micro-batch that is read again, by another attempt or after a restart, is the same to the byte: every connector."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from alignment import WatermarkStrategy
from streaming_source.api import Source
from streaming_source.connectors import FileSource
from streaming_source.coordinator.rules import EMITTED
from streaming_source.spark.before_4_2 import ReadMaxRows
from streaming_source.spark.datasource import AlignedDataSource
from streaming_source.spark.options import FRAME_OPTIONS, SOURCE_OPTIONS, frame_options
from streaming_source.spark.readers import AlignedStreamReader
from tests.data_files.samples import SAMPLES, Sample
from tests.examples import one_in
from tests.faults.inputs import CONNECTORS, Growing, event_time_of, place_of, source_of
from tests.faults.steps import digest_of
from tests.spark.support import SECOND, T0

Read = list[tuple[int, str]]
"""Of each partition, how many rows it has, and a digest of them as Arrow writes them, in their order."""


def reader_of(source: Source[Any, Any], event_time: str | None, **options: str) -> AlignedStreamReader:
    """What Spark makes of a source in a planner process."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("2 seconds")
    strategy = strategy if event_time is None else strategy.with_timestamp_assigner(event_time)
    given = {"watermarkRows": EMITTED, "includeMetadata": "true", "numReaders": "2", **options}
    frame = frame_options((FRAME_OPTIONS | SOURCE_OPTIONS).parse(given))
    described = AlignedDataSource(source, strategy, frame)
    reader = described.stream_reader(described.schema())
    assert isinstance(reader, AlignedStreamReader)
    return reader


def read(reader: AlignedStreamReader, start: Any, end: Any) -> Read:
    """What tasks of their own read between two offsets."""
    found = []
    for partition in reader.partitions(start, end):
        task: AlignedStreamReader = cloudpickle.loads(cloudpickle.dumps(reader))
        batches = list(task.read(cloudpickle.loads(cloudpickle.dumps(partition))))
        found.append((sum(batch.num_rows for batch in batches), digest_of(batches)))
    return found


def check_that_batches_are_the_same_again(make: Callable[[], AlignedStreamReader], grow: Callable[[], None]) -> None:
    """Plan and read four batches while the input grows; read each again, by the same planner and by one of its own."""
    reader = make()
    offset: Any = reader.initialOffset()
    done: list[tuple[Any, Any, Read]] = []
    limit = time.monotonic() + 30
    try:
        # A batch without records has the row of its watermark alone.
        while sum(sum(rows for rows, _ in first) > 1 for *_, first in done) < 4:
            assert time.monotonic() < limit, f"four batches with records did not come: {done}"
            grow()
            start, offset = offset, reader.latestOffset(offset, ReadMaxRows(40))
            if offset is not start:
                first = read(reader, start, offset)
                assert read(reader, start, offset) == first, "a second attempt reads something else"
                done.append((start, offset, first))
                reader.commit(offset)
    finally:
        reader.stop()
    for start, end, first in done:
        planner = make()
        try:
            assert read(planner, start, end) == first, f"after a restart batch {end['n']} is another"
        finally:
            planner.stop()


@pytest.mark.parametrize(
    "connector", [pytest.param(name, marks=[pytest.mark.kafka] if name == "kafka" else []) for name in CONNECTORS]
)
def test_a_batch_is_the_same_to_the_byte_when_it_is_read_again(
    request: pytest.FixtureRequest, tmp_path: Path, connector: str
) -> None:
    place = place_of(connector, tmp_path, lambda: request.getfixturevalue("broker").bootstrap, generated=3_000)
    growing = Growing(connector, place, random.Random(1))
    options = {"indexing": "off"} if connector == "own, off" else {}

    def make() -> AlignedStreamReader:
        # Bounded, a generator has all its records at once.
        source = source_of(connector, place, bounded=connector == "datagen")
        return reader_of(source, event_time_of(connector), **options)

    check_that_batches_are_the_same_again(make, growing.grow)


@pytest.mark.parametrize("sample", one_in(6, SAMPLES), ids=lambda sample: sample.id)
def test_a_batch_of_files_of_any_format_is_the_same_to_the_byte(tmp_path: Path, sample: Sample) -> None:
    # Each file goes on where the one before ended; half of the formats as directories, half file by file.
    by_file = SAMPLES.index(sample) % 2
    numbers = iter(range(1000))
    (tmp_path / "log").mkdir()

    def grow() -> None:
        if (number := next(numbers)) < 6:
            hidden = tmp_path / "log" / f"_{number}{sample.ending}"
            sample.write(hidden, [(T0 + (60 * number + i) * SECOND, i, f"row {i}") for i in range(60)], 20)
            hidden.rename(hidden.with_name(f"part-{number:03d}{sample.ending}"))

    def make() -> AlignedStreamReader:
        layout = {"split_by": "file"} if by_file else {"split_by": "directory"}
        source = FileSource(str(tmp_path), format=sample.reads_as(200), data_schema=sample.schema, **layout)
        return reader_of(source, sample.time)

    grow()
    check_that_batches_are_the_same_again(make, grow)

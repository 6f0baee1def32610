"""Offsets are the state as JSON: what is written is what is read, and nothing else is taken for it."""

from __future__ import annotations

import gc
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import TaskContext

from alignment.plan import WatermarkTable
from alignment.watermarks import LONG_AGO_US
from streaming_source.connectors.files import FileSource
from streaming_source.connectors.files.split import FilesCheckpoint, FileSplit, Remembered, Segment
from streaming_source.coordinator import SourceState
from streaming_source.coordinator.state import RunState
from streaming_source.exceptions import OffsetError
from streaming_source.spark.before_4_2 import ReadMaxRows
from streaming_source.spark.datasource import AlignedDataSource
from streaming_source.spark.offsets import OffsetCodec
from streaming_source.spark.readers import _keep_what_is_loaded

CODEC = OffsetCodec(FileSource("/data/in"))
INT64 = st.integers(-(2**63), 2**63 - 1)
NAMES = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="/\0"), min_size=1, max_size=8).filter(
    lambda name: name not in (".", "..")
)
IDS = st.text("0123456789abcdef", min_size=12, max_size=12)

SPLITS = st.one_of(
    st.builds(FileSplit, NAMES, st.integers(0, 2**62), NAMES, st.integers(0, 2**40)),
    st.builds(
        lambda name, position, ms, size: FileSplit(name, position, modified_ms=ms, size=size),
        NAMES,
        st.integers(0, 2**62),
        st.integers(0, 2**42),
        st.none() | st.integers(0, 2**42),
    ),
)
KEYS = st.tuples(st.integers(0, 2**42), NAMES)
SEGMENTS = st.builds(Segment, KEYS, st.binary(max_size=3).map(lambda marks: marks * 12))


@st.composite
def states(draw: st.DrawFn) -> SourceState[FileSplit, FilesCheckpoint]:
    splits = tuple(sorted(draw(st.lists(SPLITS, max_size=5, unique_by=lambda s: s.split_id)), key=lambda s: s.split_id))
    n = len(splits)
    column = st.lists(INT64, min_size=n, max_size=n)
    table = WatermarkTable(
        split_ids=tuple(split.split_id for split in splits),
        watermarks=np.array(draw(column), np.int64),
        statuses=np.array(draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)), np.int8),
        combined=draw(INT64),
        furthest=draw(INT64),
    )
    late = np.array(draw(st.lists(st.integers(0, 2**40), min_size=n, max_size=n)), np.int64)
    silent = np.array(draw(column), np.int64)
    finished = tuple(draw(st.lists(NAMES, max_size=4)))
    maybe = st.none() | st.integers(0, 2**42)
    segments = tuple(draw(st.lists(SEGMENTS, max_size=3)))
    log = draw(st.none() | st.tuples(IDS, st.integers(1, 2**40)))
    last, marks = draw(st.none() | SEGMENTS), st.binary(max_size=30)
    remembered = Remembered(draw(st.none() | KEYS), segments, log, last, draw(marks), draw(marks))
    names = draw(st.booleans())
    checkpoint = FilesCheckpoint(finished, remembered, draw(maybe), draw(st.none() | INT64), names_finished=names)
    return SourceState(draw(st.integers(0, 2**40)), splits, table, late, silent, draw(st.none() | st.just(checkpoint)))


@given(states())
def test_a_state_comes_back_from_its_offset_as_it_was(state: SourceState[FileSplit, FilesCheckpoint]) -> None:
    text = json.dumps(CODEC.encode(state))
    read = CODEC.decode(json.loads(text))
    assert (read.sequence, read.splits, read.checkpoint) == (state.sequence, state.splits, state.checkpoint)
    assert read.table.split_ids == state.table.split_ids
    assert (read.table.combined, read.table.furthest) == (state.table.combined, state.table.furthest)
    for column in ("watermarks", "statuses"):
        assert (getattr(read.table, column) == getattr(state.table, column)).all()
    assert (read.late == state.late).all()
    assert (read.silent_since_us == state.silent_since_us).all()
    # Equal states, equal texts: Spark compares the text.
    assert json.dumps(CODEC.encode(read)) == text


def offset(**changed: Any) -> dict[str, Any]:
    split = FileSplit("a", 3, "f.parquet", 3)
    table = WatermarkTable(split_ids=("a",), watermarks=np.array([5]), statuses=np.array([0], np.int8), combined=5)
    late, silent = np.zeros(1, np.int64), np.full(1, LONG_AGO_US)
    return {**CODEC.encode(SourceState(1, (split,), table, late, silent, FilesCheckpoint())), **changed}


def test_an_offset_says_since_when_a_split_is_silent_and_an_older_one_says_nothing() -> None:
    state = CODEC.decode(offset())
    silent = replace(state, silent_since_us=np.array([1_700_000_000_000_000]))
    entry = CODEC.encode(silent)["splits"][0]
    assert entry[1:] == [5, "active", 0, 1_700_000_000_000_000]
    assert CODEC.decode(offset(splits=[entry])).silent_since_us.tolist() == [1_700_000_000_000_000]
    assert CODEC.decode(offset(splits=[entry[:3]])).silent_since_us.tolist() == [LONG_AGO_US]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (offset(v=3), "version 3, this library reads up to 2.*upgrade spark-watermark-alignment"),
        (offset(v="1"), "version '1'"),
        (offset(splits_v=2), "offset's splits have version 2, this library reads up to 1"),
        (offset(enumerator=[3, {}]), "offset's enumerator have version 3|offset's enumerator has version 3"),
        (offset(source="aligned_kafka"), r"of another source \(aligned_kafka, .*use a new checkpointLocation"),
        (offset(id="0"), "of another source .*what is read, or how it is split, has changed"),
        ({"topic": {"0": 17}}, "this is not an offset of aligned_files.*belongs to another source"),
        (17, "this is not an offset of aligned_files: 17"),
        (None, "this is not an offset of aligned_files: null"),
        (offset(splits=[[["a", 1, "f", 1, 1], 5, "asleep"]]), "damaged offset of aligned_files: KeyError"),
        (offset(splits=[[["a"], 5, "active"]]), "damaged offset"),
        (offset(watermark="soon"), "damaged offset"),
        (offset(splits=[[["a", 1, "f", 1, 1], 2**63, "active"]]), "damaged offset of aligned_files: OverflowError"),
        (
            {k: v for k, v in offset().items() if k != "splits"},
            "damaged offset of aligned_files: KeyError\\('splits'\\)",
        ),
    ],
)
def test_what_is_no_offset_of_this_source_is_refused_with_the_reason(value: Any, message: str) -> None:
    with pytest.raises(OffsetError, match=message):
        CODEC.decode(value)


@pytest.mark.parametrize("run", [None, RunState(frozenset("a"), False, True), RunState(frozenset(), True, False)])
def test_an_offset_says_what_a_run_has_brought_where_runs_are_counted(run: RunState | None) -> None:
    codec = OffsetCodec(FileSource("/logs"))
    state = replace(SourceState.initial(), run=run)
    offset = json.loads(json.dumps(codec.encode(state)))
    assert codec.decode(offset).run == run
    assert ("run" in offset) == (run is not None)
    with pytest.raises(OffsetError, match="damaged"):
        codec.decode({**offset, "run": {"silent": [1]}})


def test_a_trailing_slash_is_no_other_source() -> None:
    assert OffsetCodec(FileSource("/data/in/")).decode(offset()).sequence == 1


def test_python_looks_for_garbage_in_a_planner_no_more_often_than_planning_is_worth() -> None:
    source = AlignedDataSource.of_format("aligned_datagen", {"rowsPerSplit": "1", "bounded": "true"})
    reader, before = source.stream_reader(source.schema()), gc.get_threshold()
    try:
        for own, then in ((700, 50_000), (60_000, 60_000)):
            gc.set_threshold(own, 11, 12)
            reader.latestOffset(reader.initialOffset(), ReadMaxRows(1))
            assert gc.get_threshold() == (then, 11, 12)
            reader.stop()
            reader = source.stream_reader(source.schema())
    finally:
        gc.set_threshold(*before)


def test_python_passes_over_what_a_worker_has_loaded_when_it_looks_for_garbage_after_each_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _keep_what_is_loaded.cache_clear()
    source = AlignedDataSource.of_format("aligned_datagen", {"rowsPerSplit": "1", "bounded": "true"})
    reader = source.stream_reader(source.schema())
    start = reader.initialOffset()
    (partition,) = reader.partitions(start, reader.latestOffset(start, ReadMaxRows(1)))
    kept, calls, freeze = list[int](), list[int](), gc.freeze
    monkeypatch.setattr(gc, "freeze", lambda: calls.append(len(kept)) or freeze())
    for context in (None, object(), object()):
        monkeypatch.setattr(TaskContext, "get", lambda context=context: context)
        assert sum(batch.num_rows for batch in reader.read(partition)) == 1
        kept.append(gc.get_freeze_count())
    reader.stop()
    assert kept[0] < kept[1]
    # In the first task, and in no other: what was kept may still be released, and be less.
    assert calls == [1]


def test_an_option_that_decides_what_is_read_is_named_where_it_has_changed(tmp_path: Path) -> None:
    def source(**options: str) -> FileSource:
        given = {"path": str(tmp_path), "fileFormat": "csv", "dataSchema": "ts timestamp", **options}
        return FileSource.from_options(FileSource.options().parse(given))

    was, now = source(header="true"), source()
    offset = OffsetCodec(was).encode(SourceState.initial()) | {"why": {"reads": was.identity}}
    with pytest.raises(OffsetError, match="option header is not given, and was when the checkpoint was written"):
        OffsetCodec(now).decode(offset)
    offset = OffsetCodec(now).encode(SourceState.initial()) | {"why": {"reads": now.identity}}
    with pytest.raises(OffsetError, match=r"option header is given, and was not .* use a new checkpointLocation"):
        OffsetCodec(was).decode(offset)
    elsewhere = source(path=str(tmp_path / "other"))
    with pytest.raises(OffsetError, match=f"has changed: it was {tmp_path}:csv; use a new checkpointLocation"):
        OffsetCodec(elsewhere).decode(offset)

"""Files of a table that wait, and what an offset keeps of them: against a plain model."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK
from streaming_source.connectors.tables.files import FILES, TableFile
from streaming_source.connectors.tables.split import TableCheckpoint, TableCheckpointSerializer
from streaming_source.connectors.tables.waiting import Progress, WaitingTableFiles, key_of
from streaming_source.exceptions import OffsetError

LOWS = st.integers(-3, 12) | st.just(MAX_WATERMARK)
GROUPS = st.lists(st.lists(st.tuples(LOWS, st.sampled_from("abcd")), max_size=6, unique=True), max_size=6)
SERIALIZER = TableCheckpointSerializer()


def files_of(files: list[TableFile]) -> pa.Table:
    """Files as columns, as a lister has them."""
    columns = [[getattr(file, name) for file in files] for name in FILES.names]
    return pa.Table.from_arrays([pa.array(c, f.type) for c, f in zip(columns, FILES, strict=True)], schema=FILES)


def table_of(group: list[tuple[int, str]], version: int) -> list[TableFile]:
    return [
        TableFile(f"{name}{low}", version, 1, low, low if low < MAX_WATERMARK else NO_TIMESTAMP) for low, name in group
    ]


def restored(progress: Progress, versions: dict[int, list[TableFile]]) -> WaitingTableFiles:
    """As an enumerator does it after a restart: by the versions of the table and what the offset has."""
    written = SERIALIZER.serialize(TableCheckpoint("t", progress))
    progress = SERIALIZER.deserialize(1, written).progress or progress
    waiting = WaitingTableFiles(progress.after, in_snapshot=progress.in_snapshot)
    after = progress.after
    if progress.in_snapshot:
        waiting.add(files_of(versions[after]), after, progress.steps[0].opened if progress.steps else None)
    for step in progress.steps:
        files = [file for version in range(after + 1, step.last + 1) for file in versions.get(version, [])]
        if step.last != after:
            waiting.add(files_of(files), step.last, step.opened)
        after = step.last
    return waiting


@given(GROUPS, st.booleans(), st.data())
def test_each_file_is_opened_once_in_order_whenever_it_is_restarted(
    groups: list[list[tuple[int, str]]], has_snapshot: bool, data: st.DataObject
) -> None:
    first = 5 if has_snapshot else 6
    versions = {first + number: table_of(group, first + number) for number, group in enumerate(groups)}
    waiting, naive = WaitingTableFiles(5, in_snapshot=has_snapshot and bool(groups)), []
    listed = iter(sorted(versions.items()))
    left = len(versions)
    while left or naive:
        if left and (not naive or data.draw(st.booleans(), label="commit")):
            version, files = next(listed)
            waiting.add(files_of(files), version)
            naive += files
            left -= 1
        elif naive:
            expected = min(naive, key=key_of)
            naive.remove(expected)
            assert waiting.pop() == (expected, None)
        if data.draw(st.booleans(), label="restart"):
            progress = waiting.settle()
            late = {file.version for file in naive}
            assert len(progress.steps) <= len(late) + 1
            assert len(waiting._runs) <= len(late) + len(progress.steps), "runs of which no file waits are kept"
            waiting = restored(progress, versions)
        assert (len(waiting), waiting.size) == (len(naive), len(naive))
        known = [file.low_us for file in naive if file.low_us is not None]
        assert waiting.earliest_us == min(known, default=MAX_WATERMARK)
    with pytest.raises(IndexError):
        waiting.pop()
    assert waiting.settle().steps == ()


def test_a_step_is_refused_where_the_file_at_which_it_ended_is_at_another_key_now() -> None:
    """Its first event time was one microsecond later than that of the file that waits: now both have the same."""
    waiting = WaitingTableFiles(5)
    waiting.add(files_of([TableFile("b", 6, 1, 1_000_100, 9), TableFile("a", 6, 1, 1_000_101, 9)]), 6)
    waiting.pop()
    now = files_of([TableFile("b", 6, 1, 1_000_000, 9), TableFile("a", 6, 1, 1_000_000, 9)])
    (step,) = waiting.settle().steps
    with pytest.raises(
        OffsetError,
        match=r"has 1970-01-01T00:00:01.0001Z .* of b, and now it is 1970-01-01T00:00:01Z",
    ):
        WaitingTableFiles(5).add(now, step.last, step.opened)


def test_a_snapshot_in_work_is_one_step_however_many_files_it_has() -> None:
    files = [TableFile(f"part-{n:05}.parquet", 3, 1, n, n) for n in range(10_000)]
    waiting = WaitingTableFiles(3, in_snapshot=True)
    waiting.add(files_of(files), 3)
    for _ in range(700):
        waiting.pop()
    for version in range(4, 40):
        waiting.add(files_of([TableFile(f"late-{version}", version, 1, 10_000 + version, 10_000 + version)]), version)

    written = SERIALIZER.serialize(TableCheckpoint("t", waiting.settle()))

    assert json.loads(written) == {
        "table": "t",
        "after": 3,
        "snapshot": True,
        "steps": [[39, [699, "part-00699.parquet", 3]]],
    }
    assert waiting.among({"part-00010.parquet", "part-00900.parquet", "other"}) == {"part-00900.parquet"}


def test_no_run_is_kept_of_which_no_file_waits_while_an_earlier_one_does() -> None:
    waiting = WaitingTableFiles(3, in_snapshot=True)
    waiting.add(files_of([TableFile("of-2075", 3, 1, 10**9, 10**9)]), 3)
    for version in range(4, 200):
        waiting.add(files_of([TableFile("a", version, 1, version, version)] if version % 2 else []), version)
        while len(waiting) > 1:
            waiting.pop()
        assert waiting.settle() == Progress(3, True, waiting.settle().steps)
        assert len(waiting._runs) <= 2

    assert [step.last for step in waiting.settle().steps] == [199]
    waiting.pop()
    assert waiting.settle() == Progress(199)


@pytest.mark.parametrize(
    "written", [b"{}", b'{"table":"t","after":1,"steps":[[2]]}', b'{"table":1,"after":"x"}', b"[]"]
)
def test_a_damaged_checkpoint_is_refused(written: bytes) -> None:
    with pytest.raises(OffsetError, match=r"damaged offset: .* in the place of its enumerator"):
        SERIALIZER.deserialize(1, written)

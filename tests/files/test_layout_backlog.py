"""Files that wait, and files that are known: each structure against a plain one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK
from streaming_source.connectors.files.file_discovery import Backlog, WaitingFile, order_key
from streaming_source.connectors.files.listing import ListedFile
from streaming_source.connectors.files.marks import Known, MarkSet, marks_of
from streaming_source.connectors.files.split import FileOrder
from streaming_source.data_files.file import FileBlocks
from streaming_source.data_files.queued import OpenFiles
from tests.memory import traced

NAMES = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0/"), min_size=1, max_size=4)
PATHS = st.lists(NAMES, min_size=1, max_size=2).map("/".join)
ORDERS: tuple[FileOrder, ...] = ("eventTime", "name", "modificationTime")


def blocks(earliest: int, n: int = 1, places: bool = False) -> FileBlocks:
    rows = np.arange(1, n + 1)
    return FileBlocks(rows, rows * 10, rows * 20, np.full(n, earliest), tuple(range(n)) if places else None)


@st.composite
def waiting_files(draw: st.DrawFn) -> WaitingFile:
    file = ListedFile.of(draw(PATHS), draw(st.integers(-(2**40), 2**42)), draw(st.integers(0, 2**40)))
    earliest = draw(st.sampled_from([NO_TIMESTAMP, MAX_WATERMARK]) | st.integers(-5, 5))
    return WaitingFile(file, blocks(earliest, draw(st.integers(0, 3)), draw(st.booleans())))


def same(left: WaitingFile, right: WaitingFile) -> bool:
    a, b = left.blocks, right.blocks
    assert a is not None
    assert b is not None
    columns = ("rows", "min_us", "max_us", "valid_min_us")
    return left.file == right.file and (
        all((getattr(a, name) == getattr(b, name)).all() for name in columns) and a.offsets == b.offsets
    )


@pytest.mark.parametrize("order", ORDERS)
@given(waiting=waiting_files())
def test_a_waiting_file_comes_back_from_its_bytes(order: FileOrder, waiting: WaitingFile) -> None:
    packed = waiting.pack(order)
    assert same(WaitingFile.unpack(packed, order), waiting)
    unseen = WaitingFile(waiting.file)
    if order != "eventTime":
        assert WaitingFile.unpack(unseen.pack(order), order) == unseen


@dataclass
class NaiveBacklog:
    """A list that is sorted whenever it is asked."""

    order: FileOrder
    files: list[WaitingFile]

    def key(self, waiting: WaitingFile) -> tuple[object, ...]:
        file = waiting.file
        path = file.relative_path.encode()
        if self.order == "name":
            return (path,)
        if self.order == "modificationTime":
            return (file.modified_ms, path)
        assert waiting.blocks is not None
        timeless = waiting.blocks.earliest_us == MAX_WATERMARK
        return (not timeless, 0 if timeless else waiting.blocks.earliest_us, b"" if timeless else path)


@pytest.mark.parametrize("order", ORDERS)
@given(data=st.data())
def test_files_come_out_of_a_backlog_in_their_order(order: FileOrder, data: st.DataObject) -> None:
    backlog, naive = Backlog(order, width_ms=10), NaiveBacklog(order, [])
    known: set[str] = set()
    for _ in range(data.draw(st.integers(1, 30))):
        if data.draw(st.booleans()):
            new = [f for f in data.draw(st.lists(waiting_files(), max_size=4)) if f.file.relative_path not in known]
            new = list({waiting.file.relative_path: waiting for waiting in new}.values())
            known |= {waiting.file.relative_path for waiting in new}
            backlog.add(waiting.pack(order) for waiting in new)
            naive.files += new
        elif naive.files and data.draw(st.integers(0, 3)) == 0:
            wanted = data.draw(st.sampled_from(naive.files))
            taken = backlog.take(wanted.file.relative_path)
            assert taken is not None
            assert same(taken, wanted)
            naive.files.remove(wanted)
            assert backlog.take(wanted.file.relative_path) is None
        elif naive.files:
            first = min(map(naive.key, naive.files))
            popped = backlog.pop()
            assert naive.key(popped) == first
            naive.files = [waiting for waiting in naive.files if not same(waiting, popped)]
        assert len(backlog) == len(naive.files)
        if order == "eventTime":
            times = [waiting.blocks.earliest_us for waiting in naive.files if waiting.blocks is not None]
            assert backlog.earliest_us == min(times, default=MAX_WATERMARK)
        keys = [order_key(waiting.file, order) for waiting in naive.files]
        if order == "eventTime":
            keys = [(modified_ms // 10 * 10, "") for modified_ms, _ in keys]
            assert backlog.lowest == min(keys, default=None)
        else:
            assert backlog.lowest == min(keys, key=lambda key: (key[0], key[1].encode()), default=None)
    if not naive.files:
        with pytest.raises(IndexError):
            backlog.pop()


def waiting_in_a_backlog(n: int) -> Backlog:
    names = np.random.default_rng(1).permutation(n).tolist()
    files = [ListedFile("day=2024-01-01/region=eu", f"part-{n:05d}-c000.snappy.parquet", n, n) for n in names]
    backlog = Backlog("eventTime")
    for begin in range(0, len(files), 1000):
        backlog.add(WaitingFile(file, blocks(file.size)).pack("eventTime") for file in files[begin : begin + 1000])
    return backlog


def test_a_waiting_file_takes_few_bytes() -> None:
    n = 8_000
    backlog, held, _ = traced(waiting_in_a_backlog, n)
    assert held / n < 300
    assert [backlog.pop().file.size for _ in range(n)] == list(range(n))


# ---- marks ---------------------------------------------------------------------------------------------------------


FILES = st.builds(ListedFile.of, st.sampled_from(["a", "b/c", "b/d", "é"]), st.integers(0, 2), st.integers(-1, 2))


@given(st.lists(st.lists(FILES, max_size=5), max_size=8), st.lists(FILES, max_size=8))
def test_a_file_is_known_again_and_told_when_it_was_rewritten(
    added: list[list[ListedFile]], asked: list[ListedFile]
) -> None:
    known = MarkSet()
    versions: dict[str, set[tuple[int, int] | None]] = {}
    for files in added:
        known.add(marks_of(files))
        # What is forgotten is forgotten, and nothing else.
        other = ListedFile.of("other", 1, 1)
        known.add(marks_of([other]))
        known.remove(marks_of([other, ListedFile.of("a", 9, 9)]))
        for file in files:
            version = None if file.size < 0 else (file.size, file.modified_ms)
            versions.setdefault(file.relative_path, set()).add(version)
    assert len(known) == sum(map(len, added))
    for file, found in zip(asked, known.match(marks_of(asked)).tolist(), strict=True):
        of_path = versions.get(file.relative_path)
        if of_path is None:
            assert found == Known.NEW
        else:
            is_same = file.size < 0 or None in of_path or (file.size, file.modified_ms) in of_path
            assert found == (Known.SAME if is_same else Known.REWRITTEN)


class Queue:
    """Paths that wait."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths
        self.earliest_us = 0

    def __len__(self) -> int:
        return len(self.paths)

    def pop(self) -> tuple[str, None]:
        return self.paths.pop(0), None


def taken(files: OpenFiles[str], paths: list[str], *, is_blocked: bool = False, limit: int = 10_000) -> list[str]:
    left = [limit]

    def may_open(file: str | None) -> bool:
        left[0] -= file is not None
        return left[0] > 0

    return [path for path, _ in files.take_from(Queue(paths), str, may_open, is_blocked=is_blocked)]


def test_open_files_beyond_their_room_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    files: OpenFiles[str] = OpenFiles(max_files=400, max_bytes=40 * 1024, bytes_beside=72)
    paths = [f"{number:028}" for number in range(700)]
    for number, path in enumerate(paths):
        assert bool(taken(files, ["x"])) == (number < 400)
        files[path] = path
        assert len(caplog.records) == ((number + 1) * 100 > 56 * 1024)
    assert "574 files are open at once, some 56 KiB of the offset" in caplog.text
    for path in paths[:301]:
        assert files.pop(path) == path
    assert len(files) == 399
    assert taken(files, ["x", "y"]) == ["x"]
    assert (paths[0] in files, paths[-1] in files) == (False, True)
    # Where paths are long there is room for fewer.
    files["x" * 1000] = "x"
    assert not taken(files, ["x"])


def test_a_file_that_is_open_already_takes_no_more_room() -> None:
    """As after a rewind, which restores the splits of open files."""
    files: OpenFiles[str] = OpenFiles(max_files=400, max_bytes=200, bytes_beside=72)
    for _ in range(3):
        files.update({"a": "a", "b": "b"})
    assert taken(files, ["x", "y"]) == ["x"]
    del files["a"], files["b"]
    assert taken(files, ["x", "y", "z", "w"]) == ["x", "y", "z"]


def test_files_are_taken_without_room_where_nothing_can_be_read_otherwise() -> None:
    files: OpenFiles[str] = OpenFiles(max_files=40, max_bytes=40 * 1024, bytes_beside=72)
    assert len(taken(files, ["x"] * 99)) == 40
    assert len(taken(files, ["x"] * 99, limit=3)) == 3
    files.update((str(number), "x") for number in range(48))
    assert not taken(files, ["x"] * 99)
    assert len(taken(files, ["x"] * 99, is_blocked=True)) == 6
    assert len(taken(files, ["x"] * 99, is_blocked=True, limit=0)) == 1
    files.expect_finished([str(number) for number in range(20)])
    assert len(taken(files, ["x"] * 99)) == 12

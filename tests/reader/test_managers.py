from __future__ import annotations

import logging
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from streaming_source.api import Fetching, InputStatus, RecordBlock, SplitReader
from streaming_source.exceptions import OptionError, SourceError
from streaming_source.reader import (
    FixedSizeSplitFetcherManager,
    PerSplitFetcherManager,
    SingleThreadFetcherManager,
    SplitFetcherManager,
    create_fetcher_manager,
)
from tests.reader.numbers import (
    WAIT_S,
    BlockingSplitReader,
    FailingSplitReader,
    NumberSplitReader,
    Output,
    Readers,
    Split,
    TellingQueue,
    base_reader,
    fetcher_threads,
    poll_until_emitted,
    read_to_end,
)

ROOT = Path(__file__).resolve().parents[2]
Manager = SplitFetcherManager[Split, RecordBlock]


def splits(count: int, stop: int = 10) -> list[Split]:
    return [Split(f"split-{number}", 0, stop) for number in range(count)]


def wait_for_error(manager: Manager) -> None:
    """Take what was fetched until a fetcher fails."""
    while manager._error is None:
        manager.queue.available.result(WAIT_S)
        manager.queue.poll()


# ---- whose a split is --------------------------------------------------------------------------------------------


def test_one_thread_reads_all_splits() -> None:
    readers = Readers()
    reader = base_reader(SingleThreadFetcherManager(readers))
    reader.add_splits(splits(5))
    reader.add_splits([Split("later", 0, 10)])
    reader.notify_no_more_splits()
    read_to_end(reader, Output())
    reader.close()
    assert len(readers.made) == 1


def test_a_fetcher_for_each_split() -> None:
    readers = Readers()
    reader = base_reader(PerSplitFetcherManager(readers))
    reader.add_splits(splits(5))
    reader.notify_no_more_splits()
    read_to_end(reader, Output())
    reader.close()
    assert [r.log[0] for r in readers.made] == [("add", [f"split-{n}"]) for n in range(5)]


def test_a_fixed_number_of_fetchers_shares_splits_by_a_hash_that_is_the_same_in_every_process() -> None:
    ids = [f"split-{number}" for number in range(40)]
    manager: FixedSizeSplitFetcherManager[Split, RecordBlock] = FixedSizeSplitFetcherManager(Readers(), 4)
    keys = [manager.key_of(split_id) for split_id in ids]
    assert set(keys) == {0, 1, 2, 3}
    code = (
        "from streaming_source.reader import FixedSizeSplitFetcherManager as M; m = M(None, 4);"
        "print([m.key_of(f'split-{n}') for n in range(40)])"
    )
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == str(keys)


@pytest.mark.parametrize(
    ("fetching", "manager"),
    [
        (Fetching.single_thread(), SingleThreadFetcherManager),
        (Fetching.fixed_size(3), FixedSizeSplitFetcherManager),
        (Fetching.per_split(), PerSplitFetcherManager),
    ],
)
def test_a_source_says_how_its_splits_are_fetched(fetching: Fetching, manager: type) -> None:
    assert type(create_fetcher_manager(fetching, Readers())) is manager


def test_less_than_one_thread_is_refused() -> None:
    with pytest.raises(OptionError, match="threads = 0"):
        Fetching.fixed_size(0)
    with pytest.raises(ValueError, match="fetchers = 0"):
        FixedSizeSplitFetcherManager(Readers(), 0)


@pytest.mark.parametrize("kind", ["fixed", "per split"])
def test_a_fetch_that_blocks_does_not_block_other_splits(kind: str) -> None:
    readers = Readers(BlockingSplitReader)
    manager: Manager = (
        PerSplitFetcherManager(readers) if kind == "per split" else FixedSizeSplitFetcherManager(readers, 2)
    )
    free = "split-0"
    blocked = next(f"split-{n}" for n in range(9) if manager.key_of(f"split-{n}") != manager.key_of(free))
    reader, output = base_reader(manager), Output()
    reader.add_splits([Split(free, 0, 10), Split(blocked, 0, 10)])
    reader.notify_no_more_splits()
    by_split = {r.log[0][1][0]: r for r in _once_logged(readers.made)}
    by_split[free].release(5)
    poll_until_emitted(reader, output, 10)
    assert output.of(free) == list(range(10))
    assert output.of(blocked) == []
    by_split[blocked].release(5)
    read_to_end(reader, output)
    assert output.of(blocked) == list(range(10))
    reader.close()


def _once_logged(made: list[BlockingSplitReader]) -> list[BlockingSplitReader]:
    for split_reader in made:
        assert split_reader.is_fetching.wait(WAIT_S)
    return made


# ---- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("good_fetches", [0, 2])
def test_ft_08_an_error_of_a_fetch_is_raised_to_the_reader(good_fetches: int) -> None:
    error = ValueError("the disk is on fire")
    manager: SingleThreadFetcherManager[Split, RecordBlock] = SingleThreadFetcherManager(
        Readers(lambda: FailingSplitReader(good_fetches, error))
    )
    manager.add_splits([Split("a")])
    wait_for_error(manager)
    assert manager.queue.available.done()
    with pytest.raises(ValueError, match="the disk is on fire") as raised:
        manager.check_errors()
    assert raised.value is error
    assert error.__notes__ == ["(in split fetcher 0, which read 'a')"]
    with pytest.raises(ValueError, match="the disk is on fire"):
        manager.poll()
    manager.close(WAIT_S)


def test_a_reader_that_failed_never_reaches_the_end_of_input() -> None:
    reader = base_reader(Readers(lambda: FailingSplitReader(1, ValueError("on fire"))))
    reader.add_splits([Split("a", 0, 100)])
    reader.notify_no_more_splits()
    for _ in range(3):
        with pytest.raises(ValueError, match="on fire"):
            read_to_end(reader, Output())
    reader.close()


def test_the_first_error_is_kept_and_later_ones_are_attached() -> None:
    errors = iter([ValueError("first"), KeyError("second")])
    both = threading.Barrier(2)

    class Failing(NumberSplitReader):
        def fetch(self) -> None:  # type: ignore[override]
            both.wait(WAIT_S)
            raise next(errors)

    manager: PerSplitFetcherManager[Split, RecordBlock] = PerSplitFetcherManager(Readers(Failing))
    manager.add_splits(splits(2))
    while manager._error is None or len(manager._error.__notes__) < 2:
        manager.queue.available.result(WAIT_S)
        manager.queue.poll()
    with pytest.raises((ValueError, KeyError)) as raised:
        manager.check_errors()
    notes = raised.value.__notes__
    other = "KeyError('second')" if isinstance(raised.value, ValueError) else "ValueError('first')"
    assert notes[0].startswith("(in split fetcher ")
    assert notes[1].startswith("(after it split fetcher ")
    assert notes[1].endswith(f"failed as well: {other})")
    manager.close(WAIT_S)


def test_an_error_in_closing_a_split_reader_is_raised_by_check_errors() -> None:
    class Unclosable(NumberSplitReader):
        def close(self) -> None:
            super().close()
            raise OSError("handle is invalid")

    manager: SingleThreadFetcherManager[Split, RecordBlock] = SingleThreadFetcherManager(Readers(Unclosable))
    manager.add_splits([Split("a")])
    manager.close(WAIT_S)
    with pytest.raises(OSError, match="handle is invalid"):
        manager.check_errors()


def test_a_thread_that_exits_is_an_error_and_does_not_end_the_process() -> None:
    manager: SingleThreadFetcherManager[Split, RecordBlock] = SingleThreadFetcherManager(
        Readers(lambda: FailingSplitReader(0, SystemExit(3)))
    )
    manager.add_splits([Split("a")])
    wait_for_error(manager)
    with pytest.raises(SourceError, match=r"split fetcher 0 was ended by SystemExit\(3\)") as raised:
        manager.check_errors()
    assert isinstance(raised.value.__cause__, SystemExit)
    manager.close(WAIT_S)


# ---- the end of fetchers -----------------------------------------------------------------------------------------


def test_idle_fetchers_end_and_new_splits_get_a_new_one_with_a_new_split_reader() -> None:
    readers = Readers()
    reader, output = base_reader(PerSplitFetcherManager(readers)), Output()
    for number in range(3):
        reader.add_splits([Split(f"{number}", 0, 4)])
        poll_until_emitted(reader, output, 4 * (number + 1))
        while reader.poll_next(output) is not InputStatus.NOTHING_AVAILABLE or reader._fetchers._live:
            reader.is_available().result(WAIT_S)
        assert readers.made[number].closed.wait(WAIT_S)
    assert len(readers.made) == 3
    reader.notify_no_more_splits()
    read_to_end(reader, output)
    reader.close()


def test_ft_10_a_full_queue_does_not_keep_the_manager_from_closing() -> None:
    readers = Readers()
    manager: SingleThreadFetcherManager[Split, RecordBlock] = SingleThreadFetcherManager(readers)
    manager.queue = queue = TellingQueue(1)
    manager.add_splits([Split("a", 0, 2)])
    assert queue.has_idle_fetcher.wait(WAIT_S)
    assert manager.maybe_shutdown_finished_fetchers()
    assert len(queue) == 1
    manager.close(WAIT_S)
    assert readers.all_closed()


def test_closing_ends_every_thread_whatever_it_does() -> None:
    readers = Readers(BlockingSplitReader)
    manager: PerSplitFetcherManager[Split, RecordBlock] = PerSplitFetcherManager(readers, queue_capacity=1)
    manager.add_splits([Split(split_id) for split_id in ("waits for data", "waits for room")])
    _once_logged(readers.made[:2])
    readers.made[1].release(5)
    manager.queue.available.result(WAIT_S)
    manager.close(WAIT_S)
    assert not fetcher_threads()
    assert readers.all_closed()


def test_a_thread_that_does_not_end_in_time_is_named_in_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    class Deaf(BlockingSplitReader):
        wake_up = SplitReader.wake_up

    readers = Readers(Deaf)
    manager: SingleThreadFetcherManager[Split, RecordBlock] = SingleThreadFetcherManager(readers)
    manager.add_splits([Split("a")])
    assert _once_logged(readers.made)
    with caplog.at_level(logging.WARNING):
        manager.close(0.01)
    assert "not ended within 0.01 s, left behind: split fetcher 0" in caplog.text
    readers.made[0].release()
    assert readers.made[0].closed.wait(WAIT_S)
    for thread in fetcher_threads():
        thread.join(WAIT_S)


def test_splits_cannot_be_added_twice_nor_after_the_end() -> None:
    manager: SingleThreadFetcherManager[Split, RecordBlock] = SingleThreadFetcherManager(Readers())
    manager.add_splits([Split("a")])
    with pytest.raises(SourceError, match="'a' was added, and is being read already"):
        manager.add_splits([Split("a", 5)])
    manager.close(WAIT_S)
    with pytest.raises(SourceError, match="closed"):
        manager.add_splits([Split("b")])

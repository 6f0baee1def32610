from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from streaming_source.api import (
    BlockEmitter,
    InputStatus,
    RecordBlock,
    RecordEmitter,
    RecordEvaluator,
    RecordsBySplits,
    RecordsWithSplitIds,
    SourceEvent,
    SourceOutput,
    SourceReaderContext,
    SourceSplit,
    SplitState,
)
from streaming_source.exceptions import SourceError, UnsupportedOperationError
from streaming_source.reader import (
    PerSplitFetcherManager,
    SingleThreadFetcherManager,
    SourceReaderBase,
)
from tests.reader.numbers import (
    SCHEMA,
    WAIT_S,
    BlockingSplitReader,
    NumberSplitReader,
    Output,
    Readers,
    Split,
    TellingQueue,
    base_reader,
    block,
    poll_until_emitted,
    read_to_end,
)


class Scripted(NumberSplitReader):
    """Brings prepared records, then nothing more."""

    def __init__(self, *records: RecordsWithSplitIds[RecordBlock]) -> None:
        super().__init__()
        self._records = list(records)

    def fetch(self) -> RecordsWithSplitIds[RecordBlock]:
        return self._records.pop(0) if self._records else RecordsBySplits(finished_splits=set(self.splits))


class Recycled(RecordsBySplits[RecordBlock]):
    """Tells when it is recycled."""

    recycled = False

    def recycle(self) -> None:
        assert not self.recycled, "recycled twice"
        self.recycled = True


def wait_and_poll(reader: SourceReaderBase[Split, RecordBlock], output: Output) -> InputStatus:
    reader.is_available().result(WAIT_S)
    return reader.poll_next(output)


# ---- polling -----------------------------------------------------------------------------------------------------


def test_rd_02_a_batch_is_recycled_when_all_of_it_is_out() -> None:
    records = Recycled({"a": [block(0, 1), block(1, 2)]})
    reader, output = base_reader(Readers(lambda: Scripted(records))), Output()
    reader.add_splits([Split("a")])
    assert wait_and_poll(reader, output) is InputStatus.MORE_AVAILABLE
    assert not records.recycled
    reader.poll_next(output)
    assert not records.recycled
    reader.poll_next(output)
    assert records.recycled
    assert output.emitted == [("a", 0), ("a", 1)]
    reader.close()


def test_rd_04_a_batch_that_arrives_with_the_end_of_its_fetcher_is_not_overlooked() -> None:
    class Racing(SingleThreadFetcherManager[Split, RecordBlock]):
        """The reader looks into the queue just before the last batch arrives, and then for live fetchers."""

        looked = False

        def poll(self) -> Any:
            if not self.looked:
                self.looked = True
                assert queue.has_idle_fetcher.wait(WAIT_S)
                return None
            return super().poll()

    manager = Racing(Readers())
    manager.queue = queue = TellingQueue()
    reader, output = base_reader(manager), Output()
    reader.add_splits([Split("a", 0, 2)])
    reader.notify_no_more_splits()
    assert reader.poll_next(output) is InputStatus.MORE_AVAILABLE
    assert output.emitted == []
    read_to_end(reader, output)
    assert output.of("a") == [0, 1]
    reader.close()


@pytest.mark.parametrize("manager", [SingleThreadFetcherManager, PerSplitFetcherManager])
def test_rd_06_all_records_of_all_splits_come(manager: Any) -> None:
    reader, output = base_reader(manager(Readers())), Output()
    reader.start()
    reader.add_splits([Split(str(n), 10 * n, 10 * (n + 1)) for n in range(10)])
    reader.notify_no_more_splits()
    read_to_end(reader, output)
    reader.close()
    numbers = [number for _, number in output.emitted]
    assert (len(numbers), len(set(numbers)), min(numbers), max(numbers)) == (100, 100, 0, 99)
    assert reader.context.metrics.records == 100


def test_rd_08_without_the_word_that_no_split_will_come_there_is_no_end() -> None:
    reader, output = base_reader(Readers()), Output()
    reader.add_splits([Split("a", 0, 4)])
    poll_until_emitted(reader, output, 4)
    while reader._fetchers._live:
        assert wait_and_poll(reader, output) is not InputStatus.END_OF_INPUT
    assert reader.poll_next(output) is InputStatus.NOTHING_AVAILABLE
    waiting = reader.is_available()
    reader.notify_no_more_splits()
    reader.notify_no_more_splits()
    waiting.result(WAIT_S)
    assert reader.poll_next(output) is InputStatus.END_OF_INPUT
    assert reader.poll_next(output) is InputStatus.END_OF_INPUT
    reader.close()


def test_a_reader_without_splits_ends_when_none_will_come() -> None:
    reader, output = base_reader(Readers()), Output()
    assert reader.poll_next(output) is InputStatus.NOTHING_AVAILABLE
    assert not reader.is_available().done()
    reader.notify_no_more_splits()
    assert wait_and_poll(reader, output) is InputStatus.END_OF_INPUT
    reader.close()


def test_empty_fetches_and_empty_blocks_emit_nothing() -> None:
    script = Scripted(RecordsBySplits(), RecordsBySplits({"a": []}), RecordsBySplits({"a": [block(0, 0), block(0, 1)]}))
    reader, output = base_reader(Readers(lambda: script)), Output()
    reader.add_splits([Split("a")])
    reader.notify_no_more_splits()
    read_to_end(reader, output)
    assert output.emitted == [("a", 0)]
    reader.close()


def test_records_of_a_split_that_was_never_added_are_an_error() -> None:
    reader = base_reader(Readers(lambda: Scripted(RecordsBySplits({"b": [block(0, 1)]}))))
    reader.add_splits([Split("a")])
    with pytest.raises(SourceError, match="'b', which was never added or is finished"):
        read_to_end(reader, Output())
    reader.close()


def test_records_of_a_split_that_another_fetcher_reads_are_an_error() -> None:
    scripts = iter([Scripted(RecordsBySplits({"b": [block(0, 1)]})), NumberSplitReader()])
    reader = base_reader(PerSplitFetcherManager(Readers(lambda: next(scripts))))
    reader.add_splits([Split("a"), Split("b")])
    with pytest.raises(SourceError, match="split fetcher 0 fetched records of split 'b'"):
        read_to_end(reader, Output())
    reader.close()


def test_a_fetched_split_must_be_selected_before_its_records() -> None:
    records = RecordsBySplits({"a": [1]})
    with pytest.raises(RuntimeError, match="next_split"):
        records.next_record_from_split()


# ---- the state of splits -----------------------------------------------------------------------------------------


def test_rd_10_a_snapshot_is_that_of_what_was_emitted() -> None:
    reader, output = base_reader(Readers(lambda: NumberSplitReader(per_fetch=10))), Output()
    splits = [Split(str(n)) for n in range(10)]
    reader.add_splits(splits)
    assert reader.snapshot_state() == splits
    poll_until_emitted(reader, output, 100)
    assert reader.snapshot_state() == [Split(str(n), 10) for n in range(10)]
    reader.close()


def test_rd_12_a_sequence_that_is_restored_again_and_again_comes_once_and_in_order() -> None:
    output = Output()
    splits = [Split("a", 177, 334), Split("b", 334, 564)]
    while splits:
        reader = base_reader(Readers(lambda: NumberSplitReader(per_fetch=1)))
        output.released.clear()
        reader.add_splits(splits)
        reader.notify_no_more_splits()
        for _ in range(3):
            if reader.poll_next(output) is InputStatus.NOTHING_AVAILABLE:
                reader.is_available().result(WAIT_S)
        splits = reader.snapshot_state()
        reader.close()
    assert output.of("a") == list(range(177, 334))
    assert output.of("b") == list(range(334, 564))


def test_positions_with_gaps_move_the_state_behind_the_last() -> None:
    import numpy as np

    state = SplitState(Split("a", 3))
    gaps = RecordBlock(block(0, 3).batch, np.array([3, 7, 12]))

    class Sink(Output):
        def collect(self, batch: pa.RecordBatch, source_timestamps: Any = None, *, positions: Any) -> None:
            assert positions.tolist() == [3, 7, 12]

    BlockEmitter[Split]().emit_record(gaps, Sink(), state)
    assert state.to_split() == Split("a", 13)


def test_a_split_that_is_no_dataclass_must_say_how_it_is_at_a_position() -> None:
    class Opaque(SourceSplit):
        split_id, position = "a", 3  # type: ignore[assignment]

        def origin(self) -> Opaque:
            return self

    state = SplitState(Opaque())
    assert state.to_split() is state.split
    state.position = 4
    with pytest.raises(SourceError, match=r"'a' of type Opaque.*override SplitState.to_split"):
        state.to_split()


def test_a_subclass_keeps_more_state_and_hears_of_splits_that_finished() -> None:
    class Counting(SplitState[Split]):
        elements = 0

    class Emitter(RecordEmitter[RecordBlock, Split]):
        def emit_record(self, element: RecordBlock, output: SourceOutput, split_state: SplitState[Split]) -> None:
            BlockEmitter[Split]().emit_record(element, output, split_state)
            assert isinstance(split_state, Counting)
            split_state.elements += 1

    finished: list[tuple[str, int, int]] = []
    output = Output()

    class Reader(SourceReaderBase[Split, RecordBlock]):
        def initialized_state(self, split: Split) -> Counting:
            return Counting(split)

        def on_split_finished(self, states: Mapping[str, SplitState[Split]]) -> None:
            for split_id, state in states.items():
                assert isinstance(state, Counting)
                finished.append((split_id, state.position, state.elements))
                assert split_id in output.released

    reader = Reader(SingleThreadFetcherManager(Readers()), Emitter(), SourceReaderContext(SCHEMA))
    reader.add_splits([Split("a", 0, 4), Split("b", 3, 5)])
    reader.notify_no_more_splits()
    read_to_end(reader, output)
    reader.close()
    assert finished == [("b", 5, 1), ("a", 4, 2)]


def test_elements_may_be_of_any_kind_where_an_emitter_makes_records_of_them() -> None:
    class Rows(NumberSplitReader):
        def fetch(self) -> RecordsWithSplitIds[Any]:
            return RecordsBySplits({"a": [[0, 1], [2]]}, finished_splits={"a"})

    class Emitter(RecordEmitter[list[int], Split]):
        def emit_record(self, element: list[int], output: SourceOutput, split_state: SplitState[Split]) -> None:
            output.collect(pa.record_batch([pa.array(element)], schema=SCHEMA), positions=split_state.position)
            split_state.position += len(element)

    manager: SingleThreadFetcherManager[Split, list[int]] = SingleThreadFetcherManager(Readers(Rows))
    reader, output = SourceReaderBase(manager, Emitter(), SourceReaderContext(SCHEMA)), Output()
    reader.add_splits([Split("a")])
    reader.notify_no_more_splits()
    read_to_end(reader, output)
    reader.close()
    assert output.of("a") == [0, 1, 2]


# ---- outputs -----------------------------------------------------------------------------------------------------


def test_the_output_of_a_split_is_there_from_its_addition_until_its_last_record() -> None:
    readers = Readers(BlockingSplitReader)
    reader, output = base_reader(readers), Output()
    reader.add_splits([Split("a", 0, 4)])
    assert reader.poll_next(output) is InputStatus.NOTHING_AVAILABLE
    assert output.created == ["a"]
    reader.add_splits([Split("b", 0, 4)])
    assert output.created == ["a", "b"]
    readers.made[0].release(2)
    poll_until_emitted(reader, output, 8)
    assert output.released == []
    reader.notify_no_more_splits()
    read_to_end(reader, output)
    assert output.released == ["a", "b"]
    reader.close()


def test_a_split_may_come_back_after_its_end() -> None:
    reader, output = base_reader(Readers()), Output()
    reader.add_splits([Split("a", 0, 4)])
    poll_until_emitted(reader, output, 4)
    while not output.released:
        wait_and_poll(reader, output)
    output.released.clear()
    reader.add_splits([Split("a", 4, 8)])
    reader.notify_no_more_splits()
    read_to_end(reader, output)
    assert output.of("a") == list(range(8))
    reader.close()


class EndsAt(RecordEvaluator):
    def __init__(self, number: int) -> None:
        self._number = number

    def end_of_stream(self, batch: pa.RecordBatch) -> int | None:
        row: int = pc.index(batch.column(0), self._number).as_py()
        return None if row < 0 else row


@pytest.mark.parametrize("end", [0, 3, 4, 7])
def test_a_record_that_ends_its_split_is_not_emitted_nor_is_anything_after_it(end: int) -> None:
    readers = Readers(lambda: NumberSplitReader(per_fetch=4))
    reader, output = base_reader(readers, end_of_stream=EndsAt(end)), Output()
    reader.add_splits([Split("a"), Split("b", 100, 120)])
    reader.notify_no_more_splits()
    read_to_end(reader, output)
    assert output.of("a") == list(range(end))
    assert output.of("b") == list(range(100, 120))
    assert sorted(output.released) == ["a", "b"]
    assert reader.snapshot_state() == []
    assert ("remove", ["a"]) in readers.made[0].log
    reader.close()


def test_a_split_that_ended_by_a_record_is_in_no_later_snapshot() -> None:
    reader, output = base_reader(Readers(lambda: NumberSplitReader(per_fetch=4)), end_of_stream=EndsAt(2)), Output()
    reader.add_splits([Split("a")])
    poll_until_emitted(reader, output, 2)
    assert reader.snapshot_state() == []
    reader.close()


# ---- availability ------------------------------------------------------------------------------------------------


def test_a_reader_is_available_while_it_has_a_batch_in_hand_and_when_one_comes() -> None:
    readers = Readers(BlockingSplitReader)
    reader, output = base_reader(readers), Output()
    reader.add_splits([Split("a"), Split("b")])
    reader.poll_next(output)
    waiting = [reader.is_available(), reader.is_available()]
    assert not any(future.done() for future in waiting)
    readers.made[0].release()
    for future in waiting:
        future.result(WAIT_S)
    reader.poll_next(output)
    assert reader.is_available().done()
    reader.close()


# ---- what a reader tells its coordinator, and hears from it --------------------------------------------------------


@dataclass(frozen=True)
class Hello(SourceEvent):
    text: str


def test_a_reader_can_send_events_and_ask_for_splits_where_somebody_listens() -> None:
    sent: list[Any] = []
    context = SourceReaderContext(
        SCHEMA,
        index_of_subtask=3,
        send_split_request=lambda: sent.append("split"),
        send_source_event_to_coordinator=sent.append,
    )
    context.send_split_request()
    context.send_source_event_to_coordinator(Hello("enumerator"))
    assert sent == ["split", Hello("enumerator")]
    alone = SourceReaderContext(SCHEMA)
    with pytest.raises(UnsupportedOperationError, match="no coordinator"):
        alone.send_split_request()
    with pytest.raises(UnsupportedOperationError, match="Hello cannot be sent"):
        alone.send_source_event_to_coordinator(Hello("nobody"))


def test_an_event_that_nobody_understands_is_an_error() -> None:
    reader = base_reader(Readers())
    with pytest.raises(UnsupportedOperationError, match="was sent a Hello: override handle_source_events"):
        reader.handle_source_events(Hello("reader"))
    reader.close()

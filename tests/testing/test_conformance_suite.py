"""The suite for connectors finds what is wrong with them: each broken one is told by the test that is about it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from streaming_source.api import (
    DiscoveredSplits,
    DiscoveredSplitsSerializer,
    JsonSerializer,
    RecordBlock,
    RecordsBySplits,
    RecordSplit,
    SourceReader,
    SourceReaderContext,
    SplitReader,
)
from streaming_source.connectors.datagen import DataGeneratorSource
from streaming_source.reader import create_base_reader
from streaming_source.testing import TestingSource
from streaming_source.testing.conformance import Expected, SourceConformance
from streaming_source.tools.testing.conformance import reading
from streaming_source.tools.testing.source import Element


class Connector(SourceConformance):
    """A source for tests, or one that is broken."""

    __test__ = False
    kind: ClassVar[type[TestingSource]] = TestingSource
    options: ClassVar[dict[str, Any]] = {}
    patience_s = 0.05

    def set_up(self) -> None:
        super().set_up()
        self.script: dict[str, list[Element]] = {}
        self.made: list[TestingSource] = []

    def create_source(self, bounded: bool) -> TestingSource:
        self.made.append(self.kind(self.script, clock=self.clock, bounded=bounded, **self.options))
        return self.made[-1]

    def write(self, split: int, times_us: Sequence[int]) -> None:
        self.script.setdefault(self.split_id(split), []).extend(times_us)
        for source in self.made:
            source.go_on(self.split_id(split), *times_us)


def verdict(connector: type[SourceConformance], test: str, *arguments: Any) -> BaseException | None:
    """What a test of the suite says of a connector; None if it passes."""
    suite: Any = connector()
    suite.set_up()
    try:
        getattr(suite, test)(*arguments)
    except (Exception, pytest.fail.Exception) as error:
        return error
    finally:
        suite.tear_down()
    return None


# ---- broken in reading ---------------------------------------------------------------------------------------------


class _Wrapped(SplitReader[RecordSplit]):
    """A reader that changes what another one does."""

    def __init__(self, inner: SplitReader[RecordSplit]) -> None:
        self.inner = inner

    def fetch(self) -> Any:
        return self.inner.fetch()

    def handle_splits_changes(self, change: Any) -> None:
        self.inner.handle_splits_changes(change)

    def pause_or_resume_splits(self, to_pause: Sequence[RecordSplit], to_resume: Sequence[RecordSplit]) -> None:
        self.inner.pause_or_resume_splits(to_pause, to_resume)


def blocks_of(records: RecordsBySplits[RecordBlock]) -> Iterator[tuple[str, RecordBlock]]:
    while (split_id := records.next_split()) is not None:
        while (block := records.next_record_from_split()) is not None:
            yield split_id, block


class _LosesTheLastOfEachFetchOnExecutors(_Wrapped):
    _for_reader = False

    def handle_splits_changes(self, change: Any) -> None:
        self._for_reader |= any(split.stop is not None for split in change.splits)
        super().handle_splits_changes(change)

    def fetch(self) -> Any:
        records = super().fetch()
        if not self._for_reader:
            return records
        kept = {
            split_id: [RecordBlock(block.batch[:-1], block.positions, None)] for split_id, block in blocks_of(records)
        }
        return RecordsBySplits(kept, records.finished_splits)


class _NumbersFromZero(_Wrapped):
    def fetch(self) -> Any:
        records = super().fetch()
        blocks = {
            split_id: [RecordBlock(block.batch, 0, block.source_timestamps)] for split_id, block in blocks_of(records)
        }
        return RecordsBySplits(blocks, records.finished_splits)


class _ForgetsWhatIsPaused(_Wrapped):
    def pause_or_resume_splits(self, to_pause: Sequence[RecordSplit], to_resume: Sequence[RecordSplit]) -> None:
        super().pause_or_resume_splits(to_pause, [])


class _TakesPausingForNothing(_Wrapped):
    def pause_or_resume_splits(self, to_pause: Sequence[RecordSplit], to_resume: Sequence[RecordSplit]) -> None:
        for split in to_pause:
            self.inner._next.pop(split.split_id, None)  # type: ignore[attr-defined]


def reading_with(reader: Callable[[SplitReader[RecordSplit]], SplitReader[RecordSplit]]) -> type[Connector]:
    class Broken(TestingSource):
        def create_split_reader(self, context: SourceReaderContext) -> SplitReader[RecordSplit]:
            return reader(super().create_split_reader(context))

    return connector_of(Broken)


def connector_of(kind: type[TestingSource], **attributes: Any) -> type[Connector]:
    return type("Tried", (Connector,), {"kind": kind, "__test__": False, **attributes})


class LeavesThreads(TestingSource):
    released = threading.Event()

    def create_reader(self, context: SourceReaderContext) -> SourceReader[RecordSplit]:
        threading.Thread(target=self.released.wait, daemon=True).start()
        return create_base_reader(self, context)


class AllColumns(TestingSource):
    def create_split_reader(self, context: SourceReaderContext) -> SplitReader[RecordSplit]:
        return super().create_split_reader(SourceReaderContext(self.schema()))


class HoldsALock(TestingSource):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.lock = threading.Lock()


class OtherIdentity(TestingSource):
    @property
    def identity(self) -> str:
        return str(id(self))


# ---- broken in what is written down --------------------------------------------------------------------------------


class _Serializer(JsonSerializer[RecordSplit]):
    def __init__(self) -> None:
        super().__init__(RecordSplit)


class _DropsPositions(_Serializer):
    def serialize(self, value: RecordSplit) -> bytes:
        return super().serialize(value.origin())


class _ReadsAnyVersion(_Serializer):
    def deserialize(self, version: int, data: bytes) -> RecordSplit:
        return super().deserialize(1, data)


class _ReadsAnything(_Serializer):
    def deserialize(self, version: int, data: bytes) -> RecordSplit:
        try:
            return super().deserialize(version, data)
        except ValueError:
            if version > 1:
                raise
            return RecordSplit("?")


class _Unsteady(_Serializer):
    counter = 0

    def serialize(self, value: RecordSplit) -> bytes:
        type(self).counter += 1
        return super().serialize(value) + b" " * (type(self).counter % 7)


def writing_with(serializer: type[_Serializer]) -> type[Connector]:
    class Broken(TestingSource):
        @property
        def split_serializer(self) -> JsonSerializer[RecordSplit]:
            return serializer()

    return connector_of(Broken)


class ForgetsKnownSplits(TestingSource):
    """At a restart every split is new again."""

    @property
    def enumerator_checkpoint_serializer(self) -> DiscoveredSplitsSerializer[RecordSplit]:
        class Forgetful(DiscoveredSplitsSerializer[RecordSplit]):
            def serialize(self, value: DiscoveredSplits[RecordSplit]) -> bytes:
                return super().serialize(DiscoveredSplits(value.unassigned, ()))

        return Forgetful(self.split_serializer)


class ForgetsUnassignedSplits(TestingSource):
    @property
    def enumerator_checkpoint_serializer(self) -> DiscoveredSplitsSerializer[RecordSplit]:
        class Forgetful(DiscoveredSplitsSerializer[RecordSplit]):
            def serialize(self, value: DiscoveredSplits[RecordSplit]) -> bytes:
                return super().serialize(DiscoveredSplits((), value.known))

        return Forgetful(self.split_serializer)


class KeepsLostSplits(TestingSource):
    def create_enumerator(self, context: Any) -> Any:
        enumerator = super().create_enumerator(context)
        enumerator.add_splits_back = lambda splits, subtask_id: None  # type: ignore[method-assign]
        return enumerator


class NeverSaysNoMore(TestingSource):
    def create_enumerator(self, context: Any) -> Any:
        context.signal_no_more_splits = lambda subtask_id: None
        return super().create_enumerator(context)


class LooksOnce(TestingSource):
    """And finds no split that comes later."""

    def discover(self) -> Any:
        found = list(super().discover())
        self.first = getattr(self, "first", found)
        return self.first


BROKEN: list[tuple[str, type[Connector], str, tuple[Any, ...]]] = [
    (
        "loses records",
        reading_with(_LosesTheLastOfEachFetchOnExecutors),
        "test_one_split_is_read_from_its_first_record_to_its_last",
        (),
    ),
    (
        "numbers its records wrongly",
        reading_with(_NumbersFromZero),
        "test_many_splits_are_read_each_in_its_order",
        (2,),
    ),
    (
        "never resumes",
        reading_with(_ForgetsWhatIsPaused),
        "test_splits_that_are_far_ahead_lose_nothing_and_starve_nobody",
        ((0,),),
    ),
    (
        "loses what is paused",
        reading_with(_TakesPausingForNothing),
        "test_splits_that_are_far_ahead_lose_nothing_and_starve_nobody",
        ((0,),),
    ),
    ("leaves threads", connector_of(LeavesThreads), "test_on_threads_the_same_is_read_and_no_thread_is_left", ()),
    ("brings all columns", connector_of(AllColumns), "test_only_the_columns_that_are_asked_for_come", ()),
    ("cannot be pickled", connector_of(HoldsALock), "test_a_pickled_copy_reads_the_same", ()),
    ("is another one when pickled", connector_of(OtherIdentity), "test_a_pickled_copy_reads_the_same", ()),
    (
        "drops positions",
        writing_with(_DropsPositions),
        "test_a_restart_at_any_step_of_a_micro_batch_changes_nothing",
        ("after it is committed", True),
    ),
    (
        "drops positions",
        writing_with(_DropsPositions),
        "test_splits_in_different_states_are_written_as_different_bytes",
        (),
    ),
    ("reads any version", writing_with(_ReadsAnyVersion), "test_a_newer_version_is_refused", ("split_serializer",)),
    ("reads anything", writing_with(_ReadsAnything), "test_garbage_is_refused", ("split_serializer",)),
    (
        "writes other bytes each time",
        writing_with(_Unsteady),
        "test_equal_values_are_written_as_equal_bytes",
        ("split_serializer",),
    ),
    ("forgets known splits", connector_of(ForgetsKnownSplits), "test_splits_that_come_later_are_read", (True,)),
    (
        "forgets known splits",
        connector_of(ForgetsKnownSplits),
        "test_a_restored_enumerator_assigns_the_rest_and_nothing_twice",
        (False,),
    ),
    (
        "forgets splits that wait",
        connector_of(ForgetsUnassignedSplits),
        "test_a_restored_enumerator_assigns_the_rest_and_nothing_twice",
        (False,),
    ),
    (
        "keeps lost splits",
        connector_of(KeepsLostSplits),
        "test_splits_that_a_reader_lost_are_assigned_again_and_no_others",
        (),
    ),
    (
        "never says that there are no more",
        connector_of(NeverSaysNoMore),
        "test_every_split_is_assigned_once_and_then_there_are_no_more",
        (),
    ),
    (
        "never says that there are no more",
        connector_of(NeverSaysNoMore),
        "test_a_bounded_source_ends_when_its_last_record_is_read",
        (2,),
    ),
    ("looks once", connector_of(LooksOnce), "test_splits_that_come_later_are_read", (False,)),
    (
        "cannot pause",
        connector_of(TestingSource, options={"pausable": False}),
        "test_splits_that_are_far_ahead_lose_nothing_and_starve_nobody",
        ((0,),),
    ),
]


@pytest.mark.parametrize(
    ("what", "connector", "test", "arguments"), BROKEN, ids=[f"{what}-{test}" for what, _, test, _ in BROKEN]
)
def test_a_connector_that_is_broken_is_told(
    what: str, connector: type[Connector], test: str, arguments: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_THREADS_END_S", 0.2)
    assert verdict(connector, test, *arguments) is not None, f"a connector that {what} passed"


@pytest.mark.parametrize(("test", "arguments"), {(test, arguments): None for _, _, test, arguments in BROKEN})
def test_what_tells_the_broken_ones_lets_a_right_one_pass(test: str, arguments: tuple[Any, ...]) -> None:
    # On a busy machine a right one takes its time.
    right = connector_of(TestingSource, patience_s=SourceConformance.patience_s)
    assert verdict(right, test, *arguments) is None


# ---- indexes -------------------------------------------------------------------------------------------------------


class Generated(SourceConformance):
    __test__ = False
    kind: ClassVar[type[DataGeneratorSource]] = DataGeneratorSource

    def fill(self, splits: int, rows: int = 12) -> Expected:
        self.shape = {"splits": splits, "rows_per_split": rows}
        source = self.create_source(True)
        times = {n: source.generator.times(n, np.arange(rows)).tolist() for n in range(splits)}
        return {self.split_id(n): list(enumerate(of_split)) for n, of_split in times.items()}

    def create_source(self, bounded: bool) -> DataGeneratorSource:
        return self.kind(**self.shape, bounded=bounded, rows_per_second=1)


class TellsOtherTimes(DataGeneratorSource):
    def create_enumerator(self, context: Any) -> Any:
        tell = context.add_blocks
        context.add_blocks = lambda split_id, rows, low, high: tell(split_id, rows, low, np.asarray(high) - 1)
        return super().create_enumerator(context)


class TellsLessRecords(DataGeneratorSource):
    def create_enumerator(self, context: Any) -> Any:
        tell = context.add_blocks
        context.add_blocks = lambda split_id, rows, low, high: tell(split_id, np.asarray(rows) - 1, low, high)
        return super().create_enumerator(context)


@pytest.mark.parametrize("kind", [TellsOtherTimes, TellsLessRecords])
def test_an_index_that_tells_something_else_than_is_read_is_told(kind: type[DataGeneratorSource]) -> None:
    broken = type("Broken", (Generated,), {"kind": kind})
    assert verdict(Generated, "test_the_index_tells_what_is_read") is None
    assert isinstance(verdict(broken, "test_the_index_tells_what_is_read"), AssertionError)


# ---- what the author says ------------------------------------------------------------------------------------------


def test_what_the_connector_cannot_do_is_skipped_with_the_reason() -> None:
    def reason(test: str, *arguments: Any, **attributes: Any) -> str:
        with pytest.raises(pytest.skip.Exception) as skipped:
            verdict(connector_of(TestingSource, **attributes), test, *arguments)
        return str(skipped.value)

    assert "can_end = False" in reason("test_a_bounded_source_ends_when_its_last_record_is_read", 1, can_end=False)
    assert "can_append = False" in reason("test_records_that_come_later_are_read", False, can_append=False)
    assert "serialized_before" in reason("test_what_older_versions_wrote_is_read")
    with pytest.raises(pytest.skip.Exception, match="no method write"):
        verdict(Generated, "test_splits_that_come_later_are_read", False)


def test_a_test_of_the_suite_that_fails_shows_what_was_compared() -> None:
    suites = {kind.__module__ for kind in SourceConformance.__mro__ if "testing.conformance." in kind.__module__}
    assert suites
    for module in suites:
        assert type(sys.modules[module].__loader__).__name__ == "AssertionRewritingHook", module


def test_a_connector_without_a_source_is_told_what_is_missing() -> None:
    class Empty(SourceConformance):
        def write(self, split: int, times_us: Sequence[int]) -> None:
            """Nowhere."""

    error = verdict(Empty, "test_one_split_is_read_from_its_first_record_to_its_last")
    assert isinstance(error, NotImplementedError)
    assert "Empty must have a method create_source" in str(error)

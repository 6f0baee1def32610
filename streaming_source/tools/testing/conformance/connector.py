"""Facts that the author of a connector tells the suite."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final, TypeAlias

import pytest

from alignment.strategy import WatermarkStrategy
from streaming_source.api import Source
from streaming_source.tools.testing.fakes import FakeClock
from streaming_source.tools.testing.harness import SourceHarness
from streaming_source.tools.testing.micro_batch import PATIENCE_S, EmittedRecord, ReadBatch

Expected: TypeAlias = dict[str, list[tuple[int, int]]]
"""Position and event time of every record by split id, in order of positions."""

SECOND_US: Final = 1_000_000
START_US: Final = 1_700_000_000 * SECOND_US
ROWS: Final = 12
"""Records of a split, unless a test says otherwise."""

_ENOUGH_SECONDS: Final = 200


def times_of(split: int, rows: int, first: int = 0) -> list[int]:
    """Event times of the records of a split from number `first` on.

    A record a second, every fourth of them two seconds earlier than that; the splits are five seconds apart.
    """
    return [START_US + (5 * split + i - 2 * (i % 4 == 3)) * SECOND_US for i in range(first, first + rows)]


def records_by_batch(batches: Iterable[ReadBatch]) -> list[list[EmittedRecord]]:
    """All records of each micro-batch that had some, whoever read them."""
    return [sorted(batch.all_records) for batch in batches if batch.all_records]


class ConnectorUnderTest:
    """A connector and its system outside, as the suite sees them. One object a test.

    To be written: `create_source`, and `write` or `fill`. Everything else has a default.

    Attributes
    ----------
    strategy
        Event times and watermarks. Its bound on out-of-orderness must be at least the two seconds by which the suite's
        records are displaced.
    can_end
        The source can be bounded.
    can_append
        Records can be added to a split that has some. Without it every split is finite: it is finished once it is read.
    patience_s
        How long a reader may bring nothing of what it is to read, by the wall clock.
    clock
        Stands still until a test moves it; for sources that have a clock of their own.
    """

    strategy: ClassVar[WatermarkStrategy] = WatermarkStrategy.for_bounded_out_of_orderness("3 seconds")
    can_end: ClassVar[bool] = True
    can_append: ClassVar[bool] = True
    patience_s: ClassVar[float] = PATIENCE_S

    clock: FakeClock
    _written: Expected
    _harnesses: list[SourceHarness]

    # ---- for the author ------------------------------------------------------------------------------------------

    def create_source(self, bounded: bool) -> Source[Any, Any]:
        """The source over what was written, and if it is not bounded, over what will be.

        It should look for new splits and records at least every ten seconds, and a `fetch` of its `SplitReader` must
        not wait for long.
        """
        raise NotImplementedError(f"{type(self).__name__} must have a method create_source")

    def write(self, split: int, times_us: Sequence[int]) -> Sequence[int] | None:
        """Append records with these event times to a split, and make it first if it is not there.

        When it returns they must be there to be read.

        Parameters
        ----------
        split
            Number of the split, from 0.
        times_us
            Microseconds since 1970, all of them whole milliseconds.

        Returns
        -------
        sequence of int or None
            Their positions; None if they go on from the last one by one, the first one from 0.
        """
        pytest.skip("nothing can be written: the connector under test has no method write")

    def split_id(self, split: int) -> str:
        """The id that the source gives to the split of that number."""
        return f"split-{split}"

    def fill(self, splits: int, rows: int = ROWS) -> Expected:
        """Let there be splits with records, before the source is created. By default they are written.

        Overridden where the suite cannot choose the records.

        Returns
        -------
        dict
            What is expected of every split; so many splits, and if that can be had, so many records each.
        """
        for split in range(splits):
            times = times_of(split, rows)
            first = rows // 2 if self.can_append else rows
            for part in (times[:first], times[first:]):
                if part:
                    self.put(split, part)
        return self.expected()

    def serialized_before(self) -> Iterable[tuple[int, bytes, Any]]:
        """`(version, bytes, split)`: what older versions of the split serializer wrote, and what it must be read as."""
        return ()

    # ---- for the suite -------------------------------------------------------------------------------------------

    @pytest.fixture(autouse=True)
    def _around_each_test(self) -> Iterator[None]:
        self.set_up()
        yield
        self.tear_down()

    def set_up(self) -> None:
        """Begin with nothing written."""
        self.clock = FakeClock()
        self._written = {}
        self._harnesses = []

    def tear_down(self) -> None:
        """Close what was opened."""
        for harness in self._harnesses:
            harness.close()

    def put(self, split: int, times_us: Sequence[int]) -> None:
        """Write, and note what is expected of it."""
        known = self._written.setdefault(self.split_id(split), [])
        next_position = known[-1][0] + 1 if known else 0
        positions = self.write(split, times_us)
        if positions is None:
            positions = range(next_position, next_position + len(times_us))
        known.extend(zip(positions, times_us, strict=True))

    def expected(self) -> Expected:
        """All that was written so far."""
        return {split_id: list(records) for split_id, records in self._written.items()}

    def bounded_source(self) -> Source[Any, Any]:
        """One that ends."""
        if not self.can_end:
            pytest.skip("the source cannot be bounded: can_end = False")
        return self.create_source(True)

    def growing_source(self) -> Source[Any, Any]:
        """One that does not end, and can be written to."""
        if type(self).write is ConnectorUnderTest.write:
            pytest.skip("nothing can be written: the connector under test has no method write")
        return self.create_source(False)

    def needs_appending(self) -> None:
        """Skip the test where records cannot be added to a split."""
        if not self.can_append:
            pytest.skip("records cannot be added to a split that has some: can_append = False")

    def harness(self, source: Source[Any, Any], **options: Any) -> SourceHarness:
        """A harness over it, by the clock of the test; closed after the test."""
        strategy = options.pop("strategy", self.strategy)
        harness = SourceHarness(source, strategy, clock=self.clock, patience_s=self.patience_s, **options)
        self._harnesses.append(harness)
        return harness

    def run_until_read(self, harness: SourceHarness, expected: Expected) -> None:
        """Run micro-batches and let time pass until all that is expected was read, and no longer than it should."""
        for _ in range(_ENOUGH_SECONDS):
            harness.run()
            if harness.records() == expected:
                return
            self.clock.advance("1 second")
        assert harness.records() == expected

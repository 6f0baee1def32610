"""Sources of one query, whose triggers plan all of them: how far each may read, over lists of event times."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from alignment.groups import Outlook, SourceReport, Turn, awaits_first_turns, next_rank, source_limit
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK
from tests.examples import examples

DRIFT = 10


@dataclass
class Listed:
    """A source of one split: all its records, in order, and how many are read and known. Its watermark is exact."""

    times: Sequence[int]
    max_rows: int | None
    known: int
    is_indexed: bool = True
    ends: bool = True
    read: int = 0
    report: SourceReport = field(default_factory=lambda: SourceReport(DRIFT, turn=Turn()))

    @property
    def next_us(self) -> int | None:
        return self.times[self.read] if self.read < self.known else None

    @property
    def has_ended(self) -> bool:
        return self.ends and self.read == len(self.times)

    @property
    def watermark(self) -> int:
        return self.times[self.read - 1] if self.read else (self.times[0] - 1 if self.known else MIN_WATERMARK)

    def plan(self, bound: int) -> int:
        """Read up to a bound; how many records."""
        end = bisect_right(self.times, bound, self.read, self.known)
        if self.max_rows is not None:
            end = min(end, self.read + self.max_rows)
        rows, self.read = end - self.read, end
        return rows

    def look_ahead(self) -> Outlook | None:
        if not self.is_indexed:
            return None
        stop = MAX_WATERMARK
        if self.max_rows is not None and self.read + self.max_rows < self.known:
            # No record of this time fits any more, unless it is the only one.
            first_out = self.times[self.read + self.max_rows]
            stop = first_out - 1 if self.times[self.read] < first_out else first_out
        reach = max(self.watermark, self.times[self.known - 1]) if self.known else MIN_WATERMARK
        return Outlook(stop, reach)


class Query:
    """What Spark does: it plans the sources in one order in each trigger, and then reads them all."""

    def __init__(self, sources: Sequence[Listed]) -> None:
        self.sources = {str(i): source for i, source in enumerate(sources)}

    def restart(self) -> None:
        """All planners are new, and are where the offsets were."""
        for source in self.sources.values():
            source.report = SourceReport(DRIFT, turn=Turn())

    def trigger(self) -> tuple[int, bool]:
        """How many records it reads; and whether a source waits for the first turns of the others."""
        rows, waits = 0, False
        for source_id, source in self.sources.items():
            reports = {i: other.report for i, other in self.sources.items()}
            turn, bound = source.report.turn, MIN_WATERMARK
            rank = turn.rank if turn is not None else 0
            lets_others = rank is None and awaits_first_turns(source_id, reports)
            if rank is None:
                rank = next_rank(source_id, reports)
                reports[source_id] = source.report = replace(source.report, turn=Turn(rank))
            if not lets_others:
                bound = source_limit(source_id, reports)
            rows += source.plan(bound)
            waits |= lets_others
            outlook = source.look_ahead()
            turn = None if outlook is None else Turn(rank, outlook)
            counts = source.known > 0 and not source.has_ended
            source.report = SourceReport(DRIFT, source.watermark if counts else None, source.next_us, turn)
        return rows, waits

    def trigger_within(self, drift: int) -> tuple[int, bool]:
        """A trigger in which no source reads what is later than a record that another one leaves, by more than that.

        Only sources that counted before it are waited for. One that has read all it has may get more: the others stay
        within their drift. A source that begins to count in it holds back those that are planned after it, and those
        that were planned before could not know.
        """
        begun = {i: source.read for i, source in self.sources.items()}
        counting = {
            i
            for i, source in self.sources.items()
            if source.report.watermark is not None or (source.report.turn == Turn() and source.known)
        }
        result = self.trigger()
        if any(source.report.watermark is not None and i not in counting for i, source in self.sources.items()):
            return result
        for i, source in self.sources.items():
            for k, other in self.sources.items():
                if source.read > begun[i] and k != i and k in counting and not other.has_ended:
                    latest, next_us = source.times[source.read - 1], other.next_us
                    limit = other.watermark + DRIFT if next_us is None else next_us + drift
                    assert latest <= limit, (i, k, latest, limit)
        return result


TIMES = st.lists(st.integers(0, 300), min_size=1, max_size=40).map(sorted)
SOURCE = st.builds(lambda times, most: Listed(times, most, len(times)), TIMES, st.sampled_from([None, 1, 3, 7]))


@settings(max_examples=examples(300))
@given(st.lists(SOURCE, min_size=2, max_size=4), st.sets(st.integers(0, 60), max_size=5))
def test_each_trigger_takes_all_sources_to_one_event_time(sources: list[Listed], restarts: set[int]) -> None:
    query, triggers = Query(sources), 0
    while not all(source.has_ended for source in sources):
        if triggers in restarts:
            query.restart()
        rows, waits = query.trigger_within(0)
        assert rows or waits, "all wait for each other"
        triggers += 1
    # One more for each start, and one where a source has ended.
    alone = sum(-(-len(source.times) // (source.max_rows or len(source.times))) for source in sources)
    lumps = sum(len(source.times) - len(set(source.times)) for source in sources)
    assert triggers <= alone + lumps + 2 * len(restarts) + len(sources) + 1


@settings(max_examples=examples(300))
@given(
    st.lists(st.tuples(SOURCE, st.booleans()), min_size=2, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), max_size=40),
    st.sets(st.integers(0, 60), max_size=3),
)
def test_what_comes_in_later_and_sources_that_report_keep_the_drift_and_never_stop_the_others(
    made: list[tuple[Listed, bool]], arrivals: list[tuple[int, int]], restarts: set[int]
) -> None:
    sources = [replace(source, known=0, is_indexed=is_indexed) for source, is_indexed in made]
    query, triggers, in_vain = Query(sources), 0, 0
    while not all(source.has_ended for source in sources):
        if arrivals:
            i, count = arrivals.pop()
            if i < len(sources):
                sources[i].known = min(sources[i].known + count, len(sources[i].times))
        else:
            for source in sources:
                source.known = len(source.times)
        if triggers in restarts:
            query.restart()
        rows, waits = query.trigger_within(DRIFT)
        triggers += 1
        in_vain = 0 if rows or waits or arrivals else in_vain + 1
        assert in_vain < 3, f"all wait for each other: {[source.report for source in sources]}"


def test_the_first_source_reads_as_far_as_all_get_and_the_others_to_the_record_it_left() -> None:
    first = SourceReport(DRIFT, 100, 101, Turn(0, Outlook(500, 900)))
    second = SourceReport(DRIFT, 100, 101, Turn(1, Outlook(300, 800)))
    third = SourceReport(DRIFT, 100, 101, Turn(2, Outlook(400, 280)))
    assert source_limit("0", {"0": first, "1": second, "2": third}) == 290
    planned = SourceReport(DRIFT, 289, 291, Turn(0, Outlook(700, 900)))
    assert source_limit("1", {"0": planned, "1": second, "2": third}) == 290
    assert source_limit("2", {"0": planned, "1": replace(second, next_us=295), "2": third}) == 291


def test_a_source_of_another_query_is_held_by_watermarks() -> None:
    other = SourceReport(DRIFT, 100, 101)
    own = SourceReport(DRIFT, 100, 101, Turn(0, Outlook(500, 900)))
    assert source_limit("a", {"a": own, "b": other}) == 110
    assert source_limit("b", {"a": own, "b": other}) == 110

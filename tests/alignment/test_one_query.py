"""Sources of one query, whose triggers plan all of them: how far each may read, over lists of event times."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from alignment.groups import Lookahead, SourceReport, TriggerPart, source_limit
from tests.alignment.planned_group import DRIFT, Listed, Query
from tests.examples import examples


def trigger_within(query: Query, drift: int) -> tuple[int, bool]:
    """A trigger in which no source reads what is later than a record that another one leaves, by more than that.

    Only sources that counted before it are waited for. One that has read all it has may get more: the others stay
    within their drift. A source that begins to count in it holds back those that are planned after it, and those
    that were planned before could not know.
    """
    sources = query.sources
    before = [source.read for source in sources]
    counting = [
        source.reported is not None or (source.membership.calls == 0 and source.known > 0) for source in sources
    ]
    result = query.trigger()
    if any(source.reported is not None and not counted for source, counted in zip(sources, counting, strict=True)):
        return result
    for i, source in enumerate(sources):
        for k, other in enumerate(sources):
            if source.read > before[i] and k != i and counting[k] and not other.has_ended:
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
        rows, waits = trigger_within(query, 0)
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
        rows, waits = trigger_within(query, DRIFT)
        triggers += 1
        in_vain = 0 if rows or waits or arrivals else in_vain + 1
        assert in_vain < 3, f"all wait for each other: {[source.membership for source in sources]}"


def part(rank: int, lookahead: Lookahead) -> TriggerPart:
    return TriggerPart(1, rank=rank, lookahead=lookahead)


def test_the_first_source_reads_as_far_as_all_get_and_the_others_to_the_record_it_left() -> None:
    first = SourceReport(DRIFT, 100, 101, part(rank=0, lookahead=Lookahead(500, 900)))
    second = SourceReport(DRIFT, 100, 101, part(rank=1, lookahead=Lookahead(300, 800)))
    third = SourceReport(DRIFT, 100, 101, part(rank=2, lookahead=Lookahead(400, 280)))
    assert source_limit("0", {"0": first, "1": second, "2": third}) == 290
    planned = SourceReport(DRIFT, 289, 291, part(rank=0, lookahead=Lookahead(700, 900)))
    assert source_limit("1", {"0": planned, "1": second, "2": third}) == 290
    assert source_limit("2", {"0": planned, "1": replace(second, next_us=295), "2": third}) == 291


def test_a_source_of_another_query_is_held_by_watermarks() -> None:
    other = SourceReport(DRIFT, 100, 101)
    own = SourceReport(DRIFT, 100, 101, part(rank=0, lookahead=Lookahead(500, 900)))
    assert source_limit("a", {"a": own, "b": other}) == 110
    assert source_limit("b", {"a": own, "b": other}) == 110

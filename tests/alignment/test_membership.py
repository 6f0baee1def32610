"""Members of a group, by random schedules: which are of one query, who waits for whom, and whom an idle one follows."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from alignment import group_events as events
from alignment.combine import SplitStatus
from alignment.group_events import Event, Progress
from alignment.membership import STEPS, Membership
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK
from tests.alignment.planned_group import DRIFT, Listed, Place, Query, fresh
from tests.examples import examples

TIMES = st.lists(st.integers(0, 300), min_size=1, max_size=30).map(sorted)


def source(times: list[int], max_rows: int | None = None, **fields: bool) -> Listed:
    return Listed(times, max_rows, len(times), **fields)


def drift(query: Query) -> int:
    left = [one.watermark for one in query.sources if not one.has_ended]
    return max(left) - min(left) if len(left) > 1 else 0


# ---- which members are of one query ----------------------------------------------------------------------------------


def test_two_queries_of_a_group_do_not_take_each_others_sources_for_their_own() -> None:
    """The same join in two queries, one of which has a head start: each is as if it were alone."""
    place = Place()
    sides = [source(list(range(0, 2_000, 10)), 10), source(list(range(0, 2_000, 10)), 10)]
    early = Query(sides, place)
    for _ in range(5):
        early.trigger()
    late = Query([fresh(one) for one in sides], place)
    triggers = 0
    while not all(one.has_ended for one in late.sources):
        early.trigger()
        late.trigger()
        triggers += 1
        assert max(drift(early), drift(late)) <= DRIFT
    assert triggers <= 20 + 2
    assert place.warnings == []


@settings(max_examples=examples(100))
@given(
    st.lists(st.tuples(TIMES, st.sampled_from([None, 1, 3])), min_size=2, max_size=3),
    st.lists(st.sampled_from("ABab*!"), max_size=120),
    st.data(),
)
def test_whatever_two_queries_do_the_sources_of_one_stay_together_and_none_stops_for_ever(
    made: list[tuple[list[int], int | None]], schedule: list[str], data: st.DataObject
) -> None:
    """Steps of two queries in any order, which Spark cuts anywhere: `a` is one call of the query `A`, `A` a trigger."""
    place = Place()
    queries = {name: Query([source(times, rows) for times, rows in made], place) for name in "AB"}
    steps = {name: _calls(query) for name, query in queries.items()}
    for step in schedule:
        match step:
            case "*":
                place.now_us += data.draw(st.integers(1, 20_000_000))
            case "!":
                name = data.draw(st.sampled_from("AB"))
                queries[name].restart()
                steps[name] = _calls(queries[name])
            case _:
                for _ in range(2 * len(made) if step.isupper() else 1):
                    next(steps[step.upper()])
        for query in queries.values():
            of_query = {one.membership.source_id for one in query.sources}
            for one in query.sources:
                assert not one.membership.strangers & of_query, "a source of the same query is no stranger"
    for query in queries.values():
        query.restart()
    in_vain = 0
    while not all(one.has_ended for query in queries.values() for one in query.sources):
        done = [query.trigger() for query in queries.values()]
        in_vain = 0 if any(rows or waits for rows, waits in done) else in_vain + 1
        assert in_vain < 3, "all wait for each other"


def _calls(query: Query) -> Iterator[None]:
    """The calls of a query, each in two parts: others may do anything in between."""
    while True:
        for one in query.sources:
            one.take(events.CallStarted(one.place.now_us))
            bound = one.start_plan()
            yield
            one.end_plan(bound)
            one.take(events.CallEnded(one.place.now_us))
            yield


@settings(max_examples=examples(100))
@given(st.integers(2, 9), st.integers(0, 8))
def test_a_query_that_is_called_more_often_is_another_one(pace: int, head_start: int) -> None:
    place = Place()
    fast, slow = (Query([source([1, 2, 3]), source([1, 2, 3])], place) for _ in range(2))
    for _ in range(head_start):
        fast.trigger()
    for _ in range(2):
        slow.trigger()
        for _ in range(pace):
            fast.sources[0].is_silent = not fast.sources[0].is_silent
            fast.trigger()
    slow.trigger()
    foreign = {one.membership.source_id for one in fast.sources}
    assert all(one.membership.strangers == foreign for one in slow.sources)


def test_sources_that_do_not_say_that_they_are_of_one_query_are_told_to() -> None:
    """Each goes on by a drift in each trigger, as those of two queries do."""
    query = Query([source(list(range(0, 4_000, 5)), 100, in_one_query=False) for _ in range(2)])
    for _ in range(STEPS - 1):
        query.trigger()
        assert query.place.warnings == []
    for _ in range(3):
        query.trigger()
        assert drift(query) <= DRIFT
    assert len(query.place.warnings) == 2
    assert all("give all of its sources alignmentScope=query" in text for text in query.place.warnings)


def test_sources_of_two_queries_that_do_not_say_so_are_held_by_watermarks() -> None:
    place = Place()
    times = list(range(0, 1_000, 5))
    one, other = (Query([source(times, 50, in_one_query=False)], place) for _ in range(2))
    for number in range(60):
        one.trigger()
        if number % 3 == 0:
            other.trigger()
        assert one.sources[0].watermark <= max(other.sources[0].watermark, 0) + DRIFT + 50 * 5 * (number < 3)
    assert place.warnings == []


# ---- whom an idle source follows -------------------------------------------------------------------------------------


def idle_after(times: list[int]) -> Listed:
    return source(times, ends=False, is_silent=True)


def test_an_idle_source_follows_the_slowest_that_is_not_idle_and_all_idle_ones_the_furthest() -> None:
    """VL-06: 25, 10 and 17 are 10; without the second 17, and without the third 25."""
    first, second, third = (source([at], ends=False) for at in (25, 10, 17))
    query = Query([first, second, third])

    def settled() -> int:
        for _ in range(4):
            query.trigger()
        return query.watermark

    assert settled() == 10
    second.is_silent = True
    assert settled() == 17
    third.is_silent = True
    assert settled() == 25
    first.is_silent = True
    assert settled() == 25
    assert {one.announced for one in query.sources} == {25}


def test_a_source_without_any_record_holds_nobody_once_it_is_idle() -> None:
    query = Query([source(list(range(0, 90, 10)), 2), Listed([500], None, 0, ends=False, is_silent=True)])
    reached = []
    for _ in range(8):
        query.trigger()
        reached.append(query.sources[1].announced)
    assert reached[-1] == 80 or query.sources[0].has_ended
    assert reached == sorted(reached)
    assert reached[-1] >= 70


def test_what_an_idle_source_brings_from_behind_is_late_and_holds_the_query_where_it_was() -> None:
    """VL-08, VL-10: the watermark stays where it was until the source has caught up, or is idle again."""
    ahead, behind = source(list(range(0, 1_000, 10)), 5), idle_after([5, 15, 995])
    behind.known = 1
    query = Query([ahead, behind])
    for _ in range(6):
        query.trigger()
    stood = query.watermark
    assert stood > 100
    behind.known, behind.is_silent = 2, False
    query.trigger()
    assert behind.late == 1
    for _ in range(6):
        query.trigger()
    assert behind.announced < stood + 100
    behind.is_silent = True
    for _ in range(6):
        query.trigger()
    assert query.watermark > stood


def test_a_source_that_has_not_planned_yet_is_not_taken_for_idle() -> None:
    """FLINK-40505: until it plans it is where its offset was."""
    first, second = idle_after([100]), source([40, 50], ends=False)
    second.read, second.announced = 1, 40
    place = Place()
    Query([first, second], place)
    first.call()
    assert first.announced <= 100
    assert first.membership.followed_us == 40


def test_a_source_that_has_ended_pulls_no_idle_one_along() -> None:
    """FLINK-38477: the end of one source is not the end of the time."""
    ended, silent = source([10, 20]), idle_after([5])
    query = Query([ended, silent])
    for _ in range(6):
        query.trigger()
    assert ended.has_ended
    assert silent.announced < MAX_WATERMARK
    assert silent.announced <= 20


@settings(max_examples=examples(100))
@given(
    st.lists(st.tuples(TIMES, st.sampled_from([None, 2, 5])), min_size=2, max_size=4),
    st.lists(
        st.one_of(
            st.tuples(st.just("silent"), st.integers(0, 3)),
            st.tuples(st.just("more"), st.integers(0, 3)),
            st.tuples(st.just("kill"), st.integers(0, 3)),
        ),
        max_size=30,
    ),
)
def test_no_idle_source_is_ahead_of_one_that_is_not_and_nothing_that_was_there_is_late(
    made: list[tuple[list[int], int | None]], happens: list[tuple[str, int]]
) -> None:
    sources = [Listed(times, rows, 1, ends=False) for times, rows in made]
    query = Query(sources)
    for what, number in happens:
        one = sources[number % len(sources)]
        match what:
            case "silent":
                one.is_silent = not one.is_silent
            case "more":
                one.known = min(one.known + 3, len(one.times))
            case "kill":
                query.restart()
        before = {id(one): one.late for one in sources if one.status is not SplitStatus.IDLE and one.known > one.read}
        was_behind = {id(one) for one in sources if one.next_us is not None and one.next_us <= one.announced}
        query.trigger()
        for one in sources:
            if one.status is SplitStatus.IDLE and one.announced > one.watermark:
                active = [other for other in sources if other.status is SplitStatus.ACTIVE]
                furthest = max(other.announced for other in sources)
                assert one.announced <= min((other.announced for other in active), default=furthest) or any(
                    other.announced < one.announced for other in active
                )
            if id(one) in before and id(one) not in was_behind:
                assert one.late == before[id(one)], "what was there and not behind is not late"
    for one in sources:
        one.known, one.is_silent = len(one.times), True
    for _ in range(200):
        query.trigger()
    assert len({one.announced for one in sources}) == 1, "all are idle: all follow the furthest"


# ---- replay, and what cannot be reached ------------------------------------------------------------------------------


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(TIMES, st.sampled_from([None, 2])), min_size=2, max_size=3), st.integers(1, 30))
def test_the_events_of_a_membership_replay_to_the_same_one(
    made: list[tuple[list[int], int | None]], triggers: int
) -> None:
    query = Query([source(times, rows) for times, rows in made])
    for one in query.sources:
        one.log = []
    query.restart()
    for _ in range(triggers):
        query.trigger()
    for one in query.sources:
        own = one.membership
        again = Membership(own.source_id, own.name, own.pid, DRIFT, own.interval_us, own.in_one_query)
        assert one.log is not None
        for event in one.log:
            again.handle(event)
        assert again == own


def alone(place: Place) -> Membership:
    place.alive.add(1)
    return Membership("own", "own", 1, DRIFT, 1_000_000, in_one_query=False, where="/groups")


def of_another(place: Place, watermark: int) -> None:
    place.alive.add(2)
    other = Membership("other", "other", 2, DRIFT, 1_000_000, in_one_query=False)
    place.carry_out(other, events.PlanEnded(place.now_us, Progress(watermark, watermark + 1)))


def test_a_run_whose_group_is_out_of_reach_says_for_how_long_the_limit_holds_and_goes_on_after_that() -> None:
    """A run (AvailableNow) has a lease of a month, which is no time to wait for."""
    place = Place()
    own = alone(place)
    of_another(place, 100)
    for event in (events.Drained(0), events.CallStarted(0), events.PlanStarted(0)):
        place.carry_out(own, event)
    assert own.planned_limit_us == 100 + DRIFT
    place.carry_out(own, events.PlanEnded(place.now_us, Progress(50, 500)))
    place.is_reachable = False
    place.now_us += 60_000_000
    place.carry_out(own, events.PlanStarted(place.now_us))
    assert own.planned_limit_us == 100 + DRIFT
    assert place.warnings == [
        "its members cannot be reached in /groups: it is away; the last limit holds for 10 s, then this source goes on "
        "without the group"
    ]
    place.now_us += 10_000_000
    place.carry_out(own, events.PlanStarted(place.now_us))
    assert own.planned_limit_us == MAX_WATERMARK


def test_a_run_leaves_a_member_that_does_not_go_on() -> None:
    place = Place()
    own = alone(place)
    of_another(place, 100)
    event: Event
    for event in (events.Drained(0), events.CallStarted(0), events.PlanStarted(0)):
        place.carry_out(own, event)
    place.carry_out(own, events.PlanEnded(place.now_us, Progress(50, 500)))
    attempts = 0
    while not own.has_left:
        assert own.holds(500)
        place.carry_out(own, events.WaitedInVain(place.now_us))
        attempts += 1
        place.alive.add(2)
    assert attempts > 20
    assert place.now_us >= 10_000_000
    assert place.warnings == ["other has not gone on for 10 s; this source goes on without the group"]
    assert own.may_go_on
    place.carry_out(own, events.PlanStarted(place.now_us))
    assert own.planned_limit_us == MAX_WATERMARK
    assert "own" not in place.members
    assert own.followed_us == MIN_WATERMARK

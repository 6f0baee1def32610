"""Nothing is remembered of a split that left: an id that is used again is that of a new split."""

from __future__ import annotations

import numpy as np
import pytest

from alignment.combine import SplitStatus
from alignment.engine import Engine
from alignment.events import (
    BlocksIndexed,
    Event,
    Probed,
    SplitAbandoned,
    SplitCompleted,
    SplitsAssigned,
    SplitsBlocked,
)
from alignment.exceptions import DuplicateSplitError
from alignment.index import EventTimeIndex
from alignment.plan import PlanningRules
from alignment.watermarks import Int64Array


def load(split_id: str, start: int, stop: int) -> Int64Array:
    return np.arange(start, stop)


def with_one_split() -> Engine:
    engine = Engine(PlanningRules(0), EventTimeIndex(load))
    assign(engine)
    return engine


def assign(engine: Engine) -> None:
    engine.apply(SplitsAssigned(("a",), (0,), (0,), 0))


def read_to_the_end(engine: Engine) -> None:
    one = np.array([1])
    engine.apply(BlocksIndexed("a", one, one - 1, one - 1))
    engine.apply(SplitCompleted("a"))
    assert engine.commit(engine.plan(0)) == ["a"]


@pytest.mark.parametrize(
    "event",
    [
        SplitCompleted("a"),
        SplitAbandoned("a"),
        SplitsBlocked(frozenset(["a"])),
        SplitsBlocked(frozenset(), frozenset(["a"])),
        Probed(5, ("a",)),
    ],
    ids=lambda event: type(event).__name__,
)
def test_an_event_of_a_split_that_left_changes_nothing_of_a_new_one_of_its_id(event: Event) -> None:
    engine = with_one_split()
    read_to_the_end(engine)
    engine.apply(event)
    engine.validate()
    assign(engine)
    plan = engine.plan(10)
    assert plan.after.statuses.tolist() == [SplitStatus.ACTIVE]
    assert not engine.complete
    assert not engine.abandoned
    assert engine.idle_clock.split_ids() == set()


@pytest.mark.parametrize("split_ids", [("b", "a"), ("b", "c", "b")])
def test_of_splits_of_which_one_is_in_work_already_none_is_assigned(split_ids: tuple[str, ...]) -> None:
    engine, zeros = with_one_split(), (0,) * len(split_ids)
    with pytest.raises(DuplicateSplitError, match="is in work already; assign it once"):
        engine.apply(SplitsAssigned(split_ids, zeros, zeros, 0))
    assert "b" not in engine.index
    engine.apply(SplitsAssigned(("b",), (0,), (0,), 0))
    assert engine.plan(0).after.split_ids == ("a", "b")


def test_the_blocks_to_load_ahead_are_those_of_the_state_as_it_is() -> None:
    engine = with_one_split()
    for first in (0, 10):
        engine.apply(BlocksIndexed("a", np.array([10]), np.array([first]), np.array([first + 9])))
        assert engine.times_to_load(first + 4) == [("a", first, first + 10)]
        assert engine.times_to_load(first + 10) == [], "all of them fit"
    assert engine.times_to_load(4) == [("a", 0, 10)]
    engine.commit(engine.plan(0, 4))
    assert engine.times_to_load(4) == [], "the plan has loaded it"

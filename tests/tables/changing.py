"""Queries over a table that changes while they read it, with planners that are killed."""

from __future__ import annotations

import random
from collections.abc import Callable

from streaming_source.testing import SourceHarness

__all__ = ["read_with_kills", "read_with_restarts"]


def read_with_kills(done: SourceHarness, chance: random.Random, change: Callable[[], None], changes: int) -> None:
    """Read all, while the table changes so many times, and at any step the planner is killed."""
    changed = 0
    while changed < changes or done.plan() or done.is_planned:
        roll = chance.random()
        if roll < 0.3 and changed < changes:
            change()
            changed += 1
        elif roll < 0.6:
            if chance.random() < 0.5:
                done.plan()
            done.restart(loses_plan=chance.random() < 0.5)
        else:
            done.clock.advance("2 seconds")
            done.run_batch()
    done.clock.advance("2 seconds")
    done.run()


def read_with_restarts(done: SourceHarness, change: Callable[[], None], *, loses_plan: bool) -> None:
    """Read all, with a restart between the plan of each micro-batch and its records; the table changes at the sixth."""
    for number in range(60):
        if number == 5:
            change()
        done.plan()
        done.restart(loses_plan=loses_plan)
        done.clock.advance("2 seconds")
        batch = done.run_batch()
        if number > 5 and not (batch and batch.all_records):
            break
    done.run()

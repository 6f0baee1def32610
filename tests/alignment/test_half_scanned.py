"""Plans from an index that lacks the ends of splits, with a range of event times; without one: `planned_source`."""

from __future__ import annotations

import random

import numpy as np
import pytest

from alignment.event_time_range import EventTimeRange
from alignment.index import EventTimeIndex
from alignment.plan import MicroBatchPlan, PlanConditions, PlanningRules, SplitTable
from alignment.plan.by_index import awaits_scan, plan_micro_batch
from tests.examples import one_in

Blocks = dict[str, list[list[int]]]


def blocks_of(draw: random.Random) -> Blocks:
    found: Blocks = {}
    for split in range(draw.randint(1, 3)):
        time, blocks = draw.randint(0, 10), []
        for _ in range(draw.randint(1, 5)):
            block = []
            for _ in range(draw.randint(1, 4)):
                time += draw.choice([0, 1, 1, 3])
                block.append(max(0, time - draw.choice([0, 0, 0, 2, 9])))
            blocks.append(block)
        found[f"s{split}"] = blocks
    return found


def index_of(blocks: Blocks, wanted: EventTimeRange, scanned: dict[str, int]) -> EventTimeIndex:
    """An index of the first blocks of each split, as many as are scanned."""
    times = {split_id: np.concatenate(of_split) for split_id, of_split in blocks.items()}
    index = EventTimeIndex(lambda split_id, start, stop: times[split_id][start:stop], wanted=wanted)
    for split_id, of_split in blocks.items():
        index.add_split(split_id)
        for block in of_split[: scanned.get(split_id)]:
            index.append(split_id, len(block), min(block), max(block))
    return index


def shown(plan: MicroBatchPlan) -> tuple[object, ...]:
    after = plan.after
    of_splits = [column.tolist() for column in (after.positions, after.watermarks, plan.late)]
    return (*of_splits, plan.bound_us, plan.limited_by, plan.rows, plan.outside)


@pytest.mark.parametrize("seed", one_in(30, range(300)))
def test_what_is_scanned_later_changes_no_plan_of_a_range_of_event_times(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(5):
        blocks = blocks_of(draw)
        begin, until = draw.choice([(5, None), (10, 25), (None, 15)])
        wanted = EventTimeRange(begin, until, draw.choice(["drop", "drop", "keep"]))
        drift, ends = draw.choice([None, 4]), draw.random() < 0.3
        rules = PlanningRules(draw.choice([0, 3]), drift, lateness="none", times=wanted, bounded=ends)
        table = SplitTable.empty().joined(list(blocks), [0] * len(blocks))[0]
        for _ in range(6):
            max_rows = draw.choice([None, 1, 3, 6])
            whole = plan_micro_batch(table, index_of(blocks, wanted, {}), rules, PlanConditions(max_rows=max_rows))
            scanned = {}
            for split_id, position in zip(table.split_ids, table.positions.tolist(), strict=True):
                block_ends = np.cumsum([len(block) for block in blocks[split_id]])
                first = int(np.searchsorted(block_ends, position)) + (position > 0)
                scanned[split_id] = draw.randint(first, block_ends.size)
            unscanned = np.array([scanned[split_id] < len(blocks[split_id]) for split_id in table.split_ids])
            if unscanned.any():
                conditions = PlanConditions(max_rows=max_rows, unscanned=unscanned)
                half = plan_micro_batch(table, index_of(blocks, wanted, scanned), rules, conditions)
                if awaits_scan(table, index_of(blocks, wanted, scanned), rules, conditions):
                    assert half.awaits_scan
                assert half.awaits_scan or shown(half) == shown(whole)
            table = whole.after

"""One micro-batch: from what was read and what is known to be there, to how far each split is read next."""

from __future__ import annotations

from alignment.plan.conclusion import LimitedBy, MicroBatchPlan, Reading, SplitTable, WatermarkTable, below, conclude
from alignment.plan.rules import PlanConditions, PlanningRules, bounding_splits, share_evenly, total

__all__ = [
    "LimitedBy",
    "MicroBatchPlan",
    "PlanConditions",
    "PlanningRules",
    "Reading",
    "SplitTable",
    "WatermarkTable",
    "below",
    "bounding_splits",
    "conclude",
    "share_evenly",
    "total",
]

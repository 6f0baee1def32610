"""A plugin for pytest that notes which rules each test calls: one line of JSON a test, into the file `RULE_CALLS`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

from alignment.combine import combine_watermarks
from alignment.groups import source_limit
from alignment.idle_clock import IdleClock
from alignment.plan import conclude
from alignment.plan.by_index import plan_micro_batch
from alignment.plan.by_reports import ReactivePlanner
from alignment.split_generators import SplitGenerators
from alignment.watermarks import bounded_watermark

RULES: Final[dict[str, Callable[..., Any]]] = {
    "bounded_watermark": bounded_watermark,
    "combine_watermarks": combine_watermarks,
    "conclude": conclude,
    "IdleClock": IdleClock.idle,
    "SplitGenerators": SplitGenerators.advance,
    "plan_micro_batch": plan_micro_batch,
    "ReactivePlanner": ReactivePlanner.plan,
    "source_limit": source_limit,
}
"""What decides watermarks, idleness and limits in a query, each by the name under which it is imported."""

_BY_CODE: Final = {rule.__code__: name for name, rule in RULES.items()}  # type: ignore[attr-defined]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Watch the calls of one test."""
    called: set[str] = set()

    def watch(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code in _BY_CODE:
            called.add(_BY_CODE[frame.f_code])

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        yield
    finally:
        sys.setprofile(before)
        with Path(os.environ["RULE_CALLS"]).open("a", encoding="utf-8") as file:
            file.write(json.dumps([item.nodeid, sorted(called)]) + "\n")

"""A plugin for pytest: each of Flink's cases must call one of the rules that a query runs."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
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

GROUPS: Final = {
    "WG": {"conclude"},
    "ID": {"IdleClock"},
    "CK": {"IdleClock"},
    "MX": {"combine_watermarks"},
    "VL": {"combine_watermarks"},
    "AL": {"source_limit", "ReactivePlanner", "conclude"},
    "CO": {"source_limit", "conclude"},
    "AG": {"source_limit"},
}
"""Of each group of cases the rules of which every case must call one."""

_BY_CODE: Final = {rule.__code__: name for name, rule in RULES.items()}  # type: ignore[attr-defined]
_CASE: Final = re.compile(r"\btest_([a-z]{2})_\d\d_|\bTest([A-Z][a-z])\d\d")


def group_of(test: str) -> str:
    """The group of cases that a test is named after; empty for none."""
    found = _CASE.search(test)
    return "" if found is None else (found[1] or found[2]).upper()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Watch the calls of a case; one that calls none of the rules of its group fails."""
    if not (asked := GROUPS.get(group_of(item.nodeid))):
        return (yield)
    called: set[str] = set()

    def watch(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code in _BY_CODE:
            called.add(_BY_CODE[frame.f_code])

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        result = yield
    finally:
        sys.setprofile(before)
    assert called & asked, f"this case calls {called or 'no rule'}, and none of {asked}"
    return result

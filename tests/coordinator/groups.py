"""What a planner does with its group, in one call each."""

from __future__ import annotations

from alignment.group_events import Progress
from streaming_source.coordinator.group_exchange import GroupExchange


def report(member: GroupExchange, watermark: int, next_us: int | None) -> int:
    """Report a plan, and return the limit."""
    member.end_plan(Progress(watermark, next_us))
    return member.membership.limit_us


def renew(member: GroupExchange) -> int:
    """Plan once more, and return the limit."""
    member.start_plan()
    return member.membership.planned_limit_us

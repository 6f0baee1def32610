"""Alignment groups: how far ahead of the slowest member each member may read (FLIP-182, FLIP-217).

Members are sources: each holds its own splits together, and reports its watermark, or that it does not count: an idle
or finished member reports that, instead of a watermark that would mean the same (FLINK-32496, FLINK-35157). The *limit*
of a member is the smallest watermark among the counting reports of the others plus the member's own drift. It follows
the reports in both directions: it falls when an idle member comes back behind. Across a gap in the event times the
nearest goes on.

Sources of one query need not wait for each other's watermarks. Spark plans them one after another in each trigger,
always in the same order, their *rank*, and then all of them read. After its plan each of them reports how far it gets
in the next one. The first source of a trigger reads up to the event time that all the others reach in the same trigger;
those that follow read up to the first record that an earlier one has left. Drift between them costs no micro-batch.
They also know which of them are idle: such a source follows the watermarks of the others, as an idle input does in
Flink. Which members are of one query is found by `alignment.membership`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from alignment.combine import SplitStatus, combine_watermarks
from alignment.exceptions import InvalidArgumentError, UnknownMemberError
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK, saturating_add


@dataclass(frozen=True, slots=True)
class Lookahead:
    """The reach of the next plan of a source by its own rules; times in microseconds.

    Attributes
    ----------
    stop_us
        The bound of that plan, where its read limit, its drift or its horizon leaves records behind; `MAX_WATERMARK` if
        it leaves none.
    reach_us
        The smallest watermark that its splits would have if all that they have now were read; None if no split counts.
    """

    stop_us: int = MAX_WATERMARK
    reach_us: int | None = None


@dataclass(frozen=True, slots=True)
class TriggerPart:
    """The part of a source in the triggers of its query, which plan all sources of the query one after another.

    Attributes
    ----------
    calls
        How often Spark has asked this source to plan since its process began, once in each trigger; at least up to its
        last report.
    is_planning
        Spark waits for its plan at this moment, and so asks no other source of the query.
    in_one_query
        The user says that all members of the group that say so as well are sources of one query.
    rank
        Its number in the order in which Spark plans the sources; None before its first plan.
    lookahead
        How far its next plan gets; None if that is not known ahead of reading.
    """

    calls: int = 0
    is_planning: bool = False
    in_one_query: bool = False
    rank: int | None = None
    lookahead: Lookahead | None = None


@dataclass(frozen=True, slots=True)
class SourceReport:
    """The report of one source of a group after a micro-batch was planned; times in microseconds.

    Attributes
    ----------
    max_drift_us
        How far this source may be ahead of the slowest other one; at least 0.
    watermark
        The smallest among its splits that count; None if none counts: the source is idle, finished, or has no splits,
        and holds no other back.
    next_us
        Event time of the record that it would read next; None if it has read all that is there.
    part
        Its part in the triggers of its query; None if it is not planned together with the other one.
    status
        Idle if none of its splits counts, finished if it is bounded and at its end. A run to the end of what is there
        (AvailableNow) that has read all of it is neither.
    announced_us
        The watermark that it has announced, `MIN_WATERMARK` before any.
    """

    max_drift_us: int
    watermark: int | None = None
    next_us: int | None = None
    part: TriggerPart | None = None
    status: SplitStatus = SplitStatus.ACTIVE
    announced_us: int = MIN_WATERMARK


def followed_watermark(reports: Mapping[str, SourceReport]) -> int:
    """Return what an idle source of a query announces, by the reports of all its sources. O(n).

    The smallest announced watermark of those that are not idle, or, if all are, the largest. Finished sources are left
    out (FLINK-38477), and so are those of other queries, which have no part in its triggers.
    """
    of_query = [report for report in reports.values() if report.part is not None]
    watermarks = np.array([report.announced_us for report in of_query], np.int64)
    return combine_watermarks(watermarks, np.array([report.status for report in of_query], np.int8)).value


def source_limit(source_id: str, reports: Mapping[str, SourceReport]) -> int:
    """Return how far a source may read: the smallest watermark of the *other* counting sources plus its drift. O(n^2).

    Another source of the same query, if both have a part in its triggers, counts with the event time up to which it
    reads in the same trigger, or has read in it. (A source aligns its own splits itself.) If every counting source with
    more to read waits for another, since the next record of each is beyond its limit, there is a gap in the event
    times: then the nearest ones go on, within their drift of those that have read all their records. The limit is in
    microseconds; `MAX_WATERMARK`, which is no limit, if no other source counts.
    """
    limit = _limit_by_others(source_id, reports)
    nearest = reports[source_id].next_us
    if nearest is None or nearest <= limit:
        return limit
    max_drift_us = reports[source_id].max_drift_us
    for other_id, other in reports.items():
        if other.next_us is not None:
            if other.next_us < nearest or other.next_us <= _limit_by_others(other_id, reports):
                return limit
        elif other.watermark is not None and nearest > saturating_add(other.watermark, max_drift_us):
            return limit
    return nearest


def awaits_first_plans(source_id: str, reports: Mapping[str, SourceReport]) -> bool:
    """Return whether a source that plans for the first time lets others of its query plan before it reads. O(n).

    In the first trigger it is not known how far the sources after it get.
    """
    return reports[source_id].part is not None and any(
        other.part is not None and other.part.rank is None for i, other in reports.items() if i != source_id
    )


def next_rank(source_id: str, reports: Mapping[str, SourceReport]) -> int:
    """Return the rank of a source that plans for the first time: after all that have planned. O(n)."""
    ranks = [
        other.part.rank
        for i, other in reports.items()
        if i != source_id and other.part is not None and other.part.rank is not None
    ]
    return max(ranks, default=-1) + 1


def is_waited_for(source_id: str, reports: Mapping[str, SourceReport]) -> bool:
    """Return whether another source has records that it may not read before this one goes on. O(n^3)."""
    without = {i: report for i, report in reports.items() if i != source_id}
    return any(
        other.next_us is not None
        and other.next_us > source_limit(other_id, reports)
        and source_limit(other_id, reports) < source_limit(other_id, without)
        for other_id, other in without.items()
    )


def _limit_by_others(source_id: str, reports: Mapping[str, SourceReport]) -> int:
    own = reports[source_id]
    return min((_limit_by(other, own) for i, other in reports.items() if i != source_id), default=MAX_WATERMARK)


def _limit_by(other: SourceReport, own: SourceReport) -> int:
    """Return the limit that one other source sets."""
    if other.watermark is None:
        return MAX_WATERMARK
    part, lookahead = other.part, None if other.part is None else other.part.lookahead
    if own.part is None or part is None or part.rank is None or lookahead is None:
        return saturating_add(other.watermark, own.max_drift_us)
    within_reach = MAX_WATERMARK
    if lookahead.reach_us is not None:
        within_reach = saturating_add(lookahead.reach_us, own.max_drift_us)
    follows = own.part.rank is not None and own.part.rank < part.rank
    if follows:
        return min(lookahead.stop_us, within_reach)
    return within_reach if other.next_us is None else min(other.next_us, within_reach)


class AlignmentGroup:
    """Members and their last reports in memory, for use without planners: limits are those of `source_limit`.

    Members have unique ids, not names: two sources of one name stay two. The planners of queries use a `GroupExchange`
    instead, in which a member also has a lease that ends with its process.

    Parameters
    ----------
    name : str
        Of the group; not empty.

    Examples
    --------
    >>> group = AlignmentGroup("orders and payments")
    >>> group.join("orders", max_drift_us=10)
    >>> group.join("payments", max_drift_us=20)
    >>> group.report("orders", 100)
    >>> group.report("payments", 50)
    >>> group.limit("orders"), group.limit("payments")
    (60, 120)
    """

    __slots__ = ("_name", "_reports")

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name.strip():
            raise InvalidArgumentError(f"name = {name!r} must be the name of a group, and not empty")
        self._name = name
        self._reports: dict[str, SourceReport] = {}

    @property
    def name(self) -> str:
        """Name of the group."""
        return self._name

    def join(self, member_id: str, max_drift_us: int) -> None:
        """Add a member, which counts from its first report on.

        An error if its id is taken, or `max_drift_us` below 0.
        """
        if member_id in self._reports:
            raise InvalidArgumentError(
                f"member_id = {member_id!r} is in the group {self._name!r} already: ids must be unique; "
                "let the other one leave first"
            )
        if max_drift_us < 0:
            raise InvalidArgumentError(f"max_drift_us = {max_drift_us} must be at least 0")
        self._reports[member_id] = SourceReport(max_drift_us)

    def report(self, member_id: str, watermark: int, *, counts: bool = True, next_us: int | None = None) -> None:
        """Record a member's latest watermark; it may decrease, as when an idle member is active again.

        ``MIN_WATERMARK`` counts like any other: the member has splits, but no watermark yet. `counts` is False for a
        member that must not hold the others: idle, finished, or without splits. `next_us` is the event time of the
        record that it would read next, so that the nearest member can cross a gap. An `UnknownMemberError` if it has
        not joined, or has left.
        """
        max_drift_us = self._get(member_id).max_drift_us
        self._reports[member_id] = SourceReport(max_drift_us, int(watermark) if counts else None, next_us)

    def leave(self, member_id: str) -> None:
        """Remove a member; what it held back is released at once. An `UnknownMemberError` if it is not in the group."""
        self._get(member_id)
        del self._reports[member_id]

    def limit(self, member_id: str) -> int:
        """Return how far a member may go, by `source_limit`. An `UnknownMemberError` if it is not in the group."""
        self._get(member_id)
        return source_limit(member_id, self._reports)

    def __repr__(self) -> str:
        return f"AlignmentGroup({self._name!r}, {len(self._reports)} members)"

    def _get(self, member_id: str) -> SourceReport:
        report = self._reports.get(member_id)
        if report is None:
            raise UnknownMemberError(
                f"member_id = {member_id!r} is not in the group {self._name!r}: it never joined, or has left; "
                "join (again) first"
            )
        return report

"""Alignment groups: how far ahead of the slowest member each member may read (FLIP-182, FLIP-217).

Members are sources, or splits: whatever has a watermark and can be made to wait. Each reports its watermark,
and whether it counts: an idle or finished member reports that it does not, instead of a watermark that would
mean the same (FLINK-32496, FLINK-35157). The *limit* of a member is the smallest watermark among the counting
reports plus the member's own drift. It follows the reports in both directions: it falls when an idle member
comes back behind.

`AlignmentGroup` keeps any number of members in order. `source_limit` is for the few sources of one application, which
know ahead of reading what comes next: across a gap in the event times it lets the nearest go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile

from sortedcontainers import SortedList

from alignment.durations import saturating_add
from alignment.exceptions import InvalidArgumentError, UnknownMemberError
from alignment.watermarks import MAX_WATERMARK

__all__ = ["AlignmentGroup", "SourceReport", "source_limit"]


@dataclass(frozen=True, slots=True)
class SourceReport:
    """What one source of a group says of itself after a micro-batch was planned.

    Attributes
    ----------
    max_drift_us : int
        How far this source may be ahead of the slowest other one, in microseconds; at least 0.
    watermark : int or None
        The smallest watermark among its splits that count, in microseconds; None if none counts: the source is idle,
        finished, or has no splits, and holds nobody back.
    next_us : int or None
        Event time of the record that it would read next; None if it has read all that is there.
    """

    max_drift_us: int
    watermark: int | None = None
    next_us: int | None = None


def source_limit(source_id: str, reports: Mapping[str, SourceReport]) -> int:
    """How far a source may read: the smallest watermark of the *other* counting sources plus its own drift. O(n^2).

    Its own splits it holds together itself, ahead of reading. If every counting source that has more to read waits for
    another, since the next record of each is beyond its limit, there is a gap in the event times: then those go on that
    are nearest, within their drift of those that have read all that is there.

    Parameters
    ----------
    source_id : str
        A key of `reports`.
    reports : mapping of str to SourceReport
        The last word of each source of the group, this one included.

    Returns
    -------
    int
        In microseconds; ``MAX_WATERMARK``, that is no limit, if no other source counts.
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


def _limit_by_others(source_id: str, reports: Mapping[str, SourceReport]) -> int:
    others = [r.watermark for i, r in reports.items() if i != source_id and r.watermark is not None]
    return saturating_add(min(others), reports[source_id].max_drift_us) if others else MAX_WATERMARK


@dataclass(slots=True)
class _Member:
    max_drift_us: int
    lease_us: int | None
    watermark: int | None = None
    counts: bool = False
    deadline_us: int | None = None


class AlignmentGroup:
    """Members with watermarks, and the limit that the slowest of them sets for each.

    Members have unique ids, not names: two sources of one name stay two. A member whose process dies without
    :meth:`leave` would hold the group for ever (FLINK-40505), so it can join with a lease: each report renews
    it, and :meth:`expire` removes those whose lease has ended.

    Parameters
    ----------
    name : str
        Of the group; not empty.

    Notes
    -----
    Time is passed in, on any monotonic clock in microseconds. Every change costs O(log n) for n members,
    :meth:`limit` O(1).

    Examples
    --------
    >>> group = AlignmentGroup("orders and payments")
    >>> group.join("orders", max_drift_us=10)
    >>> group.join("payments", max_drift_us=20)
    >>> group.report("orders", 100)
    >>> group.report("payments", 50)
    >>> group.limit("orders"), group.limit("payments"), group.holding_back()
    (60, 70, ('payments',))
    """

    __slots__ = ("_counting", "_deadlines", "_members", "_name", "_unstarted")

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name.strip():
            raise InvalidArgumentError(f"name = {name!r} must be the name of a group, and not empty")
        self._name = name
        self._members: dict[str, _Member] = {}
        # (watermark, member id) of the counting reports, ascending.
        self._counting: SortedList[tuple[int, str]] = SortedList()
        # (deadline, member id) of the leases, ascending; the rest wait in `_unstarted`.
        self._deadlines: SortedList[tuple[int, str]] = SortedList()
        self._unstarted: set[str] = set()

    @property
    def name(self) -> str:
        """Name of the group."""
        return self._name

    def join(
        self, member_id: str, max_drift_us: int, *, lease_us: int | None = None, now_us: int | None = None
    ) -> None:
        """Add a member, which counts from its first report on.

        Parameters
        ----------
        member_id : str
            Unique within the group.
        max_drift_us : int
            How far this member may be ahead of the slowest one, in microseconds; at least 0.
        lease_us : int, optional
            After how long without a report the member is taken for dead, in microseconds; above 0. Without it
            a member stays until it leaves.
        now_us : int, optional
            The present instant. Without it a lease begins with the next instant the group is told, by
            :meth:`report` or :meth:`expire`.

        Raises
        ------
        InvalidArgumentError
            If the id is taken, `max_drift_us` is below 0, or `lease_us` is not above 0.
        """
        if member_id in self._members:
            raise InvalidArgumentError(
                f"member_id = {member_id!r} is in the group {self._name!r} already: ids must be unique; "
                "let the other one leave first"
            )
        if max_drift_us < 0:
            raise InvalidArgumentError(f"max_drift_us = {max_drift_us} must be at least 0")
        if lease_us is not None and lease_us <= 0:
            raise InvalidArgumentError(f"lease_us = {lease_us} must be above 0, or None for no lease")
        member = self._members[member_id] = _Member(max_drift_us, lease_us)
        if lease_us is not None:
            self._unstarted.add(member_id)
            self._renew(member_id, member, now_us)

    def report(self, member_id: str, watermark: int, *, counts: bool = True, now_us: int | None = None) -> None:
        """Take a member's last word; it may go back, as when an idle member is active again.

        Parameters
        ----------
        member_id : str
            A member.
        watermark : int
            In microseconds. ``MIN_WATERMARK`` counts like any other: the member has splits, but no watermark
            yet.
        counts : bool
            False for a member that must not hold the others: idle, finished, or without splits.
        now_us : int, optional
            The present instant, to renew the member's lease.

        Raises
        ------
        UnknownMemberError
            If it has not joined, has left, or its lease has ended; it may join again.
        """
        member = self._get(member_id)
        self._withdraw(member_id, member)
        member.watermark, member.counts = int(watermark), counts
        if counts:
            self._counting.add((member.watermark, member_id))
        self._renew(member_id, member, now_us)

    def leave(self, member_id: str) -> None:
        """Remove a member; what it held back is released at once.

        Raises
        ------
        UnknownMemberError
            If it is not in the group.
        """
        member = self._get(member_id)
        self._withdraw(member_id, member)
        self._unstarted.discard(member_id)
        if member.deadline_us is not None:
            self._deadlines.remove((member.deadline_us, member_id))
        del self._members[member_id]

    def expire(self, now_us: int) -> tuple[str, ...]:
        """Remove the members whose last report is a full lease ago. O(k log n) for k of them.

        Returns
        -------
        tuple of str
            Their ids.
        """
        for member_id in tuple(self._unstarted):
            self._renew(member_id, self._members[member_id], now_us)
        dead = tuple(member_id for _, member_id in takewhile(lambda lease: lease[0] <= now_us, self._deadlines))
        for member_id in dead:
            self.leave(member_id)
        return dead

    @property
    def slowest_watermark(self) -> int | None:
        """The smallest watermark of a counting report in microseconds; None without one. O(1)."""
        return self._counting[0][0] if self._counting else None

    def limit(self, member_id: str) -> int:
        """How far a member may go, in microseconds. O(1).

        Returns
        -------
        int
            :attr:`slowest_watermark` plus the member's drift, saturating. ``MAX_WATERMARK``, that is no
            limit, as long as there is no counting report.

        Raises
        ------
        UnknownMemberError
            If it is not in the group.
        """
        member = self._get(member_id)
        slowest = self.slowest_watermark
        return MAX_WATERMARK if slowest is None else saturating_add(slowest, member.max_drift_us)

    def is_past_limit(self, member_id: str, watermark: int) -> bool:
        """Whether a split of this member with this watermark has to wait: strictly beyond the limit. O(1).

        Raises
        ------
        UnknownMemberError
            If it is not in the group.
        """
        return watermark > self.limit(member_id)

    def holding_back(self) -> tuple[str, ...]:
        """The members that set the limit, by id. O(k) for k of them."""
        slowest = self.slowest_watermark
        return tuple(member_id for _, member_id in takewhile(lambda entry: entry[0] == slowest, self._counting))

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._members

    def __repr__(self) -> str:
        return f"AlignmentGroup({self._name!r}, {len(self)} members, slowest_watermark={self.slowest_watermark})"

    def _get(self, member_id: str) -> _Member:
        member = self._members.get(member_id)
        if member is None:
            raise UnknownMemberError(
                f"member_id = {member_id!r} is not in the group {self._name!r}: "
                "it never joined, has left, or its lease has ended; join (again) first"
            )
        return member

    def _withdraw(self, member_id: str, member: _Member) -> None:
        if member.counts and member.watermark is not None:
            self._counting.remove((member.watermark, member_id))

    def _renew(self, member_id: str, member: _Member, now_us: int | None) -> None:
        if member.lease_us is None or now_us is None:
            return
        if member.deadline_us is not None:
            self._deadlines.remove((member.deadline_us, member_id))
        member.deadline_us = now_us + member.lease_us
        self._deadlines.add((member.deadline_us, member_id))
        self._unstarted.discard(member_id)

    def _check(self) -> None:
        """Assert all invariants, with a dump of the fields when one does not hold. O(n log n)."""
        try:
            members = self._members.items()
            counting = sorted((m.watermark, i) for i, m in members if m.counts and m.watermark is not None)
            deadlines = sorted((m.deadline_us, i) for i, m in members if m.deadline_us is not None)
            unstarted = {i for i, m in members if m.lease_us is not None and m.deadline_us is None}
            assert list(self._counting) == counting, "counting reports are out of step"
            assert list(self._deadlines) == deadlines, "leases are out of step"
            assert self._unstarted == unstarted, "leases that have not begun are out of step"
            assert all(m.watermark is not None for _, m in members if m.counts), "counts without a report"
            assert all(m.lease_us is not None for _, m in members if m.deadline_us is not None), "no such lease"
            for member_id, member in members:
                slowest = counting[0][0] if counting else None
                if slowest is None:
                    assert self.limit(member_id) == MAX_WATERMARK, "a limit out of nothing"
                else:
                    assert self.limit(member_id) == min(slowest + member.max_drift_us, MAX_WATERMARK), "wrong limit"
        except AssertionError as error:
            dump = {name: getattr(self, name) for name in self.__slots__}
            raise AssertionError(f"{error}: {dump}") from error

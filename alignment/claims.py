"""Claims: up to which event time a table has all rows of one of its writers.

Theory of operation
===================

A query commits each of its micro-batches to its sink with the number of the micro-batch, and has written its watermark
into its checkpoint before. A *claim* joins the two: *no later commit of this writer has a row whose column is at or
before `until_us`, but late ones.* Whether one follows, and from which watermark, depends on what the query does with
rows that are late for it, which its operators show:

- A query without state, or one that removes duplicates, hands on what its sources bring. Of a source of this library
  all later rows are after the watermark in the offset. Spark's own sources promise nothing, and Spark drops nothing.
- A windowed aggregation in append mode emits each window once, when the query's watermark reaches its end, and drops
  the rows of windows whose end the watermark of the micro-batch before had reached. So all windows of later
  micro-batches end after the watermark of this one, whatever the sources are.
- A join emits a row when the other side arrives, or as late as its condition allows. The condition is not in the
  checkpoint, so the user names the delay.
- Of anything else (sessions, state of the user's own) the code alone knows when a row is emitted.

A claim stays true, so an older one of the same writer may be used where a newer one is not there. A table that has
several writers is complete until the smallest of their claims. What a writer that was replaced has claimed does not
hold of the rows of its successor: from when that is named until its first commit nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from alignment.watermarks import FAR_US, MAX_WATERMARK, MIN_WATERMARK, Claim, saturating_add, watermark_of

_VOUCH: Final = "if you know by how much rows can be behind the watermark, give that column and claimDelay"


class OperatorKind(StrEnum):
    """The work of a stateful operator, as far as claims depend on it."""

    WINDOWS = "windows"
    DEDUPLICATION = "deduplication"
    JOIN = "join"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class WriterOperator:
    """A stateful operator of a writer: its `title` for people; of windows their column, and their length if known."""

    kind: OperatorKind
    title: str
    column: str = ""
    length_us: int | None = None


@dataclass(frozen=True, slots=True)
class WriterShape:
    """The shape of a query, as its checkpoint shows it.

    `operators` are in the order in which rows pass them. `sources` has, for each source of this library, the names
    under which its frame may have the event time, the likeliest first; None for another source.
    """

    operators: tuple[WriterOperator, ...]
    sources: tuple[tuple[str, ...] | None, ...]

    @property
    def is_ours(self) -> bool:
        """True if all its sources are of this library."""
        return None not in self.sources


@dataclass(frozen=True, slots=True)
class WriterProgress:
    """One micro-batch of a writer, in microseconds: Spark's watermark in it, and that of each source at its end.

    `watermark_us` is 0 before there is one; a source that is not of this library, or has no watermark yet, has None.
    """

    watermark_us: int
    source_us: tuple[int | None, ...]


class NoClaim(NamedTuple):
    """Why no claim follows, and what the user can do about it."""

    reason: str
    fix: str


@dataclass(frozen=True, slots=True)
class ClaimRule:
    """The rule for claims on a column: from the sources' watermarks, or else from the query's, less `behind_us`."""

    column: str
    by_sources: bool
    behind_us: int = 0

    def until_us(self, progress: WriterProgress) -> int:
        """Return what a micro-batch claims; `MIN_WATERMARK` for nothing yet, `MAX_WATERMARK` for all rows ever."""
        if self.by_sources:
            claimed = min(map(watermark_of, progress.source_us))
        else:
            claimed = progress.watermark_us if progress.watermark_us > 0 else MIN_WATERMARK
        # The watermark of a query whose sources have ended is as late as a timestamp of Spark's can be.
        if claimed == MIN_WATERMARK or claimed >= FAR_US:
            return MIN_WATERMARK if claimed == MIN_WATERMARK else MAX_WATERMARK
        return saturating_add(claimed, -self.behind_us)


def claim_rule(shape: WriterShape, column: str | None = None, delay_us: int | None = None) -> ClaimRule | NoClaim:
    """Return how claims of a writer on a column follow, or why none does.

    Parameters
    ----------
    shape
        What its checkpoint shows.
    column
        The column of the table; None for the one that the claim is on by itself.
    delay_us
        What the user vouches for: no row comes whose column is further behind the watermark. None if the user names
        nothing: then only what follows from the shape is claimed.
    """
    windows = [one for one in shape.operators if one.kind is OperatorKind.WINDOWS]
    if not windows and all(one.kind is OperatorKind.DEDUPLICATION for one in shape.operators):
        return _by_sources(shape, column, delay_us)
    if delay_us is not None:
        own = f"{windows[-1].column}.end" if windows else None
        if column is None and own is None:
            return NoClaim("no column is named that the delay is on", "name the column of the table")
        return ClaimRule(column or own or "", by_sources=False, behind_us=delay_us)
    for one in shape.operators:
        if one.kind is OperatorKind.OTHER:
            return NoClaim(f"it has {one.title}, whose rows come when its own rule says, not by the watermark", _VOUCH)
        if one.kind is OperatorKind.JOIN:
            return NoClaim(
                f"it has a {one.title}, and how far its rows come behind the watermark follows from the join's "
                "condition, which no checkpoint has",
                "look at the condition on the event times of both sides: name as claimDelay how far it lets a row's "
                "column be behind the row that it waits for",
            )
    if len(shape.sources) > 1 and not shape.is_ours:
        return NoClaim(
            f"it has {len(shape.sources)} sources, not all of this library, and a {windows[-1].title}: the checkpoint "
            "does not show whether the rows of all of them are in its windows",
            "read all its sources with this library (read_stream); " + _VOUCH,
        )
    return _of_windows(windows, column)


def _by_sources(shape: WriterShape, column: str | None, delay_us: int | None) -> ClaimRule | NoClaim:
    if not shape.is_ours:
        what = "removes duplicates" if shape.operators else "has no operator with state"
        return NoClaim(
            f"it {what} and reads a source of Spark's own, of which Spark filters no row by the watermark",
            "read that source with this library (read_stream), whose watermark is in the checkpoint",
        )
    known = [names for names in shape.sources if names is not None]
    if delay_us is not None:
        if column is None and not known[0]:
            return NoClaim("no column is named that the delay is on", "name the column of the table")
        return ClaimRule(column or known[0][0], by_sources=True, behind_us=delay_us)
    wanted = column or next((name for name in known[0] if all(_is_among(name, names) for names in known)), None)
    if wanted is None or not all(_is_among(wanted, names) for names in known):
        own = " and ".join(sorted({repr(names[0]) if names else "a function's" for names in known}))
        named = f"the column {column!r}" if column else "one column"
        return NoClaim(
            f"its event times are {own}, and that these are in {named} of the table is not in its checkpoint",
            "name the event-time column as the writer does; or, where it is the same under another name, give "
            "claimDelay = 0 seconds",
        )
    return ClaimRule(wanted, by_sources=True)


def _of_windows(windows: Sequence[WriterOperator], column: str | None) -> ClaimRule | NoClaim:
    name = windows[-1].column
    end, start, time = f"{name}.end", f"{name}.start", f"window_time({name})"
    if column is None or _is_among(column, (end,)):
        return ClaimRule(column or end, by_sources=False)
    if _is_among(column, (time,)):
        return ClaimRule(column, by_sources=False, behind_us=1)
    if not _is_among(column, (start,)):
        return NoClaim(
            f"its claim is on {end}, and how the column {column!r} of the table follows from it is not in its "
            "checkpoint",
            f"name as claimDelay how far {column!r} is behind {end} at most: 0 seconds for another name of it, 1 "
            "microsecond for window_time",
        )
    # Windows of a union come out side by side: the longest of them start first.
    lengths_us = [one.length_us for one in windows if _is_among(one.column, (name,))]
    longest_us = max((us for us in lengths_us if us is not None), default=None)
    if longest_us is None or None in lengths_us:
        return NoClaim(
            f"its claim is on {end}, and its state does not show how long its windows are",
            f"give their length as claimDelay: so far is {start} behind",
        )
    return ClaimRule(column, by_sources=False, behind_us=longest_us)


def _is_among(name: str, names: Sequence[str]) -> bool:
    return name.lower() in (known.lower() for known in names)


class WrittenCommit(Protocol):
    """A commit of a table, by what claims depend on."""

    @property
    def version(self) -> int:
        """Its number in the table."""

    @property
    def micro_batches(self) -> Sequence[tuple[str, int]]:
        """Return what it was written by: ids of queries, each with the number of its micro-batch."""

    def check_claims(self, own: Sequence[tuple[str, int]], known: Collection[str]) -> None:
        """Raise if nothing follows of the micro-batches `own`, or if it ends what is claimed of `known` queries."""


class SinkCommit(NamedTuple):
    """A commit of a sink that only appends."""

    version: int
    micro_batches: Sequence[tuple[str, int]]

    def check_claims(self, own: Sequence[tuple[str, int]], known: Collection[str]) -> None:
        """Nothing ends what it claims."""


class StrangeCommit(NamedTuple):
    """A version of which none of the named writers is, with rows at or before what was claimed until it."""

    version: int
    claimed_us: int


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims of the writers of one table, from commit to commit.

    Attributes
    ----------
    writers
        Those side by side, each with those that it replaced before it: ids of queries, oldest first. Each one ended
        when the next began: from then on it is a stranger, should it commit again (a zombie).
    last
        Of each of them the last claim that counts; None before any.
    announced_us
        The latest of what was claimed from commit to commit: rows up to there may be late.
    """

    writers: tuple[tuple[str, ...], ...]
    last: tuple[Claim | None, ...]
    announced_us: int = MIN_WATERMARK

    @staticmethod
    def of(writers: Iterable[Sequence[str]], known: Iterable[Claim] = ()) -> Claims:
        """Return them with the claims that an offset has, of each side the one of its newest writer."""
        sides, claims = tuple(map(tuple, writers)), {claim.writer: claim for claim in known}
        last = [next((claims[one] for one in reversed(side) if one in claims), None) for side in sides]
        return Claims(sides, tuple(last), min(MIN_WATERMARK if one is None else one.until_us for one in last))

    @property
    def known(self) -> tuple[Claim, ...]:
        """The last claim of each writer that has one: what an offset keeps."""
        return tuple(dict.fromkeys(claim for claim in self.last if claim is not None))

    @property
    def current(self) -> tuple[tuple[str, Claim | None], ...]:
        """The writers that commit now, with what they claim: nothing before their own first commit."""
        sides = zip(self.writers, self.last, strict=True)
        return tuple((side[-1], one if one is not None and one.writer == side[-1] else None) for side, one in sides)

    @property
    def holder(self) -> str:
        """The writer whose claim is the smallest."""
        return min(self.current, key=_until_us)[0]

    @property
    def until_us(self) -> int:
        """Up to when the table is complete: the smallest claim, `MIN_WATERMARK` while a writer has none."""
        return min(map(_until_us, self.current))

    def take(
        self,
        commits: Iterable[WrittenCommit],
        claimed_us: Callable[[str, int], int | None],
        earliest_us: Mapping[int, int] | None = None,
    ) -> tuple[Claims, list[StrangeCommit]]:
        """Return the claims after more commits, oldest first, and which of these are of strangers and follow a claim.

        `claimed_us` has what a micro-batch of a writer claims, None if that is not known any more. It is asked for the
        newest one of each writer, and before each commit of a stranger. Of versions in `earliest_us` no row is before
        that; others have none, or are not looked at.
        """
        claims, strange, earliest_us = self, list[StrangeCommit](), earliest_us or {}
        newest: dict[int, tuple[str, int, int]] = {}
        seen = {claim.writer for claim in self.known}
        for commit in commits:
            own = [batch for batch in commit.micro_batches if claims._take_newest(newest, *batch, commit.version)]
            commit.check_claims(own, seen)
            seen.update(writer for writer, _ in own)
            if not own and commit.version in earliest_us:
                claims = claims._with(newest, claimed_us)
                newest.clear()
                if MIN_WATERMARK < claims.announced_us >= earliest_us[commit.version]:
                    strange.append(StrangeCommit(commit.version, claims.announced_us))
        return claims._with(newest, claimed_us), strange

    def _take_newest(self, newest: dict[int, tuple[str, int, int]], writer: str, batch: int, version: int) -> bool:
        """Note a micro-batch as the newest of the writer; return whether the writer is named and was not replaced."""
        is_named = False
        for number, side in enumerate(self.writers):
            known = newest.get(number, self.last[number])
            if writer in side and (known is None or side.index(writer) >= side.index(known[0])):
                is_named = True
                if known is None or known[0] != writer or known[1] <= batch:
                    newest[number] = writer, batch, version
        return is_named

    def _with(self, newest: Mapping[int, tuple[str, int, int]], claimed_us: Callable[[str, int], int | None]) -> Claims:
        last = list(self.last)
        for number, (writer, batch, version) in newest.items():
            known, us = last[number], claimed_us(writer, batch)
            if known is None or known.writer != writer:
                # What the one before it claims does not hold of its rows.
                last[number] = Claim(writer, batch, watermark_of(us), version)
            elif us is not None:
                last[number] = Claim(writer, batch, max(us, known.until_us), version)
        found = replace(self, last=tuple(last))
        return replace(found, announced_us=max(self.announced_us, found.until_us))


def _until_us(current: tuple[str, Claim | None]) -> int:
    return MIN_WATERMARK if current[1] is None else current[1].until_us

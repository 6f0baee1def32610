"""A check that the watermarks in the checkpoint follow from the event times that were read.

After a micro-batch Spark's watermark is the latest event time less the delay of `withWatermark`, in whole milliseconds,
unless it was higher before. With several `withWatermark` it is the smallest of theirs, or the largest; each one begins
anew in each run of the query. If the recorded watermarks do not follow from the times that were read, then what the
query did with its rows is not what would be counted: it filters or changes them first, or reads another time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, product
from typing import Final, TypeAlias

from alignment.arrow_times import format_timestamp
from alignment.durations import format_duration
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK
from streaming_source.checkpoint.offset_log import Checkpoint, CommittedBatch
from streaming_source.tools.auditing.counting import Tally
from streaming_source.tools.auditing.sources.base import SplitRead

Choose: TypeAlias = Callable[[Iterable[int]], int]

_QUARTER_US: Final = 900_000_000
_FARTHEST_US: Final = 14 * 4 * _QUARTER_US
_HOUR_US: Final = 4 * _QUARTER_US
_PROOF: Final = 2
"""Micro-batches that show by the same difference that a delay was changed."""
_MOST: Final = 4
"""Of up to so many sources it is tried which of them have a watermark."""
_CAUSES: Final = (
    "either the query filters or changes rows before withWatermark, or its event time is another column (--time)"
)


@dataclass(frozen=True, slots=True)
class Check:
    """The relation of the watermarks to the event times.

    They are right if they are `confirmed`, and wrong if there is a reason in `refuted`; else it cannot be decided,
    because of `unchecked`. `note` is for readers of the result. `is_filtered`: the query may just have read
    fewer rows.
    """

    confirmed: bool = False
    refuted: str | None = None
    unchecked: str | None = None
    note: str | None = None
    is_filtered: bool = False
    has_times: bool = True


@dataclass(frozen=True, slots=True)
class Latest:
    """The latest event time of each source in a micro-batch, in whole milliseconds, given in microseconds.

    None for a source without one.
    """

    batch: CommittedBatch
    times_us: Sequence[int | None]

    @property
    def has_moved(self) -> bool:
        """True if the watermark follows from this micro-batch."""
        return self.next_us > self.batch.watermark_us

    @property
    def next_us(self) -> int:
        """The watermark that followed."""
        assert self.batch.next_us is not None
        return self.batch.next_us


def latest_times(checkpoint: Checkpoint, counted: Sequence[tuple[int, SplitRead, Tally]]) -> list[Latest]:
    """Return them for the micro-batches of which all rows can still be read, and what followed is known. O(n)."""
    found: dict[int, list[int | None]] = {}
    unseen: set[int] = set()
    sources = len(checkpoint.source_folders)
    for number, read, tally in counted:
        if read.batch is None:
            continue
        if tally.gone:
            unseen.add(read.batch.number)
        times = found.setdefault(read.batch.number, [None] * sources)
        if tally.latest_us > NO_TIMESTAMP:
            us = tally.latest_us // 1_000 * 1_000
            before = times[number]
            times[number] = us if before is None else max(us, before)
    nothing: list[int | None] = [None] * sources
    return [
        Latest(batch, found.get(batch.number, nothing))
        for batch in checkpoint.batches
        if batch.next_us is not None and batch.number not in unseen
    ]


def check_watermarks(
    checkpoint: Checkpoint, latest: Sequence[Latest], delays_us: frozenset[int], *, needs_zone: bool = False
) -> Check:
    """Compare the watermarks that follow from event times with those of the checkpoint.

    `delays_us` are those that the state has: of the first run of the query. If the times `needs_zone`, another zone
    may be the reason why they do not fit.
    """
    if not any(one.has_moved for one in latest):
        return Check(unchecked="no micro-batch whose rows are still there has moved the watermark")
    if all(us is None for one in latest for us in one.times_us):
        return Check(refuted="none of its rows has a time, and the watermark of the query has moved", has_times=False)
    if len(checkpoint.source_folders) > 1:
        return _check_several(checkpoint, latest, delays_us)
    delay_us = next(iter(delays_us)) if len(delays_us) == 1 else None
    return _check_one(latest, delay_us, is_whole=checkpoint.purged_until is None, needs_zone=needs_zone)


# ---- one source ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Delay:
    """The delays, from the least to the most, that explain the micro-batches from one on.

    `proofs` of these moved the watermark, so that only one delay explains them.
    """

    since: int
    least_us: int = 0
    most_us: int = MAX_WATERMARK
    proofs: int = 0

    def narrowed(self, one: Latest, us: int) -> bool:
        """Narrow it by a micro-batch; return whether that leaves any."""
        least, most = us - one.next_us, us - one.next_us if one.has_moved else MAX_WATERMARK
        if max(least, self.least_us) > min(most, self.most_us):
            return False
        self.least_us, self.most_us = max(least, self.least_us), min(most, self.most_us)
        self.proofs += one.has_moved
        return True


def _check_one(latest: Sequence[Latest], delay_us: int | None, *, is_whole: bool, needs_zone: bool) -> Check:
    first = _Delay(latest[0].batch.number)
    if delay_us is not None and is_whole:
        # The state was made by the first run, and so was the first micro-batch.
        first.least_us = first.most_us = delay_us
    delays = [first]
    for one in latest:
        (us,) = one.times_us
        if us is None:
            is_explained = not one.has_moved
        else:
            is_explained = delays[-1].narrowed(one, us)
            if not is_explained:
                delays.append(_Delay(one.batch.number))
                is_explained = delays[-1].narrowed(one, us)
        if not is_explained:
            return _refuted(latest, delay_us, needs_zone=needs_zone)
    if needs_zone and delay_us is None:
        return Check(unchecked="the state does not have the delay of withWatermark")
    is_other = delay_us is not None and not first.least_us <= delay_us <= first.most_us
    if len(delays) == 1 and not is_other:
        return Check(confirmed=True)
    # One that was changed shows in several micro-batches. A zone that is wrong looks like another delay.
    doubted = delays if is_other else delays[1:]
    if any(one.proofs < _PROOF for one in doubted) or not first.proofs:
        return _refuted(latest, delay_us, needs_zone=needs_zone)
    changes = [(one.since, one.most_us) for one in delays[1:]]
    before_us = first.most_us
    if is_other and delay_us is not None:
        if needs_zone and _zone_offset(latest, delay_us) is not None:
            return _refuted(latest, delay_us, needs_zone=needs_zone)
        changes.insert(0, (first.since, first.most_us))
        before_us = delay_us
    steps = " and ".join(f"to {format_duration(us)} before micro-batch {number}" for number, us in changes)
    return Check(
        confirmed=True,
        note=(
            f"The delay of withWatermark was changed, from {format_duration(before_us)} {steps}: rows are counted by "
            "the watermarks that the query had."
        ),
    )


def _refuted(latest: Sequence[Latest], delay_us: int | None, *, needs_zone: bool) -> Check:
    """Return what is wrong, in which micro-batch, and what may be the cause."""
    if needs_zone and delay_us is not None and (offset_us := _zone_offset(latest, delay_us)) is not None:
        side = "before" if offset_us < 0 else "after"
        return Check(
            refuted=(
                "its event times have no zone, and in the one in which they were read here they are "
                f"{format_duration(abs(offset_us))} {side} those that led to the watermarks of the query; give that of "
                "the query's session with -o timeZone=Europe/Berlin or the like"
            )
        )
    if delay_us is None:
        moved = (us - one.next_us for one in latest for us in one.times_us if one.has_moved and us is not None)
        delay_us = max(next(moved, 0), 0)
    expected = [
        (one, one.batch.watermark_us if us is None else max(one.batch.watermark_us, us - delay_us))
        for one in latest
        for us in one.times_us
    ]
    first, us = next((one, us) for one, us in expected if us != one.next_us)
    return Check(
        refuted=(
            f"from micro-batch {first.batch.number} on the event times do not lead to the watermarks of the query: "
            f"with a delay of {format_duration(delay_us)} they give {format_timestamp(us)}, and the checkpoint has "
            f"{format_timestamp(first.next_us)}; {_CAUSES}"
        ),
        is_filtered=all(one.next_us <= us for one, us in expected),
    )


def _zone_offset(latest: Sequence[Latest], delay_us: int) -> int | None:
    """Return by how much the event times differ from those of the query, if that may be the offset of a zone.

    With summer and winter there are two offsets; then the first is returned.
    """
    found = [us - one.next_us - delay_us for one in latest for us in one.times_us if one.has_moved and us is not None]
    is_offset = all(us and not us % _QUARTER_US and abs(us) <= _FARTHEST_US for us in found)
    return found[0] if is_offset and found and max(found) - min(found) in (0, _HOUR_US) else None


# ---- several ---------------------------------------------------------------------------------------------------------


def _check_several(checkpoint: Checkpoint, latest: Sequence[Latest], delays_us: frozenset[int]) -> Check:
    sources = range(len(checkpoint.source_folders))
    if not delays_us:
        return Check(unchecked="the state does not have the delays of withWatermark")
    if checkpoint.purged_until is not None or len(latest) < len(checkpoint.batches):
        return Check(unchecked="not all micro-batches are there that moved the watermarks of its sources")
    chosen = chain.from_iterable(combinations(sources, n) for n in sources[1:]) if len(sources) <= _MOST else ()
    choose = max if checkpoint.policy == "max" else min
    for own in (tuple(sources), *chosen, *((one,) for one in sources)):
        for delays in product(sorted(delays_us), repeat=len(own)):
            # Of each source a watermark, or one after a union of them.
            apart = [[one.times_us[source] for source in own] for one in latest]
            together = [[max((us for us in times if us is not None), default=None)] for times in apart]
            if _leads(latest, apart, delays, choose) or _leads(latest, together, delays[:1], choose):
                return Check(confirmed=True)
    return _check_delays(latest, len(sources), delays_us, choose)


def _check_delays(latest: Sequence[Latest], sources: int, delays_us: frozenset[int], choose: Choose) -> Check:
    """Find a delay of each source: the state keeps that of one, behind a union of several."""
    times = [one.times_us for one in latest]
    for proof in (_PROOF, 1) if sources <= _MOST else ():
        tried = ({*delays_us, *_shown(latest, source, proof)} for source in range(sources))
        for delays in product(*map(sorted, tried)):
            if not _leads(latest, times, delays, choose):
                continue
            named = " and ".join(f"{format_duration(us)} of source {number}" for number, us in enumerate(delays))
            if proof == _PROOF:
                return Check(
                    confirmed=True, note=f"The delays of withWatermark differ, as the watermarks show: {named}."
                )
            return Check(
                refuted=(
                    f"the state keeps one delay of withWatermark, and its {sources} sources seem to have several "
                    f"({named}), which too few micro-batches show; audit the query again when it has run for longer"
                )
            )
    return Check(
        refuted=(
            f"the event times of its {sources} sources do not lead to the watermarks that the query had; {_CAUSES}"
        )
    )


def _shown(latest: Sequence[Latest], source: int, proof: int) -> list[int]:
    """Return the delays by which a source alone would have led to at least `proof` watermarks, the first few."""
    found, reached = Counter[int](), None
    for one in latest:
        reached = _later(reached, one.times_us[source])
        if one.has_moved and reached is not None:
            found[reached - one.next_us] += 1
    return [us for us, count in found.most_common(_MOST) if count >= proof and us >= 0]


def _leads(
    latest: Sequence[Latest], times: Sequence[Sequence[int | None]], delays_us: Sequence[int], choose: Choose
) -> bool:
    """Return whether these times lead to the watermarks, if a run of the query may begin with each micro-batch."""
    runs: set[tuple[int | None, ...]] = set()
    for one, of_batch in zip(latest, times, strict=True):
        runs.add((None,) * len(delays_us))
        own = [None if us is None else us - delay for us, delay in zip(of_batch, delays_us, strict=True)]
        after = {tuple(_later(a, b) for a, b in zip(run, own, strict=True)) for run in runs}
        runs = {run for run in after if max(one.batch.watermark_us, choose(us or 0 for us in run)) == one.next_us}
        if not runs:
            return False
    return True


def _later(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else max(a, b)

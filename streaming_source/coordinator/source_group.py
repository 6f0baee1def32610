"""What a planner asks of the alignment group of its source, and the answers of a source that has none."""

from __future__ import annotations

from collections.abc import Sequence

from alignment.events import Event
from alignment.explain import GroupMember
from alignment.group_events import Progress
from alignment.watermarks import MIN_WATERMARK
from streaming_source.coordinator.calls import AsyncCalls

__all__ = ["SourceGroup"]


class SourceGroup:
    """A source without a group: nothing holds it, and it holds nobody. `GroupExchange` has the others.

    Its plans give others an outlook if it `needs_outlook`. It `is_waited_for` while another source has records that it
    may not read before this one goes on. It `lets_others_plan` where its last plan, the first one, is to read nothing,
    since sources of its query have not planned yet. The plan `may_go_on` if reports of others have changed since.
    """

    needs_outlook = is_waited_for = lets_others_plan = may_go_on = False

    def start(self, calls: AsyncCalls) -> None:
        """Exchange reports periodically, also while a micro-batch takes long."""

    def join(self) -> None:
        """Let the other sources of the query know of this one, before the first of them plans."""

    def drain(self) -> None:
        """Let them know that this one reads only what is there (AvailableNow), before the first of them plans."""

    def resume(self, watermark: int | None, announced_us: int) -> None:
        """The source goes on from a state."""

    def start_call(self) -> None:
        """Spark asks for the next micro-batch."""

    def end_call(self) -> None:
        """Spark has its answer."""

    def start_plan(self) -> Sequence[Event]:
        """Return what the others let the engine do in the plan that follows."""
        return ()

    def end_plan(self, progress: Progress) -> None:
        """Report how far the source is after a plan."""

    def holds(self, next_us: int | None) -> bool:
        """Whether the limit of the last plan keeps this source from its next record."""
        return False

    def wait_for_others(self) -> bool:
        """Let a run that can do nothing but wait for other sources wait for a moment.

        Return whether the run is to go on to the next trigger, in which others may plan; if not, this source plans once
        more, since the others have gone on or are given up.
        """
        return False

    def leave(self) -> None:
        """Hold nobody back any more, whatever is still reported. A process that ends has left without it."""

    def slowest_at(self, now_us: int) -> GroupMember | None:
        """The other member that counts with the smallest watermark, its times by the clock that shows `now_us`."""
        return None

    @property
    def followed_us(self) -> int:
        """What this source announces while it is idle; `MIN_WATERMARK` if it knows no other one of its query."""
        return MIN_WATERMARK

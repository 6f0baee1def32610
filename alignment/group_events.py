"""Events of a source of an alignment group, and what it is told to do: the values that drive a `Membership`.

Times are in microseconds, by a clock that all members on a host share and that does not go back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from alignment.combine import SplitStatus
from alignment.groups import Lookahead, SourceReport
from alignment.watermarks import MIN_WATERMARK


@dataclass(frozen=True, slots=True)
class Member:
    """A source of a group, as it was when it last reported.

    Its process `pid` is one of this host. By a monotonic clock that all processes of the host share, it reported at
    `at_us`, and its report counts until `until_us`, in microseconds.
    """

    source_id: str
    name: str
    pid: int
    at_us: int
    until_us: int
    report: SourceReport


# ---- events ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Joined:
    """The source is one of a query that is about to plan for the first time."""

    at_us: int


@dataclass(frozen=True, slots=True)
class Drained:
    """The run reads only what is there (AvailableNow)."""

    at_us: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """The source goes on from a state; see `SourceReport` for the two watermarks."""

    at_us: int
    watermark: int | None
    announced_us: int


@dataclass(frozen=True, slots=True)
class CallStarted:
    """Spark asks for the next micro-batch, once in each trigger."""

    at_us: int


@dataclass(frozen=True, slots=True)
class CallEnded:
    """Spark has its answer."""

    at_us: int


@dataclass(frozen=True, slots=True)
class PlanStarted:
    """A plan needs the limit."""

    at_us: int


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a source after a plan; see `SourceReport` for the fields."""

    watermark: int | None = None
    next_us: int | None = None
    lookahead: Lookahead | None = None
    status: SplitStatus = SplitStatus.ACTIVE
    announced_us: int = MIN_WATERMARK


@dataclass(frozen=True, slots=True)
class PlanEnded:
    """A plan was made."""

    at_us: int
    progress: Progress


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Time has passed; with `reads` the reports of others are wanted now, even if none is due to be written."""

    at_us: int
    reads: bool = False


@dataclass(frozen=True, slots=True)
class WaitedInVain:
    """A run could do nothing but wait for the others, once more."""

    at_us: int


@dataclass(frozen=True, slots=True)
class Seen:
    """All live members of the group; `is_fresh` if they are as they were when it was asked for."""

    at_us: int
    members: tuple[Member, ...]
    is_fresh: bool


@dataclass(frozen=True, slots=True)
class Unreachable:
    """Reports could be neither written nor read, and why."""

    at_us: int
    why: str


@dataclass(frozen=True, slots=True)
class Left:
    """The source holds nobody back any more, whatever it still reports."""


Event: TypeAlias = (
    Joined
    | Drained
    | Resumed
    | CallStarted
    | CallEnded
    | PlanStarted
    | PlanEnded
    | TimePassed
    | WaitedInVain
    | Seen
    | Unreachable
    | Left
)


# ---- instructions ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Write:
    """Write the source's own report, and then see those of all."""

    member: Member


@dataclass(frozen=True, slots=True)
class Read:
    """See the reports of all."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait for a moment, or until another report is there."""


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove the source's own report."""


@dataclass(frozen=True, slots=True)
class Warn:
    """Tell the user."""

    text: str


Instruction: TypeAlias = Write | Read | Pause | Remove | Warn

"""Watermarks and the generators that make them.

A watermark ``W`` declares: no more records with an event time of ``W`` or less. A split's watermark never goes
back. Each split has a generator of its own, so that one split's pace never speaks for another (FLIP-27).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from alignment.exceptions import InvalidArgumentError

if TYPE_CHECKING:
    import pyarrow as pa

Int64Array: TypeAlias = npt.NDArray[np.int64]
"""Watermarks, event times or positions of many splits or records."""
BoolArray: TypeAlias = npt.NDArray[np.bool_]

MIN_WATERMARK: Final = -(2**63)
"""The watermark before any record: of a split, a source or a group.

Its number is that of `NO_TIMESTAMP`, which is an event time, and of `LONG_AGO_US`, which is a processing time; none of
the three stands for another. A watermark comes of an event time in `bounded_watermark` alone, and where the earliest
unread one less 1 is a watermark.
"""

MAX_WATERMARK: Final = 2**63 - 1
"""The watermark after all records: none will ever come again. As a bound or a limit: there is none."""

FAR_US: Final = 64_060_588_800_000_000
"""The year 4000: event times are before it, and a watermark from there on is one of records that have ended."""

LONG_AGO_US: Final = -(2**63)
"""The processing time before all others: of what has not happened, or before a restart."""


class Claim(NamedTuple):
    """The last claim of a writer of a table, the query of this id: by its micro-batch, in this version of the table.

    No later commit of the writer has a row at or before `until_us`, but late ones: see `alignment.claims`.
    """

    writer: str
    batch: int
    until_us: int
    version: int


class WatermarkOutput(Protocol):
    """The place where a generator puts its watermarks and its idleness."""

    def emit_watermark(self, watermark: int) -> None:
        """Announce a watermark, in microseconds; this also ends idleness."""

    def mark_idle(self) -> None:
        """Leave the combination of watermarks: this output holds nothing back until it is active again."""

    def mark_active(self) -> None:
        """Count again."""


class WatermarkGenerator(ABC):
    """Makes the watermarks of one split from its records, in their order.

    A generator overrides :meth:`on_event` or :meth:`on_batch`. It may be made anew between any two micro-batches, from
    what :meth:`snapshot_state` gave: what it knows must be there, and in nothing else.

    Examples
    --------
    A producer writes a record of the kind ``"end"`` after the last one of each hour:

    >>> class EndOfHour(WatermarkGenerator):
    ...     columns = ("kind",)
    ...
    ...     def on_event(self, record, timestamp, output):
    ...         if record["kind"] == "end":
    ...             output.emit_watermark(timestamp)
    ...
    ...     def on_periodic_emit(self, output):
    ...         pass
    ...
    ...     def snapshot_state(self):
    ...         return None
    """

    __slots__ = ()

    columns: tuple[str, ...] = ()
    """Dotted paths of the columns that it needs to see; without any it sees event times alone."""

    state_version: int = 1
    """Version of what :meth:`snapshot_state` gives: to be raised when that changes its meaning."""

    def on_event(self, record: Mapping[str, Any], timestamp: int, output: WatermarkOutput) -> None:
        """See one record: its values by the names in :attr:`columns`, and its event time, see :meth:`on_batch`."""
        raise NotImplementedError(f"{type(self).__name__} overrides neither on_event nor on_batch")

    def on_batch(self, records: pa.RecordBatch, timestamps: Int64Array, output: WatermarkOutput) -> None:
        """See `n` records, as many at once as were read. The default calls :meth:`on_event` for each, which is slower.

        `records` has the :attr:`columns`, under these names; `n` may be 0. `timestamps` are `int64[n]` microseconds:
        with :attr:`columns` of all records, ``NO_TIMESTAMP`` where one has no valid event time; without, of those alone
        that have one.
        """
        rows: Iterable[Mapping[str, Any]] = records.to_pylist() if self.columns else repeat({}, len(timestamps))
        for record, timestamp in zip(rows, timestamps.tolist(), strict=True):
            self.on_event(record, timestamp, output)

    @abstractmethod
    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emit a watermark, mark the split idle or active, or do nothing.

        Called after the records of each micro-batch, and between two micro-batches, also without records, as often as
        :meth:`WatermarkStrategy.with_auto_watermark_interval` sets.
        """

    @abstractmethod
    def snapshot_state(self) -> Any:
        """Return what it knows of the records so far, for the offset: a small value of JSON; None if it keeps nothing.

        What it has emitted need not be in it.
        """

    def restore_state(self, version: int, state: Any) -> None:
        """Go on from what :meth:`snapshot_state` gave, as JSON has it: a tuple has become a list.

        Called on a new generator, unless that was None, with the :attr:`state_version` of the generator that gave it.
        """
        raise InvalidArgumentError(
            f"the offset has the state {state!r} (version {version}) of a watermark generator, and "
            f"{type(self).__name__} does not take it: override restore_state, or start with a new checkpointLocation"
        )


@overload
def bounded_watermark(max_time: int, bound_us: int) -> int: ...
@overload
def bounded_watermark(max_time: Int64Array, bound_us: int) -> Int64Array: ...
def bounded_watermark(max_time: int | Int64Array, bound_us: int) -> int | Int64Array:
    """Bounded out-of-orderness: ``max_time - bound_us - 1``, not below :data:`MIN_WATERMARK`.

    `max_time` is the latest event time seen, ``NO_TIMESTAMP`` before any record; `bound_us` how far records may be
    after it, 0 to 2**63 - 1.
    """
    # The earliest time that does not saturate; raising to it first keeps the subtraction within int64.
    earliest = MIN_WATERMARK + bound_us + 1
    if isinstance(max_time, np.ndarray):
        return np.maximum(max_time, earliest) - bound_us - 1
    return max(int(max_time), earliest) - bound_us - 1


def known_watermark(watermark: int) -> int | None:
    """Return a watermark as JSON has it: None where it is `MIN_WATERMARK`."""
    return None if watermark == MIN_WATERMARK else watermark


def watermark_of(known: int | None) -> int:
    """Return the watermark of what `known_watermark` gave."""
    return MIN_WATERMARK if known is None else int(known)


def saturating_add(a: int, b: int) -> int:
    """Add two int64 values, clamped to int64: the end of time plus a drift is still that (FLINK-31632)."""
    return max(MIN_WATERMARK, min(MAX_WATERMARK, a + b))

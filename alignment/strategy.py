"""The one object a user configures: how event times, watermarks, idleness and alignment work for a source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from alignment.durations import parse_duration_us
from alignment.exceptions import InvalidArgumentError
from alignment.timestamps import RecordTimestampAssigner, TimestampAssigner, as_timestamp_assigner
from alignment.watermarks import WatermarkGenerator


@dataclass(frozen=True, slots=True)
class AlignmentParameters:
    """Parameters of a source in watermark alignment (FLIP-182, FLIP-217).

    Sources that name the same `group` are aligned with each other: no split may be more than `max_drift_us` (at least
    0) ahead of the slowest one. With None only the splits of the source itself are. The limit is looked up every
    `update_interval_us` (above 0).
    """

    group: str | None
    max_drift_us: int
    update_interval_us: int = 1_000_000

    def __post_init__(self) -> None:
        if self.group is not None and (not isinstance(self.group, str) or not self.group.strip()):
            raise InvalidArgumentError(
                f"group = {self.group!r} must be a name that is not empty, or None for the splits of this source alone"
            )
        if self.max_drift_us < 0:
            raise InvalidArgumentError(f"max_drift_us = {self.max_drift_us} must be at least 0")
        if self.update_interval_us <= 0:
            raise InvalidArgumentError(f"update_interval_us = {self.update_interval_us} must be above 0")


@dataclass(frozen=True, slots=True)
class WatermarkStrategy:
    """Event times, watermarks, idleness and alignment of a source. Immutable and picklable.

    Start with one of the ``for_...`` factories, or :meth:`no_watermarks`, and add to it with the ``with_...``
    methods; each returns a new strategy, and their order does not matter.

    Attributes
    ----------
    out_of_orderness_us : int or None
        The bound of the built-in generators, in microseconds; None for a generator of the user's, or none.
    generator_supplier : callable or None
        Makes a generator of the user's.
    timestamp_assigner : TimestampAssigner
        The second step of event times; by default it passes the source record timestamps on.
    idle_timeout_us : int or None
        After how long without anything to read a split is idle, in microseconds; None for never.
    alignment : AlignmentParameters or None
        None without alignment.
    uses_source_watermarks : bool
        Whether the watermarks are those that the source itself emits.
    auto_watermark_interval_us : int
        How often a generator of the user's is called without records, in microseconds; above 0.
    is_idleness_given : bool
        Whether the user decided it. If not, runs that end by themselves (AvailableNow) are counted instead: a split
        that brings nothing in one is idle in the next one that brings nothing of it either. In a query it is then a
        minute elsewhere.

    Examples
    --------
    >>> strategy = (
    ...     WatermarkStrategy.for_bounded_out_of_orderness("5 seconds")
    ...     .with_timestamp_assigner("event_time")
    ...     .with_idleness("1 minute")
    ... )
    >>> strategy.out_of_orderness_us, strategy.idle_timeout_us
    (5000000, 60000000)
    """

    out_of_orderness_us: int | None = None
    generator_supplier: Callable[[], WatermarkGenerator] | None = None
    timestamp_assigner: TimestampAssigner = field(default_factory=RecordTimestampAssigner)
    idle_timeout_us: int | None = None
    alignment: AlignmentParameters | None = None
    uses_source_watermarks: bool = False
    auto_watermark_interval_us: int = 200_000
    is_idleness_given: bool = False

    def __post_init__(self) -> None:
        if self.out_of_orderness_us is not None and self.generator_supplier is not None:
            raise InvalidArgumentError(
                f"out_of_orderness_us = {self.out_of_orderness_us} is the bound of a built-in generator: "
                "it cannot be given together with generator_supplier; choose one"
            )
        if self.out_of_orderness_us is not None and self.out_of_orderness_us < 0:
            raise InvalidArgumentError(f"out_of_orderness_us = {self.out_of_orderness_us} must be at least 0")
        if self.idle_timeout_us is not None and self.idle_timeout_us <= 0:
            raise InvalidArgumentError(
                f"idle_timeout_us = {self.idle_timeout_us} must be above 0, or None for no idleness"
            )
        if self.uses_source_watermarks and (self.out_of_orderness_us, self.generator_supplier) != (None, None):
            raise InvalidArgumentError(
                "uses_source_watermarks = True: cannot be given together with out_of_orderness_us or "
                "generator_supplier; choose where watermarks come from"
            )
        if self.auto_watermark_interval_us <= 0:
            raise InvalidArgumentError(
                f"auto_watermark_interval_us = {self.auto_watermark_interval_us} must be above 0"
            )
        if not isinstance(self.timestamp_assigner, TimestampAssigner):
            raise InvalidArgumentError(
                f"timestamp_assigner = {self.timestamp_assigner!r} must be a TimestampAssigner; "
                "with_timestamp_assigner() also takes a column name or a function"
            )

    @staticmethod
    def for_bounded_out_of_orderness(max_out_of_orderness: timedelta | str) -> WatermarkStrategy:
        """Records of a split are at most this far behind its latest one; a duration of at least 0."""
        return WatermarkStrategy(
            out_of_orderness_us=parse_duration_us(max_out_of_orderness, name="max_out_of_orderness")
        )

    @staticmethod
    def for_monotonous_timestamps() -> WatermarkStrategy:
        """Event times never fall within a split."""
        return WatermarkStrategy(out_of_orderness_us=0)

    @staticmethod
    def no_watermarks() -> WatermarkStrategy:
        """No watermark ever."""
        return WatermarkStrategy()

    @staticmethod
    def for_generator(supplier: Callable[[], WatermarkGenerator]) -> WatermarkStrategy:
        """Generate watermarks by the user's own code.

        `supplier` returns a new generator at each call, one for each split; picklable. A generator class without
        arguments is such a callable.
        """
        if not callable(supplier):
            raise InvalidArgumentError(
                f"supplier = {supplier!r} must be a function or class that returns a new WatermarkGenerator: "
                "each split needs one of its own"
            )
        return WatermarkStrategy(generator_supplier=supplier)

    @staticmethod
    def from_source_watermarks() -> WatermarkStrategy:
        """Use the watermarks, and the idleness, that the source itself emits with its records.

        Under any other strategy what a source emits is ignored.
        """
        return WatermarkStrategy(uses_source_watermarks=True)

    def with_timestamp_assigner(
        self,
        assigner: TimestampAssigner | str | Callable[[pa.RecordBatch, npt.NDArray[np.int64] | None], Any],
        unit: Literal["s", "ms", "us", "ns"] | None = None,
    ) -> WatermarkStrategy:
        """Take event times from an assigner, a column (dotted path), or a function over a batch.

        Parameters
        ----------
        assigner
            A `TimestampAssigner`; the name of a column; or a function of a batch of n records and their source
            timestamps (``int64[n]`` microseconds, or None), which returns n timestamps, or n whole numbers in `unit`.
            PyFlink's `TimestampAssigner` returns one number of milliseconds for one record; here it is a whole array.
        unit
            What one step of the numbers of a column, or of a function, means. Numbers without a unit are an error.

        Raises
        ------
        InvalidArgumentError
            If it is none of these, or the function does not take two arguments.

        Examples
        --------
        >>> strategy = WatermarkStrategy.for_monotonous_timestamps()
        >>> strategy.with_timestamp_assigner("ts", unit="us").timestamp_assigner
        FieldTimestampAssigner(column='ts', unit='us', zone=None, pattern=None)
        >>> last = strategy.with_timestamp_assigner(lambda batch, source_timestamps: batch["ended_s"], unit="s")
        """
        return replace(self, timestamp_assigner=as_timestamp_assigner(assigner, unit))

    def with_idleness(self, timeout: timedelta | str) -> WatermarkStrategy:
        """Let a split that has had nothing to read for `timeout`, above 0, hold nothing back; `none`: never."""
        is_never = isinstance(timeout, str) and timeout.strip().lower() == "none"
        timeout_us = None if is_never else parse_duration_us(timeout, name="timeout", minimum_us=1)
        return replace(self, idle_timeout_us=timeout_us, is_idleness_given=True)

    def with_auto_watermark_interval(self, interval: timedelta | str) -> WatermarkStrategy:
        """Call a generator of the user's every `interval`, above 0, although no record comes; else every 200 ms."""
        return replace(self, auto_watermark_interval_us=parse_duration_us(interval, name="interval", minimum_us=1))

    def with_watermark_alignment(
        self, group: str | None, max_drift: timedelta | str, update_interval: timedelta | str = "1 second"
    ) -> WatermarkStrategy:
        """Keep the splits of all sources of a group within `max_drift` of the slowest; see `AlignmentParameters`.

        With None for `group` only those of the source itself.
        """
        parameters = AlignmentParameters(
            group=group,
            max_drift_us=parse_duration_us(max_drift, name="max_drift"),
            update_interval_us=parse_duration_us(update_interval, name="update_interval", minimum_us=1),
        )
        return replace(self, alignment=parameters)

    @property
    def makes_own_watermarks(self) -> bool:
        """True if watermarks are made by a generator of the user's, or by the source."""
        return self.uses_source_watermarks or self.generator_supplier is not None

    @property
    def generator_columns(self) -> tuple[str, ...]:
        """Columns that a generator of the user's needs to see; empty without one. Makes a generator."""
        return () if self.generator_supplier is None else tuple(self.create_watermark_generator().columns)

    def create_watermark_generator(self) -> WatermarkGenerator:
        """Make a new generator of the user's; an `InvalidArgumentError` if it is none that sees records."""
        generator = None if self.generator_supplier is None else self.generator_supplier()
        if not isinstance(generator, WatermarkGenerator):
            raise InvalidArgumentError(
                f"supplier = {self.generator_supplier!r} returned {generator!r}: "
                "it must return a new WatermarkGenerator"
            )
        kind = type(generator)
        if kind.on_event is WatermarkGenerator.on_event and kind.on_batch is WatermarkGenerator.on_batch:
            raise InvalidArgumentError(f"{kind.__name__} sees no record: it must override on_event or on_batch")
        return generator

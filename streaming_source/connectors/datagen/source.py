"""A source that computes its records."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from streaming_source.api import (
    Boundedness,
    OptionSet,
    SimpleVersionedSerializer,
    Source,
    SourceReaderContext,
    SplitEnumeratorContext,
)
from streaming_source.connectors.datagen.enumerator import GeneratorSplitEnumerator
from streaming_source.connectors.datagen.generator import SCHEMA, RecordGenerator
from streaming_source.connectors.datagen.options import DATAGEN_OPTIONS, DEFAULT_START_US
from streaming_source.connectors.datagen.split import (
    GeneratedSplit,
    GeneratedSplitSerializer,
    GeneratorCheckpoint,
    GeneratorCheckpointSerializer,
)
from streaming_source.connectors.datagen.split_reader import GeneratorSplitReader
from streaming_source.exceptions import OptionError

__all__ = ["DataGeneratorSource"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_US: Final = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_LAST_US: Final = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)

_OPTION_NAMES: Final = {
    "splits": "splits",
    "rows_per_second": "rowsPerSecond",
    "rows_per_split": "rowsPerSplit",
    "bounded": "bounded",
    "skew": "skew",
    "disorder_us": "disorder",
    "start_us": "startTime",
    "idle_splits": "idleSplits",
    "idle_after": "idleAfter",
    "idle_for_us": "idleFor",
    "seed": "seed",
    "num_keys": "numKeys",
    "discovery_interval_us": "discoveryInterval",
}
"""Attribute of `DataGeneratorSource` -> option."""

_ARRIVAL_ONLY: Final = ("bounded", "discovery_interval_us")
"""Attributes that decide when records arrive, and not what they are."""


_MANY: Final = 2**62
_RANGES: Final = {
    "splits": (1, _MANY),
    "rows_per_second": (1e-6, 1e9),
    "rows_per_split": (1, _MANY),
    "skew": (1, 1e6),
    "disorder_us": (0, _MANY),
    "idle_after": (0, _MANY),
    "idle_for_us": (1, _MANY),
    "seed": (0, math.inf),
    "num_keys": (1, _MANY),
    "discovery_interval_us": (1000, _MANY),
}
"""Smallest and largest value of an attribute, where it has one."""

_YEAR_S: Final = 365 * 24 * 3600


@dataclass(frozen=True)
class DataGeneratorSource(Source[GeneratedSplit, GeneratorCheckpoint]):
    """Splits of records that are a function of seed, split and position: for demos and tests.

    A record has a `key`, a `value` and its event time, both as the column `ts` and as source record timestamp. The
    formulas are those of `streaming_source.connectors.datagen.generator`.

    Attributes
    ----------
    splits
        Number of splits.
    rows_per_second
        Records of each split a second: as they arrive, and in the event time of the first split. From 1e-6 to 1e9;
        the time from one to the next is rounded to the nanosecond.
    rows_per_split
        Records after which each split ends; None for no end.
    bounded
        All records are there at once, and the source ends with them. If not, they arrive while the query runs, counted
        from its first start, also while it is down; a split is finished when its last record has been read. A batch
        read takes what is there when it starts: of a source that is not bounded, the first record of each split.
    skew
        How many times as fast as in the first split event time passes in the last one, at least 1; in those between,
        evenly between.
    disorder_us
        How far records are displaced: the smallest bound on out-of-orderness with which none is late in its split.
    start_us
        Event time of the first record of each split, in microseconds since 1970. All event times (without an end,
        those of a year) must be of the years 1 to 9999.
    idle_splits, idle_after, idle_for_us
        Numbers of splits that stop delivering after `idle_after` records. They go on `idle_for_us` later by the clock,
        and as much later, times their speed, in event time; with None, never. A bounded source has the gap in event
        time alone.
    seed
        Another seed, other records; at least 0.
    num_keys
        Keys are from 0 to below this.
    discovery_interval_us
        How often to look what has arrived.

    Raises
    ------
    OptionError
        If a value is out of range, or values contradict each other.
    """

    splits: int = 4
    rows_per_second: float = 1000.0
    rows_per_split: int | None = None
    bounded: bool = False
    skew: float = 1.0
    disorder_us: int = 0
    start_us: int = DEFAULT_START_US
    idle_splits: tuple[int, ...] = ()
    idle_after: int | None = None
    idle_for_us: int | None = None
    seed: int = 0
    num_keys: int = 10
    discovery_interval_us: int = 1_000_000

    def __post_init__(self) -> None:
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise self._error(name, f"must be from {least:g} to {most:g}")
        if self.bounded and self.rows_per_split is None:
            raise self._error("bounded", "the source must have an end; give rowsPerSplit too, or leave out bounded")
        self._check_idleness()
        self._check_event_times()

    def _check_idleness(self) -> None:
        if not self.idle_splits:
            for name in ("idle_after", "idle_for_us"):
                if getattr(self, name) is not None:
                    raise self._error(name, "needs idleSplits: the numbers of the splits that stop")
            return
        if len(set(self.idle_splits)) < len(self.idle_splits) or not set(self.idle_splits) <= set(range(self.splits)):
            raise self._error("idle_splits", f"must be different numbers of splits, from 0 to {self.splits - 1}")
        if self.idle_after is None:
            raise self._error("idle_splits", "needs idleAfter: after how many records these splits stop")
        if self.rows_per_split is not None and self.idle_after >= self.rows_per_split:
            raise self._error(
                "idle_after", f"must be below rowsPerSplit = {self.rows_per_split}: there the splits end anyway"
            )
        if self.bounded and self.idle_for_us is None:
            raise self._error("idle_splits", "splits that stop for ever never end, but bounded does; give idleFor too")

    def _check_event_times(self) -> None:
        # Without an end, what arrives in a year of running must fit.
        in_a_year = max(round(self.rows_per_second * _YEAR_S), self.idle_after or 0)
        last = in_a_year if self.rows_per_split is None else self.rows_per_split - 1
        latest_us = max(self.generator.base(split, last) for split in {0, self.splits - 1, *self.idle_splits})
        earliest_us = self.start_us - self.disorder_us
        if earliest_us < _FIRST_US or latest_us > _LAST_US:
            raise self._error(
                "start_us",
                f"event times are from {earliest_us} to {latest_us} us since 1970 (in a year, without rowsPerSplit); "
                "all must be of the years 1 to 9999. Change startTime, or make disorder, rowsPerSplit, skew or idleFor "
                "smaller",
            )

    def _error(self, name: str, rule: str) -> OptionError:
        option = _OPTION_NAMES[name]
        also = "" if option == name else f" (option {option})"
        return OptionError(f"{name} = {getattr(self, name)!r}{also}: {rule}")

    @staticmethod
    def options() -> OptionSet:
        """The options of `readStream.format("aligned_datagen")` beside those of every format."""
        return DATAGEN_OPTIONS

    @classmethod
    def from_options(cls, values: Mapping[str, Any]) -> DataGeneratorSource:
        """From parsed values of `options`.

        Raises
        ------
        OptionError
            If options contradict each other.
        """
        return cls(**{name: values[option] for name, option in _OPTION_NAMES.items()})

    @property
    def name(self) -> str:
        """See `Source`."""
        return "aligned_datagen"

    @property
    def identity(self) -> str:
        """See `Source`. All that decides what the records are."""
        return json.dumps({name: value for name, value in asdict(self).items() if name not in _ARRIVAL_ONLY})

    @property
    def boundedness(self) -> Boundedness:
        """See `Source`."""
        return Boundedness.BOUNDED if self.bounded else Boundedness.CONTINUOUS_UNBOUNDED

    @property
    def has_source_timestamps(self) -> bool:
        """Event times need no column."""
        return True

    @property
    def generator(self) -> RecordGenerator:
        """What the records are."""
        return RecordGenerator(
            splits=self.splits,
            rows_per_second=self.rows_per_second,
            skew=self.skew,
            disorder_us=self.disorder_us,
            start_us=self.start_us,
            idle_splits=self.idle_splits,
            idle_after=self.idle_after or 0,
            idle_for_us=self.idle_for_us,
            seed=self.seed,
            num_keys=self.num_keys,
        )

    def schema(self) -> pa.Schema:
        """`key` (int64), `value` (double) and `ts` (timestamp)."""
        return SCHEMA

    def create_enumerator(self, context: SplitEnumeratorContext[GeneratedSplit]) -> GeneratorSplitEnumerator:
        """See `Source`."""
        return GeneratorSplitEnumerator(self, context, None)

    def restore_enumerator(
        self, context: SplitEnumeratorContext[GeneratedSplit], checkpoint: GeneratorCheckpoint
    ) -> GeneratorSplitEnumerator:
        """See `Source`."""
        return GeneratorSplitEnumerator(self, context, checkpoint)

    def create_split_reader(self, context: SourceReaderContext) -> GeneratorSplitReader:
        """See `Source`."""
        return GeneratorSplitReader(self.generator, context.schema)

    @property
    def split_serializer(self) -> SimpleVersionedSerializer[GeneratedSplit]:
        """See `Source`."""
        return GeneratedSplitSerializer()

    @property
    def enumerator_checkpoint_serializer(self) -> SimpleVersionedSerializer[GeneratorCheckpoint]:
        """See `Source`."""
        return GeneratorCheckpointSerializer()

"""A source that computes its records: what it is given, as attributes and options, and how they are read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from alignment.durations import format_duration, parse_duration_us
from alignment.time_texts import iso8601_us
from streaming_source.api import (
    Boundedness,
    JsonSerializer,
    RecordBlock,
    RecordsBySplits,
    Source,
    SourceReaderContext,
    SplitEnumeratorContext,
    SplitReader,
    SplitsAddition,
    SplitsChange,
)
from streaming_source.api.options import (
    Parser,
    check_plain_types,
    duration_field,
    durations_as_timedelta,
    flag_field,
    integer,
    option_field,
    option_names,
)
from streaming_source.connectors.datagen.enumerator import (
    SCHEMA,
    GeneratedSplit,
    GeneratorCheckpoint,
    GeneratorSplitEnumerator,
    RecordGenerator,
)
from streaming_source.exceptions import OptionError

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_YEAR_S: Final = 365 * 24 * 3600
_MANY: Final = 2**62
_BATCH_ROWS: Final = 32_768


def _number(minimum: float) -> Parser:
    """A finite number of at least `minimum`."""

    def parse(name: str, value: str) -> float:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number) or number < minimum:
            raise OptionError(f"option {name} = {value!r}: must be a number of at least {minimum:g}, like 2.5")
        return number

    return parse


def _epoch_us(time: datetime) -> int:
    """Microseconds since 1970; UTC without a zone."""
    return int(((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND)


def _moment(name: str, value: datetime | str) -> datetime:
    """A time in UTC, of one in any zone or of ISO-8601 text; UTC without a zone. Of the years 1 to 9999."""
    if isinstance(value, datetime):
        time_us = _epoch_us(value)
    elif isinstance(value, str):
        if (found_us := iso8601_us(value)) is None:
            raise OptionError(f"{name} = {value!r}: must be an ISO-8601 time, like 2024-01-01T00:00:00Z")
        time_us = found_us
    else:
        raise OptionError(f"{name} = {value!r}: must be a datetime, or ISO-8601 text like 2024-01-01T00:00:00Z")
    try:
        return _EPOCH + timedelta(microseconds=time_us)
    except OverflowError:
        raise OptionError(f"{name} = {value!r}: must be of the years 1 to 9999, in UTC") from None


def _ranged(default: object, name: str, parse: Callable[[Any], Parser], least: float, most: float, doc: str) -> Any:
    """A field of a number with an option, and the smallest and largest one that it takes."""
    return option_field(default, name, parse(least), doc, range=(least, most))


_FIRST_US: Final = _epoch_us(datetime(1, 1, 1, tzinfo=UTC))
_LAST_US: Final = _epoch_us(datetime(9999, 12, 31, tzinfo=UTC))


def _year_of(us: int) -> int:
    """Return about the year of an event time, of any that an int can have."""
    return 1970 + us // (_YEAR_S * 1_000_000)


@dataclass(frozen=True)
class DataGeneratorSource(Source[GeneratedSplit, GeneratorCheckpoint]):
    """Splits of records that are a function of seed, split and position: for demos and tests.

    A record has a `key`, a `value` and its event time, both as the column `ts` and as source record timestamp. The
    formulas are those of `streaming_source.connectors.datagen.enumerator`.

    Notes
    -----
    The options describe the attributes. Beside that:

    - Records arrive `rows_per_second`, and so event time passes in the first split; the time from one to the next is
      rounded to the nanosecond.
    - Of a source that is not `bounded`, records arrive from its first start on, also while the query is down, and a
      split is finished when its last record has been read. A batch read takes what is there when it starts: the first
      record of each split.
    - `disorder` is the smallest bound on out-of-orderness with which no record is late in its split.
    - All event times (without an end, those of a year) must be of the years 1 to 9999.
    - Splits that were idle go on `idle_for` later by the clock, and as much later, times their speed, in event time. A
      bounded source has the gap in event time alone.
    - Durations are given as `timedelta` or text such as `"5 seconds"`, `start_time` as a `datetime` or ISO-8601 text,
      UTC if it has no zone. They are kept as `timedelta` and as a `datetime` in UTC, so that sources given the same
      ones in different words are equal. An `OptionError` is raised if a value is out of range, or they contradict
      each other.

    Examples
    --------
    >>> DataGeneratorSource(splits=2, skew=4, rows_per_split=100, bounded=True).schema().names
    ['key', 'value', 'ts']
    """

    splits: int = _ranged(4, "splits", integer, 1, _MANY, "Number of splits.")
    rows_per_second: float = _ranged(1000.0, "rowsPerSecond", _number, 1e-6, 1e9, "Records of each split a second.")
    rows_per_split: int | None = _ranged(
        None, "rowsPerSplit", integer, 1, _MANY, "Records after which each split ends."
    )
    bounded: bool = flag_field(
        "bounded",
        "All records are there at once, and the source ends with them; needs `rowsPerSplit`. If not, they arrive "
        "while the query runs.",
    )
    skew: float = _ranged(
        1.0,
        "skew",
        _number,
        1,
        1e6,
        "How many times as fast as in the first split event time passes in the last; in those between, evenly between.",
    )
    disorder: timedelta | str = duration_field(
        "0 seconds", "disorder", 0, "How far records are behind the latest before them at most."
    )
    start_time: datetime | str = option_field(
        "2024-01-01T00:00:00Z",
        "startTime",
        lambda name, value: _moment(f"option {name}", value),
        "Event time of the first record of each split, ISO-8601.",
    )
    idle_splits: tuple[int, ...] = option_field(
        (),
        "idleSplits",
        lambda name, value: tuple(integer(0)(name, part) for part in value.split(",")),
        "Numbers of the splits, from 0, that stop delivering; as in `1,3`.",
    )
    idle_after: int | None = _ranged(None, "idleAfter", integer, 0, _MANY, "After how many records they stop.")
    idle_for: timedelta | str | None = duration_field(
        None, "idleFor", 1, "After how long they go on, by the clock and in event time; `none`: never.", optional=True
    )
    seed: int = _ranged(0, "seed", integer, 0, math.inf, "Another seed, other records.")
    num_keys: int = _ranged(10, "numKeys", integer, 1, _MANY, "Number of different keys.")
    discovery_interval: timedelta | str = duration_field(
        "1 second", "discoveryInterval", 1000, "How often to look for what has arrived."
    )

    name = "aligned_datagen"
    has_source_timestamps = True
    source_timestamp_column = "ts"
    split_serializer = JsonSerializer(GeneratedSplit)
    enumerator_checkpoint_serializer = JsonSerializer(GeneratorCheckpoint)

    def __post_init__(self) -> None:
        check_plain_types(self)
        durations_as_timedelta(self)
        object.__setattr__(self, "start_time", _moment("start_time", self.start_time))
        for field_ in fields(self):
            value, bounds = getattr(self, field_.name), field_.metadata.get("range")
            if bounds is not None and value is not None and not bounds[0] <= value <= bounds[1]:
                raise self._error(field_.name, f"must be from {bounds[0]:g} to {bounds[1]:g}")
        if self.bounded and self.rows_per_split is None:
            raise self._error("bounded", "the source must have an end; give rowsPerSplit too, or leave out bounded")
        self._check_idleness()
        self._check_event_times()

    def _check_idleness(self) -> None:
        if not self.idle_splits:
            for name in ("idle_after", "idle_for"):
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
        if self.bounded and self.idle_for is None:
            raise self._error("idle_splits", "splits that stop for ever never end, but bounded does; give idleFor too")

    def _check_event_times(self) -> None:
        # Without an end, what arrives in a year of running must fit.
        in_a_year = max(round(self.rows_per_second * _YEAR_S), self.idle_after or 0)
        last = in_a_year if self.rows_per_split is None else self.rows_per_split - 1
        generator = self.generator
        latest_us = max(generator.base(split, last) for split in {0, self.splits - 1, *self.idle_splits})
        earliest_us = generator.start_us - generator.disorder_us
        if earliest_us < _FIRST_US or latest_us > _LAST_US:
            raise self._error(
                "start_time",
                f"event times are of the years {_year_of(earliest_us)} to {_year_of(latest_us)} (those of a year, "
                "without rowsPerSplit); all must be of the years 1 to 9999. Change startTime, or make disorder, "
                "rowsPerSplit, skew or idleFor smaller",
            )

    def _error(self, name: str, rule: str) -> OptionError:
        option = option_names(type(self))[name]
        also = "" if option == name else f" (option {option})"
        return OptionError(f"{name} = {_as_given(getattr(self, name))!r}{also}: {rule}")

    @property
    def generator(self) -> RecordGenerator:
        return RecordGenerator(
            splits=self.splits,
            rows_per_second=self.rows_per_second,
            skew=self.skew,
            disorder_us=parse_duration_us(self.disorder, name="disorder"),
            start_us=_epoch_us(_moment("start_time", self.start_time)),
            idle_splits=self.idle_splits,
            idle_after=self.idle_after or 0,
            idle_for_us=None if self.idle_for is None else parse_duration_us(self.idle_for, name="idle_for"),
            seed=self.seed,
            num_keys=self.num_keys,
        )

    # ---- Source --------------------------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        """All that decides what the records are, and nothing of when they arrive."""
        return json.dumps({**asdict(self.generator), "rows_per_split": self.rows_per_split})

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED if self.bounded else Boundedness.CONTINUOUS_UNBOUNDED

    def schema(self) -> pa.Schema:
        return SCHEMA

    def create_enumerator(self, context: SplitEnumeratorContext[GeneratedSplit]) -> GeneratorSplitEnumerator:
        return self.restore_enumerator(context, None)

    def restore_enumerator(
        self, context: SplitEnumeratorContext[GeneratedSplit], checkpoint: GeneratorCheckpoint | None
    ) -> GeneratorSplitEnumerator:
        period_s = None if self.bounded else parse_duration_us(self.discovery_interval, name="discovery_interval") / 1e6
        return GeneratorSplitEnumerator(context, checkpoint, self.generator, self.rows_per_split, period_s)

    def create_split_reader(self, context: SourceReaderContext) -> GeneratorSplitReader:
        return GeneratorSplitReader(self.generator, context.schema)


def _as_given(value: object) -> object:
    """Times and durations as text that could be given for them."""
    if isinstance(value, timedelta):
        return format_duration(parse_duration_us(value, name="value"))
    return value.isoformat() if isinstance(value, datetime) else value


class GeneratorSplitReader(SplitReader[GeneratedSplit]):
    """Computes the ranges of its splits one after another, those columns that a schema names, a batch a fetch."""

    def __init__(self, generator: RecordGenerator, schema: pa.Schema) -> None:
        self._generator = generator
        self._schema = schema
        # In order of their addition, each with the position that is next.
        self._unread: dict[str, GeneratedSplit] = {}

    def handle_splits_changes(self, change: SplitsChange[GeneratedSplit]) -> None:
        for split in change.splits:
            if isinstance(change, SplitsAddition):
                self._unread[split.split_id] = split
            else:
                self._unread.pop(split.split_id, None)

    def fetch(self) -> RecordsBySplits[RecordBlock]:
        split = next(iter(self._unread.values()), None)
        if split is None:
            return RecordsBySplits()
        assert split.stop is not None, "a split for a reader has a stop"
        stop = min(split.position + _BATCH_ROWS, split.stop)
        batch, times = self._generator.batch(split.number, split.position, stop, self._schema)
        blocks = {split.split_id: [RecordBlock(batch, split.position, times)]}
        if stop < split.stop:
            self._unread[split.split_id] = replace(split, position=stop)
            return RecordsBySplits(blocks)
        del self._unread[split.split_id]
        return RecordsBySplits(blocks, finished_splits={split.split_id})

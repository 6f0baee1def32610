"""Which share of a user's own records each delay would cover: before any query runs, or while one does."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from alignment.arrow_times import format_timestamp
from alignment.disorder import Arrivals, DelayCount, DisorderHistogram, KeptState, SplitDisorder, paces_of
from alignment.durations import format_duration
from alignment.exceptions import InvalidTimestampError
from alignment.sentence import aligned
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import Int64Array
from streaming_source.connectors.tables.source import TableSource
from streaming_source.connectors.tables.split import TableSplit
from streaming_source.data_files.ranges import Arrival, RangedSplit
from streaming_source.exceptions import OptionError
from streaming_source.spark.datasource import FORMATS, AlignedDataSource
from streaming_source.spark.exact_watermark import sources_of
from streaming_source.spark.frames import SOURCES
from streaming_source.spark.input_partition import AlignedInputPartition
from streaming_source.spark.loading import SOURCE_FORMAT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from streaming_source.spark.readers import AlignedBatchReader

_SHARES: Final = (Fraction(99, 100), Fraction(999, 1000), Fraction(1))
_NAMED: Final = 20
"""Splits that the text lists: those with the largest disorder."""


@dataclass(frozen=True, slots=True)
class DelayAdvice:
    """The records that the delay `delay_us` covers.

    At least the share `covers` of the records is no further than `delay_us` behind the latest one before it in its
    split; `late` records are. With it as the delay of Spark's own watermark, `behind` records are below that watermark
    if all splits are read at one pace; Spark needs the delay `spark_delay_us` to cover the same share.
    """

    covers: float
    delay_us: int
    late: int
    behind: int
    spark_delay_us: int


@dataclass(frozen=True, slots=True)
class ArrivalAdvice:
    """The lateness of records, in the order in which their files come, that of `by`.

    Records came `times` to a log that had some. `disorder_us` is what covers 99, 99.9 and 100 % of these, behind all
    that was there before: what `maxOutOfOrderness` is about.
    """

    by: str
    times: int
    disorder_us: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StateAdvice:
    """The cost of the order of records in files for a query that reads all of them by event time.

    Of the `splits`, up to `open_at_once` overlap in event time. Up to `rows` records are kept as state, `span_us` of
    event time, since others that are earlier stand after them; to about a hundredth of all.
    """

    splits: int
    open_at_once: int
    rows: int
    span_us: int


@dataclass(frozen=True, slots=True)
class SplitAdvice:
    """The event times of one split; `disorder_us` is what covers 99, 99.9 and 100 % of its records."""

    split_id: str
    rows: int
    invalid: int
    earliest_us: int | None
    latest_us: int | None
    disorder_us: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Advice:
    """Skew and disorder of the records that a source had when it was scanned.

    Of all `rows`, the `invalid` ones have no valid event time, so no delay covers them; the `in_future` ones were later
    than the clock. Splits that are read at one pace are at most `skew_us` apart in event time. `delays` are those that
    cover 99, 99.9 and 100 % of the records, by the order in which they stand in their splits; `splits` describes each
    split, ordered by split id. `arrival` and `state` are of files, and those of tables; None elsewhere.
    `first_invalid` says what is wrong with the first record without a valid event time; empty without one.
    """

    rows: int
    invalid: int
    in_future: int
    skew_us: int
    delays: tuple[DelayAdvice, ...]
    splits: tuple[SplitAdvice, ...]
    arrival: ArrivalAdvice | None = None
    state: StateAdvice | None = None
    first_invalid: str = ""

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def advise(df: DataFrame | StreamingQuery) -> Advice:
    """Return which `maxOutOfOrderness` covers how many of the records that the source of a frame or query has now.

    The call scans the source twice, reading only the columns that event times come from; the query is not touched.
    Kafka is scanned from the earliest record that the brokers retain, unless the options give another start.

    Parameters
    ----------
    df
        A streaming frame over one source of ours, with whatever operations on it; or a query over one.

    Raises
    ------
    OptionError
        If `df` has no source of ours, or several.

    Examples
    --------
    >>> print(advise(events))  # doctest: +SKIP
    """
    found = sources_of(df)
    ours = [loaded for loaded in found if loaded.format_name in FORMATS or loaded.format_name.startswith(SOURCE_FORMAT)]
    if len(ours) != 1:
        raise OptionError(
            f"advise needs one source of {', '.join(sorted(FORMATS))} or from_source; this has {len(ours)}. Where "
            "there are several, call it for the frame of each"
        )
    name = ours[0].format_name
    if name in FORMATS:
        return advise_on(AlignedDataSource.of_format(name, ours[0].options))
    if name not in SOURCES:
        raise OptionError(f"advise: the source of {name} was given to from_source in another process")
    return advise_on(SOURCES[name])


def advise_on(source: AlignedDataSource) -> Advice:
    """Return the advice of `advise` on a source that is given by its format and options; Spark is not started."""
    reader = source.times_reader()
    # Planned once, so that records written during the scans are in neither of them.
    parts = reader.partitions()
    splits, files = _extents(reader, parts), _files(reader, parts)
    units: dict[str, list[tuple[int, str, int]]] = {}
    for split_id, first, arrival in files:
        units.setdefault(split_id, []).append((first, arrival.log, arrival.order))
    arrivals = Arrivals(units)
    now_us, in_future = time.time_ns() // 1000, 0
    for split_id, positions, times, invalid in _scan(reader, parts):
        splits[split_id].add(positions, times, invalid)
        in_future += int(np.count_nonzero(times > now_us))
        if files:
            arrivals.see(split_id, positions, times)
    arrivals.settle()
    earliest = sorted(one.earliest_us for one in splits.values() if one.earliest_us is not None)
    latest = sorted(one.latest_us for one in splits.values() if one.latest_us is not None)
    state = KeptState(*(earliest[:1] or [0]), *(latest[-1:] or [0]))
    total = DisorderHistogram()
    for known in splits.values():
        total.merge(known.disorder)
    delays_us = _covering(total)
    count = DelayCount(splits, np.array(delays_us))
    for split_id, positions, times, _ in _scan(reader, parts):
        count.add(split_id, positions, times)
        if files:
            arrivals.add(split_id, positions, times)
            state.add(split_id, times)
    columns = (map(float, _SHARES), delays_us, count.late.tolist(), count.behind.tolist(), _covering(count.lag))
    overlap = np.searchsorted(earliest, earliest, side="right") - np.searchsorted(latest, earliest)
    span_us, rows = state.most()
    invalid = sum(known.invalid for known in splits.values())
    return Advice(
        rows=sum(known.rows for known in splits.values()),
        invalid=invalid,
        in_future=in_future,
        skew_us=paces_of(splits)[1],
        delays=tuple(map(DelayAdvice, *columns)),
        splits=tuple(
            SplitAdvice(split_id, one.rows, one.invalid, one.earliest_us, one.latest_us, _covering(one.disorder))
            for split_id, one in sorted(splits.items())
        ),
        arrival=ArrivalAdvice(files[0][2].by, len(arrivals), _covering(arrivals.disorder)) if files else None,
        state=StateAdvice(len(splits), int(overlap.max(initial=0)), rows, span_us) if files else None,
        first_invalid=_first_invalid(reader, parts) if invalid else "",
    )


def _first_invalid(reader: AlignedBatchReader, parts: Sequence[AlignedInputPartition]) -> str:
    options = replace(reader.shaper.options, invalid_timestamp="fail")
    failing = replace(reader, shaper=replace(reader.shaper, options=options))
    try:
        for _ in _scan(failing, parts):
            pass
    except InvalidTimestampError as error:
        return str(error)
    return ""


def event_times_of(source: AlignedDataSource) -> dict[str, tuple[Int64Array, Int64Array]]:
    """Return the positions of all current records and their event times, `NO_TIMESTAMP` where invalid, by split id.

    16 bytes a record. Spark is not started.
    """
    reader = source.times_reader()
    found: dict[str, list[tuple[Int64Array, Int64Array]]] = {}
    for part in reader.partitions():
        for batch in reader.read(part):
            ids, positions, times = batch.columns
            of_split = found.setdefault(ids[0].as_py(), [])
            of_split.append((positions.to_numpy(), times.cast(pa.int64()).fill_null(NO_TIMESTAMP).to_numpy()))
    splits = {}
    for split_id, blocks in found.items():
        positions, times = (np.concatenate(column) for column in zip(*blocks, strict=True))
        order = np.argsort(positions, kind="stable")
        splits[split_id] = positions[order], times[order]
    return splits


def _files(reader: AlignedBatchReader, parts: Sequence[AlignedInputPartition]) -> list[tuple[str, int, Arrival]]:
    """Return the split of each file that is read, the position of its first row there, and when it came."""
    ranged = [split for part in parts for split in part.splits if isinstance(split, RangedSplit)]
    came = reader.source.files_came() if ranged and isinstance(reader.source, TableSource) else {}
    found = set()
    for split in ranged:
        for one in split.ranges:
            arrival = split.arrival_of(one)
            if isinstance(split, TableSplit):
                arrival = arrival._replace(order=came.get(split.file.path, arrival.order))
            found.add((split.split_id, one.position - one.start, arrival))
    return sorted(found)


def _extents(reader: AlignedBatchReader, parts: Sequence[AlignedInputPartition]) -> dict[str, SplitDisorder]:
    """Return where each split begins and ends; a split whose end is not known is read to find it."""
    begins: dict[str, int] = {}
    ends: dict[str, int] = {}
    ranges = [split for part in parts for split in part.splits]
    for split in ranges:
        begins[split.split_id] = min(begins.get(split.split_id, split.position), split.position)
        ends[split.split_id] = max(ends.get(split.split_id, 0), split.position + 1, split.stop or 0)
    if any(split.stop is None for split in ranges):
        for split_id, positions, _, _ in _scan(reader, parts):
            ends[split_id] = max(ends[split_id], int(positions.max(initial=0)) + 1)
    return {split_id: SplitDisorder(begins[split_id], ends[split_id]) for split_id in sorted(begins)}


def _scan(
    reader: AlignedBatchReader, parts: Sequence[AlignedInputPartition]
) -> Iterator[tuple[str, Int64Array, Int64Array, int]]:
    """Yield, block by block, the split, positions and event times of dated records, and how many have no event time."""
    for part in parts:
        for batch in reader.read(part):
            ids, positions, times = batch.columns
            valid = times.is_valid()
            yield (
                ids[0].as_py(),
                positions.filter(valid).to_numpy(),
                times.filter(valid).cast(pa.int64()).to_numpy(),
                times.null_count,
            )


def _covering(disorder: DisorderHistogram) -> tuple[int, ...]:
    return tuple(_rounded_up(disorder.covering_us(share)) for share in _SHARES)


def _rounded_up(us: int) -> int:
    """Round up to three significant digits."""
    unit = 10 ** max(len(str(us)) - 3, 0)
    return int(-(-us // unit) * unit)


def _lines(advice: Advice) -> Iterator[str]:
    known = [split for split in advice.splits if split.rows > split.invalid]
    yield f"{advice.rows:,} records of {len(advice.splits):,} splits, all that there was when the scan began."
    if advice.invalid:
        yield f"{advice.invalid:,} of them have no valid event time; the figures below are of the others."
        if advice.first_invalid:
            yield f"The first: {advice.first_invalid}."
    if advice.in_future:
        yield f"{advice.in_future:,} of them were in the future: the latest holds nobody, and makes all after it late."
    if not known:
        yield "There is nothing to advise on."
        return
    first_us = min(split.earliest_us for split in known if split.earliest_us is not None)
    last_us = max(split.latest_us for split in known if split.latest_us is not None)
    yield f"Event times from {format_timestamp(first_us)} to {format_timestamp(last_us)}."
    yield f"Read at one pace, splits are up to {format_duration(_rounded_up(advice.skew_us))} apart."
    seen = advice.rows - advice.invalid
    if advice.state is not None:
        yield _of_state(advice.state)
    if advice.arrival is not None:
        yield _of_arrival(advice.arrival)
    yield ""
    if advice.arrival is None:
        yield "A record that arrives later may be maxOutOfOrderness behind the latest one of its split. By positions:"
    else:
        yield "As records stand in their splits, whenever they came:"
    table = [("covers", "maxOutOfOrderness", "further behind", "below Spark's own watermark", "Spark would need")]
    table += [
        (
            f"{delay.covers:.1%}".replace(".0%", "%"),
            format_duration(delay.delay_us),
            _share(delay.late, seen),
            _share(delay.behind, seen),
            format_duration(delay.spark_delay_us),
        )
        for delay in advice.delays
    ]
    yield from aligned(table)
    yield ""
    yield "Spark's own watermark: of one withWatermark over all splits, with the same delay, read at one pace."
    yield ""
    worst = sorted(known, key=lambda split: (-split.disorder_us[-1], split.split_id))[:_NAMED]
    rows: list[tuple[str, ...]] = [("split", "records", "from", "to", "99%", "99.9%", "100%")]
    rows += [
        (
            split.split_id,
            f"{split.rows:,}",
            format_timestamp(split.earliest_us or 0),
            format_timestamp(split.latest_us or 0),
            *map(format_duration, split.disorder_us),
        )
        for split in worst
    ]
    yield from aligned(rows)
    if len(worst) < len(known):
        yield f"and {len(known) - len(worst):,} splits with less disorder"


def _of_state(state: StateAdvice) -> str:
    """Return what the order inside of what is there costs: state, and no record."""
    if not state.span_us:
        return (
            "Inside of what is there: records in order, to a hundredth of all event time, which costs next to no state."
        )
    return (
        f"Inside of what is there: records out of order. Up to {state.open_at_once:,} of {state.splits:,} splits "
        f"are open at once, and up to {state.rows:,} records, {format_duration(_rounded_up(state.span_us))} of "
        "event time, are kept as state until what is stored after them is read. None of them is late for it."
    )


def _of_arrival(arrival: ArrivalAdvice) -> str:
    """Return what a bound is for: how far what comes later is behind what was there."""
    if not arrival.times:
        return (
            "All records came at once, so nothing is known of those that arrive later: choose maxOutOfOrderness by "
            "how late they are written."
        )
    covered = zip(arrival.disorder_us, map(float, _SHARES), strict=True)
    most = ", ".join(f"{format_duration(us)} ({share:.1%})".replace(".0%", "%") for us, share in covered)
    return (
        f"How far a record that arrived later was behind the latest one of its split, by {arrival.by}: {most}. "
        "maxOutOfOrderness must cover that."
    )


def _share(count: int, total: int) -> str:
    return f"{count:,} ({count / total:.2%})" if count else "0"

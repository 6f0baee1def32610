"""Late records repair their windows: the touched windows are computed again from the source, and replaced.

A query with `late=route` has left late records out of its windows. The query here reads them, once all windows in which
they can be are emitted: what it writes later than the first query is never undone by that. A batch reads the touched
windows again, up to where the first query had read the source, and hands them through the user's own function. No state
is kept for it: what waits is in the late log.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from alignment.arrow_times import format_timestamp
from alignment.durations import format_duration, parse_duration_us
from alignment.exceptions import InvalidArgumentError
from alignment.touched_ranges import Ranges, covering, covering_sessions
from alignment.watermarks import Int64Array
from streaming_source.exceptions import OptionError
from streaming_source.spark.datasource import AlignedDataSource
from streaming_source.spark.frames import SOURCES, late_frame

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["Repair", "repair"]

_log = logging.getLogger(__name__)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Repair:
    """What a repair writes.

    Attributes
    ----------
    query : str
        The query that repairs: the same as long as its checkpoint.
    batch : int
        Its micro-batch. With `query` it names what is written: the same again has the same windows and rows.
    windows : sequence of (datetime, datetime)
        The event times that were read again, each from the first to before the second, in UTC. Each window lies in one.
    """

    query: str
    batch: int
    windows: Sequence[tuple[datetime, datetime]]


Compute = Callable[["DataFrame"], "DataFrame"]
Write = Callable[["DataFrame", Repair], None]


def repair(
    df: DataFrame,
    checkpoint: str,
    compute: Compute,
    write: Write,
    *,
    window: str | None = None,
    slide: str | None = None,
    start: str | None = None,
    gap: str | None = None,
    longest: str | None = None,
    keys: Sequence[str] = (),
    within: timedelta | str | None = None,
    from_batch: int | None = None,
) -> DataStreamWriter:
    """Return the query that repairs the windows of another query with option `late=route`: a writer to be started.

    Late records are read as `late_records` reads them, once the windows in which they can be are emitted. For each
    micro-batch of them the touched windows are read again from the source, up to where the other query had read it,
    computed by the same function, and handed to `write`: whole windows, as if no record had been late.

    Parameters
    ----------
    df
        The frame that the query reads, as `read_stream`, `from_source`, `with_exact_watermark` or `load()` returned
        it.
    checkpoint
        The `checkpointLocation` of the query: a local path, or a URI that pyarrow opens.
    compute
        The function that makes the windows of a frame like `df`: the same that the query uses. Its result has the
        column `window`, of `F.window` over the event time; or `session_window`, of `F.session_window`.
    write
        Called with the corrected windows, as a batch frame, and the `Repair`. It replaces the windows in the target. It
        may be called again with the same ones after a failure.
    window, slide, start
        The arguments of `F.window`.
    gap, longest
        Of sessions, in place of `window`: the gap of `F.session_window`, and how long a session is at most. A late
        record may join sessions: what is written replaces all sessions of its key that lie within it.
    keys
        Columns of `df` by which `compute` groups, unchanged in its result: then only keys that were touched are
        computed and written. Without them a touched window is written with all its rows.
    within
        Late records further than this behind the watermark repair nothing. They are counted in the log. Give less than
        the source keeps its records.
    from_batch
        Number of the first micro-batch whose late records are read; by default those of all are.

    Returns
    -------
    DataStreamWriter
        Give it a `checkpointLocation` and a trigger, and start it.

    Raises
    ------
    OptionError
        If the frame has operations on it, or lacks option `late=route`; if a key is no column of it, or a duration has
        no fixed length.

    Examples
    --------
    >>> def by_minute(readings):
    ...     return readings.groupBy(F.window("ts", "1 minute"), "sensor").count()
    >>> corrections = repair(
    ...     events, "/checkpoints/windows", by_minute, merge, window="1 minute", keys=["sensor"]
    ... )  # doctest: +SKIP
    >>> corrections.option("checkpointLocation", "/checkpoints/repairs").start()  # doctest: +SKIP
    """
    touching = _touching(window, slide, start, gap, longest)
    late, loaded = late_frame(df, checkpoint, "repair", from_batch, touching.longest_us)
    source = SOURCES.get(loaded.format_name) or AlignedDataSource.of_format(loaded.format_name, loaded.options)
    if missing := [key for key in keys if key not in df.columns]:
        raise OptionError(
            f"repair: keys {missing} are no columns of the frame, which has {', '.join(df.columns)}; give columns that "
            "the function groups by as they are, or leave keys out"
        )
    repairs = _Repairs(
        format_name=loaded.format_name,
        options={name: value for name, value in loaded.options.items() if name.lower() != "watermarkrows"},
        columns=df.columns,
        event_time=source.event_time_in(df.schema),
        compute=compute,
        write=write,
        touching=touching,
        keys=tuple(keys),
        within_us=None if within is None else _duration_us("within", within),
    )
    return late.writeStream.foreachBatch(repairs)


@dataclass(frozen=True)
class _Windows:
    """The arguments of `F.window`."""

    window: str
    slide: str | None
    start: str | None
    column = "window"

    @property
    def longest_us(self) -> int:
        """How long after a record a window may end that has it."""
        if self.slide is not None:
            _duration_us("slide", self.slide)
        return _duration_us("window", self.window)

    def of(self, event_time: str) -> Column:
        """The windows that a late record touches, each from `start` to `end`."""
        from pyspark.sql import functions as F

        return F.window(event_time, self.window, self.slide or self.window, self.start or "0 seconds")

    def among(self, result: DataFrame, touched: DataFrame, is_of_key: Column) -> DataFrame:
        """The windows of the result that are touched."""
        from pyspark.sql import functions as F

        return result.join(touched, (F.col("window.start") == touched["_window.start"]) & is_of_key, "left_semi")

    def ranges(self, touched: DataFrame, repaired: Callable[[Ranges], DataFrame], closed_us: int) -> Ranges:
        """The event times that the touched windows have. `repaired` reads what is written from these."""
        return covering(*_spans(touched, "_window"))


@dataclass(frozen=True)
class _Sessions:
    """The gap of `F.session_window`, and how long a session is at most."""

    gap: str
    longest: str
    column = "session_window"

    @property
    def longest_us(self) -> int:
        return _duration_us("longest", self.longest)

    @property
    def _gap_us(self) -> int:
        return _duration_us("gap", self.gap)

    def of(self, event_time: str) -> Column:
        from pyspark.sql import functions as F

        moment = F.col(_quoted(event_time))
        return F.struct(moment.alias("start"), (moment + F.expr(f"INTERVAL {self._gap_us} MICROSECOND")).alias("end"))

    def among(self, result: DataFrame, touched: DataFrame, is_of_key: Column) -> DataFrame:
        from pyspark.sql import functions as F

        moment = touched["_window.start"]
        has_it = (F.col("session_window.start") <= moment) & (moment < F.col("session_window.end"))
        # Nothing is pushed through `observe`: Spark would filter records before it has merged them into sessions.
        return result.observe("sessions", F.count(F.lit(1))).join(touched, has_it & is_of_key, "left_semi")

    def ranges(self, touched: DataFrame, repaired: Callable[[Ranges], DataFrame], closed_us: int) -> Ranges:
        """They grow until the sessions in them do not."""
        times_us, _ = _spans(touched, "_window")
        if not times_us.size:
            return []

        def sessions_in(ranges: Ranges) -> tuple[Int64Array, Int64Array]:
            starts_us, ends_us = _spans(repaired(ranges), "session_window")
            if (open_ones := ends_us > closed_us).any():
                start, end = (format_timestamp(int(side[open_ones][0])) for side in (starts_us, ends_us))
                raise OptionError(
                    f"repair: longest = {self.longest!r}, and a session goes from {start} to {end}, which is after the "
                    f"watermark {format_timestamp(closed_us)} of the query: it may still have it open. Give a longer "
                    "one, with a new checkpointLocation and from_batch"
                )
            return starts_us, ends_us

        return covering_sessions(times_us, self._gap_us, sessions_in)


def _touching(
    window: str | None, slide: str | None, start: str | None, gap: str | None, longest: str | None
) -> _Windows | _Sessions:
    if window is not None and gap is None and longest is None:
        return _Windows(window, slide, start)
    if window is None and slide is None and start is None and gap is not None and longest is not None:
        return _Sessions(gap, longest)
    raise OptionError(
        "repair: give window, with slide and start if F.window has them; or gap and longest for sessions. Nothing else "
        "is repaired: deduplication has nothing to repair, and joins of streams cannot be"
    )


@dataclass(frozen=True)
class _Repairs:
    """What `foreachBatch` calls: it repairs the windows that the late records of a micro-batch touch."""

    format_name: str
    options: Mapping[str, str]
    columns: Sequence[str]
    event_time: str
    compute: Compute
    write: Write
    touching: _Windows | _Sessions
    keys: tuple[str, ...]
    within_us: int | None

    def __call__(self, late: DataFrame, batch: int) -> None:
        from pyspark.sql import functions as F

        from streaming_source.spark.late_reader import NOTE_COLUMN

        late = late.persist()
        try:
            notes = late.where(F.col(NOTE_COLUMN).isNotNull()).select(NOTE_COLUMN).collect()
            if notes:
                self._repair(late.where(F.col(NOTE_COLUMN).isNull()), json.loads(notes[0][0]), batch)
        finally:
            late.unpersist()

    def _repair(self, late: DataFrame, note: Mapping[str, Any], batch: int) -> None:
        from pyspark.sql import functions as F

        late = self._recent(late, note["closed_us"])
        window = late.select(self.touching.of(self.event_time).alias("_window"), *map(_quoted, self.keys))
        # Other names than those of the result, with which they are compared.
        names = [f"_key_{number}" for number in range(len(self.keys))]
        touched = window.select("_window", *(F.col(_quoted(k)).alias(n) for k, n in zip(self.keys, names, strict=True)))
        touched = touched.distinct().persist()
        try:

            def repaired(ranges: Ranges) -> DataFrame:
                again = self._read(late, note["offset"], ranges)
                if self.keys:
                    of_keys = touched.select(*names).distinct()
                    again = again.join(F.broadcast(of_keys), _equal(again, self.keys, of_keys, names), "left_semi")
                result = self.compute(again)
                self._check(result)
                return self.touching.among(result, touched, _equal(result, self.keys, touched, names))

            if ranges := self.touching.ranges(touched, repaired, note["closed_us"]):
                spans = tuple((_moment(first), _moment(last)) for first, last in ranges)
                self.write(repaired(ranges), Repair(note["id"], batch, spans))
        finally:
            touched.unpersist()

    def _recent(self, late: DataFrame, closed_us: int) -> DataFrame:
        """Leave out late records that are further behind than `within`, and log how many these are."""
        from pyspark.sql import functions as F

        if self.within_us is None:
            return late
        is_old = F.unix_micros(_quoted(self.event_time)) < closed_us - self.within_us
        if old := late.where(is_old).count():
            _log.warning(
                "%d late records repair nothing: they are further than within = %s behind the watermark",
                old,
                format_duration(self.within_us),
            )
        return late.where(~is_old)

    def _read(self, late: DataFrame, offset: Mapping[str, Any], ranges: Ranges) -> DataFrame:
        reader = late.sparkSession.read.format(self.format_name).options(**self.options)
        reader = reader.option("repairRead", json.dumps({"ranges": ranges, "offset": offset}))
        return reader.schema(late.select(*map(_quoted, self.columns)).schema).load()

    def _check(self, result: DataFrame) -> None:
        if result.isStreaming:
            raise OptionError(
                "repair: the function joins its frame with another stream, and joins of streams cannot be repaired; "
                "let it join with a table"
            )
        if missing := [name for name in (self.touching.column, *self.keys) if name not in result.columns]:
            raise OptionError(
                f"repair: the function's result has the columns {', '.join(result.columns)}, and not {missing}: "
                f"windows are replaced by the column {self.touching.column}, of F.{self.touching.column}, and by the "
                "keys. Let the function keep these, or leave keys out"
            )


def _spans(windows: DataFrame, column: str) -> tuple[Int64Array, Int64Array]:
    from pyspark.sql import functions as F

    ends = (F.unix_micros(f"{column}.{end}") for end in ("start", "end"))
    rows = windows.select(column).distinct().select(*ends).collect()
    starts_us, ends_us = np.array(rows, np.int64).reshape(-1, 2).T
    return starts_us, ends_us


def _equal(left: DataFrame, columns: Sequence[str], right: DataFrame, names: Sequence[str]) -> Column:
    """Whether rows are of the same key; null is a key, too."""
    from pyspark.sql import functions as F

    same = F.lit(True)
    for column, name in zip(columns, names, strict=True):
        same = same & left[_quoted(column)].eqNullSafe(right[name])
    return same


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _moment(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=us)


def _duration_us(name: str, value: timedelta | str) -> int:
    try:
        return parse_duration_us(value, name=name, minimum_us=1)
    except InvalidArgumentError as error:
        raise OptionError(f"repair: {error}") from None

"""Late records repair their windows: the touched windows are computed again from the source, and replaced.

A query with `late=route` has left late records out of its windows. The query here reads them, once all windows in which
they can be are emitted: what it writes later than the first query is never undone by that. A batch reads the touched
windows again, up to where the first query had read the source, and hands them through the user's own function. No state
is kept for it: what waits is in the late log.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import StructField, StructType

from alignment.durations import format_duration
from alignment.event_time_range import Ranges
from alignment.shown import log_of
from streaming_source.exceptions import OffsetError, OptionError
from streaming_source.spark.datasource import AlignedDataSource
from streaming_source.spark.exact_watermark import Loaded, loaded_from
from streaming_source.spark.frames import SOURCES, late_frame
from streaming_source.spark.offsets import OffsetCodec
from streaming_source.spark.touched import SPAN, Joined, Sessions, Touching, Windows, duration_us, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_log = log_of(__name__)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MOMENT: Final = "_moment"
"""Column of late records: the event time."""
_FRAME: Final = "_frame"
"""Column of late records: the number of the frame among those that the function takes."""


@dataclass(frozen=True, slots=True)
class Repair:
    """The content of a repair.

    Attributes
    ----------
    query : str
        The query that repairs: the same as long as its checkpoint. Of a join there are two, one for late records of
        each frame.
    batch : int
        Its micro-batch. With `query` it names what is written: the same again has the same windows and rows.
    windows : sequence of (datetime, datetime)
        The event times that were read again, each from the first to before the second, in UTC; of a join those of the
        first frame. Each window lies in one.
    """

    query: str
    batch: int
    windows: Sequence[tuple[datetime, datetime]]


Write = Callable[["DataFrame", Repair], None]


def repair(
    df: DataFrame,
    checkpoint: str,
    compute: Callable[..., DataFrame],
    write: Write,
    *,
    window: str | None = None,
    slide: str | None = None,
    start: str | None = None,
    gap: str | None = None,
    longest: str | None = None,
    join: DataFrame | None = None,
    between: tuple[timedelta | str, timedelta | str] | None = None,
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
        column `window`, of `F.window` over the event time; or `session_window`, of `F.session_window`. It leaves out no
        window by what it has counted: the target would keep that row. For a join it takes two frames.
    write
        Called with the corrected windows, as a batch frame, and the `Repair`. It replaces the windows in the target. It
        may be called again with the same ones after a failure.
    window, slide, start
        The arguments of `F.window`.
    gap, longest
        Of sessions, in place of `window`: the gap of `F.session_window`, and how long a session is at most. A late
        record may join sessions: what is written replaces all sessions of its key that lie within it.
    join, between
        Of a join of two frames of the query, in place of `window`: the second frame, with `late=route` too, and how
        much later than `df`'s the event times of its rows are at least and at most: what the function's condition
        allows, or more. `compute` takes both frames. It is an inner, left outer or left semi join, whose result has
        `df`'s event time under its name. What is written replaces the rows of the same event time of `df` and keys.
    keys
        Columns of `df` (and of `join`) by which `compute` groups or joins, unchanged in its result: then only keys that
        were touched are computed and written. Without them a touched window is written with all its rows.
    within
        Late records further than this behind the watermark repair nothing. They are counted in the log. Give less than
        the source keeps its records.
    from_batch
        Number of the first micro-batch whose late records are read; by default those of all are. Given, it takes them
        over from another query that has read some, which is refused from then on.

    Returns
    -------
    DataStreamWriter
        Give it a `checkpointLocation` and a trigger, and start it.

    Raises
    ------
    OptionError
        If a frame has operations on it, or lacks option `late=route`; if a key is no column of it, a duration has no
        fixed length, or arguments do not belong together.

    Examples
    --------
    >>> def by_minute(readings):
    ...     return readings.groupBy(F.window("ts", "1 minute"), "sensor").count()
    >>> corrections = repair(
    ...     events, "/checkpoints/windows", by_minute, merge, window="1 minute", keys=["sensor"]
    ... )  # doctest: +SKIP
    >>> corrections.option("checkpointLocation", "/checkpoints/repairs").start()  # doctest: +SKIP
    """
    dfs = [df] if join is None else [df, join]
    loaded = [loaded_from(one, "repair", may_be_exact=True) for one in dfs]
    frames = [_Frame.of(one, of_it, keys) for one, of_it in zip(dfs, loaded, strict=True)]
    joined = None if join is None else (frames[0].event_time, bool(keys))
    touching = _touching(window, slide, start, gap, longest, between, joined)
    late = [
        frame.touching(late_frame(one, of_it, checkpoint, "repair", from_batch, delay_us), number, keys)
        for number, (one, of_it, frame, delay_us) in enumerate(
            zip(dfs, loaded, frames, touching.delays_us, strict=True)
        )
    ]
    within_us = None if within is None else duration_us("within", within)
    repairs = _Repairs(frames, compute, write, touching, tuple(keys), within_us)
    frame = late[0] if len(late) == 1 else late[0].union(late[1])
    return frame.writeStream.foreachBatch(repairs)


def _touching(
    window: str | None,
    slide: str | None,
    start: str | None,
    gap: str | None,
    longest: str | None,
    between: tuple[timedelta | str, timedelta | str] | None,
    joined: tuple[str, bool] | None,
) -> Touching:
    arguments = {"window": window, "slide": slide, "start": start, "gap": gap, "longest": longest}
    given = {name for name, value in {**arguments, "between": between, "join": joined}.items() if value is not None}
    if window is not None and given <= {"window", "slide", "start"}:
        return Windows(window, slide, start)
    if gap is not None and longest is not None and len(given) == 2:
        return Sessions(gap, longest)
    if between is not None and joined is not None and len(given) == 2:
        low_us, high_us = (duration_us("between", bound, -(2**62)) for bound in between)
        if low_us > high_us:
            raise OptionError(f"repair: between = {between!r}: the first is later than the second; swap them")
        return Joined(joined[0], low_us, high_us, joined[1])
    raise OptionError(
        "repair: give window, with slide and start if F.window has them; or gap and longest for sessions; or join and "
        "between for a join of two frames. Nothing else is repaired: deduplication has nothing to repair"
    )


@dataclass(frozen=True)
class _Frame:
    """A frame of the query that is repaired: its source, and how a batch reads it."""

    source: AlignedDataSource
    format_name: str
    options: Mapping[str, str]
    schema: StructType
    event_time: str

    @classmethod
    def of(cls, df: DataFrame, loaded: Loaded, keys: Sequence[str]) -> _Frame:
        if missing := [key for key in keys if key not in df.columns]:
            raise OptionError(
                f"repair: keys {missing} are no columns of the frame, which has {', '.join(df.columns)}; give columns "
                "that the function groups by as they are, or leave keys out"
            )
        source = SOURCES.get(loaded.format_name) or AlignedDataSource.of_format(loaded.format_name, loaded.options)
        options = {name: value for name, value in loaded.options.items() if name.lower() != "watermarkrows"}
        schema = StructType([StructField(field.name, field.dataType) for field in df.schema])
        return cls(source, loaded.format_name, options, schema, source.event_time_in(schema))

    def touching(self, late: DataFrame, number: int, keys: Sequence[str]) -> DataFrame:
        """Of late records what decides what they touch, by names that no result has; and the notes."""
        from pyspark.sql import functions as F

        from streaming_source.spark.late_reader import NOTE_COLUMN

        of_key = [F.col(quoted(key)).alias(name) for key, name in zip(keys, _key_names(keys), strict=True)]
        moment = F.col(quoted(self.event_time)).alias(_MOMENT)
        return late.select(moment, F.lit(number).alias(_FRAME), *of_key, NOTE_COLUMN)

    def read(self, spark: SparkSession, offsets: Sequence[Mapping[str, Any]], ranges: Ranges) -> DataFrame:
        """Read ranges of event times, up to where the query had read this source."""
        from pyspark.sql import functions as F

        codec = OffsetCodec(self.source.source)
        # There is one for each source that has late records: the other frame of a join may be of another query.
        offset = next((offset for offset in offsets if codec.is_of_source(offset)), None)
        if offset is None:
            raise OffsetError(
                f"repair: the query's checkpoint has no offset of {self.source.source.name} with the options of this "
                "frame; give the frames that the query itself joins"
            )
        reader = spark.read.format(self.format_name).options(**self.options)
        reader = reader.option("repairRead", json.dumps({"ranges": ranges, "offset": offset}))
        # No record without a time is in a range: where the function makes it nullable, a join adds rows without it.
        instead = F.lit(_EPOCH).cast(self.schema[self.event_time].dataType)
        found = reader.schema(self.schema).load()
        return found.withColumn(self.event_time, F.coalesce(quoted(self.event_time), instead))


@dataclass(frozen=True)
class _Repairs:
    """The function that `foreachBatch` calls: it repairs what the late records of a micro-batch touch."""

    frames: Sequence[_Frame]
    compute: Callable[..., DataFrame]
    write: Write
    touching: Touching
    keys: tuple[str, ...]
    within_us: int | None

    def __call__(self, late: DataFrame, batch: int) -> None:
        from pyspark.sql import functions as F

        from streaming_source.spark.late_reader import NOTE_COLUMN

        late = late.persist()
        try:
            notes = late.where(F.col(NOTE_COLUMN).isNotNull()).select(NOTE_COLUMN).collect()
            if notes:
                # Each frame has one, if it has late records.
                newest = max((json.loads(note[0]) for note in notes), key=lambda note: note["batch"])
                self._repair(late.where(F.col(NOTE_COLUMN).isNull()), newest, batch)
        finally:
            late.unpersist()

    def _repair(self, late: DataFrame, note: Mapping[str, Any], batch: int) -> None:
        from pyspark.sql import functions as F

        names = _key_names(self.keys)
        # A micro-batch that was planned before joins could be repaired has one offset.
        offsets = note["offsets"] if "offsets" in note else [note["offset"]]
        spans = self._recent(late, note["closed_us"]).select(self.touching.of(_MOMENT, _FRAME).alias(SPAN), *names)
        touched = spans.distinct().persist()
        try:

            def repaired(ranges: Ranges) -> DataFrame:
                of_keys = F.broadcast(touched.select(*names).distinct())
                again = []
                for number, frame in enumerate(self.frames):
                    read = frame.read(late.sparkSession, offsets, self.touching.read(ranges, number))
                    if self.keys:
                        read = read.join(of_keys, _equal(read, self.keys, of_keys, names), "left_semi")
                    again.append(read)
                result = self.compute(*again)
                self._check(result)
                return self.touching.among(result, touched, _equal(result, self.keys, touched, names))

            if ranges := self.touching.ranges(touched, repaired, note["closed_us"]):
                windows = tuple((_moment(first), _moment(last)) for first, last in ranges)
                self.write(repaired(ranges), Repair(note["id"], batch, windows))
        finally:
            touched.unpersist()

    def _recent(self, late: DataFrame, closed_us: int) -> DataFrame:
        """Leave out late records that are further behind than `within`, and log how many these are."""
        from pyspark.sql import functions as F

        if self.within_us is None:
            return late
        is_old = F.unix_micros(_MOMENT) < closed_us - self.within_us
        if old := late.where(is_old).count():
            _log.warning(
                "%d late records repair nothing: they are further than within = %s behind the watermark",
                old,
                format_duration(self.within_us),
            )
        return late.where(~is_old)

    def _check(self, result: DataFrame) -> None:
        if result.isStreaming:
            raise OptionError(
                "repair: the function joins its frame with another stream, which it must be given: give repair that "
                "frame as join, and between; or let it join with a table"
            )
        if missing := [name for name in (*self.touching.columns, *self.keys) if name not in result.columns]:
            raise OptionError(
                f"repair: the function's result has the columns {', '.join(result.columns)}, and not {missing}: rows "
                "are replaced by the column window of F.window, session_window of F.session_window, or the first "
                "frame's event time in a join; and by the keys. Let the function keep these, or leave keys out"
            )


def _key_names(keys: Sequence[str]) -> list[str]:
    return [f"_key_{number}" for number in range(len(keys))]


def _equal(left: DataFrame, columns: Sequence[str], right: DataFrame, names: Sequence[str]) -> Column:
    """Return whether rows are of the same key; null is a key, too."""
    from pyspark.sql import functions as F

    same = F.lit(True)
    for column, name in zip(columns, names, strict=True):
        same = same & left[quoted(column)].eqNullSafe(right[name])
    return same


def _moment(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=us)

"""The ways to a frame with the exact watermark, by the name of a format or from a source, and to its late records."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, Unpack
from weakref import WeakKeyDictionary

from pyspark.errors import AnalysisException
from pyspark.sql.types import ArrayType, DataType, StructType

from alignment.arrow_times import UTC
from alignment.durations import format_duration
from alignment.strategy import WatermarkStrategy
from streaming_source.api import Boundedness, Source
from streaming_source.exceptions import OptionError
from streaming_source.spark.datasource import FORMATS, AlignedDataSource, driver_host, in_zone, pickled, source_class
from streaming_source.spark.exact_watermark import (
    SOURCE_FORMAT,
    as_our_own,
    exact_frame,
    loaded_from,
)
from streaming_source.spark.format_class import format_class
from streaming_source.spark.options import FRAME_OPTIONS, SOURCE_OPTIONS, STRATEGY_OPTIONS, frame_options, read_rules
from streaming_source.spark.watermark_rows import EMITTED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SOURCES", "ExactStreamReader", "FrameKeywords", "from_source", "late_records", "read_stream", "register"]

_known: Final[WeakKeyDictionary[Any, set[str]]] = WeakKeyDictionary()
"""Session -> names of formats that it knows."""

SOURCES: Final[dict[str, AlignedDataSource]] = {}
"""What was given to `from_source`, by the name of the format that it made of it: the latest of each name."""


def register(spark: SparkSession, *sources: type[Source[Any, Any]]) -> None:
    """Give connectors of your own a format name, for `readStream.format(name)`, `read.format(name)` and `read_stream`.

    The formats that come with the library need it only where Spark's workers have the library on their path, and not
    installed: installed, Spark finds them by itself. Times of your own connectors that say no zone are in
    that of the session, as it is now, unless option `timeZone` names another.

    Parameters
    ----------
    spark
        The session, of Spark Connect as well.
    *sources
        Classes whose attribute `name` is the format's name, and whose `options` are what it takes: by default what is
        declared on the fields of a dataclass, see `streaming_source.api.options`.

    Raises
    ------
    TypeError
        If one is not a class of a source.
    OptionError
        If its name is not known of the class, or is that of another format.

    Examples
    --------
    >>> from streaming_source import DataGeneratorSource
    >>> class Ticks(DataGeneratorSource):
    ...     name = "ticks"
    >>> register(spark, Ticks)  # doctest: +SKIP
    >>> ticks = spark.readStream.format("ticks").option("splits", 2).load()  # doctest: +SKIP
    """
    _check_session(spark, "register(spark, MySource)")
    named: dict[str, type[Source[Any, Any]]] = {}
    for kind in sources:
        if not (isinstance(kind, type) and issubclass(kind, Source)):
            found = type(kind).__name__
            raise TypeError(f"register takes classes of sources, not a {found}: as in register(spark, MySource)")
        if not isinstance(kind.name, str):
            raise OptionError(
                f"{kind.__name__}.name is a property, but a format's name must be known before there is a source: "
                'write name = "..." in the class'
            )
        name = kind.name.lower()
        if isinstance(FORMATS.get(name), str):
            raise OptionError(f"{kind.__name__}.name = {kind.name!r} is a format of this library: choose another name")
        named[name] = kind
    for name in [name for name, known in FORMATS.items() if isinstance(known, str)]:
        _make_known(spark, name)
    for name, kind in named.items():
        FORMATS[name] = kind
        _known.get(spark, set()).discard(name)
        _make_known(spark, name)


def read_stream(spark: SparkSession) -> ExactStreamReader:
    """A reader like `spark.readStream`, of our formats and registered ones, whose frames have the exact watermark.

    Parameters
    ----------
    spark
        The session.

    Raises
    ------
    TypeError
        If it is none.

    Examples
    --------
    >>> events = (
    ...     read_stream(spark)
    ...     .format("aligned_files")
    ...     .option("eventTimeColumn", "ts")
    ...     .option("maxOutOfOrderness", "5 seconds")
    ...     .load("/data/logs")
    ... )  # doctest: +SKIP
    """
    _check_session(spark, "read_stream(spark)")
    return ExactStreamReader(spark)


class ExactStreamReader:
    """Collects what to read, as `DataStreamReader` does; made by `read_stream`."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._format: str | None = None
        self._options: dict[str, str] = {}
        self._name: str | None = None

    def format(self, source: str) -> ExactStreamReader:
        """What to read: `aligned_files`, `aligned_kafka`, `aligned_datagen`, or a format of your own (`register`)."""
        if source.lower() not in FORMATS:
            raise OptionError(
                f"format {source!r}: read_stream reads {', '.join(sorted(FORMATS))}; other formats are read by "
                "spark.readStream; a Source of your own needs register(spark, MySource) first, or from_source"
            )
        self._format = source.lower()
        return self

    def option(self, key: str, value: Any) -> ExactStreamReader:
        """One option, as in `docs/options.md`; None takes nothing."""
        if key.lower() == "watermarkrows":
            raise OptionError("option watermarkRows: read_stream gives the exact watermark without it; leave it out")
        if value is not None:
            # As in Spark the last one counts, whatever its case.
            self._options = {name: given for name, given in self._options.items() if name.lower() != key.lower()}
            self._options[key] = str(value).lower() if isinstance(value, bool) else str(value)
        return self

    def options(self, **options: Any) -> ExactStreamReader:
        """Several options."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def schema(self, schema: StructType | str) -> ExactStreamReader:
        """Columns of the data, as a type or as text: option `dataSchema`, for formats that have it."""
        if not isinstance(schema, StructType | str):
            raise OptionError(f"schema = {schema!r}: must be a StructType or text such as 't timestamp, n bigint'")
        return self.option("dataSchema", schema if isinstance(schema, str) else _columns(schema))

    def name(self, source_name: str) -> ExactStreamReader:
        """Of this source, of letters, digits and underscores: the observed metrics carry it."""
        self._name = _checked_name(source_name)
        return self

    def load(self, path: str | None = None) -> DataFrame:
        """The frame, with its watermark on it; `path` is the option of that name."""
        if self._format is None:
            raise OptionError(f"read_stream needs a format: one of {', '.join(sorted(FORMATS))}")
        known = {option.name for option in source_class(self._format).options()}
        if "dataSchema" not in known and any(name.lower() == "dataschema" for name in self._options):
            raise OptionError(
                f"schema: the columns of {self._format} are known, so it has no option dataSchema; leave the schema "
                "out, and select columns afterwards"
            )
        # What the data source cannot know; the zone is that of the session now.
        of_session = {"timeZone": _session_zone(self._spark), "gatewayHost": driver_host(self._spark)}
        given = {name.lower() for name in self._options}
        options = {name: value for name, value in of_session.items() if name.lower() not in given}
        options |= {**self._options, "watermarkRows": EMITTED}
        # Here already: what is wrong with an option is raised by the user's own call.
        source = AlignedDataSource.of_format(self._format, options if path is None else {**options, "path": path})
        _make_known(self._spark, self._format)
        with as_our_own():
            frame = self._spark.readStream.format(self._format).options(**options).load(path)
        return exact_frame(frame, source, self._name)


class FrameKeywords(TypedDict, total=False):
    """The options of the frame as keywords, for editors and type checkers; `docs/options.md` says what they mean."""

    event_time_as: str
    lateness: Literal["bounded", "none"]
    late: Literal["keep", "drop", "fail", "route"]
    invalid_timestamp: Literal["fail", "null", "drop"]
    include_metadata: bool
    max_rows_per_trigger: int
    min_rows_per_trigger: int
    max_trigger_delay: timedelta | str
    num_readers: int
    warn_after: timedelta | str
    max_future_skew: timedelta | str
    allow_unaligned_source_splits: bool
    gateway_host: str
    gateway_port: int
    gateway_certificate: str
    gateway_key: str
    event_log: str
    indexing: Literal["auto", "off"]


def from_source(
    spark: SparkSession,
    source: Source[Any, Any],
    watermark_strategy: WatermarkStrategy,
    name: str,
    *,
    batch: bool = False,
    **options: Unpack[FrameKeywords],
) -> DataFrame:
    """A streaming frame over a source, with the exact watermark; or a batch frame of all there is now.

    Parameters
    ----------
    source
        What to read.
    watermark_strategy
        Event times, watermarks, idleness, alignment.
    name
        Of this source in the query; the observed metrics carry it.
    batch
        Read once what there is, as `spark.read` does: without watermarks, whatever the strategy says of them.
    **options
        The options of the frame in `docs/options.md`, as keywords: `max_rows_per_trigger` for `maxRowsPerTrigger`.

    Returns
    -------
    DataFrame
        The data and the event time, which carries the watermark already: window on it, join on it, but do not call
        `withWatermark`.

    Raises
    ------
    TypeError
        If arguments are swapped.
    OptionError
        If an option is unknown, wrong, or one that the strategy stands for.

    Examples
    --------
    >>> strategy = WatermarkStrategy.for_bounded_out_of_orderness("5 seconds").with_timestamp_assigner("ts")
    >>> logs = from_source(spark, FileSource("/data/logs"), strategy, "logs")  # doctest: +SKIP
    """
    call = "from_source(spark, source, watermark_strategy, name)"
    _check_session(spark, call)
    for argument, given, kind in (
        ("source", source, Source),
        ("watermark_strategy", watermark_strategy, WatermarkStrategy),
        ("name", name, str),
    ):
        if not isinstance(given, kind):
            raise TypeError(f"{argument} must be a {kind.__name__}, and is a {type(given).__name__}: as in {call}")
    _checked_name(name)
    values = (FRAME_OPTIONS | SOURCE_OPTIONS).parse({**_as_options(options), "watermarkRows": EMITTED})
    parsed = frame_options(values, driver_host(spark))
    source, watermark_strategy = in_zone(source, watermark_strategy, _session_zone(spark))
    # Checked here, in the user's own call, before it is checked again where Spark runs it.
    described = AlignedDataSource(source, watermark_strategy, parsed)
    read_rules(watermark_strategy, parsed, bounded=source.boundedness is Boundedness.BOUNDED)
    content = pickled(partial(AlignedDataSource.of_source, source, watermark_strategy, parsed))
    format_name = f"{SOURCE_FORMAT}{name}"
    spark.dataSource.register(format_class(format_name, content, sys.executable))
    SOURCES[format_name] = described
    with as_our_own():
        if batch:
            return spark.read.format(format_name).load()
        frame = spark.readStream.format(format_name).option("watermarkRows", EMITTED).load()
    return exact_frame(frame, described, name)


def late_records(df: DataFrame, checkpoint: str, *, from_batch: int | None = None) -> DataFrame:
    """The late records of a query with option `late=route`, as a streaming frame for a second query.

    The one query keeps the others, and together they have every record once, whatever restarts, in whichever order.
    This frame follows the offsets that the query has committed; what can no longer be read as it was is an error.

    Parameters
    ----------
    df
        The frame that the query was made of, as `read_stream`, `from_source`, `with_exact_watermark` or `load()` gave
        it.
    checkpoint
        The `checkpointLocation` of the query: a local path, or a URI that pyarrow opens.
    from_batch
        Number of the first micro-batch of the query to read of; by default all.

    Returns
    -------
    DataFrame
        The columns of `df`, without a watermark.

    Raises
    ------
    OptionError
        If the frame has operations on it, or not option `late=route`.

    Examples
    --------
    >>> late = late_records(events, "/checkpoints/windows")  # doctest: +SKIP
    >>> late.writeStream.option("checkpointLocation", "/checkpoints/late").start("/data/late")  # doctest: +SKIP
    """
    loaded = loaded_from(df, "late_records", may_be_exact=True)
    options = {**loaded.options, "lateRecordsOf": checkpoint}
    if loaded.is_exact:
        options["watermarkRows"] = EMITTED
    if from_batch is not None:
        options["lateRecordsFrom"] = str(from_batch)
    if loaded.format_name in FORMATS:
        # Checked here, in the user's own call; a source of the user's own is known to Spark alone.
        AlignedDataSource.of_format(loaded.format_name, options)
    return df.sparkSession.readStream.format(loaded.format_name).schema(df.schema).options(**options).load()


def _make_known(spark: SparkSession, format_name: str) -> None:
    """Let a session know one of `FORMATS`, unless it does."""
    known = _known.setdefault(spark, set())
    if format_name in known:
        return
    kind, content = FORMATS[format_name], None
    if not isinstance(kind, str):
        content = pickled(partial(AlignedDataSource.of_class, kind, driver_host(spark), zone=_session_zone(spark)))
    try:
        spark.dataSource.register(format_class(format_name, content, sys.executable))
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        # Spark has found it by itself: ours is the one that is meant.
        if content is not None:
            raise OptionError(f"format {format_name!r} is that of another data source: choose another name") from None
    known.add(format_name)


def _check_session(spark: object, call: str) -> None:
    """Raise `TypeError` for what is no session; `call` is how it is written."""
    if not hasattr(spark, "readStream"):
        raise TypeError(f"the first argument must be the SparkSession, and is a {type(spark).__name__}: as in {call}")


def _checked_name(name: str) -> str:
    if not name.replace("_", "").isalnum():
        raise OptionError(f"name = {name!r}: must be of letters, digits and underscores")
    return name


def _session_zone(spark: SparkSession) -> str:
    """In which times are that say no zone."""
    return spark.conf.get("spark.sql.session.timeZone", None) or UTC


def _as_options(keywords: Mapping[str, Any]) -> dict[str, str]:
    """Keywords as a user would write them to `readStream`."""
    of_strategy = {option.name.lower() for option in STRATEGY_OPTIONS}
    known = {keyword.replace("_", ""): keyword for keyword in FrameKeywords.__annotations__}
    options = {}
    for keyword, value in keywords.items():
        name = keyword.replace("_", "").lower()
        if name in of_strategy:
            raise OptionError(f"option {keyword} is part of the watermark_strategy here; set it there")
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {known[nearest[0]]}?" if nearest else f"it has {', '.join(known.values())}"
            raise OptionError(f"from_source has no keyword {keyword!r}; {hint}")
        if isinstance(value, timedelta):
            value = format_duration(value // timedelta(microseconds=1))
        options[name] = str(value)
    return options


def _columns(schema: StructType) -> str:
    return ", ".join(f"`{field.name.replace('`', '``')}` {_type(field.dataType)}" for field in schema)


def _type(kind: DataType) -> str:
    if isinstance(kind, StructType):
        return f"struct<{_columns(kind)}>"
    return f"array<{_type(kind.elementType)}>" if isinstance(kind, ArrayType) else kind.simpleString()

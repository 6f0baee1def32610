"""The ways to a frame with the exact watermark, by the name of a format or from a source, and to its late records."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, Unpack
from weakref import WeakKeyDictionary

from pyspark.errors import AnalysisException
from pyspark.sql.types import StructType

from alignment.arrow_times import UTC
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
from streaming_source.spark.option_text import FrameKeywords, columns_text, keyword_options, option_text, path_text
from streaming_source.spark.options import FRAME_OPTIONS, SOURCE_OPTIONS, frame_options, read_rules
from streaming_source.spark.watermark_rows import EMITTED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SOURCES", "ExactStreamReader", "from_source", "late_records", "read_stream", "register"]

_known: Final[WeakKeyDictionary[Any, set[str]]] = WeakKeyDictionary()
"""Session -> names of formats that it knows."""

SOURCES: Final[dict[str, AlignedDataSource]] = {}
"""What was given to `from_source`, by the name of the format that it made of it: the latest of each name."""


def register(spark: SparkSession, *sources: type[Source[Any, Any]]) -> None:
    """Give connectors of your own a format name, for `readStream.format(name)`, `read.format(name)` and `read_stream`.

    Where the library is installed, Spark finds its own formats without this. Where Spark's workers have it on their
    path alone, `register(spark)` makes them known. Times without a zone, in connectors of your own, are in the
    session's zone as it is now, unless option `timeZone` names another.

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
        if not sources or find_spec(f"pyspark_{name}") is None:
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
        The session, of Spark Connect as well.

    Returns
    -------
    ExactStreamReader
        Takes format, options, schema and name as `spark.readStream` does; its `load` gives the frame.

    Raises
    ------
    TypeError
        If `spark` is not a `SparkSession`.

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
        """Choose what to read: `aligned_files`, `aligned_kafka`, `aligned_datagen`, or a registered format.

        Raises
        ------
        OptionError
            If it is another one.
        """
        if not isinstance(source, str) or source.lower() not in FORMATS:
            raise OptionError(
                f"format {source!r}: read_stream reads {', '.join(sorted(FORMATS))}; other formats are read by "
                "spark.readStream; a Source of your own needs register(spark, MySource) first, or from_source"
            )
        self._format = source.lower()
        return self

    def option(self, key: str, value: Any) -> ExactStreamReader:
        """Set one option.

        Parameters
        ----------
        key
            Name of the option, in any case; `docs/options.md` has all of them.
        value
            Text, a number, a bool, or for durations a `timedelta`. None leaves the option as it is.

        Raises
        ------
        OptionError
            If the value is a list, a dictionary or another object. What is wrong with names and values is raised by
            `load`.
        """
        if not isinstance(key, str):
            raise OptionError(f"option {key!r}: its name is no text; write .option('maxRowsPerTrigger', 10000)")
        if key.lower() == "watermarkrows":
            raise OptionError("option watermarkRows: read_stream gives the exact watermark without it; leave it out")
        if value is not None:
            # As in Spark the last one counts, whatever its case.
            self._options = {name: given for name, given in self._options.items() if name.lower() != key.lower()}
            self._options[key] = option_text(key, value)
        return self

    def options(self, **options: Any) -> ExactStreamReader:
        """Set several options, each as `option` does."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def schema(self, schema: StructType | str) -> ExactStreamReader:
        """Columns of the data, as a type or as text: option `dataSchema`, for formats that have it."""
        if not isinstance(schema, StructType | str):
            raise OptionError(f"schema = {schema!r}: must be a StructType or text such as 't timestamp, n bigint'")
        return self.option("dataSchema", schema if isinstance(schema, str) else columns_text(schema))

    def name(self, source_name: str) -> ExactStreamReader:
        """Name the source within the query.

        Parameters
        ----------
        source_name
            Letters, digits and underscores; no two sources of a query have the same. The query's progress has what was
            counted of this source (`observedMetrics`) under this name.

        Raises
        ------
        OptionError
            If it has other characters.
        """
        self._name = _checked_name(source_name)
        return self

    def load(self, path: str | PathLike[str] | list[str] | None = None) -> DataFrame:
        """Make the frame, with its watermark.

        Parameters
        ----------
        path
            Option `path`, if it is not set already: a path or URI, or several as a list.

        Returns
        -------
        DataFrame
            The data and the event time, which carries the watermark: do not call `withWatermark`.

        Raises
        ------
        OptionError
            If there is no format, or an option is unknown, wrong, missing or contradicts another.
        PathNotFoundError
            If there is nothing at the path.
        SchemaError
            If the event-time column is missing, or its name is taken.
        """
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
        if path is not None:
            text, others = path_text(path), [value for name, value in options.items() if name.lower() == "path"]
            if others not in ([], [text]):
                raise OptionError(f"load({text!r}): option path = {others[0]!r} is another path; give one of them")
            options = {name: value for name, value in options.items() if name.lower() != "path"} | {"path": text}
        # Here already: what is wrong with an option is raised by the user's own call.
        source = AlignedDataSource.of_format(self._format, options)
        if not isinstance(FORMATS[self._format], str):
            _make_known(self._spark, self._format)
        try:
            return self._loaded(options, source)
        except Exception as error:
            # As a Py4JJavaError in a classic session, as Spark's own under Connect.
            if "[DATA_SOURCE_NOT_FOUND]" not in str(error):
                raise
        # Spark finds installed formats by itself, and warns of one that is registered over them.
        _make_known(self._spark, self._format)
        return self._loaded(options, source)

    def _loaded(self, options: Mapping[str, str], source: AlignedDataSource) -> DataFrame:
        assert self._format is not None
        with as_our_own():
            frame = self._spark.readStream.format(self._format).options(**options).load()
        return exact_frame(frame, source, self._name)


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
    spark
        The session, of Spark Connect as well.
    source
        What to read.
    watermark_strategy
        Event times, watermarks, idleness, alignment.
    name
        Name of this source in the query, of letters, digits and underscores; the observed metrics carry it.
    batch
        Read once what there is, as `spark.read` does: without watermarks, also where the strategy has some.
    **options
        The options of the frame in `docs/options.md`, as keywords: `max_rows_per_trigger` for `maxRowsPerTrigger`.
        None leaves an option at its default.

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
            raise TypeError(f"{argument} must be a {kind.__name__}, and is {_described(given)}: as in {call}")
    _checked_name(name)
    values = (FRAME_OPTIONS | SOURCE_OPTIONS).parse({**keyword_options(options), "watermarkRows": EMITTED})
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
    This frame follows the micro-batches that the query has committed, by what the query writes into `lateLocation`. It
    removes there what it has read and committed, so one query alone reads the late records of a query; what can no
    longer be read as it was is an error.

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
    if not isinstance(checkpoint, str | PathLike):
        raise OptionError(
            f"late_records: checkpoint = {checkpoint!r} is no path; give the checkpointLocation of the query whose "
            "late records these are"
        )
    options = {**loaded.options, "lateRecordsOf": str(checkpoint)}
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
        raise TypeError(f"the first argument must be the SparkSession, and is {_described(spark)}: as in {call}")


def _described(argument: object) -> str:
    return f"the class {argument.__name__}" if isinstance(argument, type) else f"of type {type(argument).__name__}"


def _checked_name(name: str) -> str:
    if not isinstance(name, str) or not name.replace("_", "").isalnum():
        raise OptionError(f"name = {name!r}: must be of letters, digits and underscores")
    return name


def _session_zone(spark: SparkSession) -> str:
    """In which times are that say no zone."""
    return spark.conf.get("spark.sql.session.timeZone", None) or UTC

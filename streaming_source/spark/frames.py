"""Functions that return frames with the exact watermark, by format name or from a source, and their late records."""

from __future__ import annotations

import re
from dataclasses import is_dataclass, replace
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, Unpack

from pyspark.sql.types import StringType, StructField, StructType

from alignment.strategy import WatermarkStrategy
from streaming_source.api import Source
from streaming_source.api.options import option_names
from streaming_source.coordinator.rules import EMITTED
from streaming_source.exceptions import OptionError
from streaming_source.spark.datasource import FORMATS, AlignedDataSource, driver_host, in_zone, pickled, source_class
from streaming_source.spark.exact_watermark import Loaded, exact_frame, loaded_from, options_in_session
from streaming_source.spark.loading import SOURCE_FORMAT, as_our_own, load_stream
from streaming_source.spark.option_text import (
    FrameKeywords,
    columns_text,
    keyword_options,
    option_text,
    path_text,
)
from streaming_source.spark.options import FRAME_OPTIONS, SOURCE_OPTIONS, frame_options, read_rules
from streaming_source.spark.registration import (
    check_clock,
    check_session,
    described,
    has_no_data_batches,
    register_content,
    register_format,
    session_zone,
    switched_on,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SOURCES: Final[dict[str, AlignedDataSource]] = {}
"""Format name that `from_source` made -> its data source, the latest of each name."""


def read_stream(spark: SparkSession) -> ExactStreamReader:
    """A reader like `spark.readStream`, of our formats and registered ones, whose frames have the exact watermark.

    Parameters
    ----------
    spark
        The session, of Spark Connect as well.

    Returns
    -------
    ExactStreamReader
        Takes format, options, schema and name as `spark.readStream` does; `load`, `parquet`, `csv` and the like give
        the frame. `docs/options.md` has the options; those that matter first are `eventTimeColumn`,
        `maxOutOfOrderness`, `maxDrift`, `idleTimeout` and `maxRowsPerTrigger`.

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
    check_session(spark, "read_stream(spark)")
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
            If `source` is none of these formats.
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
            If the value is a list, a dictionary or another object. `load` raises for unknown names and wrong values.
        """
        if not isinstance(key, str):
            raise OptionError(f"option {key!r}: its name is no text; write .option('maxRowsPerTrigger', 10000)")
        if key.lower() == "watermarkrows":
            raise OptionError("option watermarkRows: read_stream gives the exact watermark without it; leave it out")
        if value is not None:
            # As in Spark, the last option of a name counts, ignoring case.
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

    def parquet(self, path: str | PathLike[str] | list[str], **options: Any) -> DataFrame:
        """Load Parquet files: `format("aligned_files")` with `fileFormat=parquet`; other options as keywords."""
        return self._load_files("parquet", path, options)

    def orc(self, path: str | PathLike[str] | list[str], **options: Any) -> DataFrame:
        """Load ORC files, as `parquet` does."""
        return self._load_files("orc", path, options)

    def csv(self, path: str | PathLike[str] | list[str], **options: Any) -> DataFrame:
        """Load CSV files, as `parquet` does."""
        return self._load_files("csv", path, options)

    def json(self, path: str | PathLike[str] | list[str], **options: Any) -> DataFrame:
        """Load JSON files, as `parquet` does."""
        return self._load_files("json", path, options)

    def text(self, path: str | PathLike[str] | list[str], **options: Any) -> DataFrame:
        """Load lines of text, as `parquet` does."""
        return self._load_files("text", path, options)

    def table(self, tableName: str) -> DataFrame:
        """Refuse the name of a table of the catalog, which is read by its path."""
        raise OptionError(
            f"table({tableName!r}): give .format('aligned_delta').load(path) for a Delta table, or "
            f".format('aligned_iceberg').option('table', {tableName!r}) with options catalog.* for an Iceberg table"
        )

    def _load_files(
        self, file_format: str, path: str | PathLike[str] | list[str], options: dict[str, Any]
    ) -> DataFrame:
        if (schema := options.pop("schema", None)) is not None:
            self.schema(schema)
        return self.format("aligned_files").options(fileFormat=file_format, **options).load(path)

    def name(self, source_name: str) -> ExactStreamReader:
        """Name the source within the query.

        Parameters
        ----------
        source_name
            Letters, digits and underscores, unique within the query. The query's progress has the counts of this
            source (`observedMetrics`) under this name. With Spark's source evolution
            (`spark.sql.streaming.queryEvolution.enableSourceEvolution`) its checkpoint has the source under this name
            too, so that sources can be added to the query and removed from it.

        Raises
        ------
        OptionError
            If the name has other characters.
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
        options, given = {**self._options, "watermarkRows": EMITTED}, {name.lower() for name in self._options}
        if "timezone" not in given:
            # The data source cannot read the session's zone, so it is passed on as it is now.
            options["timeZone"] = session_zone(self._spark)
        options |= dict.fromkeys(switched_on(self._spark, [one for one in known if one.lower() not in given]), "true")
        if path is not None:
            text, others = path_text(path), [value for name, value in options.items() if name.lower() == "path"]
            if others not in ([], [text]):
                raise OptionError(f"load({text!r}): option path = {others[0]!r} is another path; give one of them")
            options = {name: value for name, value in options.items() if name.lower() != "path"} | {"path": text}
        # Created here already, so that the user's own call raises errors in options.
        source = AlignedDataSource.of_format(self._format, options)
        check_clock(self._spark, source.source)
        by_source = source.source.emits_watermark
        read_rules(source.strategy, source.options, bounded=source.is_bounded, by_source=by_source)
        if not isinstance(FORMATS[self._format], str):
            register_format(self._spark, self._format)
        options = options_in_session(self._spark, self._format, source, options)
        frame, schema = load_stream(self._spark, self._format, options, source, self._name)
        return exact_frame(frame, source, self._name, schema)


def from_source(
    spark: SparkSession,
    source: Source[Any, Any],
    watermark_strategy: WatermarkStrategy,
    name: str,
    *,
    batch: bool = False,
    **options: Unpack[FrameKeywords],
) -> DataFrame:
    """Return a streaming frame over a source, with the exact watermark; or a batch frame of all current data.

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
        Read all current data once, as `spark.read` does: without watermarks, whatever the strategy.
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
        If an option is unknown, wrong, or belongs in the strategy.

    Examples
    --------
    >>> strategy = WatermarkStrategy.for_bounded_out_of_orderness("5 seconds").with_timestamp_assigner("ts")
    >>> logs = from_source(spark, FileSource("/data/logs"), strategy, "logs")  # doctest: +SKIP
    """
    call = "from_source(spark, source, watermark_strategy, name)"
    check_session(spark, call)
    for argument, given, kind in (
        ("source", source, Source),
        ("watermark_strategy", watermark_strategy, WatermarkStrategy),
        ("name", name, str),
    ):
        if not isinstance(given, kind):
            raise TypeError(f"{argument} must be a {kind.__name__}, and is {described(given)}: as in {call}")
    _checked_name(name)
    values = (FRAME_OPTIONS | SOURCE_OPTIONS).parse({**keyword_options(options), "watermarkRows": EMITTED})
    zone = session_zone(spark)
    source, watermark_strategy = in_zone(source, watermark_strategy, zone)
    source = _as_in_session(spark, source)
    check_clock(spark, source)
    # Checked here so that the user's own call raises; Spark's planner checks it again.
    values["noDataMicroBatches"] &= has_no_data_batches(spark)
    made = AlignedDataSource(source, watermark_strategy, frame_options(values, zone=zone))
    if made.needs_gateway:
        made = replace(made, options=frame_options(values, driver_host(spark), zone))
    read_rules(watermark_strategy, made.options, bounded=made.is_bounded, by_source=source.emits_watermark)
    format_name = f"{SOURCE_FORMAT}{_in_small_letters(name)}"
    content = pickled(partial(AlignedDataSource.of_source, source, watermark_strategy, made.options))
    # The name for `spark.read` too, which a source whose name differs in capital letters alone takes over.
    for known in {format_name, f"{SOURCE_FORMAT}{name}"}:
        register_content(spark, known, content)
    SOURCES[format_name] = made
    if batch:
        with as_our_own():
            return spark.read.format(format_name).load()
    frame, schema = load_stream(spark, format_name, {"watermarkRows": EMITTED}, made, name)
    return exact_frame(frame, made, name, schema)


def _as_in_session(spark: SparkSession, source: Source[Any, Any]) -> Source[Any, Any]:
    """Return the source with those of its options that the session has switched on."""
    if not is_dataclass(source):
        return source
    names = {option: field for field, option in option_names(type(source)).items()}
    return replace(source, **{names[option]: True for option in switched_on(spark, names)})


def late_records(df: DataFrame, checkpoint: str, *, from_batch: int | None = None) -> DataFrame:
    """The late records of a query with option `late=route`, as a streaming frame for a second query.

    The first query keeps the on-time records; together the two have every record exactly once, across restarts of
    either in any order. This frame follows the micro-batches that the first query has committed, by the entries that it
    writes into `lateLocation`. It removes entries once it has read and committed them, so only one query can read the
    late records of a query. Records that can no longer be read as they were raise an error.

    Parameters
    ----------
    df
        The frame that the query reads, as `read_stream`, `from_source`, `with_exact_watermark` or `load()` returned
        it.
    checkpoint
        The `checkpointLocation` of the query: a local path, or a URI that pyarrow opens.
    from_batch
        Number of the first micro-batch whose late records are read; by default those of all are. Given, it takes them
        over from another query that has read some, which is refused from then on.

    Returns
    -------
    DataFrame
        The columns of `df`, without a watermark.

    Raises
    ------
    OptionError
        If the frame has operations on it, or lacks option `late=route`.

    Examples
    --------
    >>> late = late_records(events, "/checkpoints/windows")  # doctest: +SKIP
    >>> late.writeStream.option("checkpointLocation", "/checkpoints/late").start("/data/late")  # doctest: +SKIP
    """
    loaded = loaded_from(df, "late_records", may_be_exact=True)
    return late_frame(df, loaded, checkpoint, "late_records", from_batch)


def late_frame(
    df: DataFrame,
    loaded: Loaded,
    checkpoint: str,
    caller: str,
    from_batch: int | None,
    repair_delay_us: int | None = None,
) -> DataFrame:
    """Return the frame of the late records of a frame, for repairs with their notes."""
    if not isinstance(checkpoint, str | PathLike):
        raise OptionError(
            f"{caller}: checkpoint = {checkpoint!r} is no path; give the checkpointLocation of the query whose "
            "late records these are"
        )
    own = "availablenowcheckpoint"  # of the query that routes
    given = {name: value for name, value in loaded.options.items() if name.lower() != own}
    options = {**given, "lateRecordsOf": str(checkpoint)}
    if loaded.is_exact:
        options["watermarkRows"] = EMITTED
    if from_batch is not None:
        options["lateRecordsFrom"] = str(from_batch)
    if loaded.format_name in FORMATS:
        # Checked here so that the user's own call raises; formats that the user registered only Spark can check.
        AlignedDataSource.of_format(loaded.format_name, options)
    schema = df.schema if loaded.schema_text is None else loaded.schema_text
    if repair_delay_us is not None:
        # Imported here: few programs repair.
        from streaming_source.spark.late_reader import NOTE_COLUMN

        options["repairDelay"] = f"{repair_delay_us} microseconds"
        # The note has a row of its own, which is null in all other columns.
        fields = [StructField(field.name, field.dataType) for field in df.schema]
        schema = StructType([*fields, StructField(NOTE_COLUMN, StringType())])
    reader = df.sparkSession.readStream.format(loaded.format_name).schema(schema).options(**options)
    return (reader if loaded.source_name is None else reader.name(loaded.source_name)).load()


def _in_small_letters(name: str) -> str:
    """Return a name without capital letters, which Spark does not distinguish: `Logs` is `-logs`, and `logs` itself."""
    return re.sub(r"[A-Z]", lambda capital: f"-{capital[0].lower()}", name)


def _checked_name(name: str) -> str:
    if not isinstance(name, str) or not name.replace("_", "").isalnum():
        raise OptionError(f"name = {name!r}: must be of letters, digits and underscores")
    return name

"""Frames with the exact watermark: Spark takes its watermark from watermark rows, and users never see those rows.

Only the frames made here have watermark rows, and each includes the filter that removes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import uuid4
from weakref import ReferenceType, WeakKeyDictionary, ref

from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType, TimestampType

from alignment.shown import log_of
from streaming_source.coordinator.rules import EMITTED
from streaming_source.exceptions import OptionError, SchemaError
from streaming_source.monitoring.query_advice import ALLOW_MULTIPLE
from streaming_source.spark.before_4_2 import IS_BEFORE_4_2, TimeType
from streaming_source.spark.datasource import FORMATS, AlignedDataSource, driver_host, source_class
from streaming_source.spark.loading import SOURCE_FORMAT, as_our_own, columns_of_plan, prepare_available_now
from streaming_source.spark.option_text import with_secrets_hidden
from streaming_source.spark.registration import has_no_data_batches, is_switched_off
from streaming_source.spark.watermark_rows import DELAY, FAR_SQL, check_policy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_log = log_of(__name__)

_EXACT: Final = "the exact watermark"
_EXACT_FRAMES: Final = (["Project", "Filter", _EXACT], ["Project", "CollectMetrics", "Filter", _EXACT])
"""Plan nodes that `exact_frame` adds to a frame, from the top: without metrics, and with them."""

_DELAY_KEY: Final = "spark.watermarkDelayMs"

_named: Final[WeakKeyDictionary[Any, dict[str | None, tuple[ReferenceType[Any], tuple[str, str]]]]] = (
    WeakKeyDictionary()
)
"""Session -> name -> the last frame of that name, and what that frame reads."""


def with_exact_watermark(df: DataFrame, event_time: str | None = None, name: str | None = None) -> DataFrame:
    """Give a frame of one of our formats the exact watermark, in place of `withWatermark`.

    Parameters
    ----------
    df
        A streaming frame as `readStream.format(...).load()` gave it, before any other operation.
    event_time
        Its event-time column; by default it is found from the options.
    name
        Name of the observed metrics (`observedMetrics` of the query's progress): the number of rows, of those without
        an event time, the latest event time in microseconds since the epoch and, if the frame has metadata, the number
        of late rows. Without a name Spark counts only for frames with metadata or with `invalidTimestamp=null`, where
        late or undated rows can occur. Counting costs Spark a third of the time that it takes to receive the rows.

    Returns
    -------
    DataFrame
        The data, with an event-time watermark on the event-time column. Do not call `withWatermark` on it: Spark
        refuses to define a watermark twice.

    Raises
    ------
    OptionError
        If `df` is not a streaming frame of one of our formats, or has operations on it.
    SchemaError
        If the schema given to `readStream` lacks the event-time column, or `event_time` names another column.

    Examples
    --------
    >>> frame = spark.readStream.format("aligned_files").option("eventTimeColumn", "ts").load(path)  # doctest: +SKIP
    >>> events = with_exact_watermark(frame)  # doctest: +SKIP
    """
    loaded = loaded_from(df)
    # Without a zone: only the columns show whether one is needed.
    source = AlignedDataSource.of_format(loaded.format_name, loaded.options, zone=None)
    with as_our_own():
        found = columns_of_plan(df, source, loaded.schema_text) if loaded.is_of_connect else df.schema
    column = source.event_time_in(found)
    if event_time is not None and event_time.lower() != column.lower():
        raise SchemaError(f"event_time = {event_time!r}: the event time of this frame is {column!r}; leave it out")
    schema = StructType()
    for field in found:
        # Watermark rows are null in all other columns, and Spark accepts watermarks on `TimestampType` alone.
        kind = TimestampType() if field.name == column else field.dataType
        schema.add(StructField(field.name, kind, True, field.metadata))
    if column not in found.names:
        schema.add(StructField(column, TimestampType()))
    # Loaded anew, with watermark rows: users never get a frame that shows them.
    reader = df.sparkSession.readStream.format(loaded.format_name).schema(schema)
    if loaded.source_name is not None:
        reader = reader.name(loaded.source_name)
    options = {option: value for option, value in loaded.options.items() if option.lower() != "watermarkrows"}
    options = options_in_session(df.sparkSession, loaded.format_name, source, options)
    with as_our_own():
        frame = reader.options(**options, watermarkRows=EMITTED).load()
    return exact_frame(frame, source, name, schema)


def options_in_session(
    spark: SparkSession, format_name: str, source: AlignedDataSource, options: Mapping[str, str]
) -> dict[str, str]:
    """Return options for Spark, with what follows from the session where it is not given; secrets are hidden."""
    given, known = {name.lower() for name in options}, dict(options)
    if source.needs_gateway and "gatewayhost" not in given:
        known["gatewayHost"] = driver_host(spark)
    if "nodatamicrobatches" not in given and not has_no_data_batches(spark):
        known["noDataMicroBatches"] = "false"
    return with_secrets_hidden(known, source_class(format_name).options())


def exact_frame(df: DataFrame, source: AlignedDataSource, name: str | None, schema: StructType) -> DataFrame:
    """Let the watermark rows of a frame with the columns `schema` set Spark's watermark, and take them out.

    Spark pushes filters on other columns below the watermark operator, where they would remove the watermark row. It
    pushes no filter through a nondeterministic filter or an observation. An observation counts each row, which takes a
    third of the time that Spark's channel takes for the row: so it is added only where its counts may be read.
    """
    from pyspark.sql import functions as F

    prepare_available_now(df.sparkSession, source)
    named, reads = _named.setdefault(df.sparkSession, {}), (source.source.name, source.source.identity)
    before, read = named.get(name, (None, reads))
    if before is not None and before() is not None and read != reads:
        raise OptionError(
            f"name = {name!r}: a frame over another source has it, and in one query Spark refuses both "
            "(DUPLICATED_METRICS_NAME); give this source another name"
        )
    _check_times_of_day(df, schema)
    if hasattr(df.sparkSession, "_jsparkSession"):
        # Under Spark Connect it costs a call to the server, and tasks see it in any case.
        check_policy(lambda name: df.sparkSession.conf.get(name, None))
    column = source.event_time_in(schema)
    names = {each: f"`{each.replace('`', '``')}`" for each in schema.names}
    time = F.col(names[column])
    has_lateness = source.options.include_metadata and "_late" in schema.names
    is_data = (time < F.expr(FAR_SQL)) | time.isNull()
    dated = df.withWatermark(names[column], f"{DELAY.days} days")
    if name is None and not has_lateness and source.options.invalid_timestamp != "null":
        data = dated.where(is_data & (F.spark_partition_id() >= 0))
    else:
        metrics = [
            F.count(F.lit(1)).alias("rows"),
            F.count_if(time.isNull()).alias("invalid"),
            F.unix_micros(F.max(time)).alias("latest"),
        ]
        if has_lateness:
            metrics.append(F.count_if(F.col("_late")).alias("late"))
        data = dated.where(is_data).observe(name or f"aligned_{uuid4().hex[:8]}", *metrics)
    # The watermark operator keeps its own delay. Other operators, such as `dropDuplicatesWithinWatermark`, read the
    # delay from the column's metadata: there it is the bound on out-of-orderness, in milliseconds.
    delay = {_DELAY_KEY: -(-(source.strategy.out_of_orderness_us or 0) // 1000)}
    frame = data.select(
        *(F.col(quoted).alias(each, metadata=delay) if each == column else quoted for each, quoted in names.items())
    )
    if name is not None:
        named[name] = ref(frame), reads
    _warn_of_one_watermark(df.sparkSession)
    frame.withWatermark = _refused_watermark  # type: ignore[method-assign]
    return frame


def _refused_watermark(eventTime: str, delayThreshold: str) -> DataFrame:
    """Replace `withWatermark` of an exact frame; on frames derived from it Spark itself refuses a second watermark."""
    raise OptionError(
        f"withWatermark({eventTime!r}, {delayThreshold!r}): this frame carries the exact watermark, and a query takes "
        "one watermark; remove the call, and give the delay as maxOutOfOrderness"
    )


def _warn_of_one_watermark(spark: SparkSession) -> None:
    """Warn if the session has the setting that allows a second watermark, which Spark's own error recommends."""
    if is_switched_off(spark, ALLOW_MULTIPLE):
        _log.warning(
            "%s is false in this session: of several stateful operators in a chain Spark then drops most rows of all "
            "but the first, and it takes a second withWatermark on a frame that carries the exact watermark, and never "
            "closes its last windows; remove each such withWatermark, and leave the setting at true",
            ALLOW_MULTIPLE,
        )


def _check_times_of_day(df: DataFrame, schema: StructType) -> None:
    """Refuse time-of-day columns here: Spark refuses them at query start without naming the column."""
    found = next((field for field in schema if _has_time_of_day(field.dataType)), None)
    if found is None or str(df.sparkSession.conf.get("spark.sql.timeType.enabled", "false")).lower() == "true":
        return
    raise SchemaError(
        f"column {found.name!r} has the type TIME, which Spark takes in a streaming query only where "
        "spark.sql.timeType.enabled is true; set that in the session, or leave the column out (option columns "
        "of aligned_files)"
    )


def _has_time_of_day(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_has_time_of_day(field.dataType) for field in kind)
    if isinstance(kind, ArrayType):
        return _has_time_of_day(kind.elementType)
    if isinstance(kind, MapType):
        return _has_time_of_day(kind.keyType) or _has_time_of_day(kind.valueType)
    return isinstance(kind, TimeType)


@dataclass(frozen=True, slots=True)
class Loaded:
    """The format and options that `readStream` was given, and whether the frame has the exact watermark.

    `is_of_connect` for a frame of Spark Connect; its `schema_text` is the schema that the user gave, if any.
    """

    format_name: str
    options: Mapping[str, str]
    source_name: str | None = None
    is_exact: bool = False
    is_of_connect: bool = False
    schema_text: str | None = None


def loaded_from(df: DataFrame, caller: str = "with_exact_watermark", *, may_be_exact: bool = False) -> Loaded:
    """Return what a streaming frame was loaded from; the frame must have no operations on it.

    An operation may drop watermark rows, or the column that carries their times. Which operations are safe depends on
    Spark's version, so none is allowed. With `may_be_exact` the exact watermark alone is allowed.
    """
    # Looked up on the class: under Spark Connect a frame has every attribute, as a column.
    if not hasattr(type(df), "isStreaming"):
        raise TypeError(
            f"{caller} takes a streaming DataFrame, not a {type(df).__name__}: give it what load() returned"
        )
    is_classic = hasattr(df, "_jdf")
    # Under Spark Connect the attribute costs a call to the server; the plan on the client has the same fact.
    if not (df.isStreaming if is_classic else _streams(df)):
        raise OptionError(
            f"{caller} needs a streaming frame, of readStream: batch reads have no watermark; leave it out"
        )
    loaded, met = _from_classic_plan(df) if is_classic else _from_connect_plan(df)
    is_exact = may_be_exact and met in _EXACT_FRAMES
    if _EXACT in met and not may_be_exact:
        raise OptionError(
            f"{caller}: this frame carries the exact watermark already (from read_stream, from_source or "
            "with_exact_watermark); leave the call out"
        )
    if met and not is_exact:
        raise OptionError(
            f"{caller} needs a frame as load() gave it; this one has {', '.join(reversed(met))} on it. "
            "Call it right after load(), or load with read_stream(spark), and filter, select and join afterwards"
        )
    name = loaded.format_name
    if name not in FORMATS and not (is_exact and name.startswith(SOURCE_FORMAT)):
        raise OptionError(
            f"{caller} needs a frame of {', '.join(sorted(FORMATS))}; this one is of {loaded.format_name}, whose "
            "watermark is withWatermark: call that instead"
        )
    return replace(loaded, is_exact=is_exact)


def sources_of(df: DataFrame | StreamingQuery) -> list[Loaded]:
    """Return all sources of a streaming frame or query, of any format, whatever operations are on it.

    Under Spark Connect a join or a union counts as one source without a name or format.
    """
    plan: Any
    if not hasattr(type(df), "isStreaming") and not hasattr(type(df), "recentProgress"):
        raise TypeError(
            f"advise takes a streaming DataFrame or a StreamingQuery, not a {type(df).__name__}; for a path or topic "
            "run streaming-source advise PATH|TOPIC"
        )
    # Looked up on the class: under Spark Connect a frame has every attribute, as a column.
    if hasattr(type(df), "_jsq") or "_jsq" in vars(df):
        plan = cast("Any", df)._jsq.streamingQuery().analyzedPlan()
    elif not getattr(df, "isStreaming", False):
        raise OptionError(
            "advise needs a streaming frame or a query; under Spark Connect only the server has a query's plan: give "
            "it the frame"
        )
    elif hasattr(df, "_jdf"):
        plan = df._jdf.queryExecution().analyzed()
    else:
        return [_from_connect_plan(df)[0]]
    leaves = plan.collectLeaves()
    return [_classic_source(leaves.apply(i)) for i in range(leaves.size())]


def _from_classic_plan(df: Any) -> tuple[Loaded, list[str]]:
    node = df._jdf.queryExecution().analyzed()
    met = []
    while (children := node.children()).size() == 1:
        is_ours = node.nodeName() == "EventTimeWatermark" and node.delay().toString() == f"{DELAY.days} days"
        met.append(_EXACT if is_ours else node.nodeName())
        node = children.head()
    if children.size() > 1:
        return Loaded("", {}), [*met, node.nodeName()]
    return _classic_source(node), met


def _classic_source(node: Any) -> Loaded:
    if node.nodeName() != "StreamingRelationV2":
        return Loaded(node.nodeName(), {})
    options = dict(node.extraOptions().asCaseSensitiveMap())
    if IS_BEFORE_4_2:
        return Loaded(node.sourceName().lower(), options)
    name = node.sourceIdentifyingName().nameOpt()
    return Loaded(node.sourceName().lower(), options, name.get() if name.isDefined() else None)


def _from_connect_plan(df: Any) -> tuple[Loaded, list[str]]:
    node = df._plan
    met = []
    while getattr(node, "_child", None) is not None:
        is_ours = getattr(node, "_delay_threshold", None) == f"{DELAY.days} days"
        met.append(_EXACT if is_ours else type(node).__name__)
        node = node._child
    if type(node).__name__ != "DataSource":
        return Loaded("", {}), [*met, type(node).__name__]
    path = {"path": node._paths[0]} if node._paths else {}
    options = {**(node._options or {}), **path}
    loaded = Loaded((node._format or "").lower(), options, getattr(node, "_source_name", None), is_of_connect=True)
    return replace(loaded, schema_text=node._schema or None), met


def _streams(df: Any) -> bool:
    """Return whether a leaf of a Spark Connect plan is a stream; False for a plan that is text."""
    nodes, streams = [df._plan], False
    while nodes:
        node = nodes.pop()
        nodes += [child for side in ("_child", "left", "right") if (child := getattr(node, side, None)) is not None]
        streams = streams or bool(getattr(node, "_is_streaming", False))
    return streams

"""A streaming frame and its columns, without a call that makes Spark analyse a plan.

In a classic session Spark looks the columns up as it loads the frame. Under Spark Connect a frame is a plan on the
client, which the server does not get before the query starts: there the source's schema is looked up on the client. The
server looks it up only if the client cannot reach the data, and only where calls to the server are allowed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql.types import StructType

from alignment.exceptions import InvalidArgumentError
from alignment.shown import log_of
from streaming_source.api.ddl import schema_of_ddl
from streaming_source.exceptions import ERROR_IN_TEXT, NoSchemaError, OptionError, SchemaError
from streaming_source.spark.before_4_2 import prepare_session
from streaming_source.spark.datasource import FORMATS, AlignedDataSource, frame_schema
from streaming_source.spark.registration import REFUSED_IN_PIPELINES, register_format

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SOURCE_FORMAT: Final = "aligned_source_"
"""Prefix of the format names that `from_source` makes."""

_log = log_of(__name__)

_MANY_COLUMNS: Final = 200
_NAMED_SOURCES: Final = "spark.sql.streaming.queryEvolution.enableSourceEvolution"

_OURS: Final = re.compile(ERROR_IN_TEXT + r"(.*?)(?=\n? SQLSTATE: |\Z)", re.S)


def load_stream(
    spark: SparkSession, format_name: str, options: Mapping[str, str], source: AlignedDataSource, name: str | None
) -> tuple[DataFrame, StructType]:
    """Return the frame of `readStream.format(...).options(...).load()`, and its columns.

    `name` is the source's name in the checkpoint, if Spark keeps sources by name.
    """
    source.source.for_stream()
    frame, schema = _loaded(spark, format_name, options, source, name)
    if len(schema) > _MANY_COLUMNS and getattr(source.source, "columns", ()) is None:
        _log.warning(
            "%s has %d columns, and a Python source cannot know which of them a query uses: all are read and handed to "
            "Spark. Name those that it needs with option columns, as in columns = %s",
            format_name,
            len(schema),
            ",".join(schema.names[:2]),
        )
    return frame, schema


def _loaded(
    spark: SparkSession, format_name: str, options: Mapping[str, str], source: AlignedDataSource, name: str | None
) -> tuple[DataFrame, StructType]:
    reader = spark.readStream.format(format_name).options(**options)
    # Spark refuses a name if the setting is off.
    if name is not None and str(spark.conf.get(_NAMED_SOURCES, "false")).lower() == "true":
        reader = reader.name(name)
    with as_our_own():
        if not hasattr(spark, "_jsparkSession"):
            schema = _columns(source, lambda: reader.load().schema)
            return reader.schema(schema).load(), schema
        try:
            frame = reader.load()
        except Exception as error:
            # Spark's own error class, or in some versions one of py4j.
            if "[DATA_SOURCE_NOT_FOUND]" not in str(error) or not isinstance(FORMATS.get(format_name), str):
                raise
            # The library is not installed for Spark's Python, but may be on its path: the registered class imports it
            # from there, or its error names the Python that lacks it.
            register_format(spark, format_name)
            frame = reader.load()
        return frame, frame.schema


def prepare_available_now(spark: SparkSession, source: AlignedDataSource) -> None:
    """On Spark before 4.2 let AvailableNow runs of a frame over the source close windows: see `before_4_2`."""
    prepare_session(
        spark,
        lambda name: name in FORMATS or name.startswith(SOURCE_FORMAT),
        is_bounded=source.is_bounded,
        checkpoint=source.options.available_now_checkpoint,
    )


def columns_of_plan(df: DataFrame, source: AlignedDataSource, given: str | None) -> StructType:
    """Return the columns of a Spark Connect frame as it was loaded; `given` is the schema that the user gave."""
    if given is None:
        with as_our_own():
            return _columns(source, lambda: df.schema)
    if given.lstrip().startswith("{"):
        return StructType.fromJson(json.loads(given))
    try:
        return frame_schema(schema_of_ddl("schema", given))
    except OptionError:
        # The text may have Spark types that no source of ours has.
        return df.schema


def _columns(source: AlignedDataSource, on_server: Callable[[], StructType]) -> StructType:
    """Return the columns from the source, on this client; else from the server, which may refuse."""
    try:
        return source.schema()
    except Exception as error:
        is_wrong_use = isinstance(error, OptionError | SchemaError | InvalidArgumentError)
        if is_wrong_use and not isinstance(error, NoSchemaError):
            raise
        missed = error
    try:
        return on_server()
    except AnalysisException as error:
        if error.getCondition() != REFUSED_IN_PIPELINES:
            raise
    declared: pa.Schema | None = getattr(source.source, "data_schema", None)
    if declared is not None:
        return source.schema(declared)
    raise SchemaError(
        f"the columns of {source.source.name} cannot be looked up where the pipeline's file runs ({missed}), and in a "
        "function of a pipeline Spark allows no call that analyses; name them with .schema(...), those of directories "
        "too, or make the frame at the top of the file"
    ) from missed


@contextmanager
def as_our_own() -> Iterator[None]:
    """Re-raise an error of this library that Spark passes on, as its original type."""
    try:
        yield
    except PySparkException as error:
        found = _OURS.findall(str(error))
        if not found:
            raise
        package, kind, message = found[-1]
        raise getattr(import_module(f"{package}.exceptions"), kind)(" ".join(message.split())) from None

"""A streaming frame and its columns, with no call that Spark answers by analysis.

In a classic session Spark itself looks the columns up as the frame is loaded. Under Spark Connect a frame is a plan of
the client's, of which the server knows nothing before the query starts: there the source is called on the client. Only
what the client cannot look up, because it does not reach the data, is left to the server, if that may be called.
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
from streaming_source.api.ddl import schema_of_ddl
from streaming_source.exceptions import NoSchemaError, OptionError, SchemaError
from streaming_source.spark.datasource import FORMATS, AlignedDataSource, frame_schema
from streaming_source.spark.registration import REFUSED_IN_PIPELINES, register_format

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["as_our_own", "columns_of_plan", "load_stream"]

_NAMED_SOURCES: Final = "spark.sql.streaming.queryEvolution.enableSourceEvolution"

_OURS: Final = re.compile(r"^(streaming_source|alignment)\.exceptions\.(\w+): (.*?)(?=\n? SQLSTATE: |\Z)", re.M | re.S)


def load_stream(
    spark: SparkSession, format_name: str, options: Mapping[str, str], source: AlignedDataSource, name: str | None
) -> tuple[DataFrame, StructType]:
    """`readStream.format(...).options(...).load()`, and the columns of the frame.

    `name` is that of the source in the checkpoint, where Spark keeps sources by name.
    """
    reader = spark.readStream.format(format_name).options(**options)
    # Without the setting Spark refuses a name.
    if name is not None and str(spark.conf.get(_NAMED_SOURCES, "false")).lower() == "true":
        reader = reader.name(name)
    with as_our_own():
        if not hasattr(spark, "_jsparkSession"):
            schema = _columns(source, lambda: reader.load().schema)
            return reader.schema(schema).load(), schema
        try:
            frame = reader.load()
        except Exception as error:
            # Of Spark, and in some of its versions of py4j.
            if "[DATA_SOURCE_NOT_FOUND]" not in str(error) or not isinstance(FORMATS.get(format_name), str):
                raise
            # Spark's Python has the library on its path at most: the class that it gets now finds it there, or says
            # which Python lacks it.
            register_format(spark, format_name)
            frame = reader.load()
        return frame, frame.schema


def columns_of_plan(df: DataFrame, source: AlignedDataSource, given: str | None) -> StructType:
    """Columns of a frame of Spark Connect as it was loaded; `given` is what the user gave as its schema."""
    if given is None:
        with as_our_own():
            return _columns(source, lambda: df.schema)
    if given.lstrip().startswith("{"):
        return StructType.fromJson(json.loads(given))
    try:
        return frame_schema(schema_of_ddl("schema", given))
    except OptionError:
        # Spark knows types that no source of ours has.
        return df.schema


def _columns(source: AlignedDataSource, on_server: Callable[[], StructType]) -> StructType:
    """From the source, on this client; else from the server, which may refuse."""
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
    """Raise an error of this library that Spark passes on as what it was."""
    try:
        yield
    except PySparkException as error:
        found = _OURS.findall(str(error))
        if not found:
            raise
        package, kind, message = found[-1]
        raise getattr(import_module(f"{package}.exceptions"), kind)(" ".join(message.split())) from None

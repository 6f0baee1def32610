"""Between the types of Arrow and those of Spark: which columns the frame has."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import (
    BooleanType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from streaming_source.exceptions import SchemaError
from streaming_source.spark.options import FrameOptions

__all__ = [
    "EVENT_TIME",
    "METADATA_COLUMNS",
    "arrow_schema",
    "checked_event_time_column",
    "event_time_column",
    "frame_schema",
]

EVENT_TIME: Final = "event_time"
"""Name of an event-time column that is added, unless the user names it."""

METADATA_COLUMNS: Final = {
    "_split": StringType(),
    "_position": LongType(),
    "_source_timestamp": TimestampType(),
    "_late": BooleanType(),
}


def event_time_column(frame: StructType, source: str | None, named: str | None) -> str:
    """Name of the column that holds the event time in a frame, or would, where the frame has no such column.

    It is the timestamp column `source` from which event times come, if the frame has it, and option `eventTimeAs`
    (`named`) is not another.
    """
    own = next((field.name for field in frame if source is not None and _is_time_called(field, source)), None)
    if own is not None and (named is None or _same(named, own)):
        return own
    name = named or EVENT_TIME
    return next((field.name for field in frame if _same(field.name, name)), name)


def checked_event_time_column(frame: StructType, data: pa.Schema, source: str | None, named: str | None) -> str:
    """The same where the columns of the records are known, among which no other has that name."""
    name = event_time_column(frame, source, named)
    if name in data.names and name != source:
        raise SchemaError(
            f"the data has a column {name!r}, which is also the name of the column with the event time; "
            f"make it the eventTimeColumn, or name the event time otherwise with option eventTimeAs"
        )
    return name


def frame_schema(data: pa.Schema, source: str | None, options: FrameOptions) -> StructType:
    """The columns of the frame: the data's, the event time, and the metadata if asked for. All are nullable."""
    frame = StructType([StructField(field.name, _spark_type(field)) for field in data])
    name = checked_event_time_column(frame, data, source, options.event_time_as)
    if name not in data.names:
        frame.add(StructField(name, TimestampType()))
    # Without a zone it is UTC: Spark takes watermarks from timestamps with one alone.
    frame[name].dataType = TimestampType()
    if options.include_metadata:
        clash = [column for column in frame.names if column.lower() in METADATA_COLUMNS]
        if clash:
            raise SchemaError(
                f"there are columns {clash} already, which includeMetadata would add; leave includeMetadata out"
            )
        for column, kind in METADATA_COLUMNS.items():
            frame.add(StructField(column, kind))
    return frame


def arrow_schema(frame: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects of batches for a frame; it checks only the first batch, we check each."""
    return to_arrow_schema(frame, timezone="UTC")


def _is_time_called(field: StructField, name: str) -> bool:
    return _same(field.name, name) and isinstance(field.dataType, TimestampType | TimestampNTZType)


def _same(name: str, other: str) -> bool:
    # As Spark compares names.
    return name.lower() == other.lower()


def _spark_type(field: pa.Field) -> DataType:
    try:
        return from_arrow_type(_without_dictionary(field.type), prefer_timestamp_ntz=True)
    except PySparkTypeError as error:
        raise SchemaError(
            f"column {field.name!r} has type {field.type}, which Spark has not: {error} Give readStream a schema "
            "without it, or write it in another type"
        ) from None


def _without_dictionary(data_type: pa.DataType) -> pa.DataType:
    return data_type.value_type if pa.types.is_dictionary(data_type) else data_type

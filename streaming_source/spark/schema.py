"""Between the types of Arrow and those of Spark: which columns the frame has."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import BooleanType, DataType, LongType, StringType, StructField, StructType, TimestampType

from alignment.timestamps import TimestampAssigner
from streaming_source.exceptions import SchemaError
from streaming_source.spark.options import FrameOptions
from streaming_source.spark.watermark_rows import WATERMARK_ROWS_KEY

__all__ = ["METADATA_COLUMNS", "arrow_schema", "frame_schema"]

METADATA_COLUMNS: Final = {
    "_split": StringType(),
    "_position": LongType(),
    "_source_timestamp": TimestampType(),
    "_late": BooleanType(),
}


def frame_schema(data: pa.Schema, assigner: TimestampAssigner, options: FrameOptions) -> StructType:
    """The columns of the frame: the data's, the event time, and the metadata if asked for. All are nullable.

    Raises
    ------
    SchemaError
        If a column of the data clashes with one that is added, has a type that Spark has not, or cannot give event
        times as the assigner wants it to.
    """
    name = options.event_time_as
    replaced = name if getattr(assigner, "statistics_column", None) == name else None
    # As Spark compares names: without regard to case.
    clash = [column for column in data.names if column.lower() == name.lower() and column != replaced]
    if clash:
        raise SchemaError(
            f"the data has a column {clash[0]!r}, which is also the name of the column with the event time; "
            f"make it the eventTimeColumn, or name the event time otherwise with option eventTimeAs"
        )
    # On no rows: what it says of columns and types, it says now and not in the first micro-batch.
    assigner.extract(_no_rows(data), None)
    fields = [StructField(field.name, _spark_type(field)) for field in data if field.name != name]
    metadata = {WATERMARK_ROWS_KEY: True} if options.watermark_rows else {}
    event_time = StructField(name, TimestampType(), True, metadata)
    place = data.get_field_index(name)
    fields.insert(len(fields) if place < 0 else place, event_time)
    if options.include_metadata:
        clash = [column for column in (*data.names, name) if column.lower() in METADATA_COLUMNS]
        if clash:
            raise SchemaError(f"there are columns {clash} already, which includeMetadata would add; read without it")
        fields += [StructField(column, kind) for column, kind in METADATA_COLUMNS.items()]
    return StructType(fields)


def arrow_schema(frame: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects of batches for a frame; it checks only the first batch, we check each."""
    return to_arrow_schema(frame, timezone="UTC")


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


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

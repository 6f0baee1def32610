"""The Spark data source: options and a connector on one side, Spark's readers on the other."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.types import StructType

from alignment.columns import exact_path, top_level_column
from alignment.plan.by_index import PlanningRules
from alignment.strategy import WatermarkStrategy
from alignment.timestamps import FieldTimestampAssigner, RecordTimestampAssigner
from streaming_source.api import Boundedness, Source
from streaming_source.coordinator import ReadRules
from streaming_source.exceptions import NoSchemaError, OptionError, SchemaError
from streaming_source.spark.options import (
    FRAME_OPTIONS,
    STRATEGY_OPTIONS,
    FrameOptions,
    frame_options,
    read_rules,
    strategy_of,
)
from streaming_source.spark.rows import RowShaper
from streaming_source.spark.schema import (
    METADATA_COLUMNS,
    arrow_schema,
    checked_event_time_column,
    event_time_column,
    frame_schema,
)
from streaming_source.spark.stream_reader import AlignedStreamReader

if TYPE_CHECKING:
    from streaming_source.spark.batch_reader import AlignedBatchReader

__all__ = ["FORMATS", "AlignedDataSource"]

FORMATS: Final = {
    "aligned_datagen": ("streaming_source.connectors.datagen", "DataGeneratorSource"),
    "aligned_kafka": ("streaming_source.connectors.kafka", "KafkaSource"),
    "aligned_files": ("streaming_source.connectors.files", "FileSource"),
}
"""Format name -> module and class of its source; imported when the format is used."""


class AlignedDataSource:
    """One source, as one query reads it.

    Not a `pyspark.sql.datasource.DataSource` itself: that one is made in `registration` and does nothing but find this.

    Parameters
    ----------
    source, strategy, options
        What to read, when its records happened, and what becomes of them.
    """

    def __init__(self, source: Source[Any, Any], strategy: WatermarkStrategy, options: FrameOptions) -> None:
        if isinstance(strategy.timestamp_assigner, RecordTimestampAssigner) and not source.has_source_timestamps:
            raise OptionError(
                f"{source.name} has no source record timestamps: name the column of the event time with option "
                "eventTimeColumn, or give the strategy a timestamp assigner"
            )
        self._source = source
        self._strategy = strategy
        self._options = options
        self._data: pa.Schema | None = None

    @classmethod
    def of_format(cls, name: str, options: Mapping[str, str], driver_host: str = "127.0.0.1") -> AlignedDataSource:
        """From what a user gave to `readStream.format(name)`.

        Parameters
        ----------
        name
            Of the format.
        options
            As they were given.
        driver_host
            Under which address executors find the driver.

        Raises
        ------
        OptionError
            If an option is unknown or wrong.
        """
        module, source_class = FORMATS[name]
        kind = getattr(import_module(module), source_class)
        values = (STRATEGY_OPTIONS | FRAME_OPTIONS | kind.options()).parse(options)
        frame = frame_options(values).with_gateway_host(driver_host)
        return cls(kind.from_options(values), strategy_of(values), frame)

    @classmethod
    def of_pickle(cls, content: bytes, *, emits: bool) -> AlignedDataSource:
        """From what a user gave to `from_source`, pickled.

        Parameters
        ----------
        content
            Source, strategy and options.
        emits
            Whether `from_source` itself loads the frame, so that watermark rows are taken out again.

        Raises
        ------
        ModuleNotFoundError
            If it needs a module that is not to be had here.
        """
        try:
            source, strategy, options = cloudpickle.loads(content)
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            raise ModuleNotFoundError(
                f"the source given to from_source needs the module {error.name!r}, which Spark's workers "
                f"({sys.executable}) cannot import: install it for them; or put it on their PYTHONPATH before the "
                "session starts (addPyFile does not reach Spark's planner process); or send it with the query by "
                f"pyspark.cloudpickle.register_pickle_by_value({package})",
                name=error.name,
            ) from None
        return cls(source, strategy, replace(options, watermark_rows=emits, is_half_exact=not emits))

    def schema(self) -> StructType:
        """Columns of the frame."""
        data = self._data_schema()
        strategy = self._strategy_over(data)
        # On no rows: what the assigner says of columns and types, it says now and not in the first micro-batch.
        no_rows = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in data], schema=data)
        strategy.timestamp_assigner.extract(no_rows, None)
        return frame_schema(data, self._source_column(strategy), self._options)

    def event_time_in(self, frame: StructType) -> str:
        """Name of the event-time column of a frame, also where it has none because the user's schema left it out.

        Raises
        ------
        SchemaError
            If the user's schema left out the very column from which event times come.
        """
        source = self._source_column(self._strategy)
        name = event_time_column(frame, source, self._options.event_time_as)
        if name not in frame.names and source is not None:
            begin = top_level_column(source.lower(), [column.lower() for column in frame.names])
            if begin not in [column.lower() for column in frame.names]:
                raise SchemaError(
                    f"the schema has no column {source!r}, which is the event time: add it, or leave the schema out "
                    "and select columns afterwards"
                )
        return name

    @property
    def bound_us(self) -> int | None:
        """On out-of-orderness, in microseconds; None where it is not known."""
        return self._strategy.out_of_orderness_us

    def stream_reader(self, schema: StructType) -> AlignedStreamReader:
        """For `spark.readStream`.

        Raises
        ------
        OptionError
            If the exact watermark was begun and not ended: the rows would be data.
        """
        if self._options.is_half_exact:
            raise OptionError(
                "option watermarkRows = true without with_exact_watermark: the frame has no exact watermark. Load it "
                "with read_stream(spark) in place of spark.readStream (a Source of your own with from_source), or call "
                "with_exact_watermark right after load(), or leave watermarkRows out"
            )
        bounded = self._source.boundedness is Boundedness.BOUNDED
        strategy, needed, shaper = self._for_frame(schema, self._options)
        rules = read_rules(strategy, self._options, bounded=bounded)
        return AlignedStreamReader(self._source, rules, needed, shaper, self._readers)

    def batch_reader(self, schema: StructType) -> AlignedBatchReader:
        """For `spark.read`: generators are off, and with them all that builds on watermarks."""
        # Here and not above: a stream has no use for it.
        from streaming_source.spark.batch_reader import AlignedBatchReader

        strategy, needed, shaper = self._for_frame(schema, self._options.without_watermarks())
        skew_us = self._options.max_future_skew_us
        strategy = replace(strategy, generator_supplier=None, uses_source_watermarks=False)
        rules = ReadRules(strategy, PlanningRules(out_of_orderness_us=None), max_future_skew_us=skew_us)
        return AlignedBatchReader(self._source.for_batch(), rules, needed, shaper, self._readers)

    @property
    def _readers(self) -> int:
        return max(self._options.readers or os.cpu_count() or 1, self._options.min_readers or 1)

    def _for_frame(self, schema: StructType, options: FrameOptions) -> tuple[WatermarkStrategy, pa.Schema, RowShaper]:
        """What depends on the columns of a frame: the strategy in the data's own names, what to read, and how."""
        data = self._data_for(schema)
        strategy = self._strategy_over(data)
        name = checked_event_time_column(schema, data, self._source_column(strategy), options.event_time_as)
        for_times = strategy.timestamp_assigner.columns
        for_times = None if for_times is None else (*for_times, *strategy.generator_columns)
        needed = _needed(schema, data, name, for_times)
        return strategy, needed, RowShaper(arrow_schema(schema), name, strategy.timestamp_assigner, options)

    def _data_schema(self) -> pa.Schema:
        if self._data is None:
            self._data = self._source.schema()
        return self._data

    def _data_for(self, frame: StructType) -> pa.Schema:
        """The data's columns; where they are not told, the user says what will come by the columns of the frame."""
        try:
            return self._data_schema()
        except NoSchemaError:
            source = self._source_column(self._strategy)
            event_time = event_time_column(frame, source, self._options.event_time_as)
            added = {*METADATA_COLUMNS}
            if source is None or event_time.lower() != source.lower():
                added.add(event_time)
            return pa.schema([field for field in arrow_schema(frame) if field.name not in added])

    def _source_column(self, strategy: WatermarkStrategy) -> str | None:
        """The column from which event times come; None if they come from none or several."""
        assigner = strategy.timestamp_assigner
        if isinstance(assigner, RecordTimestampAssigner):
            return self._source.source_timestamp_column
        return assigner.column if isinstance(assigner, FieldTimestampAssigner) else None

    def _strategy_over(self, data: pa.Schema) -> WatermarkStrategy:
        """The strategy with the event-time column as the data writes it."""
        assigner = self._strategy.timestamp_assigner
        if not isinstance(assigner, FieldTimestampAssigner):
            return self._strategy
        column = exact_path(data, assigner.column)
        # A source may know more of its own timestamps ahead of reading than of any other column.
        is_of_records = column == self._source.source_timestamp_column
        return self._strategy.with_timestamp_assigner(
            RecordTimestampAssigner() if is_of_records else replace(assigner, column=column)
        )


def _needed(frame: StructType, data: pa.Schema, event_time: str, for_times: Sequence[str] | None) -> pa.Schema:
    """The data's columns that a frame, its event times and watermarks need; `for_times` is None for all."""
    added = {*METADATA_COLUMNS, event_time} - {*data.names}
    wanted = {name for name in frame.names if name not in added}
    wanted |= {top_level_column(column, data.names) for column in for_times or ()}
    missing = sorted(wanted - {*data.names})
    if missing:
        raise SchemaError(f"columns {missing} are asked for, but the data has {', '.join(data.names)}")
    return data if for_times is None else pa.schema([field for field in data if field.name in wanted])

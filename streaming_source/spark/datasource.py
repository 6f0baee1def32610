"""The Spark data source: options and a connector on one side, Spark's readers on the other."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.types import StructType

from alignment.columns import top_level_column
from alignment.planner import PlanningRules
from alignment.strategy import WatermarkStrategy
from alignment.timestamps import RecordTimestampAssigner
from streaming_source.api import Boundedness, Source
from streaming_source.coordinator import ReadRules
from streaming_source.exceptions import NoSchemaError, OptionError, SchemaError
from streaming_source.spark.batch_reader import AlignedBatchReader
from streaming_source.spark.options import (
    FRAME_OPTIONS,
    STRATEGY_OPTIONS,
    FrameOptions,
    frame_options,
    read_rules,
    strategy_of,
)
from streaming_source.spark.rows import RowShaper
from streaming_source.spark.schema import METADATA_COLUMNS, arrow_schema, frame_schema
from streaming_source.spark.stream_reader import AlignedStreamReader

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
    def of_pickle(cls, content: bytes) -> AlignedDataSource:
        """From what a user gave to `from_source`, pickled.

        Raises
        ------
        ModuleNotFoundError
            If it needs a module that is not to be had here.
        """
        try:
            return cls(*cloudpickle.loads(content))
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            raise ModuleNotFoundError(
                f"the source given to from_source needs the module {error.name!r}, which Spark's workers "
                f"({sys.executable}) cannot import: install it for them; or put it on their PYTHONPATH before the "
                "session starts (addPyFile does not reach Spark's planner process); or send it with the query by "
                f"pyspark.cloudpickle.register_pickle_by_value({package})",
                name=error.name,
            ) from None

    def schema(self) -> StructType:
        """Columns of the frame."""
        return frame_schema(self._data_schema(), self._strategy.timestamp_assigner, self._options)

    def stream_reader(self, schema: StructType) -> AlignedStreamReader:
        """For `spark.readStream`."""
        bounded = self._source.boundedness is Boundedness.BOUNDED
        rules = read_rules(self._strategy, self._options, bounded=bounded)
        return AlignedStreamReader(self._source, rules, self._needed(schema), self._shaper(schema), self._readers)

    def batch_reader(self, schema: StructType) -> AlignedBatchReader:
        """For `spark.read`: generators are off, and with them all that builds on watermarks."""
        rules = ReadRules(self._strategy, PlanningRules(out_of_orderness_us=None))
        shaper = RowShaper(arrow_schema(schema), self._strategy.timestamp_assigner, self._options.without_watermarks())
        return AlignedBatchReader(self._source.for_batch(), rules, self._needed(schema), shaper, self._readers)

    @property
    def _readers(self) -> int:
        return max(self._options.readers or os.cpu_count() or 1, self._options.min_readers or 1)

    def _shaper(self, schema: StructType) -> RowShaper:
        return RowShaper(arrow_schema(schema), self._strategy.timestamp_assigner, self._options)

    def _data_schema(self) -> pa.Schema:
        if self._data is None:
            self._data = self._source.schema()
        return self._data

    def _needed(self, frame: StructType) -> pa.Schema:
        """The data's columns that a frame and its event times need."""
        added = {*METADATA_COLUMNS, self._options.event_time_as}
        for_times = self._strategy.timestamp_assigner.columns
        try:
            data = self._data_schema()
        except NoSchemaError:
            # The user says what will come.
            read = {*frame.names} - added | {*(for_times or ())}
            data = pa.schema([field for field in arrow_schema(frame) if field.name in read])
        wanted = {name for name in frame.names if name not in added}
        wanted |= {top_level_column(column, data.names) for column in for_times or ()}
        missing = sorted(wanted - {*data.names})
        if missing:
            raise SchemaError(f"columns {missing} are asked for, but the data has {', '.join(data.names)}")
        return data if for_times is None else pa.schema([field for field in data if field.name in wanted])

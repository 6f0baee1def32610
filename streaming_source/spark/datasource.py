"""The Spark data source: options and a connector on one side, Spark's readers on the other."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import from_arrow_type
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

from alignment.arrow_times import may_lack_zone, time_zone
from alignment.column_paths import column_at, exact_path, top_level_column
from alignment.plan import PlanningRules
from alignment.strategy import WatermarkStrategy
from alignment.time_texts import UTC
from alignment.timestamps import EventTimes, FieldTimestampAssigner, RecordTimestampAssigner
from streaming_source import connectors
from streaming_source.api import Boundedness, Source
from streaming_source.coordinator import ReadRules
from streaming_source.coordinator.rules import EMITTED, FrameOptions
from streaming_source.exceptions import NoSchemaError, OptionError, SchemaError, plainly
from streaming_source.spark.before_4_2 import IS_BEFORE_4_2, ReaderBefore42, arrow_schema
from streaming_source.spark.options import (
    FRAME_OPTIONS,
    SECRET_OPTIONS,
    STRATEGY_OPTIONS,
    frame_options,
    read_rules,
    repair_times,
    source_strategy_of,
    strategy_of,
)
from streaming_source.spark.readers import AlignedBatchReader, AlignedStreamReader
from streaming_source.spark.rows import RowShaper

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from streaming_source.spark.late_reader import LateStreamReader

FORMATS: Final[dict[str, str | type[Source[Any, Any]]]] = {
    "aligned_datagen": "DataGeneratorSource",
    "aligned_delta": "DeltaSource",
    "aligned_files": "FileSource",
    "aligned_iceberg": "IcebergSource",
    "aligned_kafka": "KafkaSource",
}
"""Format name -> source class, or the name of that class in `streaming_source.connectors`; `register` adds to it."""


_DECIMAL_DIGITS: Final = 38
"""Largest precision of a Spark decimal."""

_METADATA: Final = {
    "_split": StringType(),
    "_position": LongType(),
    "_source_timestamp": TimestampType(),
    "_late": BooleanType(),
}


def source_class(format_name: str) -> type[Source[Any, Any]]:
    """Return the source class of one of `FORMATS`, importing it on first use."""
    kind = FORMATS[format_name]
    return getattr(connectors, kind) if isinstance(kind, str) else kind


@dataclass(eq=False)
class AlignedDataSource:
    """One source, as one query reads it; `zone_is_known` if the zone of zoneless times is known.

    It is no `pyspark.sql.datasource.DataSource`: `format_class` makes that class, which only creates this object.
    """

    source: Source[Any, Any]
    strategy: WatermarkStrategy
    options: FrameOptions
    zone_is_known: bool = True

    def __post_init__(self) -> None:
        source, options = self.source, self.options
        if isinstance(self.strategy.timestamp_assigner, RecordTimestampAssigner) and not source.has_source_timestamps:
            raise OptionError(
                f"{source.name} has no source record timestamps: name the column of the event time with option "
                "eventTimeColumn, or give the strategy a timestamp assigner"
            )
        if options.late == "route" and not source.keeps_records:
            raise OptionError(
                "option late = 'route' leaves late records where they are, to be read by another query: not with an "
                "option that removes what was read (cleanSource)"
            )
        if options.late == "route" and options.late_location is None:
            raise OptionError(
                "option late = 'route' needs lateLocation: Spark keeps the offsets of the latest 100 micro-batches, "
                "and where older late records are would be lost; give a directory for that, as in "
                ".option('lateLocation', '/checkpoints/late_log')"
            )
        if source.emits_watermark and not self.strategy.uses_source_watermarks:
            raise OptionError(
                "watermarkFrom: the source emits the watermark that its writers claim, and the strategy makes one of "
                "its own; give WatermarkStrategy.from_source_watermarks()"
            )
        if options.report_location is not None and source.source_event_serializer is not None:
            raise OptionError(
                f"option reportLocation = {options.report_location!r}: {source.name} has readers that send events and "
                "wait for answers, which takes a port on the driver's host; leave it out, and see gatewayPort"
            )
        if options.late_records_of is not None and options.late != "route":
            raise OptionError(
                f"late_records: the frame has option late = {options.late!r}, so that its query leaves no late records "
                "to others; give it late = route"
            )

    @classmethod
    def of_format(cls, name: str, options: Mapping[str, str], zone: str | None = UTC) -> AlignedDataSource:
        """Create it from the options of `readStream.format(name)`; `zone` is that of zoneless times, if it is known."""
        return cls.of_class(source_class(name), "127.0.0.1", options, zone)

    @classmethod
    def of_class(
        cls, kind: type[Source[Any, Any]], driver_host: str, options: Mapping[str, str], zone: str | None = None
    ) -> AlignedDataSource:
        """Create it from a source class and options; executors reach the driver at `driver_host`."""
        if any(name.lower() == SECRET_OPTIONS.lower() for name in options):
            # Imported here: few sources have secrets.
            from streaming_source.spark.option_text import with_secrets_shown

            options = with_secrets_shown(options)
        values = (STRATEGY_OPTIONS | FRAME_OPTIONS | kind.options()).parse(options)
        source, zone = kind.from_options(values), values["timeZone"] or zone
        strategy = (source_strategy_of if source.emits_watermark else strategy_of)(values, options)
        frame = frame_options(values, driver_host, None if zone is None else time_zone(zone))
        if zone is not None:
            source, strategy = in_zone(source, strategy, zone)
        return cls(source, strategy, frame, zone_is_known=zone is not None)

    @classmethod
    def of_source(
        cls, source: Source[Any, Any], strategy: WatermarkStrategy, frame: FrameOptions, options: Mapping[str, str]
    ) -> AlignedDataSource:
        """Create it from the arguments of `from_source`; `options` are those with which Spark loads the source."""
        values = FRAME_OPTIONS.parse(options)
        emits = values["watermarkRows"] == EMITTED
        own = {"late_records_of": values["lateRecordsOf"], "late_records_from": values["lateRecordsFrom"]}
        own |= {"repair_delay_us": values["repairDelay"], "repair_read": values["repairRead"]}
        own["times"] = repair_times(frame.times, values["repairRead"])
        return cls(source, strategy, replace(frame, watermark_rows=emits, is_half_exact=not emits, **own))

    @property
    def needs_gateway(self) -> bool:
        """True if its readers send messages to the planner, which then listens on the driver's host."""
        by_port = self.options.reports and self.options.report_location is None
        return by_port or self.source.source_event_serializer is not None

    @plainly
    def schema(self, data: pa.Schema | None = None) -> StructType:
        """Return the columns of the frame; if `data`, the data's columns, is given, the source is not called for it."""
        data = self._data if data is None else data
        strategy, frame = self._strategy_over(data), frame_schema(data)
        # With no rows: the assigner refuses wrong columns and types now, before the first micro-batch.
        no_rows = _no_rows(data)
        times: object = strategy.timestamp_assigner.extract(no_rows, None)
        if not isinstance(times, EventTimes):
            raise SchemaError(
                f"{type(strategy.timestamp_assigner).__name__}.extract returned a {type(times).__name__}: it must "
                "return EventTimes, in microseconds since the epoch, as EventTimes.of makes them of an int64 array"
            )
        self._check_zone(strategy, no_rows)
        name = self._event_time(frame, strategy, data)
        if name not in data.names:
            frame.add(StructField(name, TimestampType()))
        # A timestamp without a zone is taken as UTC: Spark accepts watermarks on `TimestampType` alone.
        frame[name].dataType = TimestampType()
        if self.options.include_metadata:
            _check_no_metadata(frame.names)
            for column, kind in _METADATA.items():
                frame.add(StructField(column, kind))
        return frame

    def _check_zone(self, strategy: WatermarkStrategy, no_rows: pa.RecordBatch) -> None:
        """Refuse zoneless times without a known zone: only the user's program can read the session's zone."""
        if self.zone_is_known:
            return
        read = [field.type for field in no_rows.schema if self.source.reads_zoneless_times]
        assigner = strategy.timestamp_assigner
        made = [column_at(no_rows, assigner.column).type] if isinstance(assigner, FieldTimestampAssigner) else []
        if any(map(pa.types.is_timestamp, read)) or any(map(may_lack_zone, made)):
            raise OptionError(
                "option timeZone is missing: there are times that may have no zone, and readStream.format does not "
                "know that of the session.\nAdd .option('timeZone', 'UTC'), or the zone that they are in; or load with "
                "read_stream(spark), which takes that of the session"
            )

    def event_time_in(self, frame: StructType) -> str:
        """Return the name of a frame's event-time column, even if the user's schema leaves that column out."""
        name, source = self._event_time(frame, self.strategy), self._source_column(self.strategy)
        if name not in frame.names and source is not None:
            columns = [column.lower() for column in frame.names]
            if top_level_column(source.lower(), columns) not in columns:
                raise SchemaError(
                    f"the schema has no column {source!r}, which is the event time: add it, or leave the schema out "
                    "and select columns afterwards"
                )
        return name

    @plainly
    def stream_reader(self, schema: StructType) -> AlignedStreamReader | LateStreamReader | ReaderBefore42:
        """Return the reader for `spark.readStream`: of all records, or of those that another query routed as late."""
        reader = self._stream_reader(schema)
        if not IS_BEFORE_4_2:
            return reader
        is_of_late = self.options.late_records_of is not None
        return ReaderBefore42(
            reader,
            checkpoint=None if is_of_late else self.options.available_now_checkpoint,
            is_bounded=self.is_bounded and not is_of_late and self.options.no_data_micro_batches,
            knows_ahead=not (self.options.reports or self.source.source_event_serializer is not None),
            is_of_late=is_of_late,
        )

    @property
    def is_bounded(self) -> bool:
        """True if the source ends."""
        return self.source.boundedness is Boundedness.BOUNDED

    def _stream_reader(self, schema: StructType) -> AlignedStreamReader | LateStreamReader:
        if self.options.is_half_exact:
            # Watermark rows would appear as data.
            raise OptionError(
                "option watermarkRows = true without with_exact_watermark: the frame has no exact watermark. Load it "
                "with read_stream(spark) in place of spark.readStream (a Source of your own with from_source), or call "
                "with_exact_watermark right after load(), or leave watermarkRows out"
            )
        if self.options.times and not self.source.keeps_records:
            raise OptionError(
                "options eventTimeFrom and eventTimeUntil: with cleanSource the files of records outside of the range "
                "would be removed unread; leave cleanSource out, or the range"
            )
        if self.options.repair_delay_us is not None:
            from streaming_source.spark.late_reader import NOTE_COLUMN

            schema = StructType([field for field in schema if field.name != NOTE_COLUMN])
        strategy, needed, shaper = self._for_frame(schema, self.options)
        rules = read_rules(strategy, self.options, bounded=self.is_bounded, by_source=self.source.emits_watermark)
        if self.options.late_records_of is not None:
            # Imported here: few queries read late records.
            from streaming_source.spark.late_reader import LateStreamReader

            late_of, late_from = self.options.late_records_of, self.options.late_records_from
            assert self.options.late_location is not None  # late = route requires it
            return LateStreamReader(
                source=self.source,
                rules=rules,
                schema=needed,
                shaper=shaper,
                checkpoint=late_of,
                location=self.options.late_location,
                first=late_from,
                repair_delay_us=self.options.repair_delay_us,
            )
        return AlignedStreamReader(self.source.for_stream(), rules, needed, shaper)

    @plainly
    def batch_reader(self, schema: StructType) -> AlignedBatchReader:
        """Return the reader for `spark.read`: without generators, and so without anything that needs watermarks."""
        # In a batch no record is late, and no watermark row is added.
        strategy, needed, shaper = self._for_frame(schema, replace(self.options, watermark_rows=False))
        strategy = replace(strategy, generator_supplier=None, uses_source_watermarks=False)
        planning = PlanningRules(out_of_orderness_us=None, times=self.options.times, counts_outside=False)
        options = FrameOptions(max_future_skew_us=self.options.max_future_skew_us)
        rules = ReadRules(strategy, planning, options, at_once=True)
        if self.options.repair_read is not None:
            return AlignedBatchReader(self.source, rules, needed, shaper, at=self.options.repair_read.offset)
        return AlignedBatchReader(self.source.for_batch(), rules, needed, shaper)

    def times_reader(self) -> AlignedBatchReader:
        """Return a reader of split, position and event time (null if invalid) of all current records, in one task."""
        columns = self.schema()
        places = ("_split", "_position")
        frame = StructType([StructField(name, _METADATA[name]) for name in places])
        frame.add(StructField(self.event_time_in(columns), TimestampType()))
        options = replace(
            self.options, invalid_timestamp="null", num_readers=1, min_partitions=None, include_metadata=False
        )
        reader = replace(self, options=options).batch_reader(frame)
        # Data columns of the same names must not take the place of the metadata.
        return replace(reader, shaper=replace(reader.shaper, metadata=frozenset(places)), known=self._data)

    def _for_frame(self, schema: StructType, options: FrameOptions) -> tuple[WatermarkStrategy, pa.Schema, RowShaper]:
        """Return what depends on a frame's columns: strategy in the data's names, columns to read, shaper."""
        data = self._data_for(schema)
        strategy = self._strategy_over(data)
        name = self._event_time(schema, strategy, data)
        for_times = strategy.timestamp_assigner.columns
        for_times = None if for_times is None else (*for_times, *strategy.generator_columns)
        needed = _needed(schema, data, name, for_times)
        # Checked here too: Spark does not call `schema` if the user gives one.
        self._check_zone(strategy, _no_rows(needed))
        metadata = frozenset(_METADATA) - {*data.names, name}
        if options.include_metadata:
            _check_no_metadata(data.names)
        for field in schema:
            if field.name in metadata and field.dataType != _METADATA[field.name]:
                raise SchemaError(
                    f"column {field.name!r} is {field.dataType.simpleString()} in the schema, and the data has none of "
                    f"that name: as metadata of this source it is {_METADATA[field.name].simpleString()}; give it this "
                    "type, or leave it out"
                )
        return strategy, needed, RowShaper(arrow_schema(schema), name, strategy.timestamp_assigner, options, metadata)

    @cached_property
    def _data(self) -> pa.Schema:
        return self.source.schema()

    def _data_for(self, frame: StructType) -> pa.Schema:
        """Return the data's columns; if the source cannot know them, those of the user's schema for the frame."""
        try:
            return self._data
        except NoSchemaError:
            source, event_time = self._source_column(self.strategy), self._event_time(frame, self.strategy)
            added = {*_METADATA} if self.options.include_metadata else set()
            added |= set() if _same(event_time, source) else {event_time}
            return pa.schema([field for field in arrow_schema(frame) if field.name not in added])

    def _event_time(self, frame: StructType, strategy: WatermarkStrategy, data: pa.Schema | None = None) -> str:
        """Return the name of a frame's event-time column, whether or not the frame has that column.

        It is the timestamp column from which event times come, if the frame has that column and option `eventTimeAs`
        names no other one. If the data's columns are known, none of the others may have this name.
        """
        source, named = self._source_column(strategy), self.options.event_time_as
        times = [field.name for field in frame if isinstance(field.dataType, TimestampType | TimestampNTZType)]
        name = next((name for name in times if _same(name, source)), None)
        if name is None or (named is not None and not _same(name, named)):
            added = named or "event_time"
            name = next((name for name in frame.names if _same(name, added)), added)
        if data is not None and name in data.names and name != source:
            raise SchemaError(
                f"the data has a column {name!r}, which is also the name of the column with the event time; "
                f"make it the eventTimeColumn, or name the event time otherwise with option eventTimeAs"
            )
        return name

    def _source_column(self, strategy: WatermarkStrategy) -> str | None:
        """Return the column from which event times come; None if there is no such column, or several."""
        assigner = strategy.timestamp_assigner
        if isinstance(assigner, RecordTimestampAssigner):
            return self.source.source_timestamp_column
        return assigner.column if isinstance(assigner, FieldTimestampAssigner) else None

    def _strategy_over(self, data: pa.Schema) -> WatermarkStrategy:
        """Return the strategy with the event-time column in the data's own spelling."""
        assigner = self.strategy.timestamp_assigner
        if not isinstance(assigner, FieldTimestampAssigner):
            return self.strategy
        column = exact_path(data, assigner.column)
        # Ahead of reading a source may know more about its record timestamps than about any other column.
        is_of_records = column == self.source.source_timestamp_column
        return self.strategy.with_timestamp_assigner(
            RecordTimestampAssigner() if is_of_records else replace(assigner, column=column)
        )


def pickled(make: partial[AlignedDataSource]) -> bytes:
    """Return `content` for `make_data_source`: the pickled function that makes a data source from options."""
    content: bytes = cloudpickle.dumps(make)  # type: ignore[no-untyped-call]
    return content


@plainly
def make_data_source(format_name: str, content: bytes | None, options: Mapping[str, str]) -> AlignedDataSource:
    """Make the data source that a class of `format_class` delegates to."""
    if "paths" in options and "path" not in options:
        # From `spark.read...load([a, b])`: a JSON list, which option `path` takes.
        options = {**options, "path": options["paths"]}
        del options["paths"]
    if content is None:
        return AlignedDataSource.of_format(format_name, options, zone=None)
    try:
        make: partial[AlignedDataSource] = cloudpickle.loads(content)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        raise ModuleNotFoundError(
            f"the source of {format_name} needs the module {error.name!r}, which Spark's workers\n"
            f"({sys.executable}) cannot import: install it for them;\nor put it on their PYTHONPATH before the "
            "session starts (addPyFile does not reach Spark's planner process);\nor send it with the query by "
            f"pyspark.cloudpickle.register_pickle_by_value({package})",
            name=error.name,
        ) from None
    return make(options)


def driver_host(spark: SparkSession) -> str:
    """Return the address at which executors reach the driver."""
    master, host = spark.conf.get("spark.master", None), spark.conf.get("spark.driver.host", None)
    return "127.0.0.1" if master is None or master.startswith("local") or host is None else host


def in_zone(
    source: Source[Any, Any], strategy: WatermarkStrategy, zone: str
) -> tuple[Source[Any, Any], WatermarkStrategy]:
    """Return source and strategy with this zone for zoneless times, unless they have a zone of their own."""
    assigner = strategy.timestamp_assigner
    if isinstance(assigner, FieldTimestampAssigner) and assigner.zone is None:
        strategy = strategy.with_timestamp_assigner(replace(assigner, zone=zone))
    return source.in_zone(time_zone(zone)), strategy


def _no_rows(data: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in data], schema=data)


def _needed(frame: StructType, data: pa.Schema, event_time: str, for_times: Sequence[str] | None) -> pa.Schema:
    """Return the data's columns that the frame, event times and watermarks need; `for_times` None needs all columns."""
    added = {*_METADATA, event_time} - {*data.names}
    by_key = {name.lower(): name for name in data.names}
    # As in Spark a name may differ in case. The source gives the column under its own name.
    wanted = {name if name in data.names else by_key.get(name.lower(), name) for name in {*frame.names} - added}
    wanted |= {top_level_column(column, data.names) for column in for_times or ()}
    missing = sorted(wanted - {*data.names})
    if missing:
        there = ", ".join(data.names)
        raise SchemaError(
            f"columns {missing} are in the schema, but the data has {there}; leave them out of the schema"
        )
    return data if for_times is None else pa.schema([field for field in data if field.name in wanted])


def _check_no_metadata(columns: Sequence[str]) -> None:
    """Raise if a column of the data has the name of a column that `includeMetadata` adds."""
    clash = [column for column in columns if column.lower() in _METADATA]
    if clash:
        raise SchemaError(
            f"there are columns {clash} already, which includeMetadata would add; leave includeMetadata out"
        )


def frame_schema(data: pa.Schema) -> StructType:
    """Return the columns of the data as Spark's types."""
    return StructType([StructField(field.name, _spark_type(field)) for field in data])


def _spark_type(field: pa.Field) -> DataType:
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    if pa.types.is_decimal(kind) and kind.precision > _DECIMAL_DIGITS:
        why = f": its decimals have at most {_DECIMAL_DIGITS} digits."
    elif str(kind) == "month_interval":
        why = ", and which pyarrow cannot read."
    else:
        try:
            return from_arrow_type(kind, prefer_timestamp_ntz=True)
        except PySparkTypeError as error:
            why = f": {error}"
    raise SchemaError(
        f"column {field.name!r} has type {field.type}, which Spark does not have{why} Give readStream a schema "
        "without it, or write it in another type"
    )


def _same(name: str, other: str | None) -> bool:
    """Return whether two names are equal as Spark compares them."""
    return other is not None and name.lower() == other.lower()

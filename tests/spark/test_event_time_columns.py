"""Event times from every kind of column, and what is said of those that have none."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather, orc
from pyspark.sql.types import LongType, StringType, StructType, TimestampType

from alignment.exceptions import InvalidArgumentError, InvalidTimestampError
from alignment.strategy import WatermarkStrategy
from alignment.timestamps import EventTimes, FieldTimestampAssigner, TimestampAssigner
from streaming_source.checkpoint.writer import Writer
from streaming_source.connectors import FileSource
from streaming_source.coordinator.rules import FrameOptions
from streaming_source.exceptions import ClaimError, MalformedDataError, OptionError, SchemaError
from streaming_source.spark import rows
from streaming_source.spark.datasource import AlignedDataSource
from streaming_source.spark.rows import RowShaper
from tests.checkpoint.written import WrittenCheckpoint
from tests.examples import each_once
from tests.spark.reading import SECOND, T0, Reading, micros, put, read_all, read_batch, stamps, stream_reader

ISO = ["2023-11-14T22:14:00Z", "2023-11-14T23:14:01+01:00", "2023-11-14 22:14:02.5"]
NESTED = pa.array([{"at": {"t": T0 + i * SECOND}} for i in (0, 1)], pa.struct([("at", pa.struct([("t", pa.int64())]))]))


def decimals(*numbers: int, digits: str = "0") -> pa.Array:
    return pa.array([Decimal(f"{number}.{digits}") for number in numbers], pa.decimal128(20, 6))


KINDS: dict[str, tuple[pa.Array, dict[str, str], list[int]]] = {
    "us": (stamps(0, 1, 2.5), {}, [0, 1_000_000, 2_500_000]),
    "us-utc": (stamps(0, 1, zone="UTC"), {}, [0, 1_000_000]),
    "us-new-york": (stamps(0, 1, zone="America/New_York"), {}, [0, 1_000_000]),
    "ms": (stamps(0, 1.234, unit="ms"), {}, [0, 1_234_000]),
    "s": (stamps(0, 7, unit="s"), {}, [0, 7_000_000]),
    "ns": (pa.array([T0 * 1000 + 1999, T0 * 1000 + 2000], pa.timestamp("ns")), {}, [1, 2]),
    "int-s": (pa.array([T0 // SECOND, T0 // SECOND + 3]), {"timestampUnit": "s"}, [0, 3_000_000]),
    "int-ms": (pa.array([T0 // 1000 + 5]), {"timestampUnit": "ms"}, [5_000]),
    "int-us": (pa.array([T0 + 5]), {"timestampUnit": "us"}, [5]),
    "int-ns": (pa.array([T0 * 1000 + 5999]), {"timestampUnit": "ns"}, [5]),
    "double-s": (pa.array([T0 / SECOND, T0 / SECOND + 0.5]), {"timestampUnit": "s"}, [0, 500_000]),
    "decimal-s": (decimals(T0 // SECOND, T0 // SECOND + 3, digits="5"), {"timestampUnit": "s"}, [500_000, 3_500_000]),
    "decimal-ms": (decimals(T0 // 1000 + 5), {"timestampUnit": "ms"}, [5_000]),
    "text": (pa.array(ISO), {}, [0, 1_000_000, 2_500_000]),
    "large-text": (pa.array(ISO, pa.large_string()), {}, [0, 1_000_000, 2_500_000]),
    "dictionary-text": (pa.array([*ISO, ISO[0]]).dictionary_encode(), {}, [0, 1_000_000, 2_500_000, 0]),
}


@pytest.mark.parametrize(("kind", "indexing"), each_once(list(KINDS), ["auto", "scan"]))
def test_an_event_time_is_read_from_a_column_of_kind(tmp_path: Path, kind: str, indexing: str) -> None:
    column, options, expected = KINDS[kind]
    put(tmp_path / "a" / "f.parquet", {"t": column, "k": list(range(len(column)))}, row_group_size=2)
    options = {"eventTimeColumn": "t", "indexing": indexing, **options}
    assert [t - T0 for t in micros(read_all(tmp_path, **options))] == expected
    assert [t - T0 for t in micros(read_batch(tmp_path, **options))] == expected
    reading = Reading(stream_reader(tmp_path, watermarkRows="true", **options))
    reading.next()
    reading.reader.stop()
    # The index saw the same times as the readers.
    assert reading.offset["splits"][0][1] == T0 + max(expected) - 1


@pytest.mark.parametrize("name", ["e.at.t", "dotted.name"])
def test_an_event_time_is_read_by_a_dotted_path_or_a_dotted_name(tmp_path: Path, name: str) -> None:
    table = {"e": NESTED, "dotted.name": pa.array([T0, T0 + SECOND]), "dotted": ["x", "y"]}
    put(tmp_path / "a" / "f.parquet", table)
    for indexing in ("statistics", "scan"):
        options = {"eventTimeColumn": name, "timestampUnit": "us", "indexing": indexing}
        assert micros(read_all(tmp_path, **options)) == [T0, T0 + SECOND]


AB = pa.StructArray.from_arrays([stamps(1, 2)], ["b"])
ABC = pa.StructArray.from_arrays([pa.StructArray.from_arrays([stamps(1, 2)], ["c"]), stamps(5, 6)], ["b", "b.c"])
B_DOT_C = pa.StructArray.from_arrays([stamps(5, 6)], ["b.c"])


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("a.b", {"a": AB, "a.b": stamps(5, 6)}),
        ("a.b", {"a.b": stamps(5, 6), "a": AB}),
        ("a.b.c", {"a": ABC}),
        ("a.b.c", {"a": B_DOT_C}),
    ],
    ids=["behind the struct", "before the struct", "in a struct", "in a struct alone"],
)
@pytest.mark.parametrize("kind", ["parquet", "orc", "arrow"])
def test_a_name_with_a_dot_goes_before_a_field_in_a_struct(
    kind: str, name: str, columns: dict[str, pa.Array], tmp_path: Path
) -> None:
    write: dict[str, Callable[[pa.Table, str], None]] = {
        "parquet": pq.write_table,
        "orc": orc.write_table,
        "arrow": partial(feather.write_feather, version=2),
    }
    write[kind](pa.table(columns), str(tmp_path / "f"))
    options = {"eventTimeColumn": name, "timeZone": "UTC", "fileFormat": kind, "eventTimeAs": "at"}
    later = "2023-11-14T22:14:04Z"
    assert micros(read_all(tmp_path, **options, eventTimeFrom=later), "at") == [T0 + 5 * SECOND, T0 + 6 * SECOND]


def test_a_date_is_its_midnight_in_utc(tmp_path: Path) -> None:
    put(tmp_path / "a" / "f.parquet", {"t": pa.array([0, 2], pa.date32())})
    assert micros(read_all(tmp_path, eventTimeColumn="t")) == [0, 172_800 * SECOND]


def test_timestamps_as_spark_writes_them_by_default_are_indexed_by_reading_them(tmp_path: Path) -> None:
    put(tmp_path / "a" / "f.parquet", {"t": stamps(1, 0, 2)}, use_deprecated_int96_timestamps=True)
    assert micros(read_all(tmp_path, eventTimeColumn="t")) == [T0 + SECOND, T0, T0 + 2 * SECOND]


def test_files_without_statistics_are_indexed_by_reading_them_unless_that_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "a" / "f.parquet", {"t": stamps(1, 0, 2)}, write_statistics=False)
    assert len(read_all(tmp_path, eventTimeColumn="t")) == 3
    with pytest.raises(MalformedDataError, match="row group 0 has no statistics of the event time; option indexing"):
        read_all(tmp_path, eventTimeColumn="t", indexing="statistics")


@pytest.mark.parametrize(
    ("column", "told"),
    [
        ("tt", "'tt' is not in the data; did you mean 't'?"),
        ("e.at.x", "'e.at.x' is not in the data; the columns are: 'e.at.t'"),
        ("e.at.t.y", "'e.at.t.y' does not exist: 't' is int64, not a struct"),
        ("e.at", "'e.at' is struct.*, which holds no event time; choose"),
        ("flag", "'flag' is bool, which holds no event time; choose"),
        ("number", "'number' is double with unit None: fractions are read as seconds only; set the unit to 's'"),
        ("whole", "'whole' is int64: whole numbers need a timestamp unit"),
    ],
)
def test_a_column_that_cannot_give_event_times_is_refused_before_anything_is_read(
    tmp_path: Path, column: str, told: str
) -> None:
    table = {"t": stamps(0, 1), "e": NESTED, "flag": [True, False], "number": [1.5, 2.5], "whole": [1, 2]}
    put(tmp_path / "a" / "f.parquet", table)
    with pytest.raises(InvalidArgumentError, match=told):
        stream_reader(tmp_path, eventTimeColumn=column)


class _Bare(TimestampAssigner):
    """Returns what `extract` of the user's own class must not return."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def extract(self, batch: pa.RecordBatch, source_timestamps: Any) -> Any:
        return self._result


def test_an_assigner_class_must_return_one_event_time_for_each_record(tmp_path: Path) -> None:
    put(tmp_path / "a" / "f.parquet", {"t": stamps(0)})
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(_Bare(pa.array([1])))
    source = AlignedDataSource(FileSource(str(tmp_path)), strategy, FrameOptions())
    with pytest.raises(SchemaError, match=r"_Bare.extract returned a Int64Array: it must return EventTimes"):
        source.schema()
    shaper = RowShaper(pa.schema([]), "t", _Bare(EventTimes.none(3)), FrameOptions())
    with pytest.raises(SchemaError, match=r"returned 3 event times for a batch of 1 records: it must return one for"):
        shaper.shape("a", pa.record_batch({"t": stamps(0)}), None, 0)


def test_files_have_no_source_record_timestamps_so_a_column_must_be_named(tmp_path: Path) -> None:
    put(tmp_path / "a" / "f.parquet", {"t": stamps(0)})
    with pytest.raises(OptionError, match="aligned_files has no source record timestamps: name the column"):
        stream_reader(tmp_path)


BROKEN: dict[str, tuple[pa.Array, str]] = {
    "null": (pa.array([T0, None], pa.timestamp("us")), "t = None"),
    "text": (pa.array([ISO[0], "yesterday"]), "t = 'yesterday'"),
    "nan": (pa.array([T0 / SECOND, float("nan")]), "t = nan"),
    # Nanoseconds that were written as milliseconds.
    "ms": (pa.array([T0 // 1000, T0 * 1000], pa.timestamp("ms")), f"t = {T0 * 1000} as timestamp.ms."),
    "int-ms": (pa.array([T0 // 1000, T0 * 1000]), f"t = {T0 * 1000}"),
}
UNITS = {"nan": "s", "int-ms": "ms"}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_record_without_a_valid_event_time_fails_is_kept_or_is_dropped(tmp_path: Path, kind: str) -> None:
    column, told = BROKEN[kind]
    put(tmp_path / "a" / "f.parquet", {"k": [1, 2], "t": column})
    options: dict[str, Any] = {"eventTimeColumn": "t"}
    if kind in UNITS:
        options["timestampUnit"] = UNITS[kind]
    with pytest.raises(InvalidTimestampError, match=f"split 'a', position 1: no valid event time in {told}.*= null"):
        read_all(tmp_path, **options)
    kept = read_all(tmp_path, invalidTimestamp="null", includeMetadata="true", **options)
    assert micros(kept) == [T0, None]
    assert kept.column("_late").to_pylist() == [False, False]
    dropped = read_all(tmp_path, invalidTimestamp="drop", includeMetadata="true", **options)
    assert dropped.column("k").to_pylist() == [1]
    assert dropped.column("_position").to_pylist() == [0]


def test_a_timestamp_that_spark_cannot_hold_is_null_as_event_time_and_an_error_elsewhere(tmp_path: Path) -> None:
    nanos_as_millis = pa.array([T0 // 1000, T0 * 1000], pa.timestamp("ms"))
    put(tmp_path / "a" / "f.parquet", {"t": stamps(0, 1), "u": nanos_as_millis})
    kept = read_all(tmp_path, eventTimeColumn="u", invalidTimestamp="null")
    assert micros(kept, "u") == [T0, None]
    with pytest.raises(SchemaError, match=f"column 'u' of type timestamp.ms. does not fit .*: {T0 * 1000} lies beyond"):
        read_all(tmp_path, eventTimeColumn="t")


def test_a_time_beyond_what_python_can_print_is_told_all_the_same(tmp_path: Path) -> None:
    far = 300_000_000_000_000_000  # in the year 11476
    put(tmp_path / "a" / "f.parquet", {"t": pa.array([T0, far], pa.timestamp("us"))})
    told = f"no valid event time in t = {far} as timestamp.us. .*before the year 4000"
    with pytest.raises(InvalidTimestampError, match=told):
        read_all(tmp_path, eventTimeColumn="t", watermarkRows="true")


def test_times_before_1970_and_after_3999_are_invalid_under_the_exact_watermark_alone(tmp_path: Path) -> None:
    far = 253_370_764_800_000_000  # 9999-01-01
    times = [T0, far, -5, T0 + SECOND]
    put(tmp_path / "a" / "f.parquet", {"t": pa.array(times, pa.timestamp("us", "UTC"))})
    told = "position 1: no valid event time.* from 1970 on.* before the year 4000"
    with pytest.raises(InvalidTimestampError, match=told):
        read_all(tmp_path, eventTimeColumn="t", watermarkRows="true")
    reading = Reading(stream_reader(tmp_path, eventTimeColumn="t", watermarkRows="true", invalidTimestamp="null"))
    _, *kept = micros(reading.next(), "t")  # type: ignore[arg-type]
    reading.reader.stop()
    assert (kept, reading.offset["watermark"]) == ([T0, None, None, T0 + SECOND], T0 + SECOND - 1)
    assert micros(read_all(tmp_path, eventTimeColumn="t"), "t") == times


@pytest.mark.parametrize(("unit", "year"), [("s", "ms"), ("ms", "us"), ("s", "ns")])
def test_a_number_that_is_no_time_in_its_unit_is_told_with_the_unit_that_fits(
    tmp_path: Path, unit: str, year: str
) -> None:
    number = T0 // SECOND * {"ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[year]
    put(tmp_path / "a" / "f.parquet", {"t": [number]})
    options = {"eventTimeColumn": "t", "timestampUnit": unit, "watermarkRows": "true"}
    with pytest.raises(InvalidTimestampError) as raised:
        read_all(tmp_path, **options)
    said = " ".join(str(raised.value).split())
    assert f"and is no time of these years with timestampUnit = {unit}, but 2023-11-14T22:14:00Z with {year}" in said
    assert f"; set timestampUnit = {year}" in said
    assert "invalidTimestamp" not in said


@pytest.mark.parametrize("max_rows", [None, "2"])
def test_numbers_of_another_unit_that_are_times_are_named_in_the_log_once(
    tmp_path: Path, max_rows: str | None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "_WARNED", set())
    for split in "ab":
        put(tmp_path / split / "f.parquet", {"t": [T0 // 1000 + i for i in range(5)]}, row_group_size=2)
    options = {} if max_rows is None else {"maxRowsPerTrigger": max_rows}
    # In one run to the end, without a limit, the planner reads no event times of CSV ahead; the task sees them.
    assert len(read_all(tmp_path, eventTimeColumn="t", timestampUnit="us", **options)) == 10
    said = [record.message for record in caplog.records if "timestampUnit = ms" in record.message]
    assert {record.split(" is ")[0] for record in said} == {"the latest event time in t"}
    assert 1 <= len(said) <= 2


def test_a_column_called_event_time_must_be_the_event_time_column_or_make_way(tmp_path: Path) -> None:
    text = ["2023-11-14T22:14:00Z", "2023-11-14T22:14:01Z"]
    put(tmp_path / "a" / "f.parquet", {"k": [1, 2], "event_time": stamps(5, 6), "t": text})
    with pytest.raises(SchemaError, match=r"a column 'event_time'.* make it the eventTimeColumn, or .*eventTimeAs"):
        stream_reader(tmp_path, eventTimeColumn="t")
    beside = read_all(tmp_path, eventTimeColumn="t", eventTimeAs="happened")
    assert beside.schema.names == ["k", "event_time", "t", "happened"]
    assert micros(beside, "happened") == [T0, T0 + SECOND]
    itself = read_all(tmp_path, eventTimeColumn="event_time")
    assert itself.schema.names == ["k", "event_time", "t"]
    assert micros(itself) == [T0 + 5 * SECOND, T0 + 6 * SECOND]


def test_names_that_spark_cannot_tell_apart_clash(tmp_path: Path) -> None:
    put(tmp_path / "a" / "f.parquet", {"Event_Time": stamps(0), "t": ["2023-11-14T22:14:00Z"]})
    with pytest.raises(SchemaError, match="has a column 'Event_Time'"):
        stream_reader(tmp_path, eventTimeColumn="t")
    with pytest.raises(SchemaError, match=r"columns \['_split'\] already"):
        stream_reader(tmp_path, eventTimeColumn="t", eventTimeAs="_split", includeMetadata="true")


METADATA = StructType().add("t", TimestampType()).add("_split", StringType())


def test_a_schema_that_is_given_says_nothing_of_whose_a_column_is(tmp_path: Path) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    early = stream_reader(tmp_path / "in", METADATA, eventTimeColumn="t")
    put(tmp_path / "in" / "a" / "f.parquet", {"t": stamps(0, zone="UTC"), "_split": ["mine"]})
    # Whether the file came before the query or behind it.
    for reader in (early, stream_reader(tmp_path / "in", METADATA, eventTimeColumn="t")):
        table = Reading(reader).next()
        reader.stop()
        assert table is not None
        assert table["_split"].to_pylist() == ["mine"]
    with pytest.raises(SchemaError, match=r"columns \['_split'\] already"):
        stream_reader(tmp_path / "in", METADATA, eventTimeColumn="t", includeMetadata="true").latestOffset  # noqa: B018


def test_metadata_in_a_schema_has_the_type_of_metadata(tmp_path: Path) -> None:
    put(tmp_path / "a" / "f.parquet", {"t": stamps(0, zone="UTC")})
    assert Reading(stream_reader(tmp_path, METADATA, eventTimeColumn="t")).next()["_split"].to_pylist() == ["a"]  # type: ignore[index]
    other = StructType().add("t", TimestampType()).add("_split", LongType())
    with pytest.raises(SchemaError, match=r"'_split' is bigint in the schema.* it is string; give it this type"):
        stream_reader(tmp_path, other, eventTimeColumn="t")


def test_the_users_own_column_passes_without_a_copy_and_invalid_times_become_null_in_it() -> None:
    far = 64_060_588_800_000_000  # the year 4000

    def shaped(times: list[int], **options: Any) -> tuple[pa.Array, pa.Array]:
        column = pa.array(times, pa.timestamp("us"))
        frame = pa.schema([("t", pa.timestamp("us", "UTC"))])
        limit_us = far if "watermark_rows" in options else None
        shaper = RowShaper(frame, "t", FieldTimestampAssigner("t"), FrameOptions(**options), time_limit_us=limit_us)
        return column, shaper.shape("a", pa.record_batch({"t": column}), None, 0).column(0)

    column, out = shaped([T0, -5])
    assert out.cast(pa.int64()).to_pylist() == [T0, -5]
    assert out.buffers()[1].address == column.buffers()[1].address
    _, out = shaped([T0, -5, 0, far, far - 1], watermark_rows=True, invalid_timestamp="null")
    assert out.cast(pa.int64()).to_pylist() == [T0, None, 0, None, far - 1]
    with pytest.raises(InvalidTimestampError, match=r"position 1: no valid event time in t = .*from 1970 on"):
        shaped([T0, -5], watermark_rows=True)


_ADDED: Final[dict[str, tuple[pa.Array, dict[str, str], str]]] = {
    "text": (pa.array(["2023-11-14T22:14:00Z"]), {}, "event_time"),
    "text, named": (pa.array(["2023-11-14T22:14:00Z"]), {"eventTimeAs": "at"}, "at"),
    "a number, named": (pa.array([T0]), {"timestampUnit": "us", "eventTimeAs": "at"}, "at"),
    "a time, named": (stamps(0), {"eventTimeAs": "at"}, "at"),
}


@pytest.mark.parametrize("case", _ADDED)
def test_what_is_claimed_is_on_the_column_that_the_frame_has_for_the_event_time(tmp_path: Path, case: str) -> None:
    column, options, added = _ADDED[case]
    put(tmp_path / "in" / "a" / "f.parquet", {"t": column})
    reading = Reading(stream_reader(tmp_path / "in", eventTimeColumn="t", timeZone="UTC", bounded="true", **options))
    assert reading.next() is not None
    reading.reader.stop()
    written = WrittenCheckpoint(tmp_path / "checkpoint")
    written.plan(0, 0, json.dumps(reading.offset))
    claimed_us = {name: Writer(str(written), name).claimed_us(0) for name in (added, "t", None)}
    assert {*claimed_us.values()} == {reading.offset["watermark"]}
    with pytest.raises(ClaimError, match="its event times are 't'"):
        Writer(str(written), "other").claimed_us(0)

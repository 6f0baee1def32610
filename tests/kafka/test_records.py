"""From messages to Arrow: every field, gaps in offsets, and values of every format."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Message

from alignment.timestamps import NO_TIMESTAMP
from streaming_source.connectors.kafka.json_values import JsonValues
from streaming_source.connectors.kafka.records import (
    FIELDS,
    BinaryValues,
    MessageColumns,
    TextValues,
    ValueFormat,
    record_schema,
    runs_of,
)
from streaming_source.connectors.kafka.subscription import Partition
from streaming_source.data_files.formats import JsonFormat
from streaming_source.exceptions import MalformedDataError

P = Partition("orders", 1)


def message(offset: int = 0, value: bytes | None = b"v", time_ms: int = 1000, kind: int = 1, **fields: Any) -> Message:
    given = {"topic": "orders", "partition": 1, "key": None, "headers": None, **fields}
    return Message(offset=offset, value=value, timestamp=(kind, time_ms), **given)


def block(messages: list[Message], value: ValueFormat | None = None, headers: bool = True) -> Any:
    value = value or BinaryValues()
    return made_of(MessageColumns(record_schema(value, headers=headers), value), messages)


def made_of(columns: MessageColumns, messages: list[Message]) -> Any:
    return columns.block(P, [run for _, run in runs_of(messages, columns.fields)])


def test_a_record_has_the_columns_of_sparks_own_source() -> None:
    made = block([message(7, b"\xff", 1001, key=b"k", headers=[("a", b"1"), ("b", None)]), message(8, None, 1002, 2)])
    (first, second) = made.batch.to_pylist()
    assert (first["key"], first["value"], first["topic"], first["partition"], first["offset"]) == (
        *(b"k", b"\xff", "orders", 1, 7),
    )
    assert first["headers"] == [{"key": "a", "value": b"1"}, {"key": "b", "value": None}]
    assert (second["key"], second["value"], second["headers"]) == (None, None, None)
    assert [row["timestampType"] for row in (first, second)] == [0, 1]
    assert made.batch.column("timestamp").cast(pa.int64()).to_pylist() == [1_001_000, 1_002_000]
    assert made.source_timestamps.tolist() == [1_001_000, 1_002_000]


def test_a_record_without_a_timestamp_has_none() -> None:
    made = block([message(kind=0, time_ms=-1), message(1)])
    assert made.source_timestamps.tolist() == [NO_TIMESTAMP, 1_000_000]
    assert made.batch.column("timestamp").to_pylist()[0] is None
    assert made.batch.column("timestampType").to_pylist() == [-1, 0]


def test_nanoseconds_that_were_written_as_milliseconds_are_no_event_time() -> None:
    made = block([message(time_ms=1_700_000_000_000_000_000), message(1), message(2, time_ms=-(2**62))])
    assert made.source_timestamps.tolist() == [NO_TIMESTAMP, 1_000_000, NO_TIMESTAMP]
    assert made.batch.column("timestamp").is_null().to_pylist() == [True, False, True]


def test_positions_are_offsets_with_their_gaps() -> None:
    assert block([message(offset) for offset in (5, 6, 7)]).positions == 5
    with_gaps = block([message(offset) for offset in (5, 7, 8)])
    assert with_gaps.positions.tolist() == [5, 7, 8]
    assert with_gaps.next_position == 9


def test_only_the_columns_that_are_asked_for_are_made() -> None:
    schema = pa.schema([("offset", pa.int64()), ("topic", pa.string())])
    columns = MessageColumns(schema, JsonValues(pa.schema([("a", pa.int64())])))
    assert columns.fields == ()
    made = made_of(columns, [message(3, b"no JSON")])
    assert made.batch.to_pylist() == [{"offset": 3, "topic": "orders"}]


def test_messages_of_several_partitions_are_told_apart_as_they_came() -> None:
    rng = np.random.default_rng(0)
    places = [(f"t{rng.integers(2)}", int(rng.integers(3))) for _ in range(300)]
    messages = [message(i, topic=topic, partition=number) for i, (topic, number) in enumerate(places)]
    runs = list(runs_of(messages, FIELDS))
    assert [offset for _, run in runs for offset in run.offsets.tolist()] == list(range(300))
    assert [value for _, run in runs for value in run.fields["value"]] == [m.value() for m in messages]
    assert all(places[offset] == part for part, run in runs for offset in run.offsets.tolist())
    assert all(a[0] != b[0] for a, b in pairwise(runs))


def test_messages_of_one_partition_are_one_run() -> None:
    ((part, run),) = runs_of([message(i) for i in range(5)], ["value"])
    assert (part, run.offsets.tolist(), run.fields) == (P, [0, 1, 2, 3, 4], {"value": [b"v"] * 5})


@pytest.mark.parametrize("place", [0, -1])
def test_messages_of_another_partition_than_the_only_one_are_told_apart(place: int) -> None:
    messages = [message(i) for i in range(5)]
    ((part, run),) = runs_of(messages, [], only=P)
    assert (part, len(run)) == (P, 5)
    messages[place] = message(9, partition=2)
    assert sorted((part, len(run)) for part, run in runs_of(messages, [], only=P)) == [
        (P, 4),
        (Partition("orders", 2), 1),
    ]


def test_a_block_of_several_runs_is_that_of_all_their_messages() -> None:
    messages = [message(3 * i, b"%d" % i, 1000 + i, key=b"k") for i in range(10)]
    columns = MessageColumns(record_schema(BinaryValues(), headers=True), BinaryValues())
    pieces = [run for begin, end in ((0, 4), (4, 5), (5, 10)) for _, run in runs_of(messages[begin:end], FIELDS)]
    assert columns.block(P, pieces).batch == made_of(columns, messages).batch


@pytest.mark.parametrize("stop", [0, 1, 5, 6, 12, 99])
def test_a_run_is_cut_before_an_offset(stop: int) -> None:
    offsets = [1, 5, 6, 12]
    ((_, run),) = runs_of([message(offset, b"%d" % offset) for offset in offsets], FIELDS)
    cut = run.before(stop)
    left = [] if cut is None else list(zip(cut.offsets.tolist(), cut.fields["value"], strict=True))
    assert left == [(offset, b"%d" % offset) for offset in offsets if offset < stop]


# ---- values --------------------------------------------------------------------------------------------------------


def column(value: ValueFormat, *values: bytes | None) -> list[Any]:
    made: list[Any] = value.column([*values], P, np.arange(10, 10 + len(values))).to_pylist()
    return made


def json_values(*fields: tuple[str, pa.DataType], invalid: Literal["fail", "null"] = "fail") -> JsonValues:
    return JsonValues(pa.schema(list(fields)), invalid)


def test_values_are_bytes_text_or_null() -> None:
    assert column(BinaryValues(), b"\xff", None, b"") == [b"\xff", None, b""]
    assert column(TextValues(), "ü".encode(), None, b"") == ["ü", None, ""]


@pytest.mark.parametrize("lengths", [(300, 0, 5000), (300, None, 0), (None, 300), (None, None), (0, 300), (300,)])
def test_values_of_any_length_are_bytes_or_null(lengths: tuple[int | None, ...]) -> None:
    values = [None if length is None else bytes([i]) * length for i, length in enumerate(lengths)]
    made = BinaryValues().read(values)
    made.validate(full=True)
    assert made.equals(pa.array(values, pa.binary()))


def test_json_objects_are_read_by_their_schema() -> None:
    kind = json_values(("id", pa.int64()), ("at", pa.struct([("x", pa.float64())])), ("ts", pa.timestamp("us", "UTC")))
    read = column(
        kind, b'{"id": 1, "at": {"x": 2.5, "y": 0}, "ts": "2024-01-01T00:00:00Z", "more": []}', b"{}", None, b"null"
    )
    assert (read[0]["id"], read[0]["at"], read[0]["ts"].isoformat()) == (1, {"x": 2.5}, "2024-01-01T00:00:00+00:00")
    assert read[1:] == [{"id": None, "at": None, "ts": None}, None, None]


def test_json_may_have_lines_and_be_large() -> None:
    kind = json_values(("a", pa.string()))
    long = "x" * 3_000_000
    assert column(kind, b'{\n"a":\n"1"\n}', b'{"a": "%s"}' % long.encode()) == [{"a": "1"}, {"a": long}]


@pytest.mark.parametrize(
    "bad",
    [b"", b" ", b"text", b"[1]", b'[{"a": 1}]', b'{"a": "one"}', b'{"a": 1', b"\xff", b'{"a": 1.5}', b"1"],
)
def test_what_is_no_such_object_fails_by_its_place_or_is_null(bad: bytes) -> None:
    kind = json_values(("a", pa.int64()))
    good = b'{"a": 7}'
    with pytest.raises(MalformedDataError, match=r"partition orders-1, offset 11: the value .* is not a JSON object"):
        column(kind, good, bad, good)
    assert column(json_values(("a", pa.int64()), invalid="null"), good, bad, good) == [{"a": 7}, None, {"a": 7}]


def test_json_is_read_as_in_files_and_by_from_json() -> None:
    """What pyarrow's parser reads otherwise, or refuses."""
    at, day = pa.timestamp("us", "UTC"), pa.date32()
    read = {
        (pa.binary(), b'"aGk="'): b"hi",
        (pa.map_(pa.string(), pa.int64()), b'{"a": 1}'): [("a", 1)],
        (day, b'"2024-01-01"'): date(2024, 1, 1),
        (pa.string(), b'{"b": [1]}'): '{"b": [1]}',
        (pa.decimal128(8, 2), b"1.005"): Decimal("1.01"),
        (pa.int64(), b'1, "a": 2'): 2,
        (pa.int64(), b"1}}\n{"): 1,
        (at, b"1704067200"): datetime(2024, 1, 1, tzinfo=UTC),
        (at, b'"2024-1-1 1:00:00+1"'): datetime(2024, 1, 1, tzinfo=UTC),
    }
    for (kind, text), value in read.items():
        assert column(json_values(("a", kind)), b'{"a": ' + text + b"}") == [{"a": value}]
    refused = [(day, b"5"), (at, b'"2024-01-01T00:00:00+19:00"'), (pa.timestamp("us"), b'"2024-01-01T00:00:00Z"')]
    for kind, text in refused:
        with pytest.raises(MalformedDataError, match=r"offset 10: the value .* is not a JSON object"):
            column(json_values(("a", kind)), b'{"a": ' + text + b"}")


def test_times_in_json_have_a_zone_and_a_pattern() -> None:
    values = json_values(("a", pa.struct([("t", pa.timestamp("us", "UTC"))]))).in_zone("Europe/Berlin")
    midnight = datetime(2023, 12, 31, 23, tzinfo=UTC)
    assert column(values, b'{"a": {"t": "2024-01-01 00:00:00"}}') == [{"a": {"t": midnight}}]
    assert values.in_zone("UTC") == values
    assert (plain := json_values(("a", pa.timestamp("us")))).in_zone("Europe/Berlin") is plain
    with pytest.raises(MalformedDataError, match="set option timestampFormat to the pattern"):
        column(values, b'{"a": {"t": "1.1.2024 0:00"}}')
    by_pattern = replace(values, format=JsonFormat(timestamp_format="d.M.yyyy H:mm", time_zone="Europe/Berlin"))
    assert column(by_pattern, b'{"a": {"t": "1.1.2024 0:00"}}') == [{"a": {"t": midnight}}]


def test_what_is_no_text_fails_by_its_place_or_is_null() -> None:
    with pytest.raises(MalformedDataError, match=r"offset 11: the value b'\\xff' is not UTF-8 text: .* invalidValue"):
        column(TextValues(), b"a", b"\xff")
    assert column(TextValues("null"), b"a", b"\xff") == ["a", None]


def test_a_long_value_is_not_quoted_whole() -> None:
    with pytest.raises(MalformedDataError) as raised:
        column(TextValues(), b"x" * 10_000 + b"\xff")
    assert len(str(raised.value)) < 1000

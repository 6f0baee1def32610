"""Messages as bytes: what is written is read, and what is not one is refused."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from alignment.reports import RangeReport
from alignment.timestamps import NO_TIMESTAMP
from streaming_source.gateway.messages import (
    HEADER_BYTES,
    MessageHeader,
    decode_event,
    decode_reports,
    encode_event,
    encode_reports,
)
from streaming_source.gateway.refusals import RefusedError
from tests.gateway.support import REPORT, SERIALIZER, Answer, AskForMore, range_reports

HEADER = MessageHeader("0123456789abcdef", batch=7, subtask_id=3, attempt=2**40, number=0)
SCHEMA = pa.ipc.open_stream(encode_reports([REPORT])).schema


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1))
def test_a_header_is_read_as_it_was_written(batch: int, subtask_id: int, attempt: int, number: int) -> None:
    header = MessageHeader("0123456789abcdef", batch, subtask_id, attempt, number)
    assert MessageHeader.decode(header.encode() + b"body") == header
    assert len(header.encode()) == HEADER_BYTES


@given(st.binary(max_size=2 * HEADER_BYTES))
@example(b"")
@example(HEADER.encode()[:-1])
@example(replace(HEADER, batch=-1).encode())
@example(b"SSG2" + HEADER.encode()[4:])
@example(b"SSG1" + b"\xff" * 16 + HEADER.encode()[20:])
def test_bytes_that_are_no_header_are_refused(data: bytes) -> None:
    with pytest.raises(RefusedError, match="malformed"):
        MessageHeader.decode(data)


@given(st.lists(range_reports(), max_size=20))
@example([])
def test_reports_are_read_as_they_were_written(reports: list[RangeReport]) -> None:
    assert decode_reports(encode_reports(reports)) == reports


@pytest.mark.parametrize(
    "impossible",
    [
        {"split_id": ""},
        {"split_id": "x" * 8193},
        {"start": -1},
        {"start": 11},
        {"rows": -1},
        {"min_us": 6},
        {"min_us": NO_TIMESTAMP},
        {"max_us": NO_TIMESTAMP},
        {"late": -1},
        {"late": 11},
        {"invalid": -1},
        {"invalid": 11},
        {"disorder_us": -1},
    ],
)
def test_a_report_of_what_cannot_be_is_refused(impossible: dict[str, object]) -> None:
    body = encode_reports([REPORT, replace(REPORT, **impossible)])  # type: ignore[arg-type]
    with pytest.raises(RefusedError, match="malformed"):
        decode_reports(body)


def stream(batch: pa.RecordBatch, *more: pa.RecordBatch, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        for each in (batch, *more):
            writer.write_batch(each)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def batch_of(report: RangeReport = REPORT) -> pa.RecordBatch:
    return pa.ipc.open_stream(encode_reports([report])).read_next_batch()


def test_the_streams_made_here_are_taken_when_nothing_is_wrong_with_them() -> None:
    assert decode_reports(stream(batch_of())) == [REPORT]


def refused_streams() -> dict[str, bytes]:
    batch = batch_of()
    nullable = pa.schema([field.with_nullable(True) for field in SCHEMA])
    with_null = pa.record_batch([pa.array(["a"]), *([pa.array([None], pa.int64())] * 8)], schema=nullable)
    # The same bytes under the schema that does not allow them.
    hidden = pa.RecordBatch.from_arrays(with_null.columns, schema=SCHEMA)
    as_words = batch.set_column(
        0, pa.field("split_id", batch[0].dictionary_encode().type), batch[0].dictionary_encode()
    )
    return {
        "no schema": b"",
        "a schema alone": b"\xff\xff\xff\xff" + stream(batch).split(b"\xff\xff\xff\xff")[1],
        "two batches": stream(batch, batch),
        "compressed with zstd": stream(batch, compression="zstd"),
        "compressed with lz4": stream(batch, compression="lz4"),
        "a column less": stream(batch.drop_columns(["late"])),
        "a column of another name": stream(batch.rename_columns([*SCHEMA.names[:-1], "disorder"])),
        "another order": stream(batch.select(SCHEMA.names[::-1])),
        "columns that may be null": stream(with_null),
        "nulls that the schema forbids": stream(hidden),
        "a dictionary": stream(as_words),
        "cut off": stream(batch)[:-30],
        "an Arrow file": b"ARROW1\0\0" + stream(batch),
        "a pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94.",
    }


@pytest.mark.parametrize("what", refused_streams())
def test_a_stream_of_another_form_is_refused(what: str) -> None:
    with pytest.raises(RefusedError, match="malformed"):
        decode_reports(refused_streams()[what])


def test_a_message_is_not_decompressed() -> None:
    zeros = pa.record_batch([pa.array([""] * 2_000_000), *([pa.array([0] * 2_000_000, pa.int64())] * 8)], schema=SCHEMA)
    body = stream(zeros, compression="zstd")
    assert len(body) < 100_000
    before = pa.total_allocated_bytes()
    peak = pa.default_memory_pool().max_memory()
    with pytest.raises(RefusedError, match="malformed"):
        decode_reports(body)
    assert pa.total_allocated_bytes() <= before
    assert pa.default_memory_pool().max_memory() == peak


@given(st.data())
def test_a_message_with_bytes_changed_is_read_as_some_report_or_refused(data: st.DataObject) -> None:
    body = bytearray(encode_reports([REPORT, replace(REPORT, split_id="another", late=3)]))
    for _ in range(data.draw(st.integers(1, 8))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    reports = []
    with contextlib.suppress(RefusedError):
        reports = decode_reports(bytes(body[: data.draw(st.integers(0, len(body)))]))
    assert len(reports) <= 2
    assert all(isinstance(report.split_id, str) and 0 <= report.start <= report.stop for report in reports)


@given(st.binary(max_size=2000))
def test_any_other_bytes_are_no_reports(body: bytes) -> None:
    with pytest.raises(RefusedError, match="malformed"):
        decode_reports(body)


@pytest.mark.parametrize("event", [AskForMore("orders", 7), Answer(True), Answer(False, 1.5, ("a",))])
def test_an_event_is_read_as_it_was_written(event: AskForMore | Answer) -> None:
    assert decode_event(SERIALIZER, encode_event(SERIALIZER, event)) == event


@given(st.binary(max_size=200))
@example(b"\0\0\0\2" + SERIALIZER.serialize(AskForMore("orders", 7)))
def test_any_other_bytes_are_no_event(body: bytes) -> None:
    with pytest.raises(RefusedError, match="malformed"):
        decode_event(SERIALIZER, body)


def test_what_a_serializer_says_of_bytes_it_does_not_take_goes_no_further() -> None:
    with pytest.raises(RefusedError) as caught:
        decode_event(SERIALIZER, b'\0\0\0\1{"event":"confidential"}')
    assert "confidential" not in repr(caught.value)
    assert caught.value.__cause__ is None

"""Messages as bytes: what is written is read, and what is not one is refused."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from alignment.events import RangeReport
from alignment.timestamps import NO_TIMESTAMP
from streaming_source.gateway.messages import (
    MessageId,
    RefusedError,
    decode_reports,
    encode_reports,
    event_from_json,
    event_to_json,
)
from tests.gateway.support import BODY, REPORT, SERIALIZER, Answer, AskForMore, range_reports
from tests.memory import traced

NUMBERS = st.integers(0, 10**18 - 1)


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_a_message_is_known_by_its_path(batch: int, subtask_id: int, attempt: int, number: int) -> None:
    message = MessageId(batch, subtask_id, attempt, number)
    assert MessageId.parse(message.path("reports")) == ("reports", message)


@given(st.text(max_size=100))
@example("")
@example("/reports/1/2/3")
@example("/reports/1/2/3/4/5")
@example("/reports/1/2/3/-4")
@example("/reports/1/2/3/4\n")
@example("/reports/1/2/3/\u0661")
@example("/reports/1/2/3/" + "1" * 5000)
@example("/reports/1/2/3/4?x=1")
def test_a_path_that_is_no_message_is_refused(path: str) -> None:
    with pytest.raises(RefusedError, match="unknown action"):
        MessageId.parse(path)


@given(st.lists(range_reports(), max_size=20))
@example([])
@example([RangeReport('file:/\udcff/"\\\n', 0, 1)])
def test_reports_are_read_as_they_were_written(reports: list[RangeReport]) -> None:
    assert decode_reports(encode_reports(reports)) == reports


@pytest.mark.parametrize(
    "impossible",
    [
        {"split_id": ""},
        {"split_id": "x" * 8193},
        {"start": -1},
        {"start": 11},
        {"min_us": 6},
        {"min_us": NO_TIMESTAMP},
        {"max_us": NO_TIMESTAMP},
        {"late": -1},
        {"late": 11},
        {"max_us": 2**63},
        {"stop": 2**70},
    ],
)
def test_a_report_of_what_cannot_be_is_refused(impossible: dict[str, object]) -> None:
    body = encode_reports([REPORT, replace(REPORT, **impossible)])  # type: ignore[arg-type]
    with pytest.raises(RefusedError, match="malformed"):
        decode_reports(body)


COLUMNS: dict[str, list[object]] = json.loads(BODY)


def test_the_texts_made_here_are_taken_when_nothing_is_wrong_with_them() -> None:
    assert decode_reports(json.dumps(COLUMNS).encode()) == [REPORT]


REFUSED = {
    "nothing": "",
    "no object": "[]",
    "a list of reports": json.dumps([COLUMNS]),
    "a column less": json.dumps({name: column for name, column in COLUMNS.items() if name != "late"}),
    "a column more": json.dumps(COLUMNS | {"more": [1]}),
    "a column of another name": BODY.decode().replace("max_us", "max"),
    "a column that is no list": json.dumps(COLUMNS | {"stop": 10}),
    "a column that is a text": json.dumps(COLUMNS | {"split_id": "o"}),
    "a column that is shorter": json.dumps(COLUMNS | {"stop": []}),
    "a number that is a text": json.dumps(COLUMNS | {"stop": ["10"]}),
    "a number that is true": json.dumps(COLUMNS | {"stop": [True]}),
    "a number with a point": json.dumps(COLUMNS | {"stop": [10.0]}),
    "a number that is none": json.dumps(COLUMNS | {"max_us": [float("nan")]}),
    "a null": json.dumps(COLUMNS | {"stop": [None]}),
    "a split that is a number": json.dumps(COLUMNS | {"split_id": [7]}),
    "a number of a million digits": BODY.decode().replace("10", "1" * 1_000_000),
    "brackets without end": "[" * 1_000_000,
    "cut off": BODY.decode()[:-3],
    "two texts": BODY.decode() * 2,
    "another encoding": BODY.decode().replace("orders", "\u00fc").encode("latin-1").decode("latin-1"),
    "a pickle": "\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94.",
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_text_of_another_form_is_refused(what: str) -> None:
    with pytest.raises(RefusedError, match="malformed"):
        decode_reports(REFUSED[what].encode("latin-1"))


def refused(body: bytes) -> None:
    with pytest.raises(RefusedError, match="malformed"):
        decode_reports(body)


def test_a_message_of_the_largest_size_takes_no_more_than_some_of_its_sizes() -> None:
    hostile = b"[" + b"[]," * 349_000 + b"[]]"
    assert len(hostile) < 1 << 20
    assert traced(refused, hostile).peak < 32 << 20


@given(st.data())
def test_a_message_with_bytes_changed_is_read_as_some_report_or_refused(data: st.DataObject) -> None:
    body = bytearray(encode_reports([REPORT, replace(REPORT, split_id="another", late=3)]))
    for _ in range(data.draw(st.integers(1, 8))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    reports = []
    with contextlib.suppress(RefusedError):
        reports = decode_reports(bytes(body[: data.draw(st.integers(0, len(body)))]))
    assert len(reports) <= 4
    assert all(isinstance(report.split_id, str) and 0 <= report.start <= report.stop for report in reports)


@given(st.binary(max_size=2000))
def test_any_other_bytes_are_no_reports(body: bytes) -> None:
    with pytest.raises(RefusedError, match="malformed"):
        decode_reports(body)


@pytest.mark.parametrize("event", [AskForMore("orders", 7), Answer(True), Answer(False, 1.5, ("a",))])
def test_an_event_is_read_as_it_was_written(event: AskForMore | Answer) -> None:
    assert event_from_json(SERIALIZER, event_to_json(SERIALIZER, event)) == event


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@given(ANY)
@example([2, "e30="])
@example([1, "e30"])
@example(["1", "e30="])
def test_any_other_value_is_no_event(value: object) -> None:
    with pytest.raises(RefusedError, match="malformed"):
        event_from_json(SERIALIZER, value)


def test_what_a_serializer_says_of_bytes_it_does_not_take_goes_no_further() -> None:
    with pytest.raises(RefusedError) as caught:
        event_from_json(SERIALIZER, [1, "eyJldmVudCI6ImNvbmZpZGVudGlhbCJ9"])
    assert "confidential" not in repr(caught.value)
    assert caught.value.__cause__ is None

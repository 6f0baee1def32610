"""What a store or a client answers is looked at for as long as its beginning takes, whatever is in it."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest

from alignment.time_texts import parse_iso8601
from streaming_source.data_files.faults import is_transient, store_fault
from streaming_source.exceptions import StoreError

HOSTILE = [
    "<?xml",
    "<?xml<Code>",
    "<?xml<Code></Code>",
    "<Code>",
    "a://",
    "a",
    "://a:",
    "\x1b[",
    " ",
    "\u21b3",
    "[Errno 1",
]


@pytest.mark.parametrize("part", HOSTILE)
def test_an_error_of_a_store_is_one_line_at_once(part: str) -> None:
    begun = time.process_time()
    error = OSError(part * 100_000)
    is_transient(error)
    said = str(store_fault(error, "s3://b/x"))
    assert time.process_time() - begun < 2
    assert len(said) < 1_000
    assert "\n" not in said


def test_the_code_and_the_message_of_xml_are_shown() -> None:
    answer = (
        "the request failed: <?xml version='1'?><Error><Code>NoSuchKey</Code>\n<Message>not there</Message></Error>"
    )
    error = store_fault(OSError(answer), "x")
    assert isinstance(error, StoreError)
    assert "the request failed: NoSuchKey: not there. Correct" in str(error)


@pytest.mark.parametrize("part", ["T", " ", "T Z", "2024-01-01T", "0"])
def test_a_text_that_is_no_time_is_found_to_be_none_at_once(part: str) -> None:
    begun = time.process_time()
    _, is_valid = parse_iso8601(pa.array([part * 300_000, "2024-01-01T00:00:00Z"]))
    assert is_valid.tolist() == [False, True]
    assert time.process_time() - begun < 2

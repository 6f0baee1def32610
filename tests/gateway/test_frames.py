"""What a connection has on the way, seen from its frames."""

from __future__ import annotations

import random

import pytest

from streaming_source.gateway.frames import FrameMeter, MemoryBudget
from streaming_source.gateway.refusals import Refusal, RefusedError

DATA, HEADERS, RESET, SETTINGS = 0, 1, 3, 4
END = 1


def frame(kind: int, stream: int, length: int, flags: int = 0) -> bytes:
    return length.to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + bytes(length)


def meter(max_bytes: int = 1_000, budget: MemoryBudget | None = None) -> FrameMeter:
    made = FrameMeter(max_bytes, budget or MemoryBudget(1 << 30))
    made.from_client(FrameMeter.GREETING)
    return made


def refusal(made: FrameMeter, data: bytes) -> Refusal | None:
    try:
        made.from_client(data)
    except RefusedError as error:
        return error.refusal
    return None


@pytest.mark.parametrize("begin", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01", FrameMeter.GREETING[:-1] + b"x"])
def test_what_does_not_begin_as_http_2_is_malformed(begin: bytes) -> None:
    assert refusal(FrameMeter(1_000, MemoryBudget(1_000)), begin) is Refusal.MALFORMED


def test_a_frame_is_refused_by_its_head_before_its_bytes_are_there() -> None:
    assert refusal(meter(), frame(DATA, 1, 1_000)[:9]) is Refusal.OVERSIZED


def test_many_small_frames_of_one_call_are_as_much_as_a_large_one() -> None:
    made = meter()
    assert [refusal(made, frame(DATA, 1, 300)) for _ in range(4)] == [None, None, None, Refusal.OVERSIZED]


def test_calls_that_are_not_answered_count_together_and_answered_ones_no_more() -> None:
    budget = MemoryBudget(1 << 30)
    made = meter(budget=budget)
    made.from_client(frame(HEADERS, 1, 100) + frame(DATA, 1, 500, END))
    made.from_service(frame(HEADERS, 1, 10) + frame(DATA, 1, 10))
    assert refusal(made, frame(DATA, 3, 300)) is None
    made.from_service(frame(HEADERS, 1, 10, END))
    assert budget.used == 309
    assert refusal(made, frame(DATA, 5, 600)) is None
    made.from_client(frame(RESET, 5, 4))
    made.from_service(frame(RESET, 3, 4))
    assert budget.used == 0


def test_all_connections_together_have_a_limit() -> None:
    budget = MemoryBudget(1_000)
    one, other = meter(budget=budget), meter(budget=budget)
    assert refusal(one, frame(DATA, 1, 600)) is None
    assert refusal(other, frame(DATA, 1, 600)) is Refusal.CROWDED
    other.close()
    assert budget.used == 609
    one.close()
    assert budget.used == 0


def test_a_connection_that_was_cut_off_gives_back_what_it_took() -> None:
    budget = MemoryBudget(1_000)
    made = meter(500, budget)
    made.from_client(frame(DATA, 1, 300))
    assert refusal(made, frame(DATA, 1, 300)) is Refusal.OVERSIZED
    made.close()
    assert budget.used == 0


def test_too_many_calls_at_once_are_refused() -> None:
    made = meter(1 << 20)
    answers = [refusal(made, frame(HEADERS, 2 * call + 1, 10)) for call in range(65)]
    assert answers == [None] * 64 + [Refusal.CROWDED]


def test_a_control_frame_that_is_larger_than_any_is_malformed() -> None:
    assert refusal(meter(1 << 30), frame(SETTINGS, 0, 1 << 15)) is Refusal.MALFORMED


def data(payload: bytes, flags: int = 0) -> bytes:
    return frame(DATA, 1, len(payload), flags)[:9] + payload


@pytest.mark.parametrize("size", [1, 2, 7, 1_000])
def test_a_compressed_message_is_malformed_wherever_it_begins(size: int) -> None:
    plain, compressed = b"\0\0\0\0\x03\1\1\1", b"\1\0\0\0\x03"
    made = meter()
    sent = frame(HEADERS, 1, 10) + data(plain + plain[:4]) + data(plain[4:])
    assert [refusal(made, sent[at : at + size]) for at in range(0, len(sent), size)].count(None) == -(
        -len(sent) // size
    )
    assert refusal(made, data(compressed)) is Refusal.MALFORMED


def test_a_padded_message_is_malformed() -> None:
    assert refusal(meter(), frame(HEADERS, 1, 10) + data(b"\1\1\0\0\0\0\0", flags=8)) is Refusal.MALFORMED


def test_what_comes_behind_the_answer_of_a_call_is_no_message() -> None:
    made = meter()
    made.from_client(frame(HEADERS, 1, 10) + data(b"\0\0\0\0\x03\1"))
    made.from_service(frame(HEADERS, 1, 10, END))
    assert refusal(made, data(b"\1\1")) is None


def test_pieces_of_any_length_are_counted_alike() -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    for _ in range(200):
        frames = [
            frame(rng.choice([DATA, HEADERS, RESET, SETTINGS]), rng.randrange(4), rng.choice([0, 1, 4, 300]))
            for _ in range(rng.randrange(1, 8))
        ]
        data, open_calls = b"".join(frames), dict[int, int]()
        for each in frames:
            kind, stream = each[3], each[8]
            if kind in (DATA, HEADERS):
                open_calls[stream] = open_calls.get(stream, 0) + len(each)
            elif kind == RESET:
                open_calls.pop(stream, None)
        budget = MemoryBudget(1 << 30)
        made = meter(1 << 30, budget)
        while data:
            size = rng.randrange(1, 20)
            made.from_client(data[:size])
            data = data[size:]
        assert budget.used == sum(open_calls.values()), f"seed {seed}"

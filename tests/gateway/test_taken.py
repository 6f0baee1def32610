"""Every message is taken once."""

from __future__ import annotations

import random

from streaming_source.gateway.messages import MessageId, Refusal, RefusedError
from streaming_source.gateway.server import TakenMessages


def header(batch: int = 0, task: int = 0, attempt: int = 0, number: int = 0) -> MessageId:
    return MessageId(batch, task, attempt, number)


def refusal(taken: TakenMessages, message: MessageId) -> Refusal | None:
    try:
        taken.take(message)
    except RefusedError as error:
        return error.refusal
    return None


def test_where_there_are_too_many_tasks_older_batches_go_first() -> None:
    taken = TakenMessages(max_tasks=3)
    for message in (header(0), header(0, 1), header(1), header(1, 1)):
        taken.take(message)
    assert len(taken) == 2
    assert refusal(taken, header(0, 2)) is Refusal.STALE
    taken.take(header(1, 2))
    assert refusal(taken, header(1, 3)) is Refusal.CROWDED
    assert refusal(taken, header(1, 2, number=1)) is None


def test_it_agrees_with_a_model_that_remembers_everything() -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    taken, seen, newest = TakenMessages(kept_batches=3), set[tuple[int, int, int, int]](), 0
    for _ in range(2_000):
        message = header(max(0, newest + rng.randint(-4, 1)), rng.randrange(3), rng.randrange(2), rng.randrange(6))
        key = (message.batch, message.subtask_id, message.attempt, message.number)
        expected: Refusal | None = None
        if message.batch < newest - 2:
            expected = Refusal.STALE
        elif any(key[:3] == other[:3] and key[3] <= other[3] for other in seen):
            expected = Refusal.REPLAYED
        assert refusal(taken, message) is expected, f"seed {seed}: {message}"
        if expected is None:
            seen.add(key)
            newest = max(newest, message.batch)
        assert len(taken) <= 3 * 3 * 2

"""When to try again."""

from __future__ import annotations

from streaming_source.gateway.client import CircuitBreaker


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_everybody_may_try_until_one_fails() -> None:
    breaker = CircuitBreaker(Clock())
    assert [breaker.allows() for _ in range(3)] == [True] * 3
    breaker.failed()
    assert breaker.is_tripped
    assert not breaker.allows()


def test_the_wait_doubles_up_to_a_limit() -> None:
    clock = Clock()
    breaker = CircuitBreaker(clock)
    waits = []
    for _ in range(8):
        breaker.failed()
        began = clock.seconds
        while not breaker.allows():
            clock.seconds += 1
        waits.append(clock.seconds - began)
    assert waits == [2, 4, 8, 16, 32, 64, 64, 64]


def test_when_the_wait_is_over_one_tries_and_the_others_wait_for_it() -> None:
    clock = Clock()
    breaker = CircuitBreaker(clock)
    breaker.failed()
    clock.seconds += 2
    assert [breaker.allows(), breaker.allows()] == [True, False]
    breaker.succeeded()
    assert breaker.allows()
    assert not breaker.is_tripped


def test_after_a_success_the_wait_is_short_again() -> None:
    clock = Clock()
    breaker = CircuitBreaker(clock)
    for _ in range(5):
        breaker.failed()
    breaker.succeeded()
    breaker.failed()
    clock.seconds += 2
    assert breaker.allows()

"""Clients kept between micro-batches."""

from __future__ import annotations

import logging

import pytest

from streaming_source.api import KeptClients


class Client:
    """Something that can be closed."""

    made = 0

    def __init__(self) -> None:
        Client.made += 1
        self.closed = False

    def close(self) -> None:
        assert not self.closed
        self.closed = True


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_a_client_that_was_kept_is_taken_again_and_by_one_only() -> None:
    clients = KeptClients()
    first = clients.take("a", Client)
    clients.keep("a", first, first.close)
    assert len(clients) == 1
    assert clients.take("a", Client) is first
    assert len(clients) == 0
    assert clients.take("a", Client) is not first
    assert not first.closed


def test_a_client_of_another_key_is_not_given() -> None:
    clients = KeptClients()
    first = clients.take("a", Client)
    clients.keep("a", first, first.close)
    assert clients.take("b", Client) is not first
    assert clients.take("a", Client) is first


def test_of_several_of_one_key_the_last_kept_is_taken_first() -> None:
    clients = KeptClients()
    first, second = Client(), Client()
    clients.keep("a", first, first.close)
    clients.keep("a", second, second.close)
    assert [clients.take("a", Client), clients.take("a", Client)] == [second, first]


def test_what_is_too_much_is_closed_the_oldest_first() -> None:
    clients = KeptClients(max_kept=2)
    made = [Client() for _ in range(4)]
    for number, client in enumerate(made):
        clients.keep(number, client, client.close)
    assert [client.closed for client in made] == [True, True, False, False]
    assert len(clients) == 2


def test_what_nobody_took_for_a_while_is_closed_at_the_next_use() -> None:
    clock = Clock()
    clients = KeptClients(idle_seconds=10, clock=clock)
    old, new = Client(), Client()
    clients.keep("a", old, old.close)
    clock.seconds = 9
    clients.keep("a", new, new.close)
    assert not old.closed
    clock.seconds = 10
    assert clients.take("a", Client) is new
    assert old.closed
    assert not new.closed


def test_an_error_in_closing_is_logged_and_the_others_are_closed(caplog: pytest.LogCaptureFixture) -> None:
    clients = KeptClients()
    other = Client()

    def fail() -> None:
        raise OSError("gone")

    clients.keep("bad", object(), fail)
    clients.keep("good", other, other.close)
    with caplog.at_level(logging.ERROR):
        clients.close()
    assert other.closed
    assert "'bad'" in caplog.text
    assert len(clients) == 0

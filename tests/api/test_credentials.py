"""Credentials of a function of the user's: called once, renewed before they expire, and never shown."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from streaming_source.api import credentials
from streaming_source.api.credentials import Credentials
from streaming_source.exceptions import OptionError, SourceError

NOW_S = 1.7e9
SECRET = "do-not-tell-this-key"
STORAGE = ("storage.",)


class Clock:
    def __init__(self) -> None:
        self.now_s = NOW_S


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(credentials, "time", SimpleNamespace(time=lambda: clock.now_s))
    return clock


class Made:
    """Makes other credentials with each call, valid for so long; raises while it is told to."""

    def __init__(self, clock: Clock, valid_s: float | None) -> None:
        self._clock = clock
        self._valid_s = valid_s
        self.calls = 0
        self.fails = False

    def __call__(self) -> Any:
        self.calls += 1
        if self.fails:
            raise ValueError(SECRET)
        options = {"storage.secret_key": f"{SECRET}-{self.calls}"}
        return options if self._valid_s is None else (options, self._clock.now_s + self._valid_s)


@pytest.mark.parametrize(("valid_s", "renewed_after_s"), [(3600.0, 3300.0), (60.0, 45.0)])
def test_they_are_kept_until_shortly_before_they_expire(clock: Clock, valid_s: float, renewed_after_s: float) -> None:
    make = Made(clock, valid_s)
    found = Credentials(make)
    assert found.current(STORAGE) == {"storage.secret_key": f"{SECRET}-1"}
    clock.now_s = NOW_S + renewed_after_s - 1
    # A copy, as another reader of the process has it.
    assert Credentials(make, found.name).current(STORAGE) == {"storage.secret_key": f"{SECRET}-1"}
    clock.now_s = NOW_S + renewed_after_s
    assert found.current(STORAGE) == {"storage.secret_key": f"{SECRET}-2"}
    assert make.calls == 2


def test_without_a_time_of_expiry_they_are_made_once(clock: Clock) -> None:
    make = Made(clock, None)
    found = Credentials(make)
    for _ in range(3):
        found.current(STORAGE)
        clock.now_s += 1e8
    assert make.calls == 1


def test_where_they_cannot_be_renewed_those_at_hand_are_used_until_they_expire(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    make = Made(clock, 3600.0)
    found = Credentials(make, "m:f")
    first = found.current(STORAGE)
    make.fails, clock.now_s = True, NOW_S + 3400
    with caplog.at_level(logging.DEBUG):
        assert found.current(STORAGE) == found.current(STORAGE) == first
        assert make.calls == 2, "it is not called for each file"
        clock.now_s += 20
        assert found.current(STORAGE) == first
    assert make.calls == 3
    assert "the credentials function m:f raised ValueError; call it by itself to see why; those at hand" in caplog.text
    clock.now_s = NOW_S + 3600
    with pytest.raises(SourceError, match=r"raised ValueError; call it by itself to see why$") as raised:
        found.current(STORAGE)
    assert SECRET not in caplog.text + str(raised.value)
    assert raised.value.__cause__ is None
    make.fails = False
    assert found.current(STORAGE) == {"storage.secret_key": f"{SECRET}-{make.calls}"}


def test_a_time_of_expiry_may_be_a_datetime_with_a_zone(clock: Clock) -> None:
    calls = []
    found = Credentials(lambda: calls.append(1) or ({}, datetime.fromtimestamp(NOW_S + 3600, UTC)))
    found.current(STORAGE)
    clock.now_s += 3301
    found.current(STORAGE)
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SECRET, "returned a str; let it return a dictionary of options, or a tuple of that and when they"),
        (lambda: {"password": SECRET}, r"returned the option 'password'; let each name begin with storage\., as with"),
        (
            lambda: {"storage.secret_key": SECRET.encode()},
            "returned an entry of str and bytes; let all names",
        ),
        (lambda: ({}, "tomorrow"), "neither seconds since the epoch nor a datetime with a zone; return one of these"),
        (lambda: ({}, NOW_S * 1000), "neither seconds since the epoch nor"),
        (lambda: ({}, datetime(2030, 1, 1)), "neither seconds since the epoch nor"),  # no zone
        (lambda: ({}, NOW_S - 7), "returned credentials that expired 7 s ago; let it return new ones, and compare"),
    ],
    ids=["text", "name", "bytes", "words", "milliseconds", "no-zone", "over"],
)
@pytest.mark.usefixtures("clock")
def test_what_the_function_may_not_return_is_named_with_the_fix_and_without_a_value(
    make: Callable[[], Any], message: str
) -> None:
    with pytest.raises(SourceError, match=message) as raised:
        Credentials(make).current(STORAGE)
    assert SECRET not in str(raised.value)


def test_a_name_that_is_none_is_refused_at_once_and_one_that_cannot_be_imported_where_it_is_used() -> None:
    with pytest.raises(OptionError, match=r"option credentials = 'my_keys': must be 'module:function'.*write it so$"):
        Credentials.of_name("credentials", "my_keys")
    with pytest.raises(OptionError, match="credentials = dict: must be a function without arguments"):
        Credentials({"a": "b"})  # type: ignore[arg-type]
    elsewhere = Credentials.of_name("credentials", "my_keys_of_nowhere:keys")
    with pytest.raises(SourceError, match=r"'my_keys_of_nowhere:keys': cannot be imported here .* install the module"):
        elsewhere.current(STORAGE)


def test_they_are_equal_to_their_copies_and_show_nothing() -> None:
    found = Credentials.of_name("credentials", f"{__name__}:login")
    copy = pickle.loads(pickle.dumps(found))
    assert (copy, hash(copy)) == (found, hash(found))
    assert copy.current(STORAGE) == login()
    assert SECRET.encode() not in pickle.dumps(copy)
    assert SECRET not in repr(copy)


def login() -> dict[str, str]:
    return {"storage.secret_key": SECRET}

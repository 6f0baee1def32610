from __future__ import annotations

import pickle

import pytest

from alignment import exceptions
from alignment.exceptions import AlignmentError, DuplicateSplitError, UnknownMemberError, UnknownSplitError

ALL = [found for found in vars(exceptions).values() if isinstance(found, type) and issubclass(found, Exception)]


@pytest.mark.parametrize("kind", ALL)
def test_every_exception_survives_pickling_with_its_text(kind: type[AlignmentError]) -> None:
    error = pickle.loads(pickle.dumps(kind("split_id = 'a' is wrong")))
    assert type(error) is kind
    assert str(error) == "split_id = 'a' is wrong"
    assert isinstance(error, AlignmentError)


@pytest.mark.parametrize("kind", [UnknownSplitError, UnknownMemberError])
def test_an_unknown_key_is_a_key_error_that_reads_as_a_sentence(kind: type[AlignmentError]) -> None:
    error = kind("split_id = 'a' is not registered")
    assert isinstance(error, KeyError)
    assert str(error) == "split_id = 'a' is not registered"


def test_a_duplicate_split_is_a_value_error() -> None:
    assert issubclass(DuplicateSplitError, ValueError)


def test_a_long_message_is_broken_between_sentences_and_ends_with_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exceptions, "WIDTH", 40)
    assert str(AlignmentError("option a = 'b': must be c; give c, or d")) == "option a = 'b': must be c; give c, or d"
    message = "option a = '10:00: 5': must be one of c and d; leave it out, or give one"
    assert str(AlignmentError(message)) == "option a = '10:00: 5':\nmust be one of c and d;\nleave it out, or give one"
    long = str(AlignmentError(f"{'word ' * 20}; give it"))
    assert max(map(len, long.splitlines())) <= 40
    assert " ".join(long.split()) == f"{'word ' * 20}; give it"

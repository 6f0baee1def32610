from __future__ import annotations

import pickle

import pytest

from alignment import exceptions
from alignment.exceptions import AlignmentError, DuplicateSplitError, UnknownMemberError, UnknownSplitError

ALL = [getattr(exceptions, name) for name in exceptions.__all__]


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

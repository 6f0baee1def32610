"""How many examples a random test runs, and which cases of a long list.

The profile decides of the first, `pytest --hypothesis-profile=quick`, `ci` or `soak`; the mark `soak` of the second.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

__all__ = ["examples", "one_in"]

_FEWEST = 10


def examples(to_a_hundred: int) -> int:
    """The number under the profile at hand for a test that runs so many where one that names none runs a hundred."""
    return max(round(to_a_hundred * settings.default.max_examples / 100), _FEWEST)


def one_in(every: int, cases: Iterable[Any]) -> list[Any]:
    """All cases as parameters; `make test` runs the first of each so many, `make soak` the others."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)), marks=[pytest.mark.soak] if number % every else []
        )
        for number, case in enumerate(cases)
    ]

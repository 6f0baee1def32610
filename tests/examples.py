"""How many examples a random test runs, and which cases of a long list.

The profile decides of the first, `pytest --hypothesis-profile=quick`, `ci` or `soak`; the mark `soak` of the second.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import settings

__all__ = ["each_once", "examples", "one_in"]

_FEWEST = 5


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


def each_once(*values: Sequence[Any]) -> list[Any]:
    """All combinations as parameters; `make test` runs so many that it meets each value, `make soak` the others."""
    sizes = [len(of_one) for of_one in values]
    met = {tuple(number % size for size in sizes) for number in range(max(sizes))}
    return [
        pytest.param(
            *(of_one[place] for of_one, place in zip(values, places, strict=True)),
            marks=[] if places in met else [pytest.mark.soak],
        )
        for places in product(*map(range, sizes))
    ]

"""How many examples a random test runs: the profile decides, `pytest --hypothesis-profile=quick`, `ci` or `soak`."""

from __future__ import annotations

from hypothesis import settings

__all__ = ["examples"]

_FEWEST = 10


def examples(to_a_hundred: int) -> int:
    """The number under the profile at hand for a test that runs so many where one that names none runs a hundred."""
    return max(round(to_a_hundred * settings.default.max_examples / 100), _FEWEST)

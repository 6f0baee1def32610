"""How many examples a random test runs: the profile decides, `pytest --hypothesis-profile=quick`, `ci` or `soak`."""

from __future__ import annotations

from hypothesis import settings

__all__ = ["examples"]

_FEWEST = 10


def examples(in_ci: int) -> int:
    """The number under the profile at hand for a test that runs `in_ci` of them under `ci`."""
    return max(round(in_ci * settings.default.max_examples / settings.get_profile("ci").max_examples), _FEWEST)

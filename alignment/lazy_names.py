"""Names that a package exports, imported from their modules when they are first used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package whose names are in the modules `homes`, given as in `from .home import`.

    So a process loads what it uses (PEP 562): an audit needs times and watermarks, and plans nothing.
    """

    def found(name: str) -> Any:
        for home, names in homes.items():
            if name in names:
                return getattr(import_module(home, package), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return found

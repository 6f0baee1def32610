"""Which tests `make quick` leaves to `make test`, beside those that need a service: what takes long for a single one.

`wide.txt` names them, a module or a function a line: each takes more than a tenth of a second, and shows of many cases,
kills or files what quick ones show of some. `python -m tests.wide LOG` writes it anew, from what was printed by

    pytest tests -m "not (spark or kafka or browser or slow or soak)" -n 2 --durations=0 --durations-min=0.05
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Final

__all__ = ["NAMES", "is_wide"]

_LIST: Final = Path(__file__).with_name("wide.txt")
NAMES: Final = frozenset(_LIST.read_text(encoding="utf-8").split())
"""Modules, and functions or classes of them."""

_DURATION: Final = re.compile(r"^ *([\d.]+)s (?:call|setup|teardown) +(tests/\S+?\.py::[\w:]+)", re.MULTILINE)
_LONG_S: Final = 0.1


def is_wide(nodeid: str) -> bool:
    """Whether the list has a test, its function or its module."""
    function = nodeid.partition("[")[0]
    return function in NAMES or function.partition("::")[0] in NAMES


def named(log: str) -> list[str]:
    """The functions that took long for one of their cases, by module; of a module that has ten of them the module."""
    by_module = defaultdict[str, set[str]](set)
    for seconds, function in _DURATION.findall(log):
        if float(seconds) >= _LONG_S:
            by_module[function.partition("::")[0]].add(function)
    return sorted(name for module, found in by_module.items() for name in ([module] if len(found) >= 10 else found))


if __name__ == "__main__":
    _LIST.write_text("".join(f"{name}\n" for name in named(Path(sys.argv[1]).read_text())), encoding="utf-8")

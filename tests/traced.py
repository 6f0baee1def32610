"""A plugin of pytest, `-p tests.traced`: measures which branches of `alignment` the tests of some folders take.

`make check` runs the tests with it, instead of running some of them again under `make coverage`. Tracing is on while
tests of these folders run, and off while others do: it would slow those down. Each worker leaves a file
`.coverage.alignment.*`, for `coverage combine`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import coverage
import pytest

FOLDERS: Final = {"alignment", "api", "coordinator", "data_files", "monitoring", "reader", "scenarios", "testing"}
_TESTS: Final = Path(__file__).parent

# No subprocess is traced: Spark's planners and workers are some.
_measured: Final = coverage.Coverage(".coverage.alignment", data_suffix=True, config_file=True, source=["alignment"])
_measured.set_option("run:patch", [])
# Its definitions are statements, too; the tests are imported without tracing.
_measured.start()
importlib.import_module("alignment")
for _module in pkgutil.walk_packages([str(_TESTS.parent / "alignment")], "alignment."):
    importlib.import_module(_module.name)
_measured.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Trace a test of the folders; fixtures are set up and torn down under it."""
    if item.path.relative_to(_TESTS).parts[0] not in FOLDERS:
        return (yield)
    _measured.start()
    try:
        return (yield)
    finally:
        _measured.stop()


def pytest_unconfigure() -> None:
    """Leave what was measured."""
    _measured.stop()
    _measured.save()

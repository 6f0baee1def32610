"""No module can be reached from itself by imports, those inside functions and under `TYPE_CHECKING` counted."""

from __future__ import annotations

import pytest

from tests.project.house import circles, graph
from tests.project.test_import_rule import ROOT, Module, modules


def test_there_is_no_import_circle() -> None:
    found = circles(graph(modules(ROOT)))
    assert not found, "\n".join(f"import each other: {', '.join(group)}" for group in found)


@pytest.mark.parametrize(
    "back",
    [
        "from streaming_source.a import x",
        "def f():\n    from streaming_source.a import x",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from streaming_source.a import x",
        "from . import a",
    ],
    ids=["plain", "lazy", "for types", "relative"],
)
def test_a_planted_circle_is_caught(back: str) -> None:
    planted = [
        Module("streaming_source.a", False, "from streaming_source.b import y"),
        Module("streaming_source.b", False, "import streaming_source.c"),
        Module("streaming_source.c", False, back),
    ]
    assert circles(graph(planted)) == [["streaming_source.a", "streaming_source.b", "streaming_source.c"]]

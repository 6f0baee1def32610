"""What the house measures and must stay as it is: `python -m tests.project.house` prints all figures."""

from __future__ import annotations

from tests.project.house import constructor_calls, inits_with_code
from tests.project.test_import_rule import ROOT, Module, modules


def test_an_init_exports_and_defines_nothing_of_its_own() -> None:
    assert not inits_with_code(modules(ROOT))


def test_code_in_an_init_is_found() -> None:
    source = "from a import b\n__all__ = [\n    'b',\n]\n" + "".join(f"x{n} = {n}\n" for n in range(41))
    assert inits_with_code([Module("p", True, source)]) == ["p"]
    assert not inits_with_code([Module("p", True, source.replace("x0 = 0\n", "")), Module("p.m", False, source)])


def test_a_constructor_call_by_position_is_found() -> None:
    assert list(constructor_calls("Plan(1, 2, 3, 4, 5, 6, 7)\n_Row(1, 2)\nplan(1, 2, 3, 4, 5, 6, 7)")) == [(1, "Plan")]


def test_a_constructor_is_given_many_arguments_by_their_names() -> None:
    crowded = [(module.name, *call) for module in modules(ROOT) for call in constructor_calls(module.source)]
    assert not crowded

"""What the house measures and does not get worse: `python -m tests.project.house` prints all figures."""

from __future__ import annotations

from typing import Any

import pytest

from tests.project.house import (
    FEATURES,
    MOST,
    PROCESSES,
    constructor_calls,
    features,
    in_process,
    inits_with_code,
    questions,
    text_functions,
)
from tests.project.test_import_rule import ROOT, Module, modules


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in PROCESSES:
        found |= in_process(name)
    return found


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


def test_a_docstring_begins_with_a_verb_or_a_noun() -> None:
    assert questions(modules(ROOT)) == []
    assert questions([Module("a", False, '"""How it is."""\ndef f(): "Whether it is."\ndef g(): "Return it."')]) == [
        "a:",
        "a:f",
    ]


@pytest.mark.parametrize("name", [name for name in MOST if name.startswith(("modules", "calls"))])
def test_a_process_loads_and_calls_no_more_than_it_did(figures: dict[str, Any], name: str) -> None:
    assert figures[name] <= MOST[name], f"{name}: {figures[name]}; import what few use where it is used"


def test_a_micro_batch_enters_no_feature_that_no_option_sets(figures: dict[str, Any]) -> None:
    assert figures["entered"] == []


def test_a_feature_that_is_entered_is_found() -> None:
    called = ["streaming_source.gateway.server:GatewayServer.start", "alignment.index.blocks:BlockTable.limit_times"]
    assert features(called) == ["gateway", "maxFutureSkew"]
    assert features(["alignment.engine:Engine.plan"]) == []
    assert len(FEATURES) > 12


def test_what_turns_values_into_text_and_back_takes_no_more_lines_than_it_did() -> None:
    found = dict(text_functions(modules(ROOT)))
    assert "alignment.codec:read" in found
    assert "streaming_source.monitoring.report:to_json" in found
    assert sum(lines for _, lines in text_functions(modules(ROOT))) <= MOST["lines to text and back"]

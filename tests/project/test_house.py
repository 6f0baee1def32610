"""What the house measures and does not get worse: `python -m tests.project.house` prints all figures."""

from __future__ import annotations

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


@pytest.mark.parametrize("process", PROCESSES)
def test_a_process_loads_calls_and_enters_no_more_than_it_did(process: str) -> None:
    """A feature that no option sets is entered by none."""
    found = in_process(process)
    figures = {name: figure for name, figure in found.items() if name in MOST}
    assert figures
    above = {name: figure for name, figure in figures.items() if figure > MOST[name]}
    assert not above, f"{found.get('entered', [])}; import what few use where it is used"


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

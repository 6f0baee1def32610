"""docs/architecture.md names modules that there are, and all of them; its walks come to each once."""

from __future__ import annotations

import re

import pytest

from tests.project.test_import_rule import ROOT, modules

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
WALKS = re.findall(r"^- (\*.*?)(?=^- |\Z)", PAGE.split("## Four walks")[1].split("\n## ")[0], re.M | re.S)
QUESTIONS = re.findall(r"^- (\*[^*]+\?\*.*?)(?=^- |^\S|\Z)", PAGE.split("## Four walks")[0], re.M | re.S)
NAMED = ("alignment", *(f"streaming_source.{name}" for name in (
    "api", "checkpoint", "connectors.files", "connectors.kafka", "coordinator", "data_files", "gateway", "monitoring",
    "reader", "spark",
)))  # fmt: skip


def files_in(text: str) -> list[str]:
    return re.findall(r"`((?:\w+/)+\w+\.py)`", text)


def test_every_file_that_the_page_names_exists() -> None:
    missing = [
        name for name in files_in(PAGE) if not any((ROOT / top / name).exists() for top in (".", "streaming_source"))
    ]
    assert files_in(PAGE)
    assert not missing


def test_each_question_is_answered_by_names_of_files() -> None:
    assert len(QUESTIONS) == 11
    assert [question for question in QUESTIONS if not files_in(question)] == []


@pytest.mark.parametrize("walk", WALKS, ids=[walk.split("*")[1].split(",")[0] for walk in WALKS])
def test_a_walk_comes_to_each_module_once(walk: str) -> None:
    walked = files_in(walk)
    assert len(walked) > 5
    assert len(walked) == len(set(walked))


def test_there_are_four_walks() -> None:
    assert len(WALKS) == 4


def test_the_map_of_rooms_names_every_module() -> None:
    words = set(re.findall(r"\w+", PAGE.split("## The rooms")[1].split("```")[1]))
    own = {f"{package}.exceptions" for package in ("alignment", "streaming_source")}
    missing = [
        module.name
        for module in modules(ROOT)
        if module.name.startswith(NAMED) and not module.is_package and module.name not in own
        and not module.name.startswith("streaming_source.spark.formats.")
        and module.name.rpartition(".")[2] not in words
    ]  # fmt: skip
    assert not missing

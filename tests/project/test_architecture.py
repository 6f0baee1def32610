"""docs/architecture.md names modules that there are, and each in its package; its walks come to each once."""

from __future__ import annotations

import re

import pytest

from tests.project.test_import_rule import ROOT, modules

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
ROOMS = PAGE.split("## The rooms")[1].split("```")[1]
WALKS = re.findall(r"^- (\*.*?)(?=^- |\Z)", PAGE.split("## Seven walks")[1].split("\n## ")[0], re.M | re.S)
QUESTIONS = re.findall(r"^- (\*[^*]+\?\*.*?)(?=^- |^\S|\Z)", PAGE.split("## Seven walks")[0], re.M | re.S)


def files_in(text: str) -> list[str]:
    return re.findall(r"`((?:\w+/)+\w+\.py)`", text)


def test_every_file_that_the_page_names_exists() -> None:
    missing = [
        name for name in files_in(PAGE) if not any((ROOT / top / name).exists() for top in (".", "streaming_source"))
    ]
    assert files_in(PAGE)
    assert not missing


def test_each_question_is_answered_by_names_of_files() -> None:
    assert len(QUESTIONS) == 22
    assert [question for question in QUESTIONS if not files_in(question)] == []


@pytest.mark.parametrize("walk", WALKS, ids=[walk.split("*")[1].split(",")[0] for walk in WALKS])
def test_a_walk_comes_to_each_module_once(walk: str) -> None:
    walked = files_in(walk)
    assert len(walked) > 5
    assert len(walked) == len(set(walked))


def test_there_are_seven_walks() -> None:
    assert len(WALKS) == 7


def words_by_package(rooms: str) -> dict[str, set[str]]:
    """The words that the map has of each package: of its line, and of those below it that are further right."""
    found: dict[str, set[str]] = {}
    above: list[tuple[int, str]] = []
    for line in filter(None, rooms.splitlines()):
        depth = len(line) - len(line.lstrip())
        if header := re.match(r"\s*(\w+)/", line):
            above = [(at, name) for at, name in above if at < depth]
            above.append((depth, header[1]))
        for at, _ in above:
            if depth > at or header:
                package = ".".join(name for to, name in above if to <= at)
                found.setdefault(package, set()).update(re.findall(r"\w+", line))
    return found


def missing_on(rooms: str, names: list[str]) -> list[str]:
    """The modules of which the map has no word in their package."""
    words = words_by_package(rooms)
    return [name for name in names if name.rpartition(".")[2] not in words.get(name.rpartition(".")[0], ())]


def test_the_map_of_rooms_names_every_module_in_its_package() -> None:
    assert missing_on(ROOMS, [module.name for module in modules(ROOT) if not module.is_package]) == []


def test_a_module_that_is_not_on_the_map_is_found() -> None:
    rooms = "alignment/  pure\n  engine   plans\n  index/   event times\n    blocks    a table\nother/\n  clocks\n"
    names = ["alignment.engine", "alignment.index.blocks", "alignment.clocks", "other.blocks", "other.clocks"]
    assert missing_on(rooms, names) == ["alignment.clocks", "other.blocks"]

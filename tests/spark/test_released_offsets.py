"""Offsets of each release are read for ever: what was planned is read again, and what follows once."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from streaming_source.exceptions import OffsetError
from streaming_source.spark.offsets import OffsetCodec
from tests.spark.released_offsets import (
    CASES,
    KAFKA,
    RELEASED,
    begin,
    generated,
    put_beside,
    rows_of,
    state_source,
    write_input,
)
from tests.spark.released_offsets import (
    STATES as WRITERS,
)

KEPT = sorted(RELEASED.glob("*/*.json"))
QUERIES = [path for path in KEPT if path.stem in CASES]
STATES = [path for path in KEPT if path.stem not in CASES]


def name_of(path: Path) -> str:
    return f"{path.parent.name}-{path.stem}"


@pytest.mark.parametrize("path", QUERIES, ids=name_of)
def test_a_query_goes_on_from_the_offsets_of_a_release(path: Path, tmp_path: Path) -> None:
    kept = json.loads(path.read_text(encoding="utf-8"))
    folder = tmp_path / "in"
    write_input(folder)
    put_beside(folder, kept.get("beside", {}))
    with begin(path.stem, folder) as reading:
        # A path is part of the digest, and that of the first machine is not here.
        here = {"id": reading.offset["id"]}
        end = {**kept["end"], **here}
        assert rows_of(reading.between({**kept["start"], **here}, end)) == kept["last"]
        reading.offset = end
        rest: list[list[object]] = []
        while (table := reading.next()) is not None:
            rest += rows_of(table)
        assert reading.offset.get("late_log") == end.get("late_log")
    rows = [*kept["before"], *kept["last"], *rest]
    if "rest" in kept:
        assert sorted(rest) == kept["rest"]
        assert len({tuple(row) for row in rows}) == len(rows)
        assert len(rows) == (20 if path.stem in ("delta", "files-late-routed") else 60)
        return
    per_split = 30 if path.stem == "files-directory" else 10 if path.stem.startswith("files") else 20
    assert sorted(rows) == [[split, n] for split in sorted({row[0] for row in rows}) for n in range(per_split)]
    assert len(rows) == (40 if path.stem == "datagen-plain" else 60)


@pytest.mark.parametrize("path", STATES, ids=name_of)
def test_the_offsets_of_a_release_have_the_positions_and_all_that_is_remembered(path: Path, tmp_path: Path) -> None:
    kept = json.loads(path.read_text(encoding="utf-8"))["offsets"]
    codec = OffsetCodec(state_source(path.stem, tmp_path / "in"))
    assert len(kept) > 1
    for offset, positions in kept:
        here = {**offset, "id": codec.source_id}
        state = codec.decode(here)
        assert {split.split_id: split.position for split in state.splits} == positions
        again = codec.encode(state)
        expected = {name: value for name, value in here.items() if name not in ("why", "fixed")}
        if "finished" in again:
            # Since then an offset leaves out what follows from the rest of it.
            finished = [entry for entry in expected["splits"] if entry[2] == "finished" and not any(entry[3:4])]
            left_out = (len(finished), sum(entry[0][1] for entry in finished))
            left = [entry for entry in expected["splits"] if entry not in finished]
            expected |= {"v": 2, "splits": left, "finished": left_out}
        if again["source"] == "aligned_files":
            # What it says is the same in version 2.
            expected |= {"enumerator": [2, expected["enumerator"][1]]}
        assert expected == again


def test_a_generator_of_a_users_own_goes_on_from_the_offsets_of_a_release(tmp_path: Path) -> None:
    kept = json.loads((RELEASED / "0.1.0" / "files-generator.json").read_text(encoding="utf-8"))["offsets"]
    folder = tmp_path / "in"
    write_input(folder)
    harness = generated(folder)
    codec = OffsetCodec(harness.source)
    offset, positions = kept[-1]
    assert offset["generators"]
    harness.state = codec.decode({**offset, "id": codec.source_id})
    harness.restart()
    harness.run()
    read = {split: [position for position, _ in records] for split, records in harness.records().items()}
    assert read == {split: [*range(begun, 30)] for split, begun in positions.items()}
    harness.close()


def test_offsets_are_kept_of_each_source_and_each_way_to_plan() -> None:
    for folder in RELEASED.iterdir():
        assert {path.stem for path in folder.glob("*.json")} >= {*CASES, *WRITERS, "kafka", *KAFKA}


def test_offsets_are_kept_of_each_release_in_the_changelog() -> None:
    changelog = (Path(__file__).resolve().parents[2] / "CHANGELOG.md").read_text(encoding="utf-8")
    released = set(re.findall(r"^## \[(\d+\.\d+\.\d+)\]", changelog, re.MULTILINE))
    assert {folder.name for folder in RELEASED.iterdir()} == released, (
        "run python -m tests.spark.released_offsets kafka"
    )


@pytest.mark.parametrize("what", ["v", "splits_v", "enumerator"])
@pytest.mark.parametrize("path", KEPT, ids=name_of)
def test_an_offset_of_a_newer_release_is_refused_with_the_fix(path: Path, what: str, tmp_path: Path) -> None:
    kept = json.loads(path.read_text(encoding="utf-8"))
    if path in STATES:
        codec = OffsetCodec(state_source(path.stem, tmp_path / "in"))
        offset = kept["offsets"][-1][0]
    else:
        write_input(tmp_path / "in")
        with begin(path.stem, tmp_path / "in") as reading:
            codec = OffsetCodec(reading.reader.source)
        offset = kept["end"]
    offset = {**offset, "id": codec.source_id}
    newer = {"v": 3, "splits_v": 2, "enumerator": [3, offset["enumerator"][1]]}[what]
    with pytest.raises(OffsetError, match=r"version [23], this (library|code) reads up to [12].*upgrade"):
        codec.decode({**offset, what: newer})

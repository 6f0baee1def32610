"""The last micro-batches of queries in a table's log: found by parsing few commits, as one finds them who reads all."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from streaming_source.connectors.delta import DeltaSource, commits
from streaming_source.connectors.tables.commits import NewestMicroBatches
from streaming_source.exceptions import ClaimError
from tests.examples import one_in

QUERIES = ("qa", "qb", "qc")

Log: TypeAlias = list[list[tuple[str, int]] | None]
"""Of each version the micro-batches that wrote it; None for one that restores."""


def write(table: Path, log: Log, first: int = 0) -> None:
    (table / "_delta_log").mkdir(parents=True, exist_ok=True)
    for version, batches in enumerate(log[first:], first):
        actions: list[dict[str, Any]] = [{"commitInfo": {"operation": "RESTORE" if batches is None else "WRITE"}}]
        actions += [{"txn": {"appId": query, "version": number}} for query, number in batches or ()]
        (table / f"_delta_log/{version:020}.json").write_text("\n".join(map(json.dumps, actions)))


def naive(log: Log, queries: Sequence[str]) -> dict[str, tuple[int, int]] | None:
    """The last commit of each query; None where an older version was restored behind one of them."""
    found: dict[str, tuple[int, int]] = {}
    for version, batches in enumerate(log):
        if batches is None and found:
            return None
        for query, number in batches or ():
            if query in queries:
                found.pop(query, None)
                found[query] = number, version
    return dict(reversed(found.items()))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The versions that are read as a whole."""
    versions: list[int] = []
    whole = commits._read

    def counted(filesystem: Any, path: str, size: int | None = None) -> bytes | None:
        if size is None:
            versions.append(int(Path(path).stem))
        return whole(filesystem, path, size)

    monkeypatch.setattr(commits, "_read", counted)
    return versions


def look(table: Path, queries: Sequence[str], known: NewestMicroBatches | None = None) -> NewestMicroBatches:
    return DeltaSource(str(table)).newest_micro_batches(queries, known=known)


@pytest.mark.parametrize("seed", one_in(2, range(20)))
def test_they_are_those_of_all_commits_whatever_an_earlier_look_has_read(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    queries = draw.choice([["qa"], ["qb"], ["qa", "qb"]])
    # Each has committed once, so that Delta's own reader is never asked.
    numbers, log = dict.fromkeys(QUERIES, 0), Log([[(query, 0) for query in QUERIES]])
    write(tmp_path, log)
    known: NewestMicroBatches | None = None
    for _ in range(draw.randrange(1, 12)):
        first = len(log)
        for _ in range(draw.randrange(20)):
            writers = draw.choice([[], ["qa"], ["qb"], ["qc"], ["qa", "qb"]])
            for writer in writers:
                numbers[writer] += 1
            log.append(None if draw.random() < 0.01 else [(writer, numbers[writer]) for writer in writers])
        write(tmp_path, log, first)
        model = naive(log, queries)
        for since in (known, None):
            if model is None:
                with pytest.raises(ClaimError, match="restores an older one"):
                    look(tmp_path, queries, since)
                continue
            found = look(tmp_path, queries, since)
            assert (found.commits, found.last) == (model, len(log) - 1), f"seed {seed}"
            assert [version for _, version in found.commits.values()] == [version for _, version in model.values()]
            known = found


def test_of_a_thousand_commits_that_are_read_one_is_parsed_and_none_is_read_again(
    tmp_path: Path, read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "_LOOKED_BACK", 50)
    log: Log = [[("qa", number)] for number in range(80)]
    write(tmp_path, log)
    known = look(tmp_path, ["qa"])
    assert known.commits == {"qa": (79, 79)}
    assert sorted(read) == [*range(30, 80), 79, 80], "79 is parsed; 80 is not there"
    read.clear()
    log += [[], [("qa", 80)], []]
    write(tmp_path, log, 80)
    known = look(tmp_path, ["qa"], known)
    assert (known.commits, sorted(read)) == ({"qa": (80, 81)}, [80, 81, 81, 82, 83])
    read.clear()
    assert look(tmp_path, ["qa"], known) == known
    assert read == [83]


@pytest.mark.parametrize("last", [3, 5, 9])
def test_a_log_that_was_replaced_is_read_anew(tmp_path: Path, last: int) -> None:
    """As by a table that was dropped and made anew, or a backup: it is not taken for the one that was read."""
    write(tmp_path, [[("qa", number)] for number in range(6)])
    known = look(tmp_path, ["qa"])
    shutil.rmtree(tmp_path)
    write(tmp_path, [[("qc", 7)], *([("qa", number)] for number in range(last))])
    assert look(tmp_path, ["qa"], known).commits == {"qa": (last - 1, last)}

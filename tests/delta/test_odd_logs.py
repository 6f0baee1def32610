"""Logs that Spark reads though no writer should have made them so; tables that are moved, or partitioned anew."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow.parquet as pq
import pytest

from streaming_source.connectors.delta import DeltaSource
from streaming_source.exceptions import DataLossError
from tests.delta.deletion_vectors import delete_rows
from tests.delta.tables import SECOND, append, harness, read_all, rows, times


def log_of(path: Path) -> Path:
    return path / "_delta_log"


def commit_of(path: Path, version: int) -> Path:
    return log_of(path) / f"{version:020}.json"


def edit(path: Path, version: int, change: Callable[[str, dict[str, Any]], None]) -> None:
    """Change the actions of a commit, each by its name."""
    actions = [json.loads(line) for line in commit_of(path, version).read_text().splitlines()]
    for action in actions:
        for name, value in action.items():
            change(name, value)
    commit_of(path, version).write_text("\n".join(map(json.dumps, actions)))


def written(path: Path, count: int = 3, **columns: Any) -> Path:
    """A table with a commit for each of the seconds from 0 on."""
    for second in range(count):
        append(path, [second * SECOND], n=second, **columns)
    return path


def numbers(path: Path, **options: Any) -> list[int]:
    return sorted(read_all(DeltaSource(str(path), **options))["n"].to_pylist())


def seconds(path: Path, **options: Any) -> list[int]:
    """Event times that a stream reads, which is started again after each micro-batch with records."""
    done = harness(path, options, max_rows=1)
    while (batch := done.run_batch()) is not None:
        if batch.all_records:
            done.restart()
    return [time // SECOND for time in times(done)]


# ---- statistics and fields -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stats", ["{bad", "null", "[]", '""', '{"numRecords":"1"}', '{"numRecords":true}'])
def test_statistics_that_are_none_are_passed_over(tmp_path: Path, stats: str) -> None:
    def change(name: str, action: dict[str, Any]) -> None:
        if name == "add":
            action["stats"] = stats

    edit(written(tmp_path), 1, change)

    assert numbers(tmp_path) == seconds(tmp_path) == seconds(tmp_path, starting_version=0) == [0, 1, 2]


def test_a_file_without_values_of_its_partition_has_none(tmp_path: Path) -> None:
    edit(written(tmp_path), 1, lambda name, action: action.pop("partitionValues") if name == "add" else None)

    assert numbers(tmp_path) == seconds(tmp_path) == seconds(tmp_path, starting_version=0) == [0, 1, 2]


# ---- clocks ----------------------------------------------------------------------------------------------------------


def committed_at(ms: int, **others: None) -> Callable[[str, dict[str, Any]], None]:
    return lambda name, action: action.update(timestamp=ms, **others) if name == "commitInfo" else None


def test_a_commit_whose_clock_went_back_is_a_millisecond_after_the_one_before(tmp_path: Path) -> None:
    written(tmp_path, 4)
    for version, ms in enumerate((10_000, 5_000, 10_000, 10_002)):
        edit(tmp_path, version, committed_at(ms))

    at = [seconds(tmp_path, starting_timestamp=f"1970-01-01T00:00:10.00{ms}Z") for ms in range(4)]

    assert at == [[0, 1, 2, 3], [1, 2, 3], [2, 3], [3]]
    assert numbers(tmp_path, timestamp_as_of="1970-01-01T00:00:10.001Z") == [0, 1]


def test_a_time_of_a_commit_that_is_null_is_no_time(tmp_path: Path) -> None:
    written(tmp_path)
    for version in range(3):
        edit(tmp_path, version, committed_at(version * 60_000, inCommitTimestamp=None))

    assert seconds(tmp_path, starting_timestamp="1970-01-01T00:00:30Z") == [1, 2]
    assert numbers(tmp_path, timestamp_as_of="1970-01-01T00:01:00Z") == [0, 1]


# ---- checkpoints of the log ------------------------------------------------------------------------------------------


def of_two_parts(path: Path) -> list[Path]:
    """Let the log have a checkpoint of two parts at version 3, and name it."""
    deltalake.DeltaTable(str(path), version=3).create_checkpoint()
    whole = log_of(path) / f"{3:020}.checkpoint.parquet"
    actions = pq.read_table(whole)
    whole.unlink()
    half, parts = actions.num_rows // 2, []
    for number, part in enumerate((actions.slice(0, half), actions.slice(half)), 1):
        parts.append(log_of(path) / f"{3:020}.checkpoint.{number:010}.{2:010}.parquet")
        pq.write_table(part, parts[-1])
    (log_of(path) / "_last_checkpoint").write_text(f'{{"version":3,"size":{actions.num_rows},"parts":2}}')
    return parts


def lacks_a_part(path: Path) -> None:
    of_two_parts(path)[1].unlink()


def has_a_part_that_is_cut(path: Path) -> None:
    part = of_two_parts(path)[1]
    part.write_bytes(part.read_bytes()[:100])


def names_one_that_never_was(path: Path) -> None:
    (log_of(path) / "_last_checkpoint").write_text('{"version":99,"size":14}')


def names_one_that_is_gone(path: Path) -> None:
    (log_of(path) / "_last_checkpoint").write_text('{"version":4,"size":14}')


BROKEN = [lacks_a_part, has_a_part_that_is_cut, names_one_that_never_was, names_one_that_is_gone]


@pytest.mark.parametrize("damage", BROKEN)
def test_a_checkpoint_that_is_not_whole_is_passed_over_where_the_commits_are_there(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    last = commit_of(written(tmp_path, 7), 6).read_bytes()
    commit_of(tmp_path, 6).unlink()
    done = harness(tmp_path, max_rows=2)
    done.run_batch()
    damage(tmp_path)
    done.restart()
    done.run()
    commit_of(tmp_path, 6).write_bytes(last)
    done.clock.advance("2 minutes")
    done.run()

    assert times(done) == [second * SECOND for second in range(7)]
    assert numbers(tmp_path) == seconds(tmp_path) == [*range(7)]
    assert seconds(tmp_path, starting_version=4) == [4, 5, 6]
    assert numbers(tmp_path, version_as_of=2) == [0, 1, 2]


def test_a_log_that_lacks_both_a_part_and_commits_is_named(tmp_path: Path) -> None:
    lacks_a_part(written(tmp_path, 6))
    commit_of(tmp_path, 0).unlink()

    with pytest.raises(Exception, match=r"cannot be read as a Delta table: .*; restore its log"):
        numbers(tmp_path)


# ---- folders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "decoded"), [("a%20b", "a b"), ("day%3D1", "day=1"), ("100%", None)])
def test_the_name_of_a_folder_is_not_decoded(tmp_path: Path, name: str, decoded: str | None) -> None:
    path = tmp_path / name / "t"
    if decoded is not None:
        append(tmp_path / decoded / "t", [7 * SECOND, 8 * SECOND], n=7)
    plain = written(tmp_path / "plain", 2)
    delete_rows(plain, [0], number=1)
    shutil.copytree(plain, path)

    assert numbers(path) == seconds(path) == [0]
    assert seconds(path, starting_version=0, skip_change_commits=True) == [0, 1]
    assert numbers(path, version_as_of=1) == [0, 1]


def test_a_folder_that_is_deleted_under_a_query_ends_it(tmp_path: Path) -> None:
    path = written(tmp_path / "t")
    done = harness(path)
    done.run()
    shutil.rmtree(path)

    def looks_for_a_minute() -> None:
        for _ in range(61):
            done.clock.advance("1 second")
            done.run()

    with pytest.raises(DataLossError, match=r"Delta table .*/t is not there any more, and version 2 was read: its fol"):
        looks_for_a_minute()


# ---- partitions ------------------------------------------------------------------------------------------------------

ANEW = [([], ["part"]), (["part"], []), (["part"], ["n"]), ([], ["ts"]), (["ts"], [])]


@pytest.mark.parametrize(("before", "after"), ANEW)
def test_files_of_a_table_that_is_partitioned_anew_keep_the_values_of_their_version(
    tmp_path: Path, before: list[str], after: list[str]
) -> None:
    def part(second: int) -> str:
        return f"p{second}"

    def write(second: int, by: list[str], **options: Any) -> None:
        values = rows([second * SECOND], n=second, part=part(second))
        deltalake.write_deltalake(str(tmp_path), values, partition_by=by, **{"mode": "append", **options})

    options = {"skip_change_commits": True, "time_zone": "UTC"}
    for second in range(3):
        write(second, before)
    done = harness(tmp_path, options, max_rows=1)
    done.run_batch()
    write(3, after, mode="overwrite", schema_mode="overwrite")
    write(4, after)
    done.clock.advance("2 seconds")
    done.run_batch()
    done.restart()
    done.run()

    assert times(done) == [second * SECOND for second in (0, 1, 2, 4)]
    for start in ({"starting_version": 0}, {"starting_version": 1}):
        again = harness(tmp_path, {**options, **start})
        again.run()
        assert times(again) == [second * SECOND for second in (*range(start["starting_version"], 3), 4)]
    old = read_all(DeltaSource(str(tmp_path), version_as_of=2, time_zone="UTC")).to_pylist()
    assert sorted((row["n"], row["part"]) for row in old) == [(second, part(second)) for second in range(3)]

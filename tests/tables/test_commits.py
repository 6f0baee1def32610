"""Commits as a lister has them: which micro-batch wrote each, what it added, and whether all of them are known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deltalake
import pytest
from pyiceberg.table import Table

from streaming_source.connectors.delta import DeltaSource
from streaming_source.connectors.iceberg import IcebergSource
from streaming_source.connectors.tables.commits import Commit, CommitKind, MicroBatch
from streaming_source.connectors.tables.lister import TableLister
from streaming_source.exceptions import DataLossError
from tests.delta.tables import append as append_to_delta
from tests.iceberg.commits import compact, expire_as_java
from tests.iceberg.tables import append as append_to_iceberg
from tests.iceberg.tables import create, properties_in
from tests.tables.reading import SECOND, STRATEGY, rows

QUERY = "7be6e1a5-4a63-4a4e-8b66-6ecf1d9a8d5c"


@dataclass
class DeltaTable:
    """A Delta table; its micro-batches are committed as `DeltaSink` commits them: as transactions."""

    folder: Path

    def append(self, times: Sequence[int]) -> None:
        append_to_delta(self.folder / "table", times)

    def commit(self, number: int, times: Sequence[int], *others: tuple[str, int]) -> None:
        batches = [deltalake.Transaction(*one) for one in ((QUERY, number), *others)]
        properties = deltalake.CommitProperties(app_transactions=batches)
        path = str(self.folder / "table")
        if times:
            deltalake.write_deltalake(path, rows(times), mode="append", commit_properties=properties)
        else:
            deltalake.DeltaTable(path).create_write_transaction(
                [], "append", rows([0]).schema, commit_properties=properties
            )

    def compact(self) -> None:
        deltalake.DeltaTable(str(self.folder / "table")).optimize.compact()

    def delete(self) -> None:
        deltalake.DeltaTable(str(self.folder / "table")).delete()

    def expire(self, count: int) -> None:
        deltalake.DeltaTable(str(self.folder / "table")).create_checkpoint()
        for log in sorted((self.folder / "table/_delta_log").glob("*.json"))[:count]:
            log.unlink()

    def lister(self) -> TableLister:
        source = DeltaSource(str(self.folder / "table"))
        return source.open_lister(source.schema(), STRATEGY.timestamp_assigner)


@dataclass
class IcebergTable:
    """An Iceberg table; its micro-batches are committed as Iceberg's sink does: in the summaries of snapshots."""

    folder: Path
    table: Table

    def append(self, times: Sequence[int]) -> None:
        append_to_iceberg(self.table, times)

    def commit(self, number: int, times: Sequence[int]) -> None:
        found = {"spark.sql.streaming.queryId": QUERY, "spark.sql.streaming.epochId": str(number)}
        self.table.refresh().append(rows(times) if times else rows([0]).slice(0, 0), snapshot_properties=found)

    def compact(self) -> None:
        compact(self.table)

    def delete(self) -> None:
        self.table.refresh().delete()

    def expire(self, count: int) -> None:
        expire_as_java(self.table.refresh(), [one.snapshot_id for one in self.table.snapshots()[:count]])

    def lister(self) -> TableLister:
        source = IcebergSource("db.t", catalog=properties_in(self.folder))
        return source.open_lister(source.schema(), STRATEGY.timestamp_assigner)


@pytest.fixture(params=["delta", "iceberg"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> DeltaTable | IcebergTable:
    return DeltaTable(tmp_path) if request.param == "delta" else IcebergTable(tmp_path, create(tmp_path))


def times_of(commit: Commit) -> list[int | None]:
    return [None if low is None else low // SECOND for low in commit.files()["low_us"].to_pylist()]


def test_each_commit_has_the_micro_batch_that_wrote_it_and_its_files(table: DeltaTable | IcebergTable) -> None:
    table.append([1 * SECOND])
    start = table.lister().start().version
    table.commit(7, [2 * SECOND])
    table.commit(8, [])
    table.append([3 * SECOND])
    table.commit(9, [4 * SECOND])

    commits = table.lister().commits(start).whole()

    assert [commit.micro_batches for commit in commits] == [
        (MicroBatch(QUERY, 7),),
        (MicroBatch(QUERY, 8),),
        (),
        (MicroBatch(QUERY, 9),),
    ]
    assert [times_of(commit) for commit in commits] == [[2], [], [3], [4]]
    assert {commit.kind for commit in commits} == {CommitKind.APPEND}
    versions = [commit.version for commit in commits]
    assert [commit.files()["version"].to_pylist() for commit in commits] == [
        [versions[0]],
        [],
        *([n] for n in versions[2:]),
    ]
    # From any of them on, and up to any other one.
    again = table.lister().commits(versions[0], versions[2]).whole()
    assert [commit.version for commit in again] == versions[1:3]
    assert table.lister().commits(versions[-1]).whole() == []


def test_a_rewrite_is_no_data_and_what_removes_rows_is_known_by_its_kind(table: DeltaTable | IcebergTable) -> None:
    for second in (1, 2, 11):
        table.append([second * SECOND])
    start = table.lister().start().version
    table.compact()
    table.append([12 * SECOND])
    table.delete()

    commits = table.lister().commits(start).whole()

    assert [commit.kind for commit in commits] == [CommitKind.REWRITE, CommitKind.APPEND, CommitKind.DELETE]
    assert [commit.is_data for commit in commits] == [False, True, True]
    assert [times_of(commit) for commit in commits[:2]] == [[], [12]]
    # The files that were compacted stay readable for a while.
    assert len(commits[0].expiring_ms()) == 3


def test_commits_that_are_not_known_break_the_chain_and_the_others_are_known(table: DeltaTable | IcebergTable) -> None:
    table.append([0])
    start = table.lister().start().version
    for number in range(1, 5):
        table.commit(number, [number * SECOND])
    newest = table.lister().start().version
    table.expire(3)

    chain = table.lister().commits(start, newest)

    commits, broken = chain.known()
    assert [commit.micro_batches[0].number for commit in commits] == [3, 4]
    assert broken is not None
    with pytest.raises(DataLossError, match="new checkpointLocation") as error:
        chain.whole()
    assert str(error.value) == f"{broken.why}. {broken.fix}"


def test_one_commit_may_be_of_several_micro_batches(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path)
    table.append([0])
    table.commit(3, [1 * SECOND], ("another", 17))

    (commit,) = table.lister().commits(0).whole()

    assert {*commit.micro_batches} == {MicroBatch(QUERY, 3), MicroBatch("another", 17)}


def test_a_transaction_without_other_actions_is_a_commit(tmp_path: Path) -> None:
    """As Delta's sink in Spark writes a micro-batch without rows."""
    table = DeltaTable(tmp_path)
    table.append([0])
    info: dict[str, Any] = {"operation": "STREAMING UPDATE", "operationParameters": {"epochId": "4"}}
    actions = [{"commitInfo": info}, {"txn": {"appId": QUERY, "version": 4, "lastUpdated": 1}}]
    (tmp_path / f"table/_delta_log/{1:020}.json").write_text("\n".join(map(json.dumps, actions)))

    (commit,) = table.lister().commits(0).whole()

    assert (commit.micro_batches, commit.kind, commit.files().num_rows) == (
        (MicroBatch(QUERY, 4),),
        CommitKind.APPEND,
        0,
    )
    assert commit.title.endswith("version 1 (STREAMING UPDATE)")

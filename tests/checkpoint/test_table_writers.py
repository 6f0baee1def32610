"""The writers of a table and their claims: one, several side by side, and one that has replaced another."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from alignment.claims import SinkCommit
from alignment.watermarks import MIN_WATERMARK, Claim
from streaming_source.checkpoint.writer import TableWriters, declared_writers
from streaming_source.exceptions import ClaimError, OptionError
from tests.auditing.naive import Query, write_state
from tests.checkpoint.written import SECOND, WrittenCheckpoint, ours


def query(path: Path, name: str, *watermarks_s: int) -> WrittenCheckpoint:
    written = WrittenCheckpoint(path / name, id=f"id-{name}", window_s=60)
    for batch, watermark_s in enumerate(watermarks_s):
        written.plan(batch, watermark_s * SECOND)
    return written


def commits(*written: tuple[str, int, int]) -> list[SinkCommit]:
    return [SinkCommit(version, [(query, batch)]) for query, batch, version in written]


def test_one_writer_claims_with_each_commit(tmp_path: Path) -> None:
    a = query(tmp_path, "a", 0, 90, 150)
    writers = TableWriters(declared_writers(str(a)))
    assert (writers.claims.until_us, writers.ids, writers.column) == (MIN_WATERMARK, {"id-a"}, "window.end")
    writers.take(commits(("id-a", 0, 1), ("id-a", 1, 2)))
    assert (writers.claims.until_us, writers.claims.known) == (90 * SECOND, (Claim("id-a", 1, 90 * SECOND, 2),))
    writers.take(commits(("another", 7, 3)))
    assert writers.claims.until_us == 90 * SECOND
    again = TableWriters(declared_writers(str(a)), writers.claims.known)
    assert again.claims.until_us == 90 * SECOND, "a restart knows it, whatever Spark has removed"
    again.take(commits(("id-a", 2, 5)))
    assert again.claims.until_us == 150 * SECOND


def test_the_smaller_claim_of_two_counts(tmp_path: Path) -> None:
    a, b = query(tmp_path, "a", 0, 90), query(tmp_path, "b", 60, 70)
    writers = TableWriters(declared_writers(f"{a}, {b}"))
    writers.take(commits(("id-a", 1, 1)))
    assert writers.claims.until_us == MIN_WATERMARK
    writers.take(commits(("id-b", 1, 2)))
    assert writers.claims.until_us == 70 * SECOND


def test_a_writer_that_replaced_another_goes_on_and_the_old_one_is_a_stranger(tmp_path: Path) -> None:
    old, new = query(tmp_path, "old", 0, 90, 200), query(tmp_path, "new", 0, 50, 95)
    writers = TableWriters(declared_writers(f"{old} -> {new}"))
    writers.take(commits(("id-old", 0, 1), ("id-old", 1, 2), ("id-new", 1, 3)))
    assert writers.claims.until_us == 50 * SECOND
    writers.take(commits(("id-old", 2, 4), ("id-new", 2, 5)))
    assert writers.claims.until_us == 95 * SECOND


def test_the_checkpoint_of_a_writer_that_was_replaced_may_be_gone(tmp_path: Path) -> None:
    old, new = query(tmp_path, "old", 0, 90), query(tmp_path, "new", 0, 50)
    before = TableWriters(declared_writers(str(old)))
    before.take(commits(("id-old", 1, 1)))
    shutil.rmtree(old.path)
    with pytest.raises(ClaimError, match="there is no checkpoint"):
        TableWriters(declared_writers(str(old)), before.claims.known)
    writers = TableWriters(declared_writers(f"{old} -> {new}"), before.claims.known)
    writers.take(commits(("id-new", 1, 2)))
    assert writers.claims.until_us == 50 * SECOND


def test_a_query_that_began_anew_under_the_same_path_must_be_named(tmp_path: Path) -> None:
    a = query(tmp_path, "a", 0, 90)
    before = TableWriters(declared_writers(str(a)))
    before.take(commits(("id-a", 1, 1)))
    shutil.rmtree(a.path)
    refreshed = WrittenCheckpoint(tmp_path / "a", id="id-refreshed", window_s=60)
    refreshed.plan(0, 30 * SECOND)
    with pytest.raises(ClaimError, match="started with a new checkpoint is another writer"):
        TableWriters(declared_writers(str(a)), before.claims.known)
    writers = TableWriters(declared_writers(f"{a} -> {a}"), before.claims.known)
    writers.take(commits(("id-refreshed", 0, 2)))
    assert writers.claims.until_us == 30 * SECOND


def test_one_of_two_that_began_anew_must_be_named_though_the_other_has_replaced_one(tmp_path: Path) -> None:
    old, new, c = query(tmp_path, "old", 0, 90), query(tmp_path, "new", 0, 90), query(tmp_path, "c", 0, 80)
    before = TableWriters(declared_writers(f"{old} -> {new}, {c}"))
    before.take(commits(("id-old", 1, 1), ("id-c", 1, 2), ("id-new", 1, 3)))
    shutil.rmtree(c.path)
    WrittenCheckpoint(c.path, id="id-refreshed", window_s=60).plan(0, 30 * SECOND)
    with pytest.raises(ClaimError, match=r"claims of writer id-c, .* started with a new checkpoint"):
        TableWriters(declared_writers(f"{old} -> {new}, {c}"), before.claims.known)
    assert (
        TableWriters(declared_writers(f"{old} -> {new}, {c} -> {c}"), before.claims.known).claims.until_us
        == MIN_WATERMARK
    )


def test_the_smaller_of_two_claims_on_different_columns_is_none_of_the_table(tmp_path: Path) -> None:
    windows, rows = query(tmp_path, "windows", 0, 90), WrittenCheckpoint(tmp_path / "rows", id="id-rows")
    rows.plan(0, 0, ours(120 * SECOND))
    writers = TableWriters(declared_writers([str(windows), str(rows)]))
    writers.take(commits(("id-windows", 1, 1)))
    assert writers.column == "window.end"
    writers.take(commits(("id-rows", 0, 2)))
    with pytest.raises(ClaimError, match=r"claim on ts and window.end, .*name one column"):
        _ = writers.column


def test_what_a_query_does_is_not_read_before_its_first_micro_batch_has_run(tmp_path: Path) -> None:
    a = WrittenCheckpoint(tmp_path / "a", id="id-a")
    a.plan(0, 0, ours(100 * SECOND))
    writers = TableWriters(declared_writers(str(a), "ends", 0))
    # Until the state is there it could have any operator.
    writers.check()
    write_state(a.path, Query(0, 60 * SECOND, 60 * SECOND))
    a.plan(1, 60 * SECOND, ours(100 * SECOND))
    writers.take(commits(("id-a", 1, 2)))
    assert writers.claims.until_us == 60 * SECOND, "by the query's watermark, and not that of its source"


@pytest.mark.parametrize("given", ["", " , ", "a,,b", "a ->", []])
def test_writers_must_be_named(given: str | list[str]) -> None:
    with pytest.raises(OptionError, match="must name the checkpoints"):
        declared_writers(given)


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_writer_that_has_ended_is_named_before_one_that_goes_on(tmp_path: Path, is_gone: bool) -> None:
    a, ended = query(tmp_path, "a", 0, 90, 150), query(tmp_path, "ended", 0, 40)
    before = TableWriters(declared_writers(f"{a}, {ended}"))
    before.take(commits(("id-a", 1, 1), ("id-ended", 1, 2)))
    assert before.claims.until_us == 40 * SECOND
    with pytest.raises(ClaimError, match=r"claims of writer id-ended, .*'ended -> /.*/a', whether or not") as error:
        TableWriters(declared_writers(str(a)), before.claims.known)
    assert "claims of writer id-ended, which watermarkFrom, the writer id-a" in " ".join(str(error.value).split())
    if is_gone:
        shutil.rmtree(ended.path)
    for named in (f"{ended} -> {a}", f"{ended} -> {a}, {a}"):
        writers = TableWriters(declared_writers(named), before.claims.known)
        assert writers.claims.until_us == 90 * SECOND
        writers.take(commits(("id-ended", 2, 3), ("id-a", 2, 4)))
        assert (writers.claims.until_us, len(writers.claims.known)) == (150 * SECOND, 1)
    assert TableWriters(declared_writers(str(a)), writers.claims.known).claims.until_us == 150 * SECOND

"""A table is read by the claims of its writers: exactly, without a bound on disorder and without an idle timeout."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from deltalake import CommitProperties, write_deltalake

from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK
from streaming_source import complete_until
from streaming_source.exceptions import ClaimError, MalformedDataError, OffsetError
from streaming_source.monitoring.report import WatermarkReport
from streaming_source.testing import SourceHarness
from tests.examples import one_in
from tests.tables.claimed_table import SCHEMA, DeltaWriter, reading
from tests.tables.reading import SECOND, times

S = SECOND


def look(done: SourceHarness) -> int:
    """Let a second pass, run what there is, and return the watermark."""
    done.clock.advance("1 second")
    done.run()
    return done.watermark


def late_of(done: SourceHarness) -> dict[str, int]:
    metrics = done.coordinator.host.enumerator.metrics()
    return {name.removeprefix("lateRecordsOf "): count for name, count in metrics.items() if "lateRecordsOf" in name}


def test_the_watermark_is_the_claim_of_the_newest_commit(tmp_path: Path) -> None:
    writer = DeltaWriter.of(tmp_path, "a")
    writer.commit(10 * S, [30 * S, 11 * S])
    done = reading(writer.table, writer.checkpoint)
    assert look(done) == 10 * S, "the snapshot is read, and its claim is that of its last micro-batch"
    writer.commit(40 * S, [12 * S, 90 * S])
    assert look(done) == 40 * S
    writer.commit(55 * S)
    assert look(done) == 55 * S, "a commit without rows moves the watermark"
    writer.commit(MAX_WATERMARK, [60 * S])
    assert look(done) == MAX_WATERMARK, "the last claim of a bounded writer closes the last windows"
    assert times(done) == [11 * S, 12 * S, 30 * S, 60 * S, 90 * S]
    assert late_of(done) == {}
    done.close()


def test_the_writer_is_named_where_its_claim_holds_the_watermark(tmp_path: Path) -> None:
    writer = DeltaWriter.of(tmp_path, "a")
    writer.commit(None, [11 * S])
    done = reading(writer.table, writer.checkpoint, max_rows=1)

    def report() -> WatermarkReport:
        explanation = done.coordinator.explain()
        assert explanation is not None
        found = WatermarkReport("aligned_delta", 1, explanation)
        assert WatermarkReport.from_json(found.to_json()).sentence == found.sentence
        return found

    look(done)
    assert (report().cause, report().explanation.upstream) == ("upstream", str(writer.checkpoint))
    assert "has claimed nothing yet" in report().sentence
    writer.commit(20 * S, [12 * S, 21 * S])
    look(done)
    assert report().cause == "upstream"
    assert f"{writer.checkpoint}, has claimed it to be complete up to there" in report().sentence
    assert "1970-01-01 00:00:20" in report().sentence
    writer.commit(40 * S, [30 * S, 31 * S])
    done.clock.advance("1 second")
    assert done.run_batch() is not None
    assert report().cause != "upstream", "a row that is there and unread holds it"
    look(done)
    assert report().cause == "upstream"
    writer.commit(MAX_WATERMARK)
    look(done)
    assert report().cause == "ended"
    done.close()


def test_what_is_there_and_unread_holds_the_claim(tmp_path: Path) -> None:
    writer = DeltaWriter.of(tmp_path, "a")
    for second in range(10):
        writer.commit(second * 10 * S, [(second * 10 + 1) * S, (second * 10 + 9) * S])
    done = reading(writer.table, writer.checkpoint, max_rows=3)
    while (batch := done.run_batch()) is not None:
        unread = {(s * 10 + r) * S for s in range(10) for r in (1, 9)} - {*times(done)}
        assert batch.watermark < min(unread, default=MAX_WATERMARK)
    assert done.watermark == 90 * S
    assert not done.coordinator.runtime.engine.late.any()
    done.close()


def test_before_a_claim_there_is_no_watermark(tmp_path: Path) -> None:
    writer = DeltaWriter.of(tmp_path, "a")
    writer.commit(None, [5 * S])
    done = reading(writer.table, writer.checkpoint)
    assert look(done) == MIN_WATERMARK
    writer.commit(3 * S)
    assert look(done) == 3 * S
    done.close()


def test_a_restart_knows_the_claims_whatever_spark_has_removed_of_the_checkpoint(tmp_path: Path) -> None:
    writer = DeltaWriter.of(tmp_path, "a", keeps=2)
    writer.commit(10 * S, [11 * S])
    done = reading(writer.table, writer.checkpoint)
    assert look(done) == 10 * S
    for batch in range(5):
        # Offsets of micro-batches that the table has, and that the checkpoint does not keep.
        writer.commit((20 + batch) * S)
    done.restart()
    assert look(done) == 24 * S
    assert [claim.until_us for claim in done.state.checkpoint.claims] == [24 * S]
    for offsets in (writer.checkpoint.path / "offsets").iterdir():
        offsets.rename(offsets.with_name("9999"))
    done.restart()
    assert look(done) == 24 * S
    done.close()


def test_a_micro_batch_is_read_again_as_it_was(tmp_path: Path) -> None:
    writer = DeltaWriter.of(tmp_path, "a")
    writer.commit(10 * S, [20 * S, 11 * S])
    done = reading(writer.table, writer.checkpoint)
    done.run()
    writer.commit(30 * S, [40 * S])
    done.clock.advance("1 second")
    assert done.plan()
    first = done.read()
    writer.commit(50 * S, [60 * S])
    done.restart()
    again = done.read()
    assert sorted(map(str, again.all_records)) == sorted(map(str, first.all_records))
    assert again.watermark == first.watermark == 30 * S
    done.commit(again)
    assert look(done) == 50 * S
    done.close()


def test_a_writer_that_was_killed_between_data_and_commit_log_commits_once(tmp_path: Path) -> None:
    writer = DeltaWriter.of(tmp_path, "a")
    writer.commit(10 * S, [11 * S])
    writer.plan(20 * S)
    writer.write([21 * S])
    done = reading(writer.table, writer.checkpoint)
    assert look(done) == 20 * S
    writer.write([21 * S])
    writer.done()
    writer.commit(30 * S)
    assert look(done) == 30 * S
    assert times(done) == [11 * S, 21 * S]
    done.close()


def test_late_rows_that_the_writer_kept_are_late_here_and_the_numbers_add_up(tmp_path: Path) -> None:
    writer = DeltaWriter.of(tmp_path, "a")
    writer.commit(10 * S, [11 * S])
    done = reading(writer.table, writer.checkpoint)
    look(done)
    writer.commit(40 * S, [9 * S, 10 * S, 45 * S])
    assert look(done) == 40 * S
    writer.commit(50 * S, [40 * S])
    assert look(done) == 50 * S
    assert late_of(done) == {"the writer": 3}
    done.restart()
    look(done)
    assert late_of(done) == {"the writer": 3}
    done.close()


@pytest.mark.parametrize("seed", one_in(3, range(15)))
def test_late_rows_and_those_on_time_are_all_rows_whoever_wrote_them_and_whenever_they_are_read(
    tmp_path: Path, seed: int
) -> None:
    """The naive model: a row is late if it is not after the watermark that was announced before it was listed."""
    draw = random.Random(seed)
    a, b = DeltaWriter.of(tmp_path, "a"), DeltaWriter.of(tmp_path, "b")
    a.commit(0)
    done = reading(a.table, f"{a.checkpoint}, {b.checkpoint}")
    watermarks, late, written = {"a": 0, "b": 0}, Counter[str](), list[int]()
    for _ in range(draw.randrange(3, 9)):
        listed = list[tuple[str, int]]()
        for _ in range(draw.randrange(1, 4)):
            writer = draw.choice([a, b])
            watermarks[writer.name] += draw.randrange(20)
            # Its own late rows are kept, and committed behind its claim.
            rows = [draw.randrange(max(1, watermarks[writer.name] + 30)) for _ in range(draw.randrange(4))]
            writer.commit(watermarks[writer.name] * S, [row * S for row in rows])
            listed += [(writer.name, row * S) for row in rows]
        late.update(name for name, us in listed if us <= done.watermark)
        written += [us for _, us in listed]
        if draw.random() < 0.3:
            done.restart()
        look(done)
    names = {"a": "the writer", "b": "id-b"}
    assert late_of(done) == {names[name]: count for name, count in late.items()}, f"seed {seed}"
    assert times(done) == sorted(written)
    done.close()


def test_a_foreign_append_is_late_where_the_claim_has_passed_and_counted_by_writer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer, other = DeltaWriter.of(tmp_path, "a"), DeltaWriter.of(tmp_path, "other")
    writer.commit(50 * S, [51 * S])
    done = reading(writer.table, writer.checkpoint)
    assert look(done) == 50 * S
    write_deltalake(writer.table, pa.table([[20 * S, 70 * S], ["x", "x"]], SCHEMA), mode="append")
    other.commit(0, [30 * S])
    assert look(done) == 50 * S
    assert late_of(done) == {"another writer": 1, "id-other": 1}
    assert "which watermarkFrom does not name" in caplog.text
    assert (
        "version 1 (WRITE), of a writer that names no micro-batch, which watermarkFrom does not name, adds 1 file "
        in caplog.text
    )
    writer.commit(60 * S)
    assert look(done) == 60 * S, "an unknown writer holds nothing"
    assert times(done) == [20 * S, 30 * S, 51 * S, 70 * S]
    done.close()


def test_foreign_writers_may_be_an_error(tmp_path: Path) -> None:
    writer = DeltaWriter.of(tmp_path, "a")
    writer.commit(50 * S, [51 * S])
    done = reading(writer.table, writer.checkpoint, foreign_writers="fail")
    assert look(done) == 50 * S
    write_deltalake(writer.table, pa.table([[90 * S], ["x"]], SCHEMA), mode="append")
    assert look(done) == 50 * S, "rows after the claim do no harm"
    write_deltalake(writer.table, pa.table([[20 * S], ["x"]], SCHEMA), mode="append")
    with pytest.raises(ClaimError, match="which watermarkFrom does not name") as error:
        look(done)
    assert "foreignWriters = late" in " ".join(str(error.value).split())
    done.close()


@pytest.mark.parametrize("mode", ["late", "fail"])
def test_a_restart_does_not_look_again_at_a_foreign_commit_that_was_before_the_claim(
    tmp_path: Path, mode: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streaming_source.data_files.queued.FILES_OPEN", 2)
    writer = DeltaWriter.of(tmp_path, "a")
    writer.commit(10 * S, [11 * S])
    done = reading(writer.table, writer.checkpoint, max_rows=2, foreign_writers=mode)
    look(done)
    for second in range(20, 26):
        write_deltalake(writer.table, pa.table([[second * S] * 4, ["x"] * 4], SCHEMA), mode="append")
    done.clock.advance("1 second")
    assert done.run_batch() is not None
    writer.commit(100 * S, [101 * S])
    done.clock.advance("1 second")
    assert done.run_batch() is not None
    assert [claim.until_us for claim in done.state.checkpoint.claims] == [100 * S]
    assert done.state.checkpoint.progress.steps, "files of these commits wait, and are listed again"
    done.restart()
    assert look(done) == 100 * S
    assert len(times(done)) == 26
    assert late_of(done) == {}
    assert "adds" not in caplog.text
    write_deltalake(writer.table, pa.table([[90 * S], ["x"]], SCHEMA), mode="append")
    done.restart()
    if mode == "fail":
        with pytest.raises(ClaimError, match="adds 1 file with event times from 1970-01-01T00:01:30"):
            look(done)
    else:
        assert look(done) == 100 * S
        assert late_of(done) == {"another writer": 1}
    done.close()


def test_a_foreign_commit_is_named_once_with_the_number_of_its_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = DeltaWriter.of(tmp_path, "a")
    writer.table.parent.mkdir(exist_ok=True)
    write_deltalake(writer.table, SCHEMA.empty_table(), partition_by=["writer"])
    writer.commit(50 * S, [51 * S])
    done = reading(writer.table, writer.checkpoint)
    look(done)
    write_deltalake(writer.table, pa.table([[21 * S, 20 * S, 70 * S], ["x", "y", "z"]], SCHEMA), mode="append")
    look(done)
    warnings = [record.getMessage() for record in caplog.records if "adds" in record.getMessage()]
    assert len(warnings) == 1
    assert "adds 2 files with event times from 1970-01-01T00:00:20" in warnings[0]
    done.close()


def test_an_overwrite_is_an_error_as_ever_and_a_micro_batch_that_overwrites_claims_nothing(tmp_path: Path) -> None:
    writer = DeltaWriter.of(tmp_path, "a")
    writer.commit(50 * S, [51 * S])
    done = reading(writer.table, writer.checkpoint)
    look(done)
    writer.plan(60 * S)
    writer.write([61 * S], mode="overwrite")
    with pytest.raises(MalformedDataError, match="changes rows that were there before"):
        look(done)
    done.close()
    skips = reading(writer.table, writer.checkpoint, skip_change_commits=True, starting_version=1)
    with pytest.raises(ClaimError, match="output mode complete"):
        look(skips)
    skips.close()
    with pytest.raises(ClaimError, match=r"version 1 \(WRITE\): no claim can be had .* output mode complete"):
        complete_until(str(writer.table), str(writer.checkpoint))


def test_output_mode_complete_claims_nothing_before_its_first_overwrite_either(tmp_path: Path) -> None:
    """There were no rows before: the commit adds files alone, and the next one will remove them."""
    writer = DeltaWriter.of(tmp_path, "a")
    write_deltalake(writer.table, SCHEMA.empty_table())
    done = reading(writer.table, writer.checkpoint)
    look(done)
    writer.plan(60 * S)
    writer.write([61 * S], mode="overwrite")
    for read in (lambda: look(done), lambda: complete_until(str(writer.table), str(writer.checkpoint))):
        with pytest.raises(ClaimError, match="overwrites the rows that were there, as output mode complete does"):
            read()
    log = writer.table / f"_delta_log/{1:020d}.json"
    by_spark = log.read_text().replace('"mode":"Overwrite"', '"outputMode":"Complete","queryId":"id-a","epochId":"0"')
    log.write_text(by_spark.replace('"operation":"WRITE"', '"operation":"STREAMING UPDATE"'))
    with pytest.raises(ClaimError, match=r"version 1 \(STREAMING UPDATE\): no claim can be had .*mode complete"):
        look(reading(writer.table, writer.checkpoint, starting_version=0))
    with pytest.raises(ClaimError, match=r"version 1 \(STREAMING UPDATE\): no claim can be had .*mode complete"):
        complete_until(str(writer.table), str(writer.checkpoint))
    done.close()


def test_compaction_claims_nothing_and_loses_no_claim(tmp_path: Path) -> None:
    writer = DeltaWriter.of(tmp_path, "a")
    for second in range(4):
        writer.commit(second * 10 * S, [(second * 10 + 1) * S])
    done = reading(writer.table, writer.checkpoint)
    assert look(done) == 30 * S
    deltalake.DeltaTable(writer.table).optimize.compact()
    assert look(done) == 30 * S
    writer.commit(40 * S, [41 * S])
    deltalake.DeltaTable(writer.table).optimize.z_order(["ts"])
    assert look(done) == 40 * S
    fresh = reading(writer.table, writer.checkpoint)
    assert look(fresh) == 40 * S
    assert times(fresh) == times(done) == [1 * S, 11 * S, 21 * S, 31 * S, 41 * S]
    for one in (done, fresh):
        one.close()


def test_a_table_that_was_restored_is_an_error_as_ever(tmp_path: Path) -> None:
    writer = DeltaWriter.of(tmp_path, "a")
    writer.commit(10 * S, [11 * S])
    writer.commit(20 * S, [21 * S])
    done = reading(writer.table, writer.checkpoint)
    look(done)
    deltalake.DeltaTable(writer.table).restore(0)
    with pytest.raises(MalformedDataError, match="RESTORE"):
        look(done)
    with pytest.raises(ClaimError, match=r"version 2 \(RESTORE\), restores an older one"):
        complete_until(str(writer.table), str(writer.checkpoint))
    done.close()


@pytest.mark.parametrize("log", ["all", "checkpoint"])
def test_rows_of_a_writer_that_a_restore_removed_are_an_error_also_once_it_has_committed_again(
    tmp_path: Path, log: str
) -> None:
    writer = DeltaWriter.of(tmp_path, "a")
    writer.commit(10 * S, [11 * S])
    writer.commit(20 * S, [21 * S])
    done = reading(writer.table, writer.checkpoint, skip_change_commits=True)
    assert look(done) == 20 * S
    if log == "checkpoint":
        deltalake.DeltaTable(writer.table).create_checkpoint()
    deltalake.DeltaTable(writer.table).restore(0)
    if log == "checkpoint":
        for version in (0, 1):
            (writer.table / f"_delta_log/{version:020d}.json").unlink()
    else:
        writer.commit(40 * S, [41 * S])
    gone = "version 2 .*restores an older one: rows of the writer id-a"
    with pytest.raises(ClaimError, match=gone):
        look(done)
    with pytest.raises(ClaimError, match=gone):
        complete_until(str(writer.table), str(writer.checkpoint))
    with pytest.raises(ClaimError, match=gone):
        look(reading(writer.table, writer.checkpoint))
    new = DeltaWriter.of(tmp_path, "new")
    new.commit(50 * S, [51 * S])
    assert complete_until(str(writer.table), str(new.checkpoint)).until_us == 50 * S, "it lost no rows"
    done.close()


def test_two_writers_are_as_far_as_the_one_that_is_less_far(tmp_path: Path) -> None:
    a, b = DeltaWriter.of(tmp_path, "a"), DeltaWriter.of(tmp_path, "b")
    a.commit(50 * S, [51 * S])
    done = reading(a.table, f"{a.checkpoint}, {b.checkpoint}")
    assert look(done) == MIN_WATERMARK
    b.commit(20 * S, [21 * S])
    assert look(done) == 20 * S
    b.commit(70 * S)
    assert look(done) == 50 * S
    a.commit(MAX_WATERMARK)
    assert look(done) == 70 * S
    b.commit(90 * S, [60 * S])
    assert look(done) == 90 * S
    assert late_of(done) == {"id-b": 1}
    done.close()


def test_a_writer_that_was_replaced_keeps_its_claim_and_is_a_stranger_when_it_comes_back(tmp_path: Path) -> None:
    old, new = DeltaWriter.of(tmp_path, "old"), DeltaWriter.of(tmp_path, "new")
    old.commit(50 * S, [51 * S])
    done = reading(old.table, old.checkpoint)
    assert look(done) == 50 * S
    done.close()
    new.commit(10 * S, [52 * S])
    changed = reading(old.table, f"{old.checkpoint} -> {new.checkpoint}")
    changed.state = done.state
    changed.restart()
    assert look(changed) == 50 * S, "the watermark never goes back"
    new.commit(60 * S)
    assert look(changed) == 60 * S
    old.commit(99 * S, [55 * S])
    assert look(changed) == 60 * S, "a zombie claims nothing"
    assert late_of(changed) == {"id-old": 1}
    changed.close()


@pytest.mark.parametrize("is_listed_at_once", [True, False])
def test_a_zombie_fails_the_query_whether_or_not_it_is_listed_with_its_successor(
    tmp_path: Path, is_listed_at_once: bool
) -> None:
    old, new = DeltaWriter.of(tmp_path, "old"), DeltaWriter.of(tmp_path, "new")
    old.commit(50 * S, [51 * S])
    new.plan(0)
    done = reading(old.table, f"{old.checkpoint} -> {new.checkpoint}", foreign_writers="fail")
    look(done)
    new.write([52 * S])
    new.commit(60 * S)
    if not is_listed_at_once:
        assert look(done) == 60 * S
    old.commit(70 * S, [55 * S])
    with pytest.raises(ClaimError, match="of the writer id-old, which has been replaced in watermarkFrom, adds 1 file"):
        look(done)
    done.close()


def test_a_writer_that_has_ended_is_taken_out(tmp_path: Path) -> None:
    a, ended = DeltaWriter.of(tmp_path, "a"), DeltaWriter.of(tmp_path, "ended")
    a.commit(50 * S, [51 * S])
    ended.commit(20 * S, [21 * S])
    done = reading(a.table, f"{a.checkpoint}, {ended.checkpoint}")
    assert look(done) == 20 * S
    done.close()
    for named in (a.checkpoint, f"{ended.checkpoint} -> {a.checkpoint}"):
        changed = reading(a.table, named)
        changed.state = done.state
        changed.restart()
        if named is a.checkpoint:
            with pytest.raises(ClaimError, match="claims of writer id-ended"):
                look(changed)
        else:
            assert look(changed) == 50 * S
            a.commit(70 * S, [60 * S])
            changed.restart()
            assert look(changed) == 70 * S
        changed.close()


def test_an_offset_has_the_writers_of_open_files_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many versions have files that wait: they are listed again after a restart."""
    monkeypatch.setattr("streaming_source.data_files.queued.FILES_OPEN", 2)
    a, b = DeltaWriter.of(tmp_path, "a"), DeltaWriter.of(tmp_path, "b")
    a.commit(0)
    done = reading(a.table, f"{a.checkpoint}, {b.checkpoint}", max_rows=4)
    look(done)
    b.commit(90 * S)
    a.commit(90 * S)
    look(done)
    for number in range(12):
        # Behind the claim: all of them are late.
        (b if number % 2 else a).commit(90 * S, [(60 + number) * S] * 4)
    done.clock.advance("1 second")
    sizes = []
    while done.run_batch() is not None:
        checkpoint = done.state.checkpoint
        sizes.append(len(checkpoint.writers))
        assert {*checkpoint.writers} <= {split.file.version for split in done.state.splits}
        if len(sizes) == 2:
            done.restart()
    assert len(sizes) > 4
    assert max(sizes) <= 2
    assert late_of(done) == {"the writer": 24, "id-b": 24}
    done.close()


def test_a_table_that_was_dropped_and_made_anew_is_another_one(tmp_path: Path) -> None:
    writer, copy = DeltaWriter.of(tmp_path, "a"), DeltaWriter.of(tmp_path, "b", "copy")
    writer.commit(10 * S, [11 * S])
    copy.commit(10 * S, [11 * S])
    done = reading(writer.table, writer.checkpoint)
    look(done)
    other = reading(copy.table, writer.checkpoint)
    other.state = done.state
    other.restart()
    with pytest.raises(OffsetError, match="it was dropped and made anew"):
        look(other)
    for one in (done, other):
        one.close()


def test_a_commit_that_the_checkpoint_does_not_know_is_an_error_and_no_guess(tmp_path: Path) -> None:
    writer = DeltaWriter.of(tmp_path, "a")
    writer.commit(10 * S, [11 * S])
    done = reading(writer.table, writer.checkpoint)
    look(done)
    writer.batch += 1
    writer.write([20 * S])
    with pytest.raises(ClaimError, match="asyncProgressTrackingEnabled"):
        look(done)
    done.close()


def test_properties_without_a_transaction_are_of_another_writer(tmp_path: Path) -> None:
    writer = DeltaWriter.of(tmp_path, "a")
    writer.commit(10 * S, [11 * S])
    done = reading(writer.table, writer.checkpoint)
    look(done)
    properties = CommitProperties(custom_metadata={"by": "hand"})
    write_deltalake(writer.table, pa.table([[5 * S], ["x"]], SCHEMA), mode="append", commit_properties=properties)
    assert look(done) == 10 * S
    assert late_of(done) == {"another writer": 1}
    done.close()


def test_complete_answers_as_the_source_that_reads_the_table(tmp_path: Path) -> None:
    a, b = DeltaWriter.of(tmp_path, "a"), DeltaWriter.of(tmp_path, "b")
    a.commit(50 * S, [51 * S])
    b.commit(20 * S, [21 * S])
    a.commit(60 * S)
    found = complete_until(str(a.table), [str(a.checkpoint), str(b.checkpoint)])
    assert (found.until_us, found.version, found.column) == (20 * S, 2, "ts")
    assert [(one.batch, one.version, one.until_us) for one in found.writers] == [(1, 2, 60 * S), (0, 1, 20 * S)]
    assert complete_until(str(a.table), str(a.checkpoint)).until_us == 60 * S
    deltalake.DeltaTable(a.table).create_checkpoint()
    for log in (a.table / "_delta_log").glob("*.json"):
        log.unlink()
    found = complete_until(str(a.table), str(b.checkpoint))
    assert (found.until_us, found.writers[0].batch) == (20 * S, 0), "its transaction is in the checkpoint of the log"


def test_a_writer_that_has_committed_nothing_here_claims_nothing(tmp_path: Path) -> None:
    a, b = DeltaWriter.of(tmp_path, "a"), DeltaWriter.of(tmp_path, "b", "elsewhere")
    a.commit(50 * S, [51 * S])
    b.commit(20 * S, [21 * S])
    found = complete_until(str(a.table), [str(a.checkpoint), str(b.checkpoint)])
    assert found.until_us is None
    assert found.holder.why == "it has committed nothing to this table"

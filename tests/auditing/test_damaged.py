"""Checkpoints that are damaged, of another kind, or incomplete: one line that says what to do, or what is unknown."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import streaming_source
from streaming_source.exceptions import CheckpointError, OptionError
from streaming_source.tools.cli.main import app
from tests.auditing import naive
from tests.auditing.naive import SECOND, Query, Run, Time

MINUTE = 60 * SECOND
QUERY = Query(5_000, MINUTE, MINUTE)
Break = Callable[[Path], object]


def batches(count: int = 12) -> list[list[tuple[str, list[Time]]]]:
    """A slow directory and a fast one in turn."""
    found: list[list[tuple[str, list[Time]]]] = []
    for part in range(count):
        name, step = ("fast", 8) if part % 2 else ("slow", 1)
        begin = naive.T0 + part // 2 * 60 * step * SECOND
        found.append([(f"{name}/{part}.parquet", [begin + i * step * SECOND for i in range(60)])])
    return found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A query over twelve files, in `in`, whose checkpoint is in `checkpoint`."""
    write(tmp_path)
    return tmp_path


def write(root: Path) -> Run:
    done = naive.run(QUERY, batches())
    naive.write_files(root / "in", batches())
    naive.write_checkpoint(root / "checkpoint", root / "in", QUERY, done)
    return done


def emptied(name: str) -> Break:
    return lambda checkpoint: (checkpoint / name).write_text("")


def removed(*names: str) -> Break:
    return lambda checkpoint: [(checkpoint / name).unlink() for name in names]


def replaced(name: str, old: str, new: str) -> Break:
    def change(checkpoint: Path) -> None:
        for path in checkpoint.glob(name):
            path.write_text(path.read_text().replace(old, new))

    return change


def without(name: str) -> Break:
    return lambda checkpoint: shutil.rmtree(checkpoint / name)


def offsets_of(text: str) -> Break:
    """Of another kind of source."""

    def change(checkpoint: Path) -> None:
        for path in (checkpoint / "offsets").iterdir():
            version, metadata, _ = path.read_text().splitlines()
            path.write_text(f"{version}\n{metadata}\n{text}")

    return change


OURS = json.dumps({"v": 1, "source": "files", "id": "x", "n": 1, "splits": {}})
DAMAGED: dict[str, tuple[Break, str]] = {
    "no offset log": (without("offsets"), r"give the checkpointLocation .* was deleted, and .* anew with it$"),
    "no commit log": (
        without("commits"),
        r"micro-batch 1 is not in `commits`, and later ones were planned.*restore it",
    ),
    "the last commits": (removed("commits/10", "commits/11"), r"micro-batch 10 is not in `commits`.*; restore it"),
    "a commit": (removed("commits/4"), r"micro-batch 4 is not in `commits`, .*; restore it"),
    "the last offsets": (removed("offsets/11"), r"the offsets of micro-batch 11, .*, are missing; restore it"),
    "nothing committed": (
        lambda checkpoint: [
            without("commits")(checkpoint),
            *(removed(f"offsets/{n}")(checkpoint) for n in range(1, 12)),
        ],
        r"has no committed micro-batch.*wait until the query has written one$",
    ),
    "a broken commit": (emptied("commits/4"), r"commits/4 is empty; restore it"),
    "a later commit log": (replaced("commits/*", "v1", "v4"), r"of version 'v4', and v1, v2 and v3 are read; upgrade"),
    "cut in the middle": (
        replaced("offsets/5", "batchWatermarkMs", "batchW"),
        r"offsets/5 is damaged .*; restore it from",
    ),
    "an empty entry": (emptied("offsets/5"), r"offsets/5 is empty; restore it from a copy"),
    "a later version": (replaced("offsets/*", "v1", "v9"), r"is of version 'v9', and v1 and v2 are read; upgrade"),
    "a gap": (removed("offsets/5"), r"the offsets of micro-batch 5 are missing; restore it"),
    "no list of files": (without("sources"), r"sources/0, the log of the files that were read, is missing; restore it"),
    "a gap in the list of files": (removed("sources/0/10"), r"sources/0/10 is missing; restore it"),
    "a broken list of files": (replaced("sources/0/11", "path", "p"), r"sources/0/11 is damaged .*; restore it"),
    "state of Spark 3": (
        without("state/0/_metadata"),
        r"no metadata of its operator.*run one micro-batch .* with Spark 4$",
    ),
    "no operator": (without("state/0"), r"state/0, of an operator, is missing; restore it"),
    "no schema": (removed("state/0/0/_metadata/schema"), r"_metadata/schema, of operator stateStoreSave, is missing"),
    "a broken id": (emptied("metadata"), r"checkpoint/metadata is damaged .*; restore it"),
    "a broken operator": (
        replaced("state/0/_metadata/metadata", "operatorInfo", "x"),
        r"metadata is damaged .*; restore it",
    ),
    "a cut schema": (emptied("state/0/0/_metadata/schema"), r"_metadata/schema is damaged .*; restore it"),
    "two queries": (
        replaced("offsets/7", '"batchWatermarkMs": 17', '"batchWatermarkMs": 10'),
        r"goes back .*; restore it",
    ),
    "a rate source": (
        offsets_of("42"),
        r"source 0 has offsets such as 42, .*; files, Delta, Iceberg and Kafka are audited$",
    ),
    "ours": (offsets_of(OURS), r"is of this library, .*; use streaming-source explain "),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_what_is_wrong_with_a_checkpoint_is_said_in_one_line(root: Path, what: str) -> None:
    change, message = DAMAGED[what]
    change(root / "checkpoint")
    with pytest.raises(CheckpointError, match=message):
        streaming_source.audit(str(root / "checkpoint"), window="1 minute", mode="append")
    done = CliRunner().invoke(app, ["audit", str(root / "checkpoint"), "--window", "1 minute", "--mode", "append"])
    assert done.exit_code == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith("error: ")


def test_whichever_file_is_lost_no_count_is_wrong(root: Path) -> None:
    """It is an error, all is unknown, or what is known is as it was."""
    checkpoint = root / "checkpoint"
    before = streaming_source.audit(str(checkpoint), window="1 minute", mode="append")
    exact = {row["batch"]: row["dropped"] for row in before.batches.to_pylist()}
    seen = Counter[str]()
    for path in sorted(path for path in checkpoint.rglob("*") if path.is_file()):
        kept = path.read_bytes()
        path.unlink()
        try:
            found = streaming_source.audit(str(checkpoint), window="1 minute", mode="append")
        except CheckpointError:
            seen["refused"] += 1
        else:
            known = {row["batch"]: row["dropped"] for row in found.batches.to_pylist()}
            assert found.query.undecided is not None or known.items() <= exact.items(), path
            assert found.read - found.unknown <= before.read
            seen["unknown" if found.query.undecided else "counted"] += 1
        path.write_bytes(kept)
    # The first offsets look removed by Spark, and a micro-batch without the last commit not done: so they are counted.
    assert seen == {"refused": 26, "counted": 4}


def test_without_the_folder_of_the_state_all_is_unknown(root: Path) -> None:
    shutil.rmtree(root / "checkpoint/state")
    found = streaming_source.audit(str(root / "checkpoint"))
    assert (found.read, found.unknown) == (720, 720)
    assert "its checkpoint has no state; either it has no stateful operator, and dropped none, or" in str(found)
    done = CliRunner().invoke(app, ["audit", str(root / "checkpoint")])
    assert "No row was dropped" not in done.stdout


def test_a_stream_that_is_united_or_joined_with_itself_has_one_folder_and_nothing_is_missing(root: Path) -> None:
    once = streaming_source.audit(str(root / "checkpoint"), window="1 minute", mode="append")
    for path in (root / "checkpoint/offsets").iterdir():
        *others, offset = path.read_text().splitlines()
        path.write_text("\n".join([*others, offset, offset]))

    found = streaming_source.audit(str(root / "checkpoint"), window="1 minute", mode="append")

    assert found.dropped > 0
    for name in ("read", "dropped", "emitted", "open", "unknown"):
        assert found.count(name) == 2 * once.count(name), name
    (note,) = found.notes
    assert note.startswith("Sources 0 and 1 are one stream, which the query joins or unites with itself")
    # Two directories of which each had one file a micro-batch have the same offsets.
    assert note.endswith(
        "If they are several directories, then sources/1 of the checkpoint is lost, and these counts are of source 0 "
        "alone, once for each."
    )


def test_a_micro_batch_that_is_planned_and_not_committed_is_in_no_count(root: Path) -> None:
    before = streaming_source.audit(str(root / "checkpoint"), window="1 minute", mode="append")
    (root / "checkpoint/commits/11").unlink()
    found = streaming_source.audit(str(root / "checkpoint"), window="1 minute", mode="append")
    assert found.read == before.read - 60
    assert found.batches["batch"].to_pylist()[-1] == 10


def test_what_ran_before_the_offsets_that_spark_keeps_is_unknown(root: Path) -> None:
    before = streaming_source.audit(str(root / "checkpoint"), window="1 minute", mode="append")
    for number in range(4):
        (root / f"checkpoint/offsets/{number}").unlink()
        (root / f"checkpoint/commits/{number}").unlink()
    found = streaming_source.audit(str(root / "checkpoint"), window="1 minute", mode="append")
    # The watermark that micro-batch 4 drops by is that of the one before, which is gone.
    assert found.exact_from == 5
    assert (found.read, found.unknown) == (before.read, 5 * 60)
    exact = {row["batch"]: row["dropped"] for row in before.batches.to_pylist()}
    assert {row["batch"]: row["dropped"] for row in found.batches.to_pylist()} == {n: exact[n] for n in range(5, 12)}
    assert (
        "Spark has removed the offsets of the micro-batches before 5: what they dropped is unknown (300 rows)."
        in str(found)
    )


def test_a_file_that_was_deleted_is_in_no_count_and_named(root: Path) -> None:
    (root / "in/slow/4.parquet").unlink()
    found = streaming_source.audit(str(root / "checkpoint"), window="1 minute", mode="append")
    assert found.read == 11 * 60
    assert "Not all can be seen any more, and its rows are in no count: slow/4.parquet:" in str(found)
    assert found.notes == ()


def test_files_are_found_where_they_were_moved_or_archived(root: Path) -> None:
    before = streaming_source.audit(str(root / "checkpoint"), window="1 minute", mode="append")
    archive = root / "archive"
    place = archive / str(root / "in").strip("/") / "slow"
    place.mkdir(parents=True)
    for path in (root / "in/slow").iterdir():
        path.rename(place / path.name)
    options = {"sourceArchiveDir": str(archive)}
    archived = streaming_source.audit(str(root / "checkpoint"), window="1 minute", mode="append", options=options)
    for path in place.iterdir():
        path.rename(root / "in/slow" / path.name)
    (root / "in").rename(root / "elsewhere")
    moved = streaming_source.audit(
        str(root / "checkpoint"), window="1 minute", mode="append", source=str(root / "elsewhere")
    )
    assert archived.splits() == moved.splits() == before.splits()
    with pytest.raises(
        streaming_source.exceptions.DataLossError, match=r"none of the 12 files .*, give the directory with --source"
    ):
        streaming_source.audit(str(root / "checkpoint"), window="1 minute", mode="append")


def test_a_wrong_event_time_is_seen_by_the_watermarks(root: Path) -> None:
    found = streaming_source.audit(
        str(root / "checkpoint"), window="1 minute", mode="append", time="ts", options={"timeZone": "Europe/Berlin"}
    )
    assert found.notes == ()
    for path in (root / "checkpoint/commits").iterdir():
        path.write_text(path.read_text().replace("17000", "17001"))
    found = streaming_source.audit(str(root / "checkpoint"), window="1 minute", mode="append")
    assert "from micro-batch 0 on the event times do not lead to the watermarks" in str(found.query.undecided)
    assert (found.dropped, found.emitted, found.open, found.unknown) == (0, 0, 0, found.read)
    assert str(found).startswith("What was dropped is unknown of all 720 rows: from micro-batch 0 on")
    assert "0.0%" not in str(found)


def test_what_the_checkpoint_does_not_keep_is_asked_for(root: Path) -> None:
    checkpoint = str(root / "checkpoint")
    with pytest.raises(OptionError, match=r"and not the size .*; give it with --window, as in --window \"1 hour\""):
        streaming_source.audit(checkpoint, mode="append")
    with pytest.raises(OptionError, match=r"time = 'when': the files have no such column, they have ts; name one"):
        streaming_source.audit(checkpoint, window="1 minute", mode="append", time="when")
    with pytest.raises(OptionError, match=r"mode = 'apend': must be the query's output mode: append, update, complete"):
        streaming_source.audit(checkpoint, window="1 minute", mode="apend")
    with pytest.raises(OptionError, match=r"the slide must be positive and at most the size; correct it"):
        streaming_source.audit(checkpoint, window="1 minute, 2 minutes", mode="append")
    with pytest.raises(OptionError, match=r"time is given 2 times, and the query has 1 sources: give one for each"):
        streaming_source.audit(checkpoint, window="1 minute", mode="append", time=["ts", "ts"])


def test_nothing_is_written_to_the_checkpoint(root: Path) -> None:
    def state() -> dict[str, tuple[int, int]]:
        return {str(p): (p.stat().st_mtime_ns, p.stat().st_size) for p in (root / "checkpoint").rglob("*")}

    before = state()
    done = CliRunner().invoke(
        app, ["audit", str(root / "checkpoint"), "--window", "1 minute", "--mode", "append", "--json"]
    )
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert list(found)[:5] == ["read", "dropped", "emitted", "open", "unknown"]
    assert found["dropped"] + found["emitted"] + found["open"] + found["unknown"] == found["read"] == 720
    assert found["carriers"][0]["split"].startswith("fast/")
    assert state() == before


@pytest.mark.parametrize("content", [b"", b"LZ4Block", b"\x28\xb5\x2f\xfd" * 20])
def test_windows_are_asked_for_where_the_state_cannot_be_read(root: Path, content: bytes) -> None:
    (root / "checkpoint/state/0/0/1.delta").write_bytes(content)
    with pytest.raises(OptionError, match=r"and not the size .*; give it with --window"):
        streaming_source.audit(str(root / "checkpoint"), mode="append")


@pytest.mark.parametrize("content", [None, b"LZ4Block"])
def test_the_mode_is_required_where_the_state_does_not_show_it(root: Path, content: bytes | None) -> None:
    if content is not None:
        (root / "checkpoint/state/0/0/1.delta").write_bytes(content)
    done = CliRunner().invoke(app, ["audit", str(root / "checkpoint"), "--window", "1 minute"])
    assert done.exit_code == 2
    assert "give it with --mode append, update or complete" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1

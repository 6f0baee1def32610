"""An audit of a query over a Delta table: the table's snapshot, what later versions added, and what is gone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import streaming_source
from streaming_source.auditing import Audit
from streaming_source.exceptions import OptionError, PathNotFoundError
from tests.auditing import naive
from tests.auditing.naive import SECOND, Query, Time
from tests.delta.deletion_vectors import delete_rows
from tests.delta.spark_delta import jars_of_delta
from tests.delta.test_refused import shallow_clone
from tests.kafka.artifacts import ArtifactsMissingError

HOUR = 3600 * SECOND
QUERY = Query(3_600_000, HOUR, HOUR)


def device_times(device: int, part: int, rows: int = 100) -> list[Time]:
    """A device's export: one after another, each over the same months."""
    return [naive.T0 + ((part * rows + i) * 5_250 + device) * SECOND + 123_456 for i in range(rows)]


def append(
    table: Path, device: int, parts: int = 3, configuration: Mapping[str, str | None] | None = None
) -> list[list[Time]]:
    """A version a part."""
    times = [device_times(device, part) for part in range(parts)]
    for part in times:
        rows = {"ts": pa.array(part, pa.timestamp("us", "UTC")), "device": pa.array([device] * len(part), pa.int32())}
        deltalake.write_deltalake(str(table), pa.table(rows), mode="append", configuration=configuration)
    return times


def offset(table_id: str, version: int, index: int, *, snapshot: bool) -> str:
    found = {"sourceVersion": 1, "reservoirId": table_id, "reservoirVersion": version, "index": index}
    return json.dumps({**found, "isStartingVersion": snapshot})


def write_checkpoint(path: Path, done: naive.Run, offsets: Sequence[str]) -> None:
    """As Spark leaves it over one Delta table."""
    for folder in ("offsets", "commits"):
        (path / folder).mkdir(parents=True)
    for number, text in enumerate(offsets):
        meta = {"batchWatermarkMs": done.watermarks_ms[number], "batchTimestampMs": 1, "conf": {}}
        (path / f"offsets/{number}").write_text("\n".join(["v1", json.dumps(meta), text]))
        (path / f"commits/{number}").write_text("v1\n" + json.dumps({"nextBatchWatermarkMs": done.next_ms[number]}))
    naive.write_state(path, QUERY)


@pytest.fixture
def audited_table(tmp_path: Path) -> tuple[Path, naive.Run]:
    """Two devices in the snapshot, read two files a micro-batch; a third in later versions, after a compaction."""
    return write_query(tmp_path)


def write_query(tmp_path: Path, configuration: Mapping[str, str | None] | None = None) -> tuple[Path, naive.Run]:
    table = tmp_path / "table"
    snapshot = [*append(table, 0, configuration=configuration), *append(table, 1)]
    opened = deltalake.DeltaTable(str(table))
    table_id, version = str(opened.metadata().id), opened.version()
    # A table with column mapping cannot be compacted by this writer.
    compactions = 0 if configuration else len([opened.optimize.compact()])
    later = append(table, 2)
    parts = [*snapshot[:2], *snapshot[2:4], *snapshot[4:], *later]
    names = [f"{i}" for i in range(len(parts))]
    files = list(zip(names, parts, strict=True))
    batches = [files[0:2], files[2:4], files[4:6], files[6:7], files[7:9], []]
    done = naive.run(QUERY, batches)
    offsets = [
        offset(table_id, version, 1, snapshot=True),
        offset(table_id, version, 3, snapshot=True),
        # The last files of the snapshot: the stream goes on with the next version, be it a compaction.
        offset(table_id, version + 1, -1, snapshot=False),
        offset(table_id, version + compactions + 1, 0, snapshot=False),
        offset(table_id, version + compactions + 4, -1, snapshot=False),
        offset(table_id, version + compactions + 4, -1, snapshot=False),
    ]
    write_checkpoint(tmp_path / "checkpoint", done, offsets)
    return tmp_path, done


def audit(root: Path, **more: str) -> Audit:
    return streaming_source.audit(
        str(root / "checkpoint"), window="1 hour", mode="append", source=str(root / "table"), options=more or None
    )


def test_a_snapshot_and_later_versions_are_counted_as_the_model_ran_them(
    audited_table: tuple[Path, naive.Run],
) -> None:
    root, done = audited_table

    found = audit(root)

    total = {
        name: sum(counts[name] for counts in done.counts.values()) for name in ("read", "dropped", "emitted", "open")
    }
    assert {name: found.count(name) for name in total} == total
    assert found.dropped > 0
    assert found.notes == ()
    # A file that is wholly before or behind the watermark is not opened: its bounds are in the table's log.
    assert found.count("scanned") < found.read
    by_batch = [sum(done.counts[name]["dropped"] for name in names) for names in done.batches]
    assert found.batches["dropped"].to_pylist() == by_batch


def test_a_table_with_column_mapping_is_counted_as_the_model_ran_it(tmp_path: Path) -> None:
    _, done = write_query(tmp_path, {"delta.columnMapping.mode": "name"})
    files = [path for path in (tmp_path / "table").rglob("*.parquet") if "_delta_log" not in path.parts]
    assert not any("ts" in pq.read_schema(path).names for path in files)

    found = audit(tmp_path)

    counted = ("read", "dropped", "emitted", "open")
    assert [found.count(name) for name in counted] == [
        sum(counts[name] for counts in done.counts.values()) for name in counted
    ]
    assert (found.query.sources[0].time, found.notes) == ("ts", ())
    assert found.count("scanned") < found.read


def test_deletion_vectors_of_the_snapshot_are_applied(tmp_path: Path) -> None:
    table = tmp_path / "table"
    parts = [*append(table, 0), *append(table, 1)]
    for number, rows in ((3, range(0, 100, 3)), (4, range(50))):
        delete_rows(table, rows, number)
        parts[number] = [t for row, t in enumerate(parts[number]) if row not in rows]
    opened = deltalake.DeltaTable(str(table))
    table_id, version = str(opened.metadata().id), opened.version()
    files = [(str(number), part) for number, part in enumerate(parts)]
    done = naive.run(QUERY, [files[0:2], files[2:4], files[4:6]])
    begun = [offset(table_id, version, index, snapshot=True) for index in (1, 3)]
    write_checkpoint(tmp_path / "checkpoint", done, [*begun, offset(table_id, version + 1, -1, snapshot=False)])

    found = audit(tmp_path)

    counted = ("read", "dropped", "emitted", "open")
    assert [found.count(name) for name in counted] == [
        sum(counts[name] for counts in done.counts.values()) for name in counted
    ]
    assert (found.read, found.notes) == (600 - 34 - 50, ())
    assert found.dropped > 0


def test_a_file_with_a_deletion_vector_is_named_and_in_no_count(audited_table: tuple[Path, naive.Run]) -> None:
    root, done = audited_table
    # `deltalake` deletes by writing files anew: the vector is written into the log as Spark does.
    log = sorted((root / "table/_delta_log").glob("*.json"))[-1]
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    (add,) = (action["add"] for action in actions if "add" in action)
    add["deletionVector"] = {"storageType": "i", "pathOrInlineDv": "x", "sizeInBytes": 1, "cardinality": 1}
    log.write_text("\n".join(map(json.dumps, actions)))

    found = audit(root)

    assert found.read == sum(counts["read"] for counts in done.counts.values()) - 100
    assert f"which rows of {add['path']} are deleted in version 9 is not known any more" in str(found)


def test_files_that_were_vacuumed_are_in_no_count(audited_table: tuple[Path, naive.Run]) -> None:
    root, _ = audited_table
    before = audit(root)
    needed = before.reads.filter(pc.greater(before.reads["scanned"], 0))["split"].to_pylist()
    (root / "table" / needed[0]).unlink()

    found = audit(root)

    assert found.read < before.read
    assert "Not all can be seen any more, and its rows are in no count" in str(found)


def test_a_version_whose_log_was_cleaned_up_is_named(audited_table: tuple[Path, naive.Run]) -> None:
    root, _ = audited_table
    logs = sorted((root / "table/_delta_log").glob("*.json"))
    deltalake.DeltaTable(str(root / "table")).create_checkpoint()
    logs[7].unlink()

    found = audit(root)

    assert "the log was cleaned up" in str(found)


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85"])
def test_a_commit_with_a_separator_of_lines_in_a_text_is_one_line(
    audited_table: tuple[Path, naive.Run], separator: str
) -> None:
    root, _ = audited_table
    log = sorted((root / "table/_delta_log").glob("*.json"))[-1]
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "commitInfo" in action:
            action["commitInfo"]["userMetadata"] = f"a{separator}b"
    log.write_text("\n".join(json.dumps(action, ensure_ascii=False) for action in actions))

    assert audit(root).read == 900


@pytest.mark.parametrize("prefix", ["file:", "file://", ""])
def test_the_files_of_a_shallow_clone_are_counted_where_they_are(tmp_path: Path, prefix: str) -> None:
    clone, times = shallow_clone(tmp_path, prefix, deleted=True), [n * SECOND for n in (0, 1, 2, 4)]
    opened = deltalake.DeltaTable(str(clone))
    done = naive.run(QUERY, [[("0", [77 * SECOND]), ("1", times)], []])
    offsets = [offset(str(opened.metadata().id), opened.version() + 1, -1, snapshot=False)] * 2
    write_checkpoint(tmp_path / "checkpoint", done, offsets)

    found = streaming_source.audit(str(tmp_path / "checkpoint"), window="1 hour", mode="append", source=str(clone))

    assert (found.read, found.unknown, found.dropped) == (5, 0, 0)


@pytest.mark.parametrize("configuration", [{}, {"delta.columnMapping.mode": "name"}])
def test_a_time_in_a_struct_is_found(configuration: dict[str, str | None], tmp_path: Path) -> None:
    times = device_times(0, 0)
    inner = pa.StructArray.from_arrays([pa.array(times, pa.timestamp("us", "UTC"))], ["ts"])
    table = str(tmp_path / "table")
    deltalake.write_deltalake(table, pa.table({"at": inner, "device": [0] * 100}), configuration=configuration)
    opened = deltalake.DeltaTable(table)
    offsets = [offset(str(opened.metadata().id), opened.version() + 1, -1, snapshot=False)] * 2
    write_checkpoint(tmp_path / "checkpoint", naive.run(QUERY, [[("0", times)], []]), offsets)

    found = streaming_source.audit(
        str(tmp_path / "checkpoint"), window="1 hour", mode="append", source=table, time="at.ts"
    )

    assert (found.read, found.without_time, found.query.sources[0].time) == (100, 0, "at.ts")


def test_rows_of_files_that_have_no_time_yet_have_none(tmp_path: Path) -> None:
    table = tmp_path / "table"
    deltalake.write_deltalake(str(table), pa.table({"device": pa.array([0] * 3, pa.int32())}))
    times = device_times(0, 0)
    rows = {"ts": pa.array(times, pa.timestamp("us", "UTC")), "device": pa.array([0] * 100, pa.int32())}
    deltalake.write_deltalake(str(table), pa.table(rows), mode="append", schema_mode="merge")
    opened = deltalake.DeltaTable(str(table))
    offsets = [offset(str(opened.metadata().id), opened.version() + 1, -1, snapshot=False)] * 2
    write_checkpoint(tmp_path / "checkpoint", naive.run(QUERY, [[("0", times)], []]), offsets)

    found = audit(tmp_path)

    assert (found.read, found.without_time) == (103, 3)


def test_what_a_version_that_changes_rows_adds_is_counted_as_the_query_had_it(tmp_path: Path) -> None:
    """`skipChangeCommits` passes over the file that an update writes anew, `ignoreChanges` reads it."""
    table = tmp_path / "table"
    parts = [*append(table, 0, parts=1), *append(table, 1, parts=1)]
    opened = deltalake.DeltaTable(str(table))
    table_id, version = str(opened.metadata().id), opened.version()
    opened.update(updates={"device": "7"}, predicate="device = 1")
    parts += append(table, 2, parts=1)
    files = [(str(number), part) for number, part in enumerate([*parts[:2], parts[1], parts[2]])]
    offsets = [offset(table_id, version + 1 + number, -1, snapshot=False) for number in range(3)]
    write_checkpoint(tmp_path / "checkpoint", naive.run(QUERY, [files[:2], files[2:3], files[3:]]), offsets)

    assert audit(tmp_path, skipChangeCommits="true").read == 300
    assert audit(tmp_path, ignoreChanges="true").read == 400
    found = audit(tmp_path)
    assert found.read == 300
    assert f"version {version + 1} (UPDATE) changes rows, and the checkpoint does not keep whether" in str(found)
    with pytest.raises(OptionError, match=r"both true.*give the one that the query has"):
        audit(tmp_path, skipChangeCommits="true", ignoreChanges="true")


def test_the_path_of_the_table_is_asked_for_and_checked(audited_table: tuple[Path, naive.Run]) -> None:
    root, _ = audited_table
    other = root / "other"
    append(other, 0, parts=1)
    with pytest.raises(OptionError, match="keeps its id, not its path; give it with --source PATH"):
        streaming_source.audit(str(root / "checkpoint"), window="1 hour", mode="append")
    with pytest.raises(OptionError, match=r"and the query read the table .*; give the path of that one"):
        streaming_source.audit(str(root / "checkpoint"), window="1 hour", mode="append", source=str(other))
    with pytest.raises(PathNotFoundError, match="there is no Delta table in"):
        streaming_source.audit(str(root / "checkpoint"), window="1 hour", mode="append", source=str(root))


@pytest.fixture
def run_query(tmp_path: Path) -> Callable[..., int]:
    """Run Spark's own query over `table` once more, with Delta's JAR; how many rows its sink has then."""
    try:
        jars = jars_of_delta()
    except ArtifactsMissingError as error:
        pytest.skip(str(error))
    paths = [str(tmp_path / name) for name in ("table", "checkpoint", "sink")]

    def run(trigger: str, statements: str = "") -> int:
        command = [sys.executable, "-m", "tests.auditing.delta_query", jars, *paths, trigger, statements]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timedelta(minutes=8).seconds, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return int(done.stdout.split()[-1])

    return run


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.parametrize("trigger", ["availableNow", "processingTime"])
def test_a_query_that_was_restarted_is_counted_as_spark_ran_it(
    tmp_path: Path, run_query: Callable[..., int], trigger: str
) -> None:
    table = tmp_path / "table"
    for device in range(3):
        append(table, device)
    run_query(trigger)
    append(table, 3)
    deltalake.DeltaTable(str(table)).optimize.compact()
    append(table, 4, parts=1)
    emitted = run_query(trigger)

    found = audit(tmp_path)

    assert found.emitted == emitted
    assert (found.read, found.unknown, found.notes) == (1_300, 0, ())
    assert found.dropped == found.read - found.emitted - found.open > 0
    given = {"mode": "append", "source": str(table)}
    assert streaming_source.audit(str(tmp_path / "checkpoint"), **given).splits() == found.splits()
    for wrong in ({"window": "1 minute"}, {"mode": "complete"}, {"time": "when"}, {"source": str(tmp_path)}):
        with pytest.raises(OptionError):
            streaming_source.audit(str(tmp_path / "checkpoint"), **{**given, **wrong})
    by_device = streaming_source.audit(
        str(tmp_path / "checkpoint"), **given, time="device", options={"timestampUnit": "s"}
    )
    assert by_device.unknown == by_device.read == 1_300


@pytest.mark.spark
@pytest.mark.soak
def test_a_snapshot_with_deletion_vectors_is_counted_as_spark_ran_it(
    tmp_path: Path, run_query: Callable[..., int]
) -> None:
    for device in range(3):
        append(tmp_path / "table", device)
    enable = "ALTER TABLE {} SET TBLPROPERTIES ('delta.enableDeletionVectors' = true)"
    emitted = run_query("availableNow", f"{enable};DELETE FROM {{}} WHERE device = 1 AND minute(ts) < 10")
    logs = (tmp_path / "table/_delta_log").glob("*.json")
    log = [json.loads(line) for path in logs for line in path.read_text().splitlines()]
    assert sum(1 for action in log if action.get("add", {}).get("deletionVector")) == 3
    deleted = sum(t // (60 * SECOND) % 60 < 10 for part in range(3) for t in device_times(1, part) if t is not None)

    found = audit(tmp_path)

    assert (found.read, found.unknown, found.notes) == (900 - deleted, 0, ())
    assert found.emitted == emitted
    assert found.dropped == found.read - found.emitted - found.open > 0

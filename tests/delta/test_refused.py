"""What a Delta table can have and is not read, what becomes of a table under a query, and wrong options: each by name.

`variantType` is in a table that Spark wrote, see `test_by_spark`; `deltalake` writes binary partitions. No writer here
makes the others: the log of a real table is edited as the protocol has them.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from streaming_source.connectors.delta import DeltaSource
from streaming_source.exceptions import (
    DataLossError,
    MalformedDataError,
    OffsetError,
    OptionError,
    SchemaError,
    UnsupportedOperationError,
)
from streaming_source.testing import SourceHarness
from tests.delta.deletion_vectors import delete_rows
from tests.delta.tables import SECOND, append, harness, read_all, times


def log_files(path: Path) -> list[Path]:
    return sorted((path / "_delta_log").glob("*.json"))


def commit(path: Path, *actions: dict[str, Any]) -> None:
    (path / f"_delta_log/{len(log_files(path)):020}.json").write_text("\n".join(map(json.dumps, actions)))


@pytest.mark.parametrize(
    ("protocol", "named"),
    [
        ({"readerFeatures": ["catalogManaged"]}, "catalogManaged: its commits are known to its catalog alone"),
        ({"readerFeatures": ["catalogOwned-preview"]}, "catalogOwned-preview: its commits are known to its catalog"),
        ({"readerFeatures": ["variantShredding-preview"]}, "variantShredding-preview: columns of variants are not"),
        ({"readerFeatures": ["columnMapping", "fancy"]}, "fancy. Read it with spark.readStream.format('delta')"),
        ({"minReaderVersion": 4}, "minReaderVersion 4. Read it with"),
    ],
    ids=str,
)
def test_features_that_are_not_understood_are_named_at_the_start(
    tmp_path: Path, protocol: dict[str, Any], named: str
) -> None:
    append(tmp_path, [1 * SECOND])
    writer_features = protocol.get("readerFeatures", [])
    commit(
        tmp_path,
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "writerFeatures": writer_features, **protocol}},
    )

    expected = re.escape(f"version 1, needs a reader that understands {named}")
    with pytest.raises(UnsupportedOperationError, match=expected):
        DeltaSource(str(tmp_path)).schema()


def test_files_that_are_added_with_deleted_rows_are_read_without_them(tmp_path: Path) -> None:
    append(tmp_path, [n * SECOND for n in range(10)])
    done = harness(tmp_path)
    done.run()
    # As a restored or cloned file is added, with the vector that it has.
    (written,) = tmp_path.glob("*.parquet")
    shutil.copy(written, tmp_path / "copy.parquet")
    delete_rows(tmp_path, [3])
    actions = [json.loads(line) for line in log_files(tmp_path)[-1].read_text().splitlines()]
    (add,) = (action["add"] for action in actions if "add" in action)
    kept = [action for action in actions if "protocol" in action]
    log_files(tmp_path)[-1].unlink()
    commit(tmp_path, *kept, {"add": {**add, "path": "copy.parquet"}})
    done.clock.advance("2 seconds")

    fresh = harness(tmp_path)
    for one in (done, fresh):
        one.run()
        assert times(one) == sorted(n * SECOND for n in [*range(10), *(n for n in range(10) if n != 3)])


def test_vectors_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    append(tmp_path, [n * SECOND for n in range(10)])
    delete_rows(tmp_path, [3])
    newest = log_files(tmp_path)[-1]
    actions = [json.loads(line) for line in newest.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            action["add"]["deletionVector"]["pathOrInlineDv"] = "0" * 40
    newest.write_text("\n".join(map(json.dumps, actions)))

    with pytest.raises(UnsupportedOperationError, match=r"version 1: its deletion vectors cannot be read .*purge them"):
        harness(tmp_path).run()


def shallow_clone(path: Path, prefix: str, *, deleted: bool) -> Path:
    """A table `clone` in a folder, which has the file of the table `table` beside it; its paths begin with a prefix."""
    source, clone = path / "table", path / "clone"
    append(source, [n * SECOND for n in range(5)])
    append(clone, [77 * SECOND])
    if deleted:
        delete_rows(source, [3])
    actions = [json.loads(line) for line in log_files(source)[-1].read_text().splitlines()]
    for add in (action["add"] for action in actions if "add" in action):
        add["path"] = prefix + str(source) + "/" + add["path"]
    commit(clone, *(action for action in actions if deleted and "protocol" in action))
    commit(clone, *(action for action in actions if "add" in action))
    return clone


@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize("prefix", ["file:", "file://", ""])
def test_files_of_a_shallow_clone_are_read_where_they_are(tmp_path: Path, prefix: str, deleted: bool) -> None:
    done = harness(shallow_clone(tmp_path, prefix, deleted=deleted), max_rows=2)
    for _ in range(3):
        done.run_batch()
        done.restart()
    done.run()
    assert times(done) == [n * SECOND for n in (0, 1, 2, 3, 4, 77) if n != 3 or not deleted]


@pytest.mark.parametrize("prefix", ["", "file:", "file://"])
def test_files_outside_of_the_folder_are_refused_by_an_option(tmp_path: Path, prefix: str) -> None:
    path = shallow_clone(tmp_path, prefix, deleted=False)
    with pytest.raises(UnsupportedOperationError, match=r"outside of its folder: .* Set filesOutside = read"):
        harness(path, {"files_outside": "fail"}).run()
    done = harness(tmp_path / "table", {"files_outside": "fail"})
    done.run()
    assert times(done)


def test_files_of_a_shallow_clone_in_another_store_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOperationError, match=r"version 2, has a file in another store .* gs://b/.* copy"):
        harness(shallow_clone(tmp_path, "gs://b", deleted=False)).run()


def test_deleted_rows_of_a_path_that_the_table_has_not_are_refused(tmp_path: Path) -> None:
    append(tmp_path, [n * SECOND for n in range(10)])
    delete_rows(tmp_path, [3])
    # A relative URI, as the protocol allows it: deltalake writes it in another way for the vector than for the file.
    for log in log_files(tmp_path):
        log.write_text(
            log.read_text().replace('"path":"part', '"path":"./part').replace('"path": "part', '"path": "./part')
        )

    with pytest.raises(UnsupportedOperationError, match=r"rows of .* are deleted, and the table has no file of"):
        harness(tmp_path).run()


def test_partitions_by_bytes_are_refused(tmp_path: Path) -> None:
    ts = pa.array([1 * SECOND, 2 * SECOND], pa.timestamp("us", "UTC"))
    deltalake.write_deltalake(str(tmp_path), pa.table({"ts": ts, "key": [b"a", b"\xff"]}), partition_by=["key"])

    with pytest.raises(UnsupportedOperationError, match=r"column 'key' is binary, .*; leave it out with option"):
        harness(tmp_path).run()
    with pytest.raises(UnsupportedOperationError, match=r"partition column 'key' is"):
        read_all(DeltaSource(str(tmp_path)))
    # Without a snapshot too.
    with pytest.raises(UnsupportedOperationError, match=r"partition column 'key' is"):
        harness(tmp_path, {"starting_version": 0}).run()
    without = harness(tmp_path, {"columns": ("ts",)})
    without.run()
    assert times(without) == [1 * SECOND, 2 * SECOND]


# ---- a table that changes under a query --------------------------------------------------------------------------


def read_then(path: Path, *actions: dict[str, Any], **options: Any) -> SourceHarness:
    """A query that has read a table of one file, into whose log one more commit is written."""
    append(path, [1 * SECOND], part=1, options={"partition_by": "part"})
    done = harness(path, options)
    done.run()
    commit(path, *actions)
    done.clock.advance("2 seconds")
    return done


def metadata_of(path: Path) -> dict[str, Any]:
    actions = [json.loads(line) for line in log_files(path)[0].read_text().splitlines()]
    return next(action["metaData"] for action in actions if "metaData" in action)


def test_a_table_that_is_replaced_ends_the_query(tmp_path: Path) -> None:
    append(tmp_path, [1 * SECOND], part=1, options={"partition_by": "part"})
    done = harness(tmp_path)
    done.run()
    done.clock.advance("2 seconds")
    commit(tmp_path, {"metaData": {**metadata_of(tmp_path), "id": "another"}})

    with pytest.raises(
        DataLossError, match=r"version 1, has the id another, and .*: it was replaced; use a new checkp"
    ):
        done.run()


def test_a_commit_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    done = read_then(tmp_path)
    log_files(tmp_path)[-1].write_text('{"add":')

    with pytest.raises(
        MalformedDataError, match=r"1.json cannot be read as a commit of a Delta table: .*; restore it, "
    ):
        done.run()


def test_a_value_of_a_partition_that_is_none_of_its_type_is_named(tmp_path: Path) -> None:
    add = {"path": "part=x/a.parquet", "partitionValues": {"part": "x"}, "size": 9, "modificationTime": 1}
    done = read_then(tmp_path, {"add": {**add, "dataChange": True}})

    with pytest.raises(
        MalformedDataError, match=r"part=x/a.parquet: the value of the partition column 'part' is no in"
    ):
        done.run()


def test_options_that_an_offset_depends_on_are_held_against_it(tmp_path: Path) -> None:
    append(tmp_path, [1 * SECOND])
    done, bounded = harness(tmp_path), harness(tmp_path, {"bounded": True})
    for one in (done, bounded):
        one.run()

    done.source = DeltaSource(str(tmp_path), indexing="statistics")
    with pytest.raises(
        OffsetError, match=r"indexing = .statistics.: it was .auto. when the checkpoint was written.*give it as"
    ):
        done.restart()
    bounded.source = DeltaSource(str(tmp_path))
    with pytest.raises(OffsetError, match=r"is of a source with bounded = true, .* Set bounded = true again, or use a"):
        bounded.restart()


# ---- options -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "/t", "withEventTimeOrder": "true"}, "files are read in the order of their event times in any case"),
        ({"path": "/t", "maxFilesPerTrigger": "4"}, "limit a micro-batch with maxRowsPerTrigger"),
        ({"path": "/t", "ignoreChanges": "true"}, "skipChangeCommits skips such versions"),
        ({"path": "/t", "readChangeFeed": "true"}, "a change feed is not read; leave it out, or use spark.readStream"),
        ({"path": "/t", "failOnDataLoss": "false"}, "ignoreMissingFiles = true goes on without them"),
        ({"path": "/t", "schemaTrackingLocation": "/s"}, "see schemaEvolution"),
        ({"path": "/t", "startingversion2": "1"}, "did you mean startingVersion"),
        ({"path": "/t", "startingVersion": "-1"}, "startingVersion"),
        ({"path": "/t", "startingVersion": "1", "startingTimestamp": "2026-01-01"}, "are both given; give one of them"),
        ({"path": "/t", "versionAsOf": "1", "timestampAsOf": "2026-01-01"}, "are both given; give one of them"),
        ({"path": "/t", "startingTimestamp": "yesterday"}, "must be an ISO-8601 time, like"),
        ({}, "option path is missing: give the folder of the table, as in .load"),
    ],
)
def test_wrong_options_are_answered(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as raised:
        DeltaSource.from_options(DeltaSource.options().parse(options))
    assert message in str(raised.value)


def test_places_that_the_table_has_not_are_named(tmp_path: Path) -> None:
    append(tmp_path, [1 * SECOND])
    with pytest.raises(
        OptionError, match=r"startingVersion = 9: .* has the versions up to 0; give one of them, or lat"
    ):
        DeltaSource(str(tmp_path), starting_version=9).schema()
    with pytest.raises(
        OptionError, match=r"startingTimestamp = 2999-01-01: .* no version as new as that; give an earl"
    ):
        DeltaSource(str(tmp_path), starting_timestamp="2999-01-01").schema()
    with pytest.raises(SchemaError, match=r"columns: 'x' are not in the Delta table .*; choose among ts"):
        DeltaSource(str(tmp_path), columns=("x",)).schema()

"""What a Delta table can have and is not read: refused by its name, of a real table that has it.

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
from streaming_source.exceptions import UnsupportedOperationError
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


def test_files_that_are_added_with_deleted_rows_are_refused(tmp_path: Path) -> None:
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

    with pytest.raises(
        UnsupportedOperationError, match=r"version 1, adds copy.parquet .*a deletion vector\). Start with a new"
    ):
        done.run()
    fresh = harness(tmp_path)
    fresh.run()
    assert times(fresh) == sorted(n * SECOND for n in [*range(10), *(n for n in range(10) if n != 3)])


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

    with pytest.raises(UnsupportedOperationError, match=r"partition column 'key' is .*binary.*, whose values are not"):
        harness(tmp_path).run()
    with pytest.raises(UnsupportedOperationError, match=r"partition column 'key' is"):
        read_all(DeltaSource(str(tmp_path)))
    # Without a snapshot too.
    with pytest.raises(UnsupportedOperationError, match=r"partition column 'key' is"):
        harness(tmp_path, {"starting_version": 0}).run()

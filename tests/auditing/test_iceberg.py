"""An audit of a query over an Iceberg table: what its snapshots added, from file to file, and what has expired."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table

import streaming_source
from streaming_source.auditing import Audit
from streaming_source.exceptions import CheckpointError, OptionError
from tests.auditing import naive
from tests.auditing.test_delta import QUERY, device_times, write_checkpoint
from tests.iceberg.commits import compact, expire_as_java
from tests.iceberg.tables import append, catalog_options, create, rows

COUNTED = ("read", "dropped", "emitted", "open")


def offset(snapshot_id: int, position: int) -> str:
    return json.dumps({"version": 1, "snapshot_id": snapshot_id, "position": position, "scan_all_files": False})


def files_of(table: Table, snapshot_id: int) -> list[tuple[str, list[naive.Time]]]:
    """What a snapshot added, in the order of its manifests: locations and event times."""
    snapshot = table.refresh().snapshot_by_id(snapshot_id)
    assert snapshot is not None
    found = []
    for manifest in snapshot.manifests(table.io):
        if manifest.content == ManifestContent.DATA and manifest.added_snapshot_id == snapshot_id:
            for entry in manifest.fetch_manifest_entry(table.io):
                times = pq.ParquetFile(entry.data_file.file_path.removeprefix("file://")).read(["ts"])["ts"]
                found.append((entry.data_file.file_path, times.cast(pa.int64()).to_pylist()))
    return found


@pytest.fixture
def audited_table(tmp_path: Path) -> tuple[Path, Table, naive.Run]:
    """Three devices, one append each, of two files; a compaction between; three micro-batches of two files."""
    table = create(tmp_path, rows([0], part="a").schema)
    with table.update_spec() as spec:
        spec.add_identity("part")
    appends = []
    for device in range(3):
        times = [*device_times(device, 0), *device_times(device, 1)]
        appends.append(append(table, times, part=["a"] * 100 + ["b"] * 100))
        if device == 1:
            compact(table)
    first, second, third = (files_of(table, snapshot_id) for snapshot_id in appends)
    done = naive.run(QUERY, [first[:1], [*first[1:], *second[:1]], [*second[1:], *third], []])
    places = [(appends[0], 1), (appends[1], 1), (appends[2], 2), (appends[2], 2)]
    write_checkpoint(tmp_path / "checkpoint", done, [offset(*place) for place in places])
    (tmp_path / "checkpoint/sources/0/offsets").mkdir(parents=True)
    (tmp_path / "checkpoint/sources/0/offsets/0").write_text(offset(appends[0], 0))
    return tmp_path, table, done


def audit(root: Path, **more: str) -> Audit:
    catalog = {f"catalog.{name}": value for name, value in catalog_options(root).items()}
    return streaming_source.audit(
        str(root / "checkpoint"),
        window="1 hour",
        mode="append",
        source="db.t",
        options={"catalog.name": "tests", **catalog, **more},
    )


def test_what_snapshots_added_is_counted_as_the_model_ran_it(audited_table: tuple[Path, Table, naive.Run]) -> None:
    root, _, done = audited_table

    found = audit(root)

    total = {name: sum(counts[name] for counts in done.counts.values()) for name in COUNTED}
    assert {name: found.count(name) for name in COUNTED} == total
    assert total["read"] == 600
    assert total["dropped"] > 0
    by_batch = [sum(done.counts[name]["dropped"] for name in names) for names in done.batches]
    assert found.batches["dropped"].to_pylist() == by_batch
    assert (found.query.sources[0].kind, found.query.sources[0].name) == ("iceberg", "db.t")


def test_snapshots_that_have_expired_are_named_and_in_no_count(audited_table: tuple[Path, Table, naive.Run]) -> None:
    root, table, _ = audited_table
    oldest = table.refresh().snapshots()[0].snapshot_id
    expire_as_java(table, [oldest])

    found = audit(root)

    assert f"db.t has no snapshot {oldest} any more: it has expired" in str(found)
    # What later snapshots added is known all the same.
    assert found.read == 400


@pytest.mark.parametrize("by_pyiceberg", [True, False])
def test_snapshots_that_have_expired_since_a_query_began_on_an_empty_table_are_named(
    tmp_path: Path, by_pyiceberg: bool
) -> None:
    table = create(tmp_path)
    parts = [device_times(0, part) for part in range(4)]
    appends = [append(table, part) for part in parts]
    done = naive.run(QUERY, [[(str(number), part)] for number, part in enumerate(parts)][1:])
    write_checkpoint(tmp_path / "checkpoint", done, [offset(one, 1) for one in appends[1:]])
    (tmp_path / "checkpoint/sources/0/offsets").mkdir(parents=True)
    (tmp_path / "checkpoint/sources/0/offsets/0").write_text(offset(-1, -1))
    assert audit(tmp_path).read == 400
    if by_pyiceberg:
        table.refresh().maintenance.expire_snapshots().by_ids(appends[:1]).commit()
    else:
        expire_as_java(table, appends[:1])

    found = audit(tmp_path)

    assert found.read == 300
    assert "has expired, and nothing before it was read" in str(found)


def test_without_the_offset_at_which_the_query_began_an_audit_is_refused(
    audited_table: tuple[Path, Table, naive.Run],
) -> None:
    """It may have begun at a snapshot, by `stream-from-timestamp`."""
    root, _, _ = audited_table
    (root / "checkpoint/sources/0/offsets/0").unlink()
    with pytest.raises(CheckpointError, match="sources/0/offsets/0, where the query started, is missing; restore it"):
        audit(root)


def test_the_name_of_the_table_is_asked_for(audited_table: tuple[Path, Table, naive.Run]) -> None:
    root, _, _ = audited_table
    with pytest.raises(OptionError, match=r"keeps ids of its snapshots, not its name; give it with --source db.clicks"):
        streaming_source.audit(str(root / "checkpoint"), window="1 hour", mode="append")

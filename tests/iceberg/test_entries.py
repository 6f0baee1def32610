"""Entries of manifests: the same as `pyiceberg` reads, of which only some fields are decoded."""

from __future__ import annotations

from pathlib import Path

import pytest

from streaming_source.connectors.iceberg.manifests import entries_of
from tests.iceberg.commits import compact, delete_rows, files_of_table
from tests.iceberg.tables import SECOND, append, create, harness, later, rows, times


@pytest.mark.parametrize("version", ["1", "2"])
def test_entries_are_those_of_pyiceberg(tmp_path: Path, version: str) -> None:
    table = create(tmp_path, rows([0], part="a", n=0.5).schema, properties={"format-version": version})
    with table.update_spec() as spec:
        spec.add_identity("part")
    done = harness(tmp_path)
    append(table, [3 * SECOND, None], part="x", n=[0.5, None])
    append(table, [2 * SECOND, 1 * SECOND], part="é /", n=1.0)
    table.refresh().delete("n > 0.9")
    if version == "2":
        delete_rows(table, {files_of_table(table)[0].file_path: [1]})
    compact(table)
    statuses = set()
    for snapshot in table.refresh().snapshots():
        for manifest in snapshot.manifests(table.io):
            theirs = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
            ours = list(entries_of(manifest, table.io))
            for one, other in zip(ours, theirs, strict=True):
                assert (one.status, one.snapshot_id) == (other.status.value, other.snapshot_id)
                assert one.sequence_number == other.sequence_number
                file, their_file = one.data_file, other.data_file
                assert file.file_format == their_file.file_format.value
                assert [*file.partition] == [*their_file.partition]
                for name in ("file_path", "record_count", "file_size_in_bytes", "key_metadata"):
                    assert getattr(file, name) == getattr(their_file, name)
                for name in ("null_value_counts", "lower_bounds", "upper_bounds"):
                    assert dict(getattr(file, name) or {}) == dict(getattr(their_file, name) or {})
                statuses.add(one.status)
    assert statuses >= {1, 2}
    done.run()
    append(table, [9 * SECOND], part="q", n=2.0)
    assert times(later(done))[-2:] == [3 * SECOND, 9 * SECOND]


def test_files_whose_manifests_a_later_append_merges_are_read_once(tmp_path: Path) -> None:
    merges = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}
    table = create(tmp_path, properties=merges)
    append(table, [SECOND])
    done = harness(tmp_path)
    done.run()
    for second in (2, 3, 4):
        append(table, [second * SECOND])
    snapshot = table.refresh().current_snapshot()
    assert snapshot is not None
    assert any(manifest.has_existing_files() for manifest in snapshot.manifests(table.io))
    assert times(later(done)) == [second * SECOND for second in (1, 2, 3, 4)]

"""Each row once over AvailableNow runs; tests/faults has crashes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.answers import Rows
from tests.spark.support import SECOND, skewed_logs, write_file, write_logs
from tests.spark.twin import Twin, frame

LOGS = skewed_logs(21, rows=(120, 80), starts=(0, 300 * SECOND), steps=(SECOND, 2 * SECOND))


@pytest.mark.parametrize("split_by", ["directory", "file"])
def test_available_now_run_again_with_new_files_between_gives_each_row_once(tmp_path: Path, split_by: str) -> None:
    later = {split: times + 1000 * SECOND for split, times in LOGS.items()}
    write_logs(tmp_path / "in", LOGS, files=2)
    loaded = frame(tmp_path / "in", includeMetadata="true", maxRowsPerTrigger=90, splitBy=split_by)
    twin = Twin(tmp_path / "cp", loaded, answer=Rows("_split", "_position")).run()
    assert len(twin.rows) == 200
    for split, times in later.items():
        write_file(tmp_path / "in" / split / "part-900.parquet", times, split)
    write_file(tmp_path / "in" / "new" / "part-000.parquet", later["split-0"])
    read = twin.run().rows
    assert len(read) == len(set(read)) == 200 + 200 + 120
    # A third run has the watermark to say, and no row.
    batches = len(twin.batches)
    assert twin.run().rows == read
    assert not sum(len(table) for batch in twin.batches[batches:] for table in batch.read)

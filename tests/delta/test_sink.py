"""What Spark's own Delta sink writes, read while it writes. (Iceberg has no Spark runtime for the versions here.)"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streaming_source.connectors.delta import DeltaSource
from tests.delta.spark_delta import jars_of_delta
from tests.faults.checks import files_of_sink
from tests.kafka.artifacts import ArtifactsMissingError
from tests.tables.reading import SECOND, STRATEGY

FILES, ROWS = 25, 40


@pytest.mark.spark
@pytest.mark.soak
def test_what_the_sink_writes_is_read_while_it_writes(tmp_path: Path) -> None:
    try:
        jars = jars_of_delta()
    except ArtifactsMissingError as error:
        pytest.skip(str(error))
    chance = np.random.default_rng(5)
    (tmp_path / "rows").mkdir()
    expected: Counter[tuple[int, int]] = Counter()
    for number in range(FILES):
        times = chance.integers(0, 3600 * SECOND, ROWS)
        ids = np.arange(ROWS) + number * ROWS
        expected.update(zip(ids.tolist(), times.tolist(), strict=True))
        rows = pa.table({"ts": pa.array(times, pa.timestamp("us", "UTC")), "id": ids})
        pq.write_table(rows, tmp_path / f"rows/{number:03}.parquet")
    folders = [str(tmp_path / name) for name in ("rows", "table", "sink", "checkpoints")]

    done = subprocess.run(
        [sys.executable, "-m", "tests.delta.sink_query", jars, *folders],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    source = DeltaSource(folders[1])
    commits = source.open_lister(source.schema(), STRATEGY.timestamp_assigner).commits(-1).whole()
    query = json.loads((tmp_path / "checkpoints/writer/metadata").read_text())["id"]
    assert [commit.micro_batches for commit in commits] == [((query, number),) for number in range(FILES)]
    assert int(done.stdout.split()[-1]) > 0, "nothing was read while it was written"
    assert deltalake.DeltaTable(folders[1]).version() == FILES - 1
    read: Counter[tuple[int, int]] = Counter()
    for file in files_of_sink(tmp_path / "sink"):
        found = pq.ParquetFile(file).read()
        read.update(zip(found["id"].to_pylist(), found["us"].to_pylist(), strict=True))
    assert read == expected

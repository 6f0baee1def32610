"""`docs/pipelines.md` as it is pasted: `spark-pipelines run` with the exact watermark, twice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as ds
import pytest

from tests.docs.pages import ROOT, blocks
from tests.spark.support import MINUTE, SECOND, Logs, naive_windows

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PLACE = "/tmp/events-pipeline"
"""Where the page copies the example to, and where its spec keeps data."""


def pasted(text: str, place: Path, cwd: Path) -> str:
    """What a shell prints that is given the lines of a block, in another place than the page's; no line may fail."""
    lines = [line for line in text.splitlines() if not line.startswith("pip install ")]
    done = subprocess.run(
        ["bash", "-euc", "\n".join(lines).replace(PLACE, str(place))],
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONWARNINGS": "ignore",
        },
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout + done.stderr


def read(logs: Path) -> Logs:
    return {
        folder.name: ds.dataset(folder).to_table()["ts"].cast("int64").to_numpy() for folder in sorted(logs.iterdir())
    }


def rows(project: Path, table: str) -> list[tuple[int, int, str, int]]:
    return sorted((start, start + MINUTE, row["s"], row["count"]) for start, row in starts(project, table))


def starts(project: Path, table: str) -> list[tuple[int, dict[str, Any]]]:
    """Starts of windows in microseconds, and the rows."""
    found = ds.dataset(project / "spark-warehouse" / table, exclude_invalid_files=True).to_table().to_pylist()
    return [(int(row["start"].timestamp()) * SECOND, row) for row in found]


def closed(logs: Logs) -> list[tuple[int, int, str, int]]:
    """The windows that the slower log has closed, 5 seconds and a microsecond behind its last record."""
    watermark = int(min(times.max() for times in logs.values())) - 5 * SECOND - 1
    return [window for window in naive_windows(logs) if window[1] <= watermark]


@pytest.mark.soak
def test_the_page_as_pasted_gives_the_batch_result_of_all_closed_windows_in_each_run(tmp_path: Path) -> None:
    pytest.importorskip("yaml", reason="spark-pipelines needs pyspark[pipelines]")
    copies, runs = (block.text for block in blocks(ROOT / "docs" / "pipelines.md") if block.language == "bash")
    project = tmp_path / "events-pipeline"
    pasted(copies, project, ROOT)
    spec = project / "spark-pipeline.yml"
    assert PLACE in spec.read_text()
    spec.write_text(spec.read_text().replace(PLACE, str(project)))
    for minutes in (9, 19):
        assert "Run is COMPLETED" in pasted(runs, project, project)
        expected = closed(read(project / "logs"))
        assert len({window[0] for window in expected}) == minutes
        assert rows(project, "per_minute") == expected
        # Its watermark is that of both logs as well: the filter is behind it.
        assert rows(project, "of_one_log") == [window for window in expected if window[2] == "slow"]
        counts = {(start, log): count for start, _, log, count in expected}
        joined = sorted((start, row["slow"], row["fast"]) for start, row in starts(project, "both_logs"))
        assert joined == [(at, n, counts[at, "fast"]) for (at, log), n in sorted(counts.items()) if log == "slow"]


def test_the_parts_of_the_example_go_on_from_each_other(tmp_path: Path) -> None:
    program = tmp_path / "write_logs.py"
    program.write_text((ROOT / "docs" / "pipeline" / "write_logs.py").read_text())
    for rows_so_far in (600, 1200):
        subprocess.run([sys.executable, str(program)], check=True, timeout=60)
        for times, step in zip(read(tmp_path / "logs").values(), (4, 1), strict=True):
            assert np.array_equal(np.diff(times), np.full(rows_so_far - 1, step * SECOND))

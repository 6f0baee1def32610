"""Several splits over one client, without an index: the planner reads ahead, and pauses who is far ahead."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import streaming_source
from streaming_source.api import Source
from tests.spark import reports, unindexed
from tests.spark.reports import BOUND, skewed, strategy
from tests.spark.support import SECOND, available_now, fails_with, naive_windows, windows
from tests.spark.unindexed import DiaryLogs, UnpausableLogs

pytestmark = pytest.mark.spark

assert reports  # it lets classes of `unindexed` travel with the query

# The first is at the end of its hour when the last has come a minute far.
LOGS = skewed(11, 20_000, (180_000, 30_000, 3_000), (0, 0, 0))


def read_ahead(spark: SparkSession, source: Source, name: str, **options: object) -> DataFrame:
    return streaming_source.from_source(spark, source, strategy(), name, maxRowsPerTrigger=10_000, **options)


def test_splits_that_are_far_ahead_are_paused_at_their_one_client_and_windows_are_those_of_the_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    unindexed.write_logs(tmp_path / "logs", {name: times[:15_000] for name, times in LOGS.items()})
    results: list[tuple[int, int, str, int]] = []
    for part in range(2):
        if part:
            # Its checkpoint is gone on from by another process: with another client.
            unindexed.write_logs(tmp_path / "logs", {name: times[15_000:] for name, times in LOGS.items()})
        frame = read_ahead(spark, DiaryLogs(str(tmp_path / "logs")), f"diary_{part}")
        run = available_now(spark, windows(frame), tmp_path / "cp", files=tmp_path / "out")
        results = run.rows
        clients: dict[str, list[list[str]]] = {}
        for line in (tmp_path / "diary").read_text().splitlines():
            client, *entry = line.split()
            clients.setdefault(client, []).append(entry)
        (tmp_path / "diary").unlink()
        entries, *probes = clients.values()
        assert entries[0] == ["add", "split-0", "split-1", "split-2"], "one client for all"
        # As the run ends, the split that holds the watermark is probed for its end.
        assert all(len(probe) == 1 and len(probe[0]) == 2 for probe in probes)
        paused = {name for kind, *names in entries if kind == "pause" for name in names}
        resumed = {name for kind, *names in entries if kind == "resume" for name in names}
        assert "split-0" in paused & resumed
        assert "split-2" not in paused, "nobody is slower"
    watermark = min(int(times.max()) for times in LOGS.values()) - BOUND - 1
    assert watermark // (60 * SECOND) > 0
    expected = [window for window in naive_windows(LOGS) if window[1] <= watermark]
    assert results == expected


@pytest.mark.soak
def test_a_client_that_cannot_pause_is_refused_unless_its_splits_may_run_ahead(
    spark: SparkSession, tmp_path: Path
) -> None:
    logs = {name: times[:300] for name, times in LOGS.items()}
    unindexed.write_logs(tmp_path / "logs", logs)
    source = UnpausableLogs(str(tmp_path / "logs"), bounded=True)
    with fails_with("far ahead cannot be paused", "Fetching.per_split()", "allowUnalignedSourceSplits"):
        available_now(spark, windows(read_ahead(spark, source, "refused")), tmp_path / "refused")
    frame = read_ahead(spark, source, "unaligned", allowUnalignedSourceSplits=True)
    assert available_now(spark, windows(frame), tmp_path / "cp").rows == naive_windows(logs)

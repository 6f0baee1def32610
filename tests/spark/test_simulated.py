"""What is simulated is what Spark does: of the same workload the same micro-batches, with the same late records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from alignment.simulation import Planning, RecordedWorkload, Scenario, SourceScenario, SourceTrace, simulate
from streaming_source.spark.datasource import AlignedDataSource
from streaming_source.tools.advise import event_times_of
from tests.spark.answers import Rows
from tests.spark.support import SECOND, write_logs
from tests.spark.twin import Twin, frame

DESCRIBED = SourceScenario(
    planning=Planning.INDEXED,
    splits=3,
    records=200,
    spacing_us=SECOND,
    unevenness=3,
    skew_us=600 * SECOND,
    disorder_us=60 * SECOND,
    out_of_orderness_us=2 * SECOND,
    max_drift_us=120 * SECOND,
    max_rows=150,
)


def of_query(folder: Path, name: str, **options: Any) -> list[tuple[int, int]]:
    """Rows, and late rows, of each micro-batch of a query."""
    options = {"includeMetadata": True, "eventLog": str(folder / name), "lateness": "bounded", **options}
    loaded = frame(folder / "in", bounded=True, **options)
    twin = Twin(folder / f"{name}-checkpoint", loaded, answer=Rows("k")).run()
    return [(len(table), sum(table["_late"].to_pylist())) for batch in twin.batches for table in batch.read]


def of_trace(trace: SourceTrace) -> list[tuple[int, int]]:
    return list(zip(trace.rows.tolist(), trace.late.tolist(), strict=True))


def test_late_records_and_micro_batches_are_those_of_a_query(tmp_path: Path) -> None:
    drawn: dict[str, Any] = {}
    described = simulate(
        Scenario(sources=(DESCRIBED,)), 6, lambda source, _: drawn.update(enumerate(source.records.times_us))
    ).sources[0]
    write_logs(tmp_path / "in", {f"split-{number}": times for number, times in drawn.items()})

    settings = {"maxOutOfOrderness": "2 s", "maxDrift": "2 minutes", "maxRowsPerTrigger": DESCRIBED.max_rows}
    by_default = of_query(tmp_path, "by-default", lateness="none", **settings)
    assert sum(rows for rows, _ in by_default) == 600
    assert of_trace(described) == by_default
    recorded = of_query(tmp_path, "log", **settings)
    assert sum(late for _, late in recorded) > 10

    workload = RecordedWorkload.of_log(tmp_path / "log")
    assert of_trace(workload.play(workload.settings)) == recorded
    other = replace(workload.settings, out_of_orderness_us=10 * SECOND, max_drift_us=20 * SECOND, max_rows=250)
    otherwise = of_query(
        tmp_path, "otherwise", maxOutOfOrderness="10 s", maxDrift="20 s", maxRowsPerTrigger=other.max_rows
    )
    assert otherwise != recorded
    assert sum(late for _, late in otherwise) > 0
    assert workload.estimated == 0
    assert of_trace(workload.play(other)) == otherwise

    # With bounds of blocks alone there is a bound, and with the event times of the files all of it.
    lines = [line for line in next((tmp_path / "log").iterdir()).read_text().splitlines() if '"Loaded"' not in line]
    (tmp_path / "bounds.jsonl").write_text("\n".join(lines))
    bound = RecordedWorkload.of_log(tmp_path / "bounds.jsonl").play(other)
    assert not bound.is_exact
    assert bound.late.sum() < sum(late for _, late in otherwise)
    data = AlignedDataSource.of_format("aligned_files", {"path": str(tmp_path / "in"), "eventTimeColumn": "ts"})
    exact = RecordedWorkload.of_log(tmp_path / "bounds.jsonl", event_times_of(data)).play(other)
    assert (exact.is_exact, of_trace(exact)) == (True, otherwise)

"""The wall clock jumps between two runs (within one, processing time is monotonic): no row is lost or doubled."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from alignment.combine import SplitStatus
from alignment.strategy import WatermarkStrategy
from streaming_source.connectors.files import CsvFormat, FileSource
from streaming_source.testing import FakeClock, SourceHarness

ROWS = 5
DAY_US = 86_400 * 1_000_000


class JumpingClock(FakeClock):
    """One that is also set back."""

    def jump(self, by_us: int) -> None:
        self._now_us += by_us


def write(folder: Path, split: str, number: int) -> None:
    (folder / split).mkdir(parents=True, exist_ok=True)
    lines = [f"1970-01-01 00:{number:02d}:{row:02d}\n" for row in range(ROWS)]
    (folder / split / f"{number:03d}.csv").write_text("".join(lines))


@pytest.mark.parametrize(
    "jump_us", [-DAY_US, DAY_US, -30_000_000, 30_000_000], ids=["back", "on", "back-30s", "on-30s"]
)
def test_a_clock_that_jumps(tmp_path: Path, jump_us: int) -> None:
    clock = JumpingClock()
    clock.advance("10 days")
    schema = pa.schema([("t", pa.timestamp("us"))])
    source = FileSource(str(tmp_path), "directory", format=CsvFormat(), data_schema=schema)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("t").with_idleness("1 minute")
    run = SourceHarness(source, strategy, clock=clock)
    watermarks = []

    def step(seconds: int) -> dict[str, SplitStatus]:
        clock.advance(f"{seconds} seconds")
        run.run()
        watermarks.append(run.watermark)
        return dict(zip(run.state.table.split_ids, map(SplitStatus, run.state.table.statuses.tolist()), strict=True))

    for split in ("a", "b"):
        write(tmp_path, split, 0)
    step(2)
    write(tmp_path, "a", 1)
    step(2)
    clock.jump(jump_us)
    run.restart()
    write(tmp_path, "a", 2)
    after = step(2)
    # A split that was silent is idle when it was so for the timeout, by a clock that never was behind what is written.
    assert after["b"] is (SplitStatus.IDLE if jump_us == DAY_US else SplitStatus.ACTIVE)
    write(tmp_path, "a", 3)
    assert step(61)["b"] is SplitStatus.IDLE
    # Late or not: both are read.
    write(tmp_path, "b", 4)
    write(tmp_path, "a", 4)
    step(2)
    assert watermarks == sorted(watermarks)
    records = run.records()
    assert {split: [position for position, _ in records[split]] for split in records} == {
        "a": list(range(5 * ROWS)),
        "b": list(range(2 * ROWS)),
    }
    run.close()

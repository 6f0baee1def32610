"""Write the next part of two logs, ten minutes of one and forty of the other: each call adds a part."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

LOGS = Path(__file__).parent / "logs"
ROWS = 600

for log, step in (("slow", timedelta(seconds=1)), ("fast", timedelta(seconds=4))):
    folder = LOGS / log
    folder.mkdir(parents=True, exist_ok=True)
    part = len(list(folder.glob("part-*.parquet")))
    start = datetime(2026, 1, 1, tzinfo=UTC) + part * ROWS * step
    times = pa.array([start + row * step for row in range(ROWS)], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"ts": times, "s": [log] * ROWS}), folder / f"part-{part:03}.parquet")

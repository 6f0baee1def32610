"""Audit of a query over 100 million rows in 10,000 Parquet files: files opened, bytes read, seconds, memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.report import Report
from tests.auditing import naive

DIRECTORIES = 100
SECOND = 1_000_000
QUERY = naive.Query(60_000, 3600 * SECOND, 3600 * SECOND)


def run(report: Report, folder: Path, *, quick: bool) -> None:
    parts, rows = (10, 1_000) if quick else (100, 10_000)
    _write(folder / "audited", parts, rows)
    found = _measured(folder / "audited")
    files = DIRECTORIES * parts
    size = sum(path.stat().st_size for path in (folder / "audited/in").rglob("*.parquet"))
    lines = [
        ["rows", f"{files * rows:,}"],
        ["files, all opened for their footers", f"{files:,}"],
        ["rows whose times were read", f"{found['scanned']:,}"],
        ["bytes read", f"{found['bytes'] / 1e6:,.0f} MB of {size / 1e6:,.0f} MB"],
        ["seconds", f"{found['seconds']:.1f}"],
        ["memory at most", f"{found['mib']:.0f} MiB"],
        ["dropped", f"{found['dropped']:,}"],
    ]
    report.table("Audit", ["", "measured"], lines)
    report.at_most("audit: share of rows whose times are read", found["scanned"] / (files * rows), 0.05)


def measure(folder: str) -> None:
    """Audit, and print what that took."""
    import time

    from streaming_source import audit

    before, began = _bytes_read(), time.perf_counter()
    found = audit(f"{folder}/checkpoint", window=QUERY.window, mode=QUERY.mode)
    seconds = time.perf_counter() - began
    assert found.dropped + found.emitted + found.open == found.read
    status = Path("/proc/self/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    taken = {"seconds": seconds, "bytes": _bytes_read() - before, "mib": int(peak.split()[1]) / 1024}
    print(json.dumps({**taken, "scanned": found.count("scanned"), "dropped": found.dropped}))


def _bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().splitlines()[0].split()[1])


def _measured(folder: Path) -> dict[str, float]:
    code = f"from benchmarks.audit import measure; measure({str(folder)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _write(folder: Path, parts: int, rows: int) -> None:
    """A directory a device, all at one pace but the first, which is twice as fast; micro-batches of a part of each."""
    rng = np.random.default_rng(7)
    payload = pa.array(rng.random(rows))
    done, watermark_ms = naive.Run(), 0
    for part in range(parts):
        names, latest_us = [], 0
        for directory in range(DIRECTORIES):
            step_us = SECOND * (2 if directory == 0 else 1)
            times = naive.T0 + (part * rows + np.arange(rows)) * step_us + rng.integers(0, 30 * SECOND, rows)
            name = f"d={directory}/{part}.parquet"
            (folder / "in" / name).parent.mkdir(parents=True, exist_ok=True)
            table = pa.table({"ts": pa.array(times, pa.timestamp("us", "UTC")), "v": payload})
            pq.write_table(table, folder / "in" / name, compression="none")
            names.append(name)
            latest_us = max(latest_us, int(times.max()))
        done.batches.append(names)
        done.watermarks_ms.append(watermark_ms)
        watermark_ms = max(watermark_ms, latest_us // 1_000 - QUERY.delay_ms)
        done.next_ms.append(watermark_ms)
    naive.write_checkpoint(folder / "checkpoint", folder / "in", QUERY, done)

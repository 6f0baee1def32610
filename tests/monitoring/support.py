"""A query without Spark: what it would say in its progress, and the checkpoint that it would leave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from streaming_source.monitoring.checkpoint import Checkpoint, MicroBatch
from streaming_source.monitoring.report import WatermarkReport
from tests.streaming_source.reading import Reading, put, stamps, stream_reader

METADATA = {"batchWatermarkMs": 0, "conf": {}}


class Query:
    """Reads logs below a folder, one directory each; its offsets go into a checkpoint as Spark writes it."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.checkpoint = folder / "checkpoint"
        self.batches = 0
        self._options = {"eventTimeColumn": "t", "watermarkRows": "true", **options}
        self.reading: Reading | None = None

    def append(self, split_id: str, *seconds: float) -> None:
        """Another file of a log: records so many seconds after T0."""
        log = self.folder / "in" / split_id
        number = len(list(log.glob("*"))) if log.exists() else 0
        put(log / f"part-{number:03}.parquet", {"t": stamps(*seconds), "k": pa.array(range(len(seconds)), pa.int64())})

    def run(self, max_rows: int | None = None) -> pa.Table | None:
        """The next micro-batch, committed; None where there is nothing to do."""
        if self.reading is None:
            self.reading = Reading(stream_reader(self.folder / "in", **self._options))
        table = self.reading.next(max_rows)
        if table is not None:
            self.write(self.reading.offset)
        return table

    def write(self, *offsets: dict[str, Any] | str, at_ms: int | None = None, committed: bool = True) -> None:
        """One more micro-batch in the checkpoint; a text is what another source writes."""
        at_ms = planned_at_ms(offsets[0]) if at_ms is None else at_ms
        lines = ["v1", json.dumps({**METADATA, "batchTimestampMs": at_ms})]
        lines += [offset if isinstance(offset, str) else json.dumps(offset) for offset in offsets]
        for name in ("offsets", "commits") if committed else ("offsets",):
            log = self.checkpoint / name
            log.mkdir(parents=True, exist_ok=True)
            (log / str(self.batches)).write_text("\n".join(lines))
            (log / f".{self.batches}.crc").write_bytes(b"crc")
        self.batches += 1

    def live(self) -> WatermarkReport:
        """What the progress of the running query says."""
        assert self.reading is not None
        found = json.loads(json.dumps(self.reading.reader.reportLatestOffset()))
        (report,) = WatermarkReport.of_progress({"sources": [{"latestOffset": found}]})
        assert report is not None
        assert {**report.to_json(), **({"watermarkRows": True} if "watermarkRows" in found else {})} == found
        return report

    def stored(self) -> WatermarkReport:
        """What the checkpoint alone says."""
        batch = Checkpoint(str(self.checkpoint)).latest()
        assert batch is not None
        return report_of(batch)

    def stop(self) -> None:
        if self.reading is not None:
            self.reading.reader.stop()


def report_of(batch: MicroBatch) -> WatermarkReport:
    (report,) = batch.sources
    assert report is not None
    return report


def planned_at_ms(offset: Any) -> int:
    """Any time will do where it says nothing of one."""
    known = [entry[4] for entry in offset["splits"] if len(entry) > 4] if isinstance(offset, dict) else []
    return max(known, default=1_700_000_000_000_000) // 1000

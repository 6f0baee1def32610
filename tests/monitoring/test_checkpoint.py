"""The offset log of a checkpoint: what it says of each source, of ours and of others, and since when."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from alignment.explain import Explanation
from alignment.plan import WatermarkTable
from alignment.watermarks import LONG_AGO_US, MIN_WATERMARK
from streaming_source.api import RecordSplit, SourceSplit
from streaming_source.checkpoint import POLICY
from streaming_source.connectors.files import FileSource
from streaming_source.connectors.files.split import FileSplit
from streaming_source.connectors.kafka.split import KafkaSplit, KafkaSplitSerializer
from streaming_source.coordinator import SourceState
from streaming_source.exceptions import CheckpointError
from streaming_source.monitoring.explained import explain_checkpoint
from streaming_source.monitoring.micro_batch import MicroBatch
from streaming_source.monitoring.report import WatermarkReport, report_of_offset
from streaming_source.spark.offsets import OffsetCodec
from streaming_source.testing import TestingSource
from tests.monitoring.situations import Situation, at, records, silent_split


def log_of(query: Situation) -> Path:
    query.close()
    return query.folder / "checkpoint" / "offsets"


def append(log: Path, number: int, at_us: int, *offsets: dict[str, Any] | str, committed: bool = True) -> None:
    """One more micro-batch; a text is what another source writes."""
    lines = ["v1", json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": at_us // 1000})]
    lines += [offset if isinstance(offset, str) else json.dumps(offset) for offset in offsets]
    for folder in (log, log.parent / "commits") if committed else (log,):
        (folder / str(number)).write_text("\n".join(lines))
        (folder / f".{number}.crc").write_bytes(b"crc")


def report_of(batch: MicroBatch) -> WatermarkReport:
    (report,) = batch.sources
    assert report is not None
    return report


def test_sources_of_other_libraries_are_none(tmp_path: Path) -> None:
    log = log_of(silent_split(tmp_path))
    offset = json.loads((log / "0").read_text().splitlines()[-1])
    append(log, 1, at(0), '{"topic":{"0":17}}', offset, "-", "42")
    first, second = MicroBatch.of_checkpoint(str(log.parent))
    other, ours, dash, number = second.sources
    assert (other, dash, number) == (None, None, None)
    assert ours is not None
    batches = [one.explanation.batch for one in (ours, report_of(first))]
    assert replace(ours.explanation, batch=None) == replace(report_of(first).explanation, batch=None)
    assert [(one.number, one.rows) for one in batches if one is not None] == [(1, 34), (0, 34)]


def test_the_history_says_since_when_the_watermark_stands_and_what_is_committed(tmp_path: Path) -> None:
    log = log_of(silent_split(tmp_path))
    offset = json.loads((log / "0").read_text().splitlines()[-1])
    moved = {**offset, "watermark": at(9)}
    append(log, 1, at(60), {**offset, "n": 2})
    append(log, 9, at(70), {**moved, "n": 10})
    append(log, 10, at(80), {**moved, "n": 11}, committed=False)
    history = MicroBatch.of_checkpoint(str(log.parent))
    assert [(batch.number, batch.is_committed) for batch in history] == [(0, True), (1, True), (9, True), (10, False)]
    assert [report_of(batch).explanation.stands_since_us for batch in history] == [at(0), at(0), at(70), at(70)]


def test_an_offset_log_of_version_2_is_read_as_well(tmp_path: Path) -> None:
    log = log_of(silent_split(tmp_path))
    _, metadata, offset = (log / "0").read_text().splitlines()
    before = MicroBatch.of_checkpoint(str(log.parent))[0].sources
    (log / "0").write_text("\n".join(["v2", metadata, f"0:{offset}", "orders:-"]))
    assert MicroBatch.of_checkpoint(str(log.parent))[0].sources == (*before, None)


@pytest.mark.parametrize(
    ("sources", "conf", "is_said"),
    [
        (2, {POLICY: "max"}, True),
        (2, {POLICY: "min"}, False),
        (2, None, False),
        (1, {POLICY: "max"}, False),
    ],
)
def test_that_spark_goes_by_the_furthest_source_is_said(
    tmp_path: Path, sources: int, conf: object, is_said: bool
) -> None:
    log = log_of(silent_split(tmp_path))
    offset = json.loads((log / "0").read_text().splitlines()[-1])
    offset["fixed"] = {**offset.get("fixed", {}), "watermarkRows": True}
    metadata = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": at(0) // 1000, "conf": conf})
    (log / "0").write_text("\n".join(["v1", metadata, *[json.dumps(offset)] * sources]))
    advice = [one.text for one in explain_checkpoint(str(log.parent)).advice]
    assert any(f"{POLICY} is max in the checkpoint, which keeps it" in text for text in advice) is is_said


def test_what_is_no_checkpoint_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="give the checkpointLocation of the query"):
        MicroBatch.of_checkpoint(str(tmp_path))
    with pytest.raises(CheckpointError, match=r"nosuch://place/cp: Arrow knows no such file system"):
        MicroBatch.of_checkpoint("nosuch://place/cp")
    (tmp_path / "offsets").mkdir()
    assert MicroBatch.of_checkpoint(f"file://{tmp_path}") == []


def test_the_reasons_in_an_offset_take_a_few_bytes_a_split(tmp_path: Path) -> None:
    query = Situation(tmp_path, {f"split-{number:02}": records(range(60)) for number in range(50)}, max_rows=500)
    query.run(1)
    why = json.loads((log_of(query) / "0").read_text().splitlines()[-1])["why"]
    assert set(why) == {"bounds", "limit", "waitsFor", "behind", "rows", "reads"}
    assert len(json.dumps(why, separators=(",", ":"))) <= 4 * 50 + 200


class _Kafka(TestingSource):
    name = "aligned_kafka"  # type: ignore[assignment]
    split_serializer = KafkaSplitSerializer()  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("source", "split", "is_plain"),
    [
        (FileSource("/in"), FileSplit("carrier=HA", 7, "part-1", 3, 2), True),
        (FileSource("/in", split_by="file"), FileSplit("a.parquet", 7, modified_ms=1, size=9), True),
        (TestingSource({}), RecordSplit("a", 7), True),
        (_Kafka({}), KafkaSplit("orders", 3, 7, 0), True),
        (_Kafka({}), KafkaSplit("orders", 3, 7, 0, incarnation="Zq3k"), True),
        # As a source of somebody's own may write it.
        (_Kafka({}), KafkaSplit("a-b", 3, 7), True),
        (TestingSource({}), KafkaSplit("orders", 3, 7, 0), False),
    ],
)
def test_id_and_position_are_found_in_what_connectors_write(
    source: Any, split: SourceSplit, is_plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_plain:
        monkeypatch.setattr(type(source), "split_serializer", KafkaSplitSerializer())
    table = WatermarkTable(
        split_ids=(split.split_id,), watermarks=np.array([MIN_WATERMARK]), statuses=np.array([0], np.int8)
    )
    state: Any = SourceState(1, (split,), table, np.zeros(1, np.int64), np.full(1, LONG_AGO_US), None)
    offset = json.loads(json.dumps(OffsetCodec(source).encode(state, Explanation(5, 9, 8))))
    assert ("places" in offset["why"]) != is_plain
    (found,) = report_of_offset(offset).explanation.splits
    assert (found.split_id, found.position, found.watermark) == (split.split_id, 7, MIN_WATERMARK)

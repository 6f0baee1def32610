"""Options that change between two runs: as docs/upgrades.md says, all is read once, or the start is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from streaming_source.exceptions import DataLossError, OffsetError
from tests.docs.pages import ROOT
from tests.streaming_source.reading import Reading, put, stamps, stream_reader

# Of `aligned_files`, and those that every format has: values for one micro-batch, beside those of `OF_BOTH`.
MAY_CHANGE = {
    "maxOutOfOrderness": ("1 minute", "0 seconds"),
    "lateness": ("none",),
    "idleTimeout": ("1 hour",),
    "maxDrift": ("10 seconds",),
    "alignmentGroup": ("one",),
    "updateInterval": ("2 seconds",),
    "maxRowsPerTrigger": ("7", "1000"),
    "minRowsPerTrigger": ("2",),
    "maxTriggerDelay": ("1 minute",),
    "maxFilesPerTrigger": ("1",),
    "maxBytesPerTrigger": ("1",),
    "numReaders": ("7",),
    "late": ("drop", "route"),
    "invalidTimestamp": ("drop",),
    "maxFutureSkew": ("1 hour",),
    "includeMetadata": ("true",),
    "columns": ("n,log,t",),
    "eventTimeColumn": ("u",),
    "indexing": ("scan",),
    "discoveryInterval": ("1 ms",),
    "pathGlobFilter": ("*.parquet",),
    "modifiedAfter": ("2020-01-01T00:00:00",),
    "modifiedBefore": ("2200-01-01T00:00:00",),
    "maxFileAge": ("1 day",),
    "allowOverwrites": ("true",),
    "cleanSource": ("delete",),
    "ignoreMissingFiles": ("true",),
    "ignoreCorruptFiles": ("true",),
    "warnAfter": ("1 hour",),
}
NEED = {"alignmentGroup": {"maxDrift": "1 minute"}, "maxTriggerDelay": {"minRowsPerTrigger": "2"}}
OF_FILES = {"maxFilesPerTrigger", "maxBytesPerTrigger", "maxFileAge", "allowOverwrites"}
USUAL = {"maxRowsPerTrigger": "5", "maxOutOfOrderness": "5 seconds", "bounded": "true", "eventTimeColumn": "t"}
EVERYTHING = [(log, number) for log in "ab" for number in range(100)]


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    for log in "ab":
        for part in range(10):
            numbers = range(part * 10, part * 10 + 10)
            times = stamps(*numbers, zone="UTC")
            put(tmp_path / "in" / log / f"{part}.parquet", {"t": times, "u": times, "n": numbers, "log": [log] * 10})
    return tmp_path / "in"


def in_runs(logs: Path, *runs: dict[str, Any]) -> list[tuple[str, int]]:
    """What is read in a micro-batch with some options, then in one with others, and so on; with the last to the end."""
    rows: list[tuple[str, int]] = []
    offset = None
    for run, options in enumerate(runs, 1):
        reading = Reading(stream_reader(logs, **{**USUAL, **options}))
        if offset is not None:
            reading.offset = json.loads(json.dumps(offset))
        try:
            while (table := reading.next()) is not None:
                rows += zip(table.column("log").to_pylist(), table.column("n").to_pylist(), strict=True)
                if run < len(runs):
                    break
        finally:
            reading.reader.stop()
        offset = reading.offset
    return sorted(rows)


@pytest.mark.parametrize("layout", ["directory", "file"])
def test_a_record_is_read_once_while_options_change_from_micro_batch_to_micro_batch(
    layout: str, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    names = [name for name in MAY_CHANGE if layout == "file" or name not in OF_FILES]
    runs = [{name: value, **NEED.get(name, {})} for name in names for value in MAY_CHANGE[name]]
    assert in_runs(logs, *({"splitBy": layout, **run} for run in runs), {"splitBy": layout}) == EVERYTHING


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"splitBy": "file"}, {"splitBy": "directory"}),
        ({"splitBy": "directory"}, {"splitBy": "file"}),
        ({"splitBy": "file"}, {"fileOrder": "name"}),
        ({"splitBy": "file", "fileOrder": "name"}, {"fileOrder": "modificationTime"}),
        ({"splitBy": "file"}, {"fileNameOnly": "true"}),
        ({"splitBy": "file"}, {"stateLocation": "{state}"}),
        ({"splitBy": "directory"}, {"bounded": "false"}),
    ],
)
def test_what_would_read_other_records_or_some_twice_is_refused(
    before: dict[str, str], after: dict[str, str], logs: Path, tmp_path: Path
) -> None:
    after = {name: value.format(state=tmp_path / "state") for name, value in after.items()}
    with pytest.raises(OffsetError, match="use a new checkpointLocation"):
        in_runs(logs, before, {**before, **after})


def test_the_log_of_finished_files_is_not_left_behind(logs: Path, tmp_path: Path) -> None:
    runs = [{"splitBy": "file", "maxRowsPerTrigger": "50", "stateLocation": str(tmp_path / name)} for name in "ab"]
    with pytest.raises(DataLossError, match="stateLocation has no entry of state"):
        in_runs(logs, runs[0], *runs)


def test_the_page_names_the_options_that_were_tried() -> None:
    page = (ROOT / "docs" / "upgrades.md").read_text(encoding="utf-8")
    table = page.partition("no record is lost or read twice")[2].partition("These need a new checkpoint")[0]
    named = {name for row in re.findall(r"^\| (`.*?) \|", table, re.M) for name in re.findall(r"`([A-Za-z]+)`", row)}
    assert {*MAY_CHANGE} <= named
    assert named - {*MAY_CHANGE} == {"timestampUnit", "bounded", "false", "true", "eventLog", "gateway"}

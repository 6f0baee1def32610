"""An audit takes from files of text what Spark took from them: columns by place, and no record that Spark left out."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

import streaming_source
from streaming_source.auditing import Audit
from tests.auditing import naive
from tests.auditing.naive import SECOND, Query, Time

MINUTE = 60 * SECOND
QUERY = Query(5_000, MINUTE, MINUTE)
COUNTS = ("read", "dropped", "emitted", "open", "unknown", "without_time")


def batches(ending: str) -> list[list[tuple[str, list[Time]]]]:
    """A slow directory and a fast one in turn."""
    found: list[list[tuple[str, list[Time]]]] = []
    for part in range(6):
        name, step = ("fast", 8) if part % 2 else ("slow", 1)
        begin = naive.T0 + part // 2 * 60 * step * SECOND
        found.append([(f"{name}/{part}.{ending}", [begin + i * step * SECOND for i in range(60)])])
    return found


def text(t: Time) -> str:
    assert t is not None
    return datetime.fromtimestamp(t // SECOND, UTC).isoformat()


def audit(root: Path, **options: str) -> Audit:
    return streaming_source.audit(
        str(root / "checkpoint"), time="ts", window="1 minute", mode="append", options={"timeZone": "UTC", **options}
    )


def counts(done: naive.Run) -> dict[str, int]:
    return {name: sum(one[name] for one in done.counts.values()) for name in COUNTS}


@pytest.fixture
def swapped(tmp_path: Path) -> naive.Run:
    """Two columns of times, which the files have under the names `sent,ts,k`, and the query's schema as `ts, sent`."""
    done = naive.run(QUERY, batches("csv"))
    for number, ((name, times),) in enumerate(batches("csv")):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        late = 60 + number
        rows = [f"{text(t)},{text(t - late * SECOND)},{i}\n" for i, t in enumerate(times) if t is not None]
        path.write_text("".join(["sent,ts,k\n", *rows]))
    naive.write_checkpoint(tmp_path / "checkpoint", tmp_path / "in", QUERY, done)
    return done


def test_columns_of_csv_are_those_of_the_schema_by_their_places(swapped: naive.Run, tmp_path: Path) -> None:
    found = audit(tmp_path, header="true", dataSchema="ts timestamp, sent timestamp, k string")
    assert {name: found.count(name) for name in COUNTS} == counts(swapped)
    assert found.dropped > 0
    assert found.query.undecided is None


def test_no_bound_is_given_while_the_order_of_columns_is_a_guess(swapped: naive.Run, tmp_path: Path) -> None:
    found = audit(tmp_path, header="true")
    assert found.unknown == found.read
    assert "at most" not in str(found)
    assert "another order than their first line, which Spark ignores; give it with -o dataSchema" in str(found)


@pytest.mark.parametrize("ending", ["json", "csv"])
def test_records_that_the_query_dropped_as_malformed_were_not_read(tmp_path: Path, ending: str) -> None:
    done = naive.run(QUERY, batches(ending))
    for ((name, times),) in batches(ending):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if ending == "json":
            rows = [json.dumps({"ts": text(t), "n": i}) for i, t in enumerate(times)]
            rows[20:20] = ["{broken", '{"ts": "yesterday", "n": 1}']
        else:
            rows = [f"{text(t)},{i}" for i, t in enumerate(times)]
            rows[20:20] = ["yesterday,1"]
        path.write_text("\n".join([*rows, ""]))
    naive.write_checkpoint(tmp_path / "checkpoint", tmp_path / "in", QUERY, done)
    given = {"dataSchema": "ts timestamp, n int", "mode": "DROPMALFORMED"}

    found = audit(tmp_path, **given)

    assert {name: found.count(name) for name in COUNTS} == counts(done)
    # One that is malformed elsewhere is read if the query does not need that column.
    path = tmp_path / "in/slow/0.csv"
    if ending == "csv":
        path.write_text(path.read_text().replace(",7\n", ",seven\n"))
        found = audit(tmp_path, **given)
        assert (found.read, found.unknown) == (360, 1)
        assert "which the query has read or not" in str(found)

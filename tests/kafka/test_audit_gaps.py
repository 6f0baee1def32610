"""An audit over logs with gaps: aborted transactions, compaction, and offsets before the start of the query."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

import streaming_source
from streaming_source.auditing import Audit
from tests.auditing import naive
from tests.auditing.naive import SECOND, Query
from tests.kafka.topics import Record, Topic, whole_ms

MINUTE = 60 * SECOND
QUERY = Query(5_000, MINUTE, MINUTE)
ISOLATION = "kafka.isolation.level"
COUNTS = ("read", "dropped", "emitted", "open", "unknown")


def records(first: int, count: int, speed: int = 8, keys: int | None = None) -> list[Record]:
    """Of every second one the time is that of a slow producer, so that it is late."""
    return [
        Record(whole_ms(naive.T0 + i * SECOND * (speed if i % 2 else 1)), b"", b"%d" % (i % (keys or 1_000_000)))
        for i in range(first, first + count)
    ]


def run(checkpoint: Path, topic: Topic, ends: Sequence[int], *, committed: bool, begin: int = 0) -> naive.Run:
    """Leave the checkpoint of a query that read one partition up to each of `ends`, and return what it did."""
    there = [one for one in topic.read(committed=committed)[0] if one.offset >= begin]
    starts = [begin, *ends[:-1]]
    batches = [
        [(f"{number}", [one.time_us for one in there if start <= one.offset < end])]
        for number, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]
    done = naive.run(QUERY, batches)
    naive.write_checkpoint(checkpoint, checkpoint, QUERY, done)
    for number, end in enumerate(ends):
        path = checkpoint / f"offsets/{number}"
        *lines, _ = path.read_text().splitlines()
        path.write_text("\n".join([*lines, json.dumps({topic.name: {"0": end}})]))
    for path in (checkpoint / "sources/0").iterdir():
        path.unlink()
    (checkpoint / "sources/0/0").write_bytes(b"\0v1\n" + json.dumps({topic.name: {"0": begin}}).encode())
    return done


def audit(checkpoint: Path, topic: Topic, **options: str) -> Audit:
    given = {"kafka.bootstrap.servers": topic.broker.bootstrap, **options}
    return streaming_source.audit(str(checkpoint), window="1 minute", mode="append", options=given)


def total(done: naive.Run, name: str) -> int:
    return sum(counts[name] for counts in done.counts.values())


@pytest.fixture
def with_aborted(topic: Topic) -> Topic:
    topic.create()
    topic.transaction(records(0, 40), end="commit")
    topic.transaction(records(40, 30), end="abort")
    topic.transaction(records(40, 50), end="commit")
    topic.write(records(90, 20))
    return topic


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_aborted_records_count_if_the_query_read_them_and_are_unknown_while_nobody_says_so(
    with_aborted: Topic, tmp_path: Path, level: str
) -> None:
    topic, is_committed = with_aborted, level == "read_committed"
    end = topic.bounds(0)[1]
    # The first micro-batch ends within the aborted transaction, whose mark comes later.
    done = run(tmp_path / "cp", topic, [60, 100, end], committed=is_committed)

    found, unsaid = audit(tmp_path / "cp", topic, **{ISOLATION: level}), audit(tmp_path / "cp", topic)

    assert {name: found.count(name) for name in COUNTS} == {name: total(done, name) for name in COUNTS}
    assert found.read == (110 if is_committed else 140)
    assert found.dropped > 0
    assert found.query.undecided is None
    assert unsaid.unknown == 30
    assert unsaid.read == 140
    if is_committed:
        assert unsaid.dropped == found.dropped
    assert "give -o kafka.isolation.level=read_committed if it had that" in str(unsaid)


def test_an_open_transaction_that_the_query_has_read_shows_that_it_reads_uncommitted_records(
    topic: Topic, tmp_path: Path
) -> None:
    topic.create()
    topic.write(records(0, 40))
    left_open = topic.transaction(records(40, 30), end="open")
    done = run(tmp_path / "cp", topic, [20, 70], committed=False)
    found = audit(tmp_path / "cp", topic)
    assert {name: found.count(name) for name in COUNTS} == {name: total(done, name) for name in COUNTS}
    topic.end(left_open, "abort")


def test_marks_of_transactions_are_no_records(topic: Topic, tmp_path: Path) -> None:
    topic.create()
    for number in range(4):
        topic.transaction(records(number * 20, 20), end="commit")
    done = run(tmp_path / "cp", topic, [50, topic.bounds(0)[1]], committed=True)
    found = audit(tmp_path / "cp", topic)
    assert {name: found.count(name) for name in COUNTS} == {name: total(done, name) for name in COUNTS}
    assert (found.read, found.unknown) == (80, 0)


def test_records_that_compaction_took_are_unknown(topic: Topic, tmp_path: Path) -> None:
    topic.create(segment_ms=10, retention_ms=-1)
    for number in range(6):
        topic.write(records(number * 20, 20, keys=30))
    done = run(tmp_path / "cp", topic, [50, 90, 120], committed=False)
    assert total(done, "read") == 120, "nothing is compacted yet"
    topic.configure(cleanup_policy="compact", min_cleanable_dirty_ratio=0.001)
    topic.write(records(120, 1))
    topic.await_compaction(0, 60)
    left = sum(one.offset < 120 for one in topic.read()[0])

    found = audit(tmp_path / "cp", topic)

    assert found.read == 120
    assert found.unknown == 120 - left > 0
    assert f"of {120 - left} rows it is unknown" in str(found)
    assert "compaction has taken them" in str(found)


def test_what_was_before_the_start_of_a_query_was_never_read(topic: Topic, tmp_path: Path) -> None:
    """Also where Spark has removed the offsets of its first micro-batches."""
    topic.create()
    topic.write(records(0, 100))
    run(tmp_path / "cp", topic, [60, 70, 80, 90, 100], committed=False, begin=50)
    whole = audit(tmp_path / "cp", topic)
    for number in range(2):
        (tmp_path / f"cp/offsets/{number}").unlink()
        (tmp_path / f"cp/commits/{number}").unlink()

    found = audit(tmp_path / "cp", topic)

    assert whole.read == found.read == 50
    assert found.unknown == 30
    assert "what they dropped is unknown (30 rows)" in str(found)

"""History in files, what follows in a topic: one union, whose windows are those of a batch over both."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from alignment.arrow_times import format_timestamp
from alignment.watermarks import FAR_US
from streaming_source.exceptions import PathNotFoundError
from streaming_source.spark.datasource import AlignedDataSource
from streaming_source.spark.readers import AlignedStreamReader
from streaming_source.spark.watermark_rows import MAX_SPARK_WATERMARK_US, OFFSET_US
from tests.kafka.support import format_options
from tests.kafka.topics import Record, Topic
from tests.kafka.union import Row, UnionQuery
from tests.spark.reading import Reading, put, rows_emitted
from tests.spark.support import MINUTE, SECOND, T0

HOUR = 60 * MINUTE
CUT = T0 // HOUR * HOUR + 10 * HOUR
BOUND = 5 * MINUTE
GROUP = {"alignmentGroup": "events", "alignmentScope": "query", "maxDrift": "30 minutes"}


def rows_of(table: pa.Table) -> list[Row]:
    """Of files by their column `id`, of Kafka by the value."""
    if "ts" in table.column_names:
        return list(zip(table["ts"].cast(pa.int64()).to_pylist(), table["id"].to_pylist(), strict=True))
    times, values = table["timestamp"].cast(pa.int64()).to_pylist(), table["value"].to_pylist()
    return [(us, -1 if value is None else int(value)) for us, value in zip(times, values, strict=True)]


class Events:
    """Records by split on both sides of a cut, out of order by less than the bound, each with an id of its own."""

    def __init__(self, seed: int, splits: int = 3, per_split: int = 400) -> None:
        rng = np.random.default_rng(seed)
        step = 20 * HOUR // per_split
        # Whole milliseconds, as Kafka has them; at every fifth there are several of one time.
        base = CUT - 10 * HOUR + np.arange(per_split) // 5 * 5 * step
        self.by_split = {i: (base + rng.integers(0, 200_000, per_split) * 1000) for i in range(splits)}
        # On the cut itself, and right before it.
        for times in self.by_split.values():
            times[per_split // 2 - 1 : per_split // 2 + 2] = CUT - 1000, CUT, CUT
        self.first_id = {i: i * per_split for i in range(splits)}

    def rewritten(self, split: int, keep: Callable[[int], bool]) -> list[Row]:
        """The same in any order, as a compaction or a shuffle leaves a file."""
        rows = self.of(split, keep)
        random.Random(split).shuffle(rows)
        return rows

    def of(self, split: int, keep: Callable[[int], bool]) -> list[Row]:
        numbered = enumerate(self.by_split[split].tolist(), self.first_id[split])
        return [(us, record) for record, us in ((number, us) for number, us in numbered) if keep(us)]

    def windows(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for split in self.by_split:
            for us, record in self.of(split, lambda _: True):
                found.setdefault(us - us % HOUR, []).append(record)
        return {start: sorted(ids) for start, ids in found.items()}


def write_history(root: Path, rows: Mapping[str, Sequence[Row]]) -> None:
    for name, of_split in rows.items():
        times, ids = [us for us, _ in of_split], [record for _, record in of_split]
        table = pa.table({"ts": pa.array(times, pa.int64()).cast(pa.timestamp("us", "UTC")), "id": ids})
        put(root / name, table, row_group_size=20)


def send(topic: Topic, partition: int, rows: Sequence[Row]) -> None:
    topic.write([Record(us // 1000, b"%d" % record, partition=partition) for us, record in rows])


def history(root: Path, **options: Any) -> AlignedStreamReader:
    given = {"path": str(root), "eventTimeColumn": "ts", "maxOutOfOrderness": "5 minutes", "bounded": "true"}
    given |= {
        "splitBy": "file",
        "dataSchema": "ts timestamp, id bigint",
        "eventTimeUntil": format_timestamp(CUT),
        **GROUP,
        **options,
    }
    source = AlignedDataSource.of_format("aligned_files", rows_emitted({**given, "watermarkRows": "true"}))
    return source.stream_reader(source.schema())


def live(topic: Topic, **options: Any) -> AlignedStreamReader:
    given = {"eventTimeFrom": format_timestamp(CUT), "maxOutOfOrderness": "5 minutes", "startingOffsets": None}
    given |= {**GROUP, "watermarkRows": "true", **options}
    source = AlignedDataSource.of_format("aligned_kafka", rows_emitted(format_options(topic, **given)))
    return source.stream_reader(source.schema())


def query(root: Path, topic: Topic, of_both: Mapping[str, Any] | None = None, **settings: Any) -> UnionQuery:
    options = dict(of_both or {})
    return UnionQuery(
        [partial(history, root, **options), partial(live, topic, **options)], rows_of, HOUR, CUT, **settings
    )


@pytest.fixture(autouse=True)
def one_application(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "local"))


def check_holds(run: UnionQuery) -> None:
    """Spark's watermark is that of the slower side all along: it does not jump when one side ends."""
    assert not run.dropped
    for history_us, live_us in run.announced:
        if history_us < CUT - BOUND - 1:
            assert min(history_us, live_us) <= CUT


# ---- kills -----------------------------------------------------------------------------------------------------------


def run_with_kills(root: Path, topic: Topic, seed: int, share: float) -> UnionQuery:
    """One query to its end while the topic grows, and planners are killed."""
    rng = random.Random(seed)
    events = Events(seed)
    # What is there is never late, in whatever order a file has it.
    of_history = events.of if seed % 2 else events.rewritten
    write_history(root, {f"{i}.parquet": of_history(i, lambda us: us < CUT + HOUR) for i in events.by_split})
    topic.create(partitions=len(events.by_split))
    # An hour before the cut is in the topic as well, an hour behind it in the files as well.
    later = {i: events.of(i, lambda us: us >= CUT - HOUR) for i in events.by_split}
    sent = {i: rng.randint(0, len(rows)) for i, rows in later.items()}
    for i, rows in later.items():
        send(topic, i, rows[: sent[i]])
    options = {"maxRowsPerTrigger": str(rng.choice([40, 90, 200])), "idleTimeout": "none"}
    options["maxDrift"] = f"{rng.choice([30, 120, 600])} minutes"
    run = query(root, topic, options, rng=rng, kill_share=share, kill_share_crossing=0.75)
    expected = events.windows()
    total = sum(map(len, expected.values()))

    def is_done() -> bool:
        # What is left of the topic comes while the query runs.
        behind = [i for i, rows in later.items() if sent[i] < len(rows)]
        if behind and rng.random() < 0.5:
            i = rng.choice(behind)
            more = min(sent[i] + rng.randint(1, 60), len(later[i]))
            send(topic, i, later[i][sent[i] : more])
            sent[i] = more
        return not behind and sum(map(len, run.windows().values())) == total

    try:
        run.run(is_done)
    finally:
        run.close()
    assert run.windows() == expected
    check_holds(run)
    return run


@pytest.mark.parametrize("seed", [0, pytest.param(range(1, 60), marks=pytest.mark.soak)], ids=["one", "many"])
def test_killed_planners_change_nothing_at_the_cut(topic: Topic, tmp_path: Path, seed: int | Sequence[int]) -> None:
    """A kill comes before the offsets of a micro-batch are written, while it is read, or when it is committed."""
    if isinstance(seed, int):
        run = run_with_kills(tmp_path / "in", topic, seed, 0.1)
        assert run.crossing_batches
        assert run.kills
        return
    kills = crossing = 0
    for one in seed:
        other = Topic(topic.broker)
        run = run_with_kills(tmp_path / f"in{one}", other, one, 0.08)
        kills, crossing = kills + run.kills, crossing + run.crossing
        other.delete()
        other.close()
    print(f"{kills} kills, {crossing} of them in micro-batches that cross the cut")
    assert kills >= 200
    assert crossing >= 50


# ---- case by case ----------------------------------------------------------------------------------------------------


def at(*seconds: int, first: int = 0) -> list[Row]:
    """Records so many seconds after the cut."""
    return [(CUT + s * SECOND, record) for record, s in enumerate(seconds, first)]


def ids(run: UnionQuery) -> list[int]:
    return sorted(record for found in run.windows().values() for record in found)


def is_past(run: UnionQuery, us: int) -> Callable[[], bool]:
    return lambda: run.watermark_us >= us


def test_equal_times_at_the_cut_are_read_once_from_the_side_that_has_them(topic: Topic, tmp_path: Path) -> None:
    write_history(tmp_path / "in", {"a.parquet": at(-60, -1, 0, 0, 60)})
    topic.create(partitions=1)
    send(topic, 0, at(-60, -1, 0, 0, 60, first=100))
    run = query(tmp_path / "in", topic)
    run.run(lambda: len(ids(run)) >= 5)
    run.close()
    assert ids(run) == [0, 1, 102, 103, 104]


def test_flink_39586_a_partition_without_records_behind_the_history_holds_nothing(topic: Topic, tmp_path: Path) -> None:
    """In Flink a subtask that gets no split of the second source keeps its last watermark, for ever."""
    write_history(tmp_path / "in", {"a.parquet": at(-7200, -60), "b.parquet": at(-7200, first=10)})
    topic.create(partitions=4)
    send(topic, 1, at(10, 7200, 14400, first=20))
    run = query(tmp_path / "in", topic, {"idleTimeout": "300 ms"})
    run.run(is_past(run, CUT + 2 * HOUR))
    run.close()
    assert ids(run) == [0, 1, 10, 20, 21, 22]
    assert not run.dropped


def test_flink_39514_a_partition_that_comes_during_the_history_is_read_from_the_cut(
    topic: Topic, tmp_path: Path
) -> None:
    """In Flink a reader that gets its first split late was not woken for it."""
    write_history(tmp_path / "in", {"a.parquet": at(*range(-36000, 0, 60))})
    topic.create(partitions=1)
    send(topic, 0, at(0, 7200, first=1000))
    options = {"idleTimeout": "2 seconds", "maxRowsPerTrigger": "40", "discoveryInterval": "50 ms"}
    run = UnionQuery(
        [
            partial(history, tmp_path / "in", idleTimeout="2 seconds", maxRowsPerTrigger="40"),
            partial(live, topic, **options),
        ],
        rows_of,
        HOUR,
        CUT,
    )
    run.run(lambda: len(ids(run)) >= 100)
    topic.add_partitions(2)
    send(topic, 1, at(-10, 0, 7200, first=2000))
    run.run(lambda: {2001, 2002} <= {*ids(run)})
    run.close()
    assert ids(run) == [*range(600), 1000, 1001, 2001, 2002]
    assert not run.dropped


def test_flink_39979_a_topic_without_any_record_holds_what_follows_the_cut(topic: Topic, tmp_path: Path) -> None:
    """In Flink a reader without sub-readers was not idle."""
    write_history(tmp_path / "in", {"a.parquet": at(-7200, -3600, -60)})
    topic.create(partitions=2)
    run = query(tmp_path / "in", topic, {"idleTimeout": "300 ms"})
    # None of the partitions has ever had a record: they announce nothing, and so none holds.
    run.run(lambda: len(ids(run)) == 3 and not run.step())
    before = run.watermark_us
    send(topic, 0, at(5, 7200, first=10))
    run.run(is_past(run, CUT + HOUR))
    run.close()
    assert before <= CUT
    assert ids(run) == [0, 1, 2, 10, 11]
    assert not run.dropped


def test_flink_40094_a_history_without_records_is_let_go_before_its_splits_are(topic: Topic, tmp_path: Path) -> None:
    """In Flink splits that are released while they are active hold the watermark where they were."""
    write_history(tmp_path / "in", {"a.parquet": at(60, 7200)})
    topic.create(partitions=1)
    send(topic, 0, at(60, 7200, 14400, first=10))
    run = query(tmp_path / "in", topic)
    run.run(is_past(run, CUT + 2 * HOUR))
    run.close()
    assert ids(run) == [10, 11, 12]
    assert run.announced[-1][0] == MAX_SPARK_WATERMARK_US


def test_a_history_without_files_lets_the_topic_go_on(topic: Topic, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    topic.create(partitions=1)
    send(topic, 0, at(60, 7200, first=10))
    run = query(tmp_path / "in", topic)
    run.run(is_past(run, CUT + HOUR))
    run.close()
    assert ids(run) == [10, 11]


def test_a_file_of_the_history_that_comes_too_late_is_late_and_counted(topic: Topic, tmp_path: Path) -> None:
    """A directory is a log: the last file in it has records from before those of the first."""
    write_history(tmp_path / "in", {"a.parquet": at(-7200, -3600, -60), "b.parquet": at(-7000, -100, first=50)})
    # Both are there at once: that alone would make none late.
    topic.create(partitions=1)
    send(topic, 0, at(60, 7200, 14400, first=10))
    options = {"late": "drop", "lateness": "bounded", "maxRowsPerTrigger": "3", "splitBy": "directory"}
    sides = [partial(history, tmp_path / "in", **options), partial(live, topic, late="drop")]
    run = UnionQuery(sides, rows_of, HOUR, CUT)
    run.run(is_past(run, CUT + 2 * HOUR))
    run.close()
    # As its offsets count them.
    assert max(sum(entry[3] for entry in of[0]["splits"] if len(entry) > 3) for of in run.log) == 1
    # 100 seconds before the cut is within the bound of the last record before it.
    assert ids(run) == [0, 1, 2, 10, 11, 12, 51]


def test_available_now_reads_both_sides_and_a_later_run_goes_on(topic: Topic, tmp_path: Path) -> None:
    events = Events(5)
    write_history(tmp_path / "in", {f"{i}.parquet": events.of(i, lambda us: us < CUT) for i in events.by_split})
    topic.create(partitions=4)
    first = {i: events.of(i, lambda us: CUT <= us < CUT + 4 * HOUR) for i in events.by_split}
    rest = {i: events.of(i, lambda us: us >= CUT + 4 * HOUR) for i in events.by_split}
    for i, rows in first.items():
        send(topic, i, rows)
    options = {"maxRowsPerTrigger": "100", "maxDrift": "2 hours"}
    run = query(tmp_path / "in", topic, options, available_now=True)
    run.run()
    assert sum(map(len, run.windows().values())) == sum(
        len(events.of(i, lambda us: us < CUT + 4 * HOUR)) for i in first
    )
    assert run.watermark_us >= CUT
    for i, rows in rest.items():
        send(topic, i, rows)
    run.restart()
    run.run()
    run.close()
    assert run.windows() == events.windows()
    check_holds(run)


# ---- a history that was read to its end ------------------------------------------------------------------------------


@pytest.mark.parametrize("split_by", ["file", "directory"])
def test_a_history_that_was_read_to_its_end_may_be_gone(
    tmp_path: Path, split_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_history(tmp_path / "in", {"a.parquet": at(-7200, -60), "b.parquet": at(-60, -50, first=9)})
    begun = Reading(history(tmp_path / "in", splitBy=split_by))
    offsets = [begun.offset]
    while begun.next() is not None:
        offsets.append(begun.offset)
    begun.reader.stop()
    last_rows = [row for row in rows_of(begun_between(tmp_path, split_by, offsets[-2:])) if row[0] < FAR_US]
    (tmp_path / "in").rename(tmp_path / "away")
    again = Reading(history(tmp_path / "in", splitBy=split_by))
    again.offset = begun.offset
    with monkeypatch.context() as patched:
        patched.setattr("streaming_source.connectors.files.listing.Lister.list_changed", forbidden)
        announced = again.next()
        # Once more, since Spark has forgotten what each source announced; and then nothing.
        assert announced is not None
        assert rows_of(announced) == [(MAX_SPARK_WATERMARK_US + OFFSET_US, None)]
        assert again.next() is None
    assert again.offset["watermark"] == begun.offset["watermark"]
    again.reader.stop()
    # A micro-batch of it that is read again needs its files.
    if last_rows:
        with pytest.raises(Exception, match=r"does not exist|is gone"):
            begun_between(tmp_path, split_by, offsets[-2:])


def begun_between(root: Path, split_by: str, offsets: Sequence[dict[str, Any]]) -> pa.Table:
    """A micro-batch, read again by a new planner."""
    again = Reading(history(root / "in", splitBy=split_by))
    try:
        return again.between(offsets[0], offsets[1])
    finally:
        again.reader.stop()


def forbidden(*_: object) -> None:
    raise AssertionError("a source that has ended was listed")


def test_a_history_that_was_never_there_is_an_error(tmp_path: Path) -> None:
    begun = Reading(history(tmp_path / "in"))
    with pytest.raises(PathNotFoundError, match="does not exist; give an existing directory"):
        begun.next()
    begun.reader.stop()

"""Late records that are routed: one query keeps the others, a second one reads them by the offsets of the first."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa
import pytest

from alignment.plan import PlanningRules
from alignment.strategy import WatermarkStrategy
from alignment.watermarks import MAX_WATERMARK
from streaming_source.coordinator import ReadRules
from streaming_source.coordinator.rules import FrameOptions
from streaming_source.exceptions import (
    DataLossError,
    LateRecordError,
    OffsetError,
    OptionError,
    StoreError,
)
from streaming_source.spark.before_4_2 import ReadAllAvailable, ReadMaxRows
from streaming_source.spark.late_reader import LateStreamReader
from streaming_source.spark.readers import AlignedStreamReader
from tests.examples import one_in
from tests.files.stores import SECRET, s3_store
from tests.spark.reading import SECOND, T0, data_source, put, stream_reader

KEYS = {"eventTimeColumn": "t", "idleTimeout": "1 ms"}


_open: list[Query | LateQuery] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while _open:
        _open.pop().start()


class Query:
    """A query as Spark runs it: offsets are written down before a micro-batch is read, commits behind it."""

    def __init__(self, root: Path, checkpoint: Path, **options: Any) -> None:
        self.late_log = checkpoint.with_name("late_log")
        self.options: dict[str, Any] = {**KEYS, "late": "route", "lateLocation": self.late_log, **options}
        self.root, self.checkpoint = root, checkpoint
        self.kept: list[str] = []
        self._reader: AlignedStreamReader | None = None
        _open.append(self)
        checkpoint.mkdir()
        (checkpoint / "metadata").write_text(json.dumps({"id": checkpoint.name}))

    def start(self, **options: Any) -> None:
        """Start, or start again."""
        self.options.update(options)
        if self._reader is not None:
            self._reader.stop()
        self._reader = None

    @property
    def reader(self) -> AlignedStreamReader:
        """Made when there is a file, which tells the columns."""
        if self._reader is None:
            self._reader = stream_reader(self.root, **self.options)
        return self._reader

    def offset(self, batch: int) -> dict[str, Any]:
        if batch < 0:
            return self.reader.initialOffset()
        offset: dict[str, Any] = json.loads((self.checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1])
        return offset

    def batches(self, log: str) -> list[int]:
        return sorted(int(path.name) for path in (self.checkpoint / log).glob("*"))

    def run(self, max_rows: int, *, commits: bool = True) -> bool:
        """One micro-batch: the one that was written down and not committed, or the next; whether there was one."""
        done = max(self.batches("commits"), default=-1)
        start = self.offset(done)
        if self.batches("offsets")[-1:] != [done + 1]:
            end = self.reader.latestOffset(start, ReadMaxRows(max_rows))
            if end == start:
                return False
            metadata = json.dumps({"batchTimestampMs": 0, "batchWatermarkMs": 0})
            self.write("offsets", done + 1, f"v1\n{metadata}\n{json.dumps(end)}")
        if not commits:
            return True
        for part in self.reader.partitions(start, self.offset(done + 1)):
            for batch in self.reader.read(part):
                self.kept += batch.column("k").to_pylist()
        self.write("commits", done + 1, "v1\n{}")
        return True

    def settle(self) -> None:
        """Micro-batches until there is nothing to do."""
        while self.run(100):
            pass

    def write(self, log: str, batch: int, text: str) -> None:
        (self.checkpoint / log).mkdir(exist_ok=True)
        (self.checkpoint / log / str(batch)).write_text(text)

    def purge(self, before: int) -> None:
        """Remove the entries of older micro-batches, as Spark does."""
        for log in ("offsets", "commits"):
            for batch in self.batches(log):
                if batch < before:
                    (self.checkpoint / log / str(batch)).unlink()

    def late(self, **options: Any) -> LateQuery:
        return LateQuery(self, options)

    def entries(self) -> list[Path]:
        """The files in the late log."""
        return sorted(self.late_log.glob("*/*.json"))


class LateQuery:
    """The query of the late records, from its own offset."""

    def __init__(self, query: Query, options: Mapping[str, Any]) -> None:
        self._query, self._options = query, options
        self.rows: list[str] = []
        self._offset: dict[str, Any] | None = None
        self._planned: dict[str, Any] | None = None
        self._reader: LateStreamReader | None = None
        _open.append(self)

    def start(self) -> None:
        """Start, or start again."""
        if self._reader is not None:
            self._reader.stop()
        self._reader = None

    @property
    def offset(self) -> dict[str, Any]:
        return self.reader.initialOffset() if self._offset is None else self._offset

    @property
    def reader(self) -> LateStreamReader:
        if self._reader is None:
            self._reader = self._new_reader()
        return self._reader

    def _new_reader(self) -> LateStreamReader:
        options = {**self._query.options, "late": "route", "lateRecordsOf": self._query.checkpoint, **self._options}
        source = data_source(self._query.root, **options)
        reader = source.stream_reader(source.schema())
        assert isinstance(reader, LateStreamReader)
        return reader

    def run(self, *, commits: bool = True) -> list[str]:
        """One micro-batch, the one that was written down or the next, read twice as Spark may: the keys of its rows."""
        if self._planned is None:
            end = self.reader.latestOffset(self.offset, ReadAllAvailable())
            if end == self.offset:
                return []
            self._planned = json.loads(json.dumps(end))
            if self._offset is not None:
                # Spark does so when the next micro-batch is written down.
                self.reader.commit(self._offset)
        for _ in range(2):
            parts = self.reader.partitions(self.offset, self._planned)
            rows = [key for part in parts for b in self.reader.read(part) for key in b.column("k").to_pylist()]
        if commits:
            self._offset, self._planned = self._planned, None
            self.rows += rows
        return rows

    def drain(self) -> list[str]:
        """All micro-batches that there are."""
        rows = []
        while more := self.run():
            rows += more
        return rows


def put_log(root: Path, split: str, number: int, times: list[float]) -> list[str]:
    """One more file of a log; the keys of its records."""
    keys = [f"{split}/{number}/{i}" for i in range(len(times))]
    micros = [T0 + round(seconds * SECOND) for seconds in times]
    put(
        root / split / f"f{number:03}.parquet",
        {"t": pa.array(micros, pa.timestamp("us", "UTC")), "k": keys},
        row_group_size=4,
    )
    return keys


def one_late_split(root: Path, query: Query) -> list[str]:
    """A log that is read and idle; then one with ten late records and ten others. The keys of the late ones."""
    put_log(root, "a", 0, [100, 200])
    query.settle()
    late = put_log(root, "b", 0, [*range(10), *range(300, 310)])[:10]
    query.settle()
    return late


@pytest.mark.parametrize("seed", one_in(8, range(8)))
def test_what_is_kept_and_what_is_routed_is_the_input_over_restarts(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    root, written, clocks = tmp_path / "in", [], dict.fromkeys("abc", 0.0)
    split_by = "directory" if seed % 4 else "file"
    query = Query(root, tmp_path / "cp", maxOutOfOrderness="2 seconds", splitBy=split_by)
    late = query.late()
    for number in range(25):
        split = chance.choice("abc")
        times = []
        for _ in range(chance.randrange(1, 15)):
            clocks[split] += chance.choice([0.1, 0.5, 1, 5, -4])
            times.append(clocks[split])
        written += put_log(root, split, number, times)
        for _ in range(chance.randrange(3)):
            step = chance.random()
            if step < 0.2:
                # Planned and written down; then the driver dies, and the option may be another one when it comes back:
                # the micro-batch is read as it was planned.
                query.run(chance.randrange(1, 20), commits=False)
                query.start(late=chance.choice(["keep", "route"]))
            elif step < 0.3:
                query.start(late="route")
            elif step < 0.5:
                late.start()
            query.run(chance.randrange(1, 20))
            # Spark keeps two micro-batches at least.
            query.purge(query.batches("offsets")[-1] - chance.choice([1, 1, 5]))
        if chance.random() < 0.3:
            # The second query dies within a micro-batch, and reads it again.
            late.run(commits=chance.random() < 0.7)
    query.start(late="route")
    while query.run(50):
        pass
    late.drain()
    assert Counter(query.kept + late.rows) == Counter(written)
    assert late.run() == []
    assert late.rows


def test_the_late_ones_are_those_at_or_below_the_watermark_and_the_offset_counts_them(tmp_path: Path) -> None:
    root = tmp_path / "in"
    query = Query(root, tmp_path / "cp", includeMetadata="true")
    late = one_late_split(root, query)
    assert query.offset(query.batches("offsets")[-1])["routed"] == 10
    reader = query.late()
    assert reader.run(commits=False) == late
    end = reader.reader.latestOffset(reader.offset, ReadAllAvailable())
    (part,) = reader.reader.partitions(reader.offset, end)
    (rows,) = reader.reader.read(part)
    assert (rows.column("_late").to_pylist(), rows.column("_position").to_pylist()) == ([True] * 10, list(range(10)))


@pytest.mark.parametrize("late", ["keep", "drop", "fail"])
def test_late_records_are_kept_or_dropped_or_fail_the_query_and_the_offset_counts_them(
    tmp_path: Path, late: str
) -> None:
    put_log(tmp_path / "in", "a", 0, [0, 100, 50, 200])
    query = Query(tmp_path / "in", tmp_path / "cp", late=late)
    assert query.run(1)
    assert query.run(1)
    if late == "fail":
        with pytest.raises(LateRecordError, match=r"split 'a', position 2: event time .* is at or below the watermark"):
            query.run(1)
        return
    while query.run(1):
        pass
    assert query.kept == [f"a/0/{i}" for i in range(4) if late == "keep" or i != 2]
    offset = query.offset(query.batches("offsets")[-1])
    assert (offset["splits"][0][3], offset.get("routed")) == (1, None)


def test_times_that_are_none_are_neither_late_nor_counted(tmp_path: Path) -> None:
    root = tmp_path / "in"
    query = Query(root, tmp_path / "cp", invalidTimestamp="null", watermarkRows="true")
    put_log(root, "a", 0, [100])
    query.settle()
    times = pa.array([-5, None, T0, 253_402_300_799_000_000, T0 + 500 * SECOND], pa.timestamp("us", "UTC"))
    put(root / "b" / "f.parquet", {"t": times, "k": ["before 1970", "none", "late", "year 9999", "on time"]})
    query.settle()
    assert query.late().run() == ["late"]
    assert {"before 1970", "none", "year 9999", "on time"} <= {*query.kept}


def test_available_now_reads_to_what_is_committed_when_it_starts(tmp_path: Path) -> None:
    root = tmp_path / "in"
    query = Query(root, tmp_path / "cp")
    early, late = query.late(), query.late()
    put_log(root, "a", 0, [100, 200])
    early.reader.prepareForTriggerAvailableNow()
    late_keys = one_late_split(root, query)
    assert early.run() == []
    late.reader.prepareForTriggerAvailableNow()
    put_log(root, "c", 0, [1])
    query.settle()
    assert (late.run(), late.run()) == (late_keys, [])


@pytest.mark.parametrize("split_by", ["directory", "file"])
def test_the_late_records_of_a_bounded_source_are_read_when_it_has_ended(tmp_path: Path, split_by: str) -> None:
    root = tmp_path / "in"
    options = {"bounded": "true", "lateness": "bounded", "maxOutOfOrderness": "2 seconds", "splitBy": split_by}
    query = Query(root, tmp_path / "cp", **options)
    written = put_log(root, "a", 0, [0, 100, 1, 2, 3, 200])
    while query.run(2):
        pass
    assert query.offset(query.batches("offsets")[-1])["watermark"] == MAX_WATERMARK
    late = query.late()
    assert late.drain() == written[3:5]
    assert Counter(query.kept + late.rows) == Counter(written)


def test_before_the_query_has_written_anything_there_is_nothing_and_the_log_says_what_is_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put_log(tmp_path / "in", "a", 0, [1])
    source = data_source(tmp_path / "in", **KEYS, late="route", lateLocation="/log", lateRecordsOf=tmp_path / "none")
    reader = source.stream_reader(source.schema())
    assert isinstance(reader, LateStreamReader)
    for _ in range(2):
        assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable()) == reader.initialOffset()
    # Spark may want to read even that.
    assert reader.partitions(reader.initialOffset(), reader.initialOffset()) == []
    assert [record.message for record in caplog.records] == [
        f"late_records: no query has written into {tmp_path / 'none'} yet; this one waits for it"
    ]


def test_late_records_outlive_the_offsets_and_leave_the_late_log_when_they_are_read(tmp_path: Path) -> None:
    root = tmp_path / "in"
    query = Query(root, tmp_path / "cp")
    late, keys = query.late(), one_late_split(root, query)
    for number in range(1, 30):
        keys += put_log(root, f"c{number}", 0, [number])
        put_log(root, "b", number, [400 + number])
        query.settle()
        query.purge(query.batches("offsets")[-1])
    assert len(query.batches("offsets")) == 1
    assert len(query.entries()) == 30
    assert late.drain() == keys
    # Not before Spark has written down that they are.
    assert len(query.entries()) == 30
    put_log(root, "d", 0, [0])
    query.settle()
    assert late.drain() == ["d/0/0"]
    assert len(query.entries()) == 1


def test_one_micro_batch_reads_those_of_many_but_not_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming_source.spark.late_reader._MOST", 2)
    root = tmp_path / "in"
    query = Query(root, tmp_path / "cp")
    late, keys = query.late(numReaders=1), one_late_split(root, query)
    for number in range(4):
        keys += put_log(root, f"c{number}", 0, [number])
        query.settle()
    late.reader.prepareForTriggerAvailableNow()
    (part,) = late.reader.partitions(late.offset, late.reader.latestOffset(late.offset, ReadAllAvailable()))
    assert [range_.rows for range_ in part.ranges] == [10, 1]  # type: ignore[attr-defined]
    put_log(root, "d", 0, [0])
    query.settle()
    assert [late.run() for _ in range(4)] == [keys[:11], keys[11:13], keys[13:], []]


def test_entries_of_micro_batches_that_were_given_up_are_removed(tmp_path: Path) -> None:
    root = tmp_path / "in"
    query = Query(root, tmp_path / "cp")
    late, keys = query.late(), one_late_split(root, query)
    (entry,) = query.entries()
    # Of a life whose last offsets never became durable.
    last = query.offset(query.batches("offsets")[-1])["n"]
    for name in (f"{last + 1:012d}-13", f"{last + 9:012d}-14"):
        (entry.parent / f"{name}.json").write_text(entry.read_text())
    query.start()
    more = put_log(root, "c", 0, [2, 3])
    query.settle()
    assert late.drain() == keys + more
    # A micro-batch that is read again writes its entry again.
    (query.checkpoint / "commits" / str(query.batches("commits")[-1])).unlink()
    before = [path.read_text() for path in query.entries()]
    query.start()
    query.settle()
    assert [path.read_text() for path in query.entries()] == before


def test_entries_that_are_gone_are_an_error_and_from_batch_goes_on_behind(tmp_path: Path) -> None:
    root = tmp_path / "in"
    query = Query(root, tmp_path / "cp")
    late, other = query.late(), query.late()
    keys = one_late_split(root, query)
    assert late.run() == keys
    more = put_log(root, "c", 0, [2, 3])
    query.settle()
    first = next(batch for batch in query.batches("offsets") if query.offset(batch).get("routed") == 12)
    assert late.run() == more
    # The entries before were removed as this one was written down; an earlier version did not say by whom.
    next(query.late_log.glob("*/reader")).unlink()
    with pytest.raises(
        DataLossError, match=r"12 late records were routed after micro-batch -1, and .*late_log.* has 2:"
    ):
        other.run()
    behind = query.late(lateRecordsFrom=first)
    assert behind.run() == []
    # Where it begins is in its first offset, and is not looked up again.
    put_log(root, "c", 1, [500])
    query.settle()
    query.purge(first + 1)
    behind.start()
    assert behind.run() == more
    with pytest.raises(DataLossError, match="has no offsets of micro-batch 0: Spark keeps the latest 100"):
        query.late(lateRecordsFrom=1).run()


def test_the_late_log_may_be_in_a_store_whose_uri_has_its_keys(
    tmp_path: Path, s3_endpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = s3_store(s3_endpoint)
    keys = f"{store.storage['access_key']}:{store.storage['secret_key']}"
    rest = urlencode({name: store.storage[name] for name in ("endpoint_override", "scheme", "region")})
    query = Query(
        tmp_path / "in", tmp_path / "cp", lateLocation=f"s3://{keys}@{store.uri.removeprefix('s3://')}/log?{rest}"
    )
    late, keys_late = query.late(), one_late_split(tmp_path / "in", query)
    assert late.run() == keys_late
    assert len(store.names("log")) == 2
    assert SECRET not in caplog.text


def test_a_query_that_begins_anew_has_a_late_log_of_its_own(tmp_path: Path) -> None:
    root = tmp_path / "in"
    query = Query(root, tmp_path / "cp")
    keys = one_late_split(root, query)
    again = Query(root, tmp_path / "again")
    again.settle()
    assert again.late_log == query.late_log
    # All was there when it began: nothing came late.
    assert again.late().run() == []
    assert query.late().run() == keys


def test_an_offset_of_an_earlier_version_goes_on_where_it_was(tmp_path: Path) -> None:
    root = tmp_path / "in"
    query = Query(root, tmp_path / "cp")
    late, keys = query.late(), one_late_split(root, query)
    assert late.run() == keys
    offset = late.offset
    late._offset = {"v": 1, "query": offset["query"], "batch": offset["batch"], "routed": offset["routed"]}
    more = put_log(root, "c", 0, [2, 3])
    query.settle()
    late.run()
    assert late.run() == more


def test_a_checkpoint_that_was_set_back_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "in"
    query = Query(root, tmp_path / "cp")
    late = query.late()
    one_late_split(root, query)
    late.run()
    late._offset = {**late.offset, "n": late.offset["n"] + 5, "batch": -1}
    with pytest.raises(OffsetError, match=r"it was set back\. Use a new checkpointLocation for this query, too"):
        late.run()


def test_a_micro_batch_that_was_routed_needs_the_late_log_when_it_is_read_again(tmp_path: Path) -> None:
    root = tmp_path / "in"
    query = Query(root, tmp_path / "cp")
    put_log(root, "a", 0, [100, 200])
    query.settle()
    put_log(root, "b", 0, [1])
    query.run(100, commits=False)
    del query.options["lateLocation"]
    query.start(late="keep")
    with pytest.raises(OptionError, match=r"option lateLocation is missing: .* give lateLocation as it was"):
        query.settle()
    query.start(lateLocation=query.late_log)
    query.settle()
    assert query.late().run() == ["b/0/0"]
    assert "b/0/0" not in query.kept


def test_a_second_reader_of_the_same_late_records_is_refused_unless_it_takes_them_over(tmp_path: Path) -> None:
    root = tmp_path / "in"
    query = Query(root, tmp_path / "cp")
    first, keys = query.late(), one_late_split(root, query)
    assert first.run() == keys
    # The last entry is there until the first reader's next micro-batch is planned.
    assert query.entries()
    second = query.late()
    with pytest.raises(OffsetError, match=r"is read by another query, .*: one query alone reads those .* from_batch=0"):
        second.run()
    taken = query.late(lateRecordsFrom=0)
    assert [*taken.run(), *taken.run()] == keys
    more = put_log(root, "c", 0, [2, 3])
    query.settle()
    with pytest.raises(OffsetError, match="is read by another query"):
        first.run()
    taken.start()
    assert taken.run() == more


def test_a_reader_that_starts_again_before_its_first_commit_reads_on(tmp_path: Path) -> None:
    root = tmp_path / "in"
    query = Query(root, tmp_path / "cp")
    late, keys = query.late(), one_late_split(root, query)
    assert late.run(commits=False) == keys
    late.start()
    assert late.run() == keys


def test_a_late_log_that_no_query_reads_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streaming_source.spark.late_log._MANY", 3)
    query = Query(tmp_path / "in", tmp_path / "cp")
    one_late_split(tmp_path / "in", query)
    for number in range(6):
        put_log(tmp_path / "in", f"c{number}", 0, [number])
        query.settle()
    found = [record.message for record in caplog.records if "no query has read them" in record.message]
    assert [message.partition(" ")[0] for message in found] == ["4", "7"]


def test_a_late_log_that_cannot_be_written_fails_the_query_and_nothing_is_lost(tmp_path: Path) -> None:
    root = tmp_path / "in"
    query = Query(root, tmp_path / "cp")
    put_log(root, "a", 0, [100, 200])
    query.late_log.write_text("a file where the directory should be")
    # At the start, and not with the first late record.
    with pytest.raises(
        OptionError, match=r"written there: option lateLocation: .*late_log: .* a directory that the query"
    ):
        query.settle()
    query.late_log.unlink()
    query.start()
    query.settle()
    query.late_log.rmdir()
    query.late_log.write_text("a file where the directory should be")
    keys = put_log(root, "b", 0, [*range(10), *range(300, 310)])[:10]
    with pytest.raises(StoreError, match=r"^option lateLocation: .*late_log/\w+: the store failed: .*see to the store"):
        query.settle()
    query.late_log.unlink()
    query.start()
    query.settle()
    assert query.late().run() == keys


def test_records_that_were_changed_since_are_an_error(tmp_path: Path) -> None:
    root = tmp_path / "in"
    query = Query(root, tmp_path / "cp")
    one_late_split(root, query)
    put_log(root, "b", 0, [*range(300, 320)])
    late = query.late()
    with pytest.raises(
        DataLossError, match=r"split 'b' has changed: the records 0 to 20 that were planned are not where they were"
    ):
        late.run()
    (root / "b" / "f000.parquet").unlink()
    with pytest.raises(DataLossError):
        late.run()


def test_the_checkpoint_of_another_query_or_source_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "in"
    query = Query(root, tmp_path / "cp")
    late = query.late()
    one_late_split(root, query)
    late.run()
    (query.checkpoint / "metadata").write_text('{"id": "another"}')
    with pytest.raises(OffsetError, match=r"the records so far are of query cp, and .*cp is of query another now:"):
        late.run()
    put_log(tmp_path / "other", "a", 0, [1])
    query.root = tmp_path / "other"
    with pytest.raises(OffsetError, match="reads this source 0 times; it must be once"):
        query.late().run()
    query.root = root
    newest = query.checkpoint / "offsets" / str(query.batches("offsets")[-1])
    text = newest.read_text()
    newest.write_text(f"{text}\n{text.splitlines()[-1]}")
    with pytest.raises(OffsetError, match="reads this source 2 times; it must be once"):
        query.late().run()


def test_options_that_would_lose_late_records_are_refused(tmp_path: Path) -> None:
    put_log(tmp_path, "a", 0, [1])
    with pytest.raises(OptionError, match=r"late = 'route' leaves late records where they are.*cleanSource"):
        data_source(tmp_path, **KEYS, late="route", lateLocation=tmp_path / "log", cleanSource="delete")
    with pytest.raises(OptionError, match=r"late = 'route' needs lateLocation.*as in .option\('lateLocation', '/check"):
        data_source(tmp_path, **KEYS, late="route")
    with pytest.raises(OptionError, match=r"late_records: the frame has option late = 'drop'.*give it late = route"):
        data_source(tmp_path, **KEYS, late="drop", lateRecordsOf="/cp")


@pytest.mark.parametrize(("counts", "opaque"), [(False, True), (True, False)])
def test_where_late_records_are_taken_out_no_block_is_opaque_so_that_each_is_counted(
    counts: bool, opaque: bool
) -> None:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("1 second")
    rules = ReadRules(
        strategy, PlanningRules(out_of_orderness_us=SECOND), FrameOptions(late="drop" if counts else "keep")
    )
    assert rules.supports_opaque_blocks is opaque

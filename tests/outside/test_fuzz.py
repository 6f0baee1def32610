"""What is read from disk, changed at random: only errors of this library, in bounded time and memory."""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from alignment.exceptions import AlignmentError
from alignment.recording import Recorder, as_of_a_log, last_engine, replay
from alignment.simulation import RecordedWorkload
from alignment.story import story_in
from streaming_source.checkpoint.offset_log import Checkpoint
from streaming_source.checkpoint.source_offsets import file_log
from streaming_source.connectors import FileSource
from streaming_source.connectors.delta.commits import LogFiles, latest_protocol, read_commit
from streaming_source.connectors.files.finished_log import FinishedLog
from streaming_source.connectors.files.listing import ListedFile
from streaming_source.connectors.files.split import Remembered
from streaming_source.coordinator.group_exchange import GroupExchange
from streaming_source.data_files.journal import Journal
from streaming_source.data_files.stores import Root
from streaming_source.gateway.messages import RefusedError, decode_reports, encode_reports
from streaming_source.monitoring import planner_note
from streaming_source.monitoring.explained import explain_through
from streaming_source.spark.group_directory import GroupDirectory
from streaming_source.spark.late_log import LateLog
from streaming_source.spark.offsets import OffsetCodec
from streaming_source.testing import SourceHarness
from tests.delta import tables as delta
from tests.files.test_layout_orders import strategy, write
from tests.iceberg import tables as iceberg
from tests.monitoring.situations import silent_split
from tests.outside.mutations import mutated
from tests.outside.test_locations import sent

MOST_S = 5.0
MOST_BYTES = 256 << 20
ALL = 100_000

Read = Callable[[], object]


class Target:
    """A file, and what reads it."""

    def __init__(self, path: Path, read: Read, share: float, *, but: tuple[type[Exception], ...] = ()) -> None:
        self.path, self.read, self.share = path, read, share
        self.whole = path.read_bytes()
        self.passing = (AlignmentError, *but)

    def check(self, random: Random) -> None:
        changed = mutated(self.whole, random)
        self.path.write_bytes(changed)
        begun = time.process_time()
        try:
            self.read()
        except self.passing:
            pass
        finally:
            taken = time.process_time() - begun
            self.path.write_bytes(self.whole)
        assert taken < MOST_S, changed[:500]


def of_our_checkpoint(folder: Path) -> Iterator[Target]:
    query = silent_split(folder)
    query.close()
    checkpoint = folder / "checkpoint"
    (checkpoint / "metadata").write_text('{"id":"7e3f"}')

    def read() -> None:
        for _, explained in explain_through(str(checkpoint), 10**15):
            str(explained)
            explained.to_json()

    last = max((checkpoint / "offsets").iterdir(), key=lambda path: int(path.name))
    yield Target(last, read, 0.15)
    for commit in [*(checkpoint / "commits").iterdir()][-1:]:
        yield Target(commit, read, 0.02)
    codec = OffsetCodec(query.source)
    offset = folder / "offset.json"
    offset.write_text(last.read_text().splitlines()[-1])
    yield Target(offset, lambda: codec.decode(json.loads(offset.read_text())), 0.1, but=(ValueError, RecursionError))


def of_sparks_checkpoint(folder: Path) -> Iterator[Target]:
    checkpoint = sent(folder, "file:///nowhere")

    def read() -> None:
        found = Checkpoint.open(str(checkpoint))
        file_log(found.log, found.source_folders[0], 1)

    for name, share in (("offsets/1", 0.06), ("commits/1", 0.02), ("sources/0/1", 0.06), ("metadata", 0.02)):
        yield Target(checkpoint / name, read, share)


def of_files(folder: Path) -> Iterator[Target]:
    for n in range(2):
        write(folder / "in/log" / f"{n}.parquet", [n * 10.0, n * 10 + 1.0], n)
    for split_by in ("directory", "file"):
        source = FileSource(str(folder / "in"), split_by, state_location=None)  # type: ignore[arg-type]
        run = SourceHarness(source, strategy(), max_rows=1)
        run.run_batch()
        before, after, codec = run.state, None, OffsetCodec(source)
        run.run_batch()
        after = run.state
        run.close()
        offset = folder / f"{split_by}.json"
        offset.write_text(json.dumps(codec.encode(after)))

        def decode(codec: OffsetCodec = codec, offset: Path = offset) -> None:
            parsed = None
            # Spark parses it.
            with suppress(ValueError, RecursionError):
                parsed = json.loads(offset.read_text())
            if parsed is not None:
                codec.decode(parsed)

        yield Target(offset, decode, 0.08)
    late = LateLog(Journal(Root(str(folder / "late")), "lateLocation", is_patient=False), "0" * 12, codec)
    late.write(before, after)
    (entry,) = (folder / "late" / ("0" * 12)).iterdir()
    yield Target(entry, lambda: late.read(late.names()), 0.06)
    log = FinishedLog("eventTime", Root(str(folder / "state")), Remembered())
    log.save(1, [], None, 0)
    log._before.append(log.marks_of([]))
    log.add(ListedFile("log", "a", 1, 2))
    remembered = log.save(2, [], None, 0)
    parts = [path for path in (folder / "state").rglob("*") if path.is_file()]
    yield Target(parts[-1], lambda: FinishedLog("eventTime", Root(str(folder / "state")), remembered).load(), 0.04)


def of_groups(folder: Path) -> Iterator[Target]:
    location = GroupDirectory(Root(str(folder)), lambda: time.monotonic_ns() // 1000, lambda: time.time_ns() // 1000)
    location.look_s = 0.0
    exchange = GroupExchange(location, "g", 60_000_000, 1_000_000, lambda: time.monotonic_ns() // 1000)
    exchange.join()
    (own,) = folder.rglob("*.json")
    other = own.with_name(f"{'e' * 32}.json")
    text = own.read_text().replace(own.stem, other.stem)
    other.write_text(text)
    victim = own.parent / "victim.json"
    victim.write_text("{}")

    def read() -> None:
        try:
            location.exchange("g", None, lambda member: member.until_us < 0)
        finally:
            assert victim.exists()
            assert own.exists()

    yield Target(other, read, 0.1)


def of_reports(folder: Path) -> Iterator[Target]:
    from alignment.events import RangeReport

    path = folder / "report.json"
    folder.mkdir()
    path.write_bytes(encode_reports([RangeReport("s", start=0, stop=10)]))
    yield Target(path, lambda: decode_reports(path.read_bytes()), 0.05, but=(RefusedError,))


def of_notes(folder: Path) -> Iterator[Target]:
    folder.mkdir()
    folder = folder / f"streaming-source-{os.getuid()}"
    note = planner_note.Writer(None, "aligned_files /data", folder)
    note.fail(ValueError("x"))
    (path,) = folder.parent.rglob("*.json")
    yield Target(path, lambda: planner_note.notes_of(note.name), 0.06)


def of_delta(folder: Path) -> Iterator[Target]:
    delta.append(folder / "t", [1_000_000, 2_000_000])
    delta.append(folder / "t", [3_000_000])
    log = folder / "t/_delta_log/00000000000000000001.json"
    files, root = Root(str(folder / "t")).open()

    def commits() -> None:
        actions = read_commit(files, root, 1)
        assert actions is not None
        actions.commit("t")
        LogFiles.listed(files, root).times_ms(files, root)
        latest_protocol(files, root)

    yield Target(log, commits, 0.18)


def ran(run: SourceHarness) -> None:
    try:
        run.run()
        run.restart()
        run.run()
    finally:
        run.close()


def of_delta_queries(folder: Path) -> Iterator[Target]:
    for times in ([1_000_000, 2_000_000], [3_000_000]):
        delta.append(folder / "t", times, x="a", options={"partition_by": ["x"]})
    begins = delta.harness(folder / "t", {"starting_version": 0})
    begins.run_batch()
    state, source = begins.state, begins.source
    begins.close()
    for path in sorted((folder / "t/_delta_log").iterdir()):
        yield Target(path, lambda: ran(delta.harness(folder / "t", schema=source.schema())), 0.01)

        def goes_on() -> None:
            run = SourceHarness(source, delta.STRATEGY, schema=begins._columns)
            run.state = state
            run.restart()
            ran(run)

        yield Target(path, goes_on, 0.01)


def of_iceberg(folder: Path) -> Iterator[Target]:
    schema = iceberg.rows([0], x="a").schema
    table = iceberg.create(folder, schema)
    with table.update_spec() as spec:
        spec.add_identity("x")
    for times in ([1_000_000, 2_000_000], [3_000_000]):
        iceberg.append(table, times, x="a")
    columns = iceberg.harness(folder).source.schema()
    known = Path(table.refresh().metadata_location.removeprefix("file://"))
    for path in (known, *sorted(known.parent.glob("*.avro"))):
        yield Target(path, lambda: ran(iceberg.harness(folder, schema=columns)), 0.01)


def of_event_logs(folder: Path) -> Iterator[Target]:
    for n in range(2):
        write(folder / "in/log" / f"{n}.parquet", [n * 10.0, n * 10 + 1.0], n)
    log = folder / "log.jsonl"
    run = SourceHarness(FileSource(str(folder / "in"), "file"), strategy(), max_rows=1, recorder=Recorder(log))
    run.run()
    run.close()

    def played() -> None:
        for one in replay(log.read_text().splitlines()):
            str(one)
        with as_of_a_log():
            [*story_in(last_engine(log.read_text().splitlines()), "log/0.parquet")]
        str(RecordedWorkload.of_log(log).compare(max_rows=["3"]))

    yield Target(log, played, 0.06, but=(UnicodeDecodeError,))


MAKERS = (
    *(of_our_checkpoint, of_sparks_checkpoint, of_files, of_groups, of_reports, of_notes),
    *(of_delta, of_delta_queries, of_iceberg, of_event_logs),
)


def fuzzed(make: Any, folder: Path, count: int, seed: int = 1) -> int:
    """Read so many changed files; return how many there were."""
    done = 0
    for number, target in enumerate(make(folder / "made")):
        random = Random(f"{seed} {make.__name__} {number}")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        outside = {*folder.iterdir()}
        for one in range(max(round(count * target.share), 2)):
            try:
                target.check(random)
            except BaseException as error:
                error.add_note(f"{make.__name__} {number}, {target.path.name}, change {one}")
                raise
            done += 1
        assert {*folder.iterdir()} == outside
        assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - before < MOST_BYTES
    return done


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_a_changed_file_is_read_or_refused(make: Any, tmp_path: Path) -> None:
    assert fuzzed(make, tmp_path, 300) > 1


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_a_hundred_thousand_changed_files_are_read_or_refused(make: Any, tmp_path: Path) -> None:
    assert fuzzed(make, tmp_path, ALL) > 1

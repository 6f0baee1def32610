"""Any prefix of a table's history expires, by any engine, at any moment: all rows, or an error that says why.

Over both formats, and over all who read a table: a stream, one that starts with the oldest version, a cut, an audit,
and a checkpoint that is taken over. The model is a list of appends.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import deltalake
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyiceberg.table import Table
from typer.testing import CliRunner

import streaming_source
from streaming_source import cut_from
from streaming_source.connectors.delta import DeltaSource, lister
from streaming_source.connectors.iceberg import IcebergSource
from streaming_source.connectors.tables.source import TableSource
from streaming_source.exceptions import FileGoneError, OptionError
from streaming_source.spark.offsets import OffsetCodec
from streaming_source.testing import SourceHarness
from streaming_source.tools.cli.main import app
from tests.auditing import naive
from tests.auditing.test_delta import QUERY, write_checkpoint
from tests.auditing.test_delta import offset as delta_offset
from tests.auditing.test_iceberg import offset as iceberg_offset
from tests.delta.tables import append as append_to_delta
from tests.examples import examples
from tests.iceberg.commits import compact, expire_as_java
from tests.iceberg.tables import append as append_to_iceberg
from tests.iceberg.tables import catalog_options, create, properties_in
from tests.tables.reading import SECOND, STRATEGY, outcome_of, rows, times

EMPTY: Final = rows([0], topic="a", partition=0, offset=0).schema

APPEND, COMPACT, LOOK, RESTART, CLEAN_FILES = "append", "compact", "look", "restart", "clean files"

STEPS = st.one_of(
    st.sampled_from([APPEND, APPEND, APPEND, COMPACT, LOOK, RESTART, CLEAN_FILES]),
    # How many of the oldest versions expire, in which of two ways.
    st.tuples(st.integers(1, 3), st.booleans()),
)


@dataclass
class History(ABC):
    """A table in a folder that is empty at first: the versions of its appends, all versions, and which have expired."""

    folder: Path
    appends: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    expired: set[int] = field(default_factory=set)
    is_cleaned: bool = False
    """Whether files that the table does not need any more were deleted."""

    @property
    def times(self) -> list[int]:
        return [number * SECOND for number in range(len(self.appends))]

    def append(self) -> None:
        number = len(self.appends)
        self.appends.append(self._append([number * SECOND], topic="orders", partition=0, offset=number))
        self.versions.append(self.appends[-1])

    def expire(self, count: int, way: bool) -> None:
        if oldest := [one for one in self.versions[:-1] if one not in self.expired][:count]:
            self._expire(oldest, way)
            self.expired |= {*oldest}

    def is_known_after(self, read: int) -> bool:
        """Whether no version is lost after the first `read` ones."""
        return self.expired.isdisjoint(self.versions[read:])

    def harness(self, **options: Any) -> SourceHarness:
        return SourceHarness(self.source(**options), STRATEGY)

    @abstractmethod
    def source(self, **options: Any) -> TableSource: ...

    @abstractmethod
    def compact(self) -> None: ...

    @abstractmethod
    def clean_files(self) -> None: ...

    @abstractmethod
    def offset_after(self, read: int) -> str:
        """The offset of Spark's own source when it has read so many appends, and no later version."""

    @abstractmethod
    def oldest(self) -> list[dict[str, Any]]:
        """Options that start a stream with the oldest version."""

    @property
    @abstractmethod
    def history(self) -> Any:
        """What `cut_from` takes."""

    @abstractmethod
    def options(self) -> tuple[str, dict[str, str]]:
        """The name and the options of the table for `audit` and `take-over`."""

    @abstractmethod
    def _append(self, at_us: list[int], **columns: Any) -> int: ...

    @abstractmethod
    def _expire(self, oldest: list[int], way: bool) -> None: ...


class DeltaHistory(History):
    """A Delta table; commits are cleaned up behind a checkpoint, at the newest version or as soon as it can be."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.path = str(folder / "table")
        deltalake.DeltaTable.create(self.path, EMPTY)
        self.versions.append(0)

    def source(self, **options: Any) -> TableSource:
        return DeltaSource(self.path, **options)

    def compact(self) -> None:
        table = deltalake.DeltaTable(self.path)
        table.optimize.compact()
        if table.version() not in self.versions:
            self.versions.append(table.version())

    def clean_files(self) -> None:
        deltalake.DeltaTable(self.path).vacuum(0, dry_run=False, enforce_retention_duration=False)
        self.is_cleaned = True

    def offset_after(self, read: int) -> str:
        table_id = str(deltalake.DeltaTable(self.path).metadata().id)
        return delta_offset(table_id, (self.appends[read - 1] if read else 0) + 1, -1, snapshot=False)

    def oldest(self) -> list[dict[str, Any]]:
        return [{"starting_version": 0}, {"starting_timestamp": "1970-01-01"}]

    @property
    def history(self) -> str:
        return self.path

    def options(self) -> tuple[str, dict[str, str]]:
        return self.path, {}

    def _append(self, at_us: list[int], **columns: Any) -> int:
        return append_to_delta(Path(self.path), at_us, **columns)

    def _expire(self, oldest: list[int], way: bool) -> None:
        table = deltalake.DeltaTable(self.path)
        # A checkpoint has what the commits before it did.
        (table if way else deltalake.DeltaTable(self.path, version=oldest[-1] + 1)).create_checkpoint()
        for version in range(oldest[-1] + 1):
            Path(self.path, f"_delta_log/{version:020}.json").unlink(missing_ok=True)


class IcebergHistory(History):
    """An Iceberg table; `pyiceberg` clears the parent of a snapshot that it lets expire, Spark's procedure does not."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.table: Table = create(folder, EMPTY)

    def source(self, **options: Any) -> TableSource:
        return IcebergSource("db.t", catalog=properties_in(self.folder), **options)

    def compact(self) -> None:
        if self.versions:
            self.versions.append(compact(self.table))

    def clean_files(self) -> None:
        """A file goes with the last snapshot that has it."""

    def is_known_after(self, read: int) -> bool:
        # The last one that was read may be needed as a parent.
        return super().is_known_after(max(read - 1, 0))

    def offset_after(self, read: int) -> str:
        return iceberg_offset(self.appends[read - 1] if read else -1, 1 if read else -1)

    def oldest(self) -> list[dict[str, Any]]:
        return [{"stream_from_timestamp": "1970-01-01"}]

    @property
    def history(self) -> Table:
        return self.table.refresh()

    def options(self) -> tuple[str, dict[str, str]]:
        return "db.t", {f"catalog.{key}": of for key, of in {"name": "tests", **catalog_options(self.folder)}.items()}

    def _append(self, at_us: list[int], **columns: Any) -> int:
        return append_to_iceberg(self.table, at_us, **columns)

    def _expire(self, oldest: list[int], way: bool) -> None:
        if way:
            self.table.refresh().maintenance.expire_snapshots().by_ids(oldest).commit()
        else:
            expire_as_java(self.table.refresh(), oldest)


@pytest.fixture(autouse=True)
def _looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lister, "_LOOKS", 2)


def later(done: SourceHarness) -> list[int]:
    """Look twice: every other look asks whether a log was cleaned up."""
    for _ in range(2):
        done.clock.advance("2 seconds")
        done.run()
    return times(done)


@settings(max_examples=examples(12), deadline=None)
@example(made=IcebergHistory, before=0, steps=[LOOK, APPEND, APPEND, (1, True)], read=0)
@example(made=IcebergHistory, before=0, steps=[LOOK, APPEND, APPEND, (1, False)], read=1)
@example(made=DeltaHistory, before=1, steps=[LOOK, APPEND, LOOK, APPEND, APPEND, (4, True)], read=2)
@example(made=DeltaHistory, before=1, steps=[LOOK, APPEND, COMPACT, CLEAN_FILES, (3, False)], read=1)
@given(
    made=st.sampled_from([DeltaHistory, IcebergHistory]),
    before=st.integers(0, 2),
    steps=st.lists(STEPS, min_size=2, max_size=8),
    read=st.integers(0, 4),
)
def test_all_rows_or_an_error(
    tmp_path_factory: pytest.TempPathFactory,
    made: type[DeltaHistory | IcebergHistory],
    before: int,
    steps: list[str | tuple[int, bool]],
    read: int,
) -> None:
    """`read` is how many appends Spark's own query has read that is audited and taken over."""
    history = made(tmp_path_factory.mktemp("t"))
    for _ in range(before):
        history.append()
    check_stream(history, steps)
    check_fresh(history)
    read = min(read, len(history.appends))
    check_take_over(history, read)
    if read < len(history.appends):
        check_audit(history, read)


def check_stream(history: History, steps: list[str | tuple[int, bool]]) -> None:
    done = history.harness()
    done.run()
    read, outcome = len(history.versions), object()
    for step in [*steps, LOOK]:
        if step == APPEND:
            history.append()
        elif step == COMPACT:
            history.compact()
        elif step == CLEAN_FILES:
            history.clean_files()
        elif isinstance(step, tuple):
            history.expire(*step)
        elif step == RESTART and done.state.checkpoint is not None:
            done.restart()
        else:
            # A look, or a restart of which nothing was written down: it starts with the table as it is now.
            outcome = outcome_of(lambda: later(done))
            if isinstance(outcome, Exception):
                break
            read = len(history.versions)
    done.close()
    if isinstance(outcome, Exception):
        is_gone = history.is_cleaned and isinstance(outcome, FileGoneError)
        assert is_gone or not history.is_known_after(read), outcome
        assert "new checkpointLocation" in str(outcome)
    else:
        assert outcome == history.times


def check_fresh(history: History) -> None:
    """Whatever became of a stream, the rows of a fresh one are those of the table, and so are they in a cut."""
    assert later(history.harness()) == history.times
    if history.appends:
        cut = cut_from(history.history)
        assert (cut.next_offsets, cut.gaps) == ({"orders": {0: len(history.appends)}}, ())
    for options in history.oldest():
        found = outcome_of(lambda options=options: later(history.harness(**options)))
        is_refused = isinstance(found, OptionError) and history.expired
        assert found == history.times or is_refused or (isinstance(found, FileGoneError) and history.is_cleaned), found


def check_take_over(history: History, read: int) -> None:
    naive_run = naive.run(QUERY, [[]])
    write_checkpoint(history.folder / "old", naive_run, [history.offset_after(read)])
    table, options = history.options()
    given = [text for pair in options.items() for text in ("-o", "=".join(pair))]
    new = history.folder / "new"
    command = ["take-over", str(history.folder / "old"), str(new), "--table", table, *given]
    printed = CliRunner().invoke(app, command).output.splitlines()[-1]
    if not printed.startswith("{"):
        assert history.expired, printed
        return
    done = history.harness()
    text = (new / "offsets/0").read_text().splitlines()[2]
    done.state = OffsetCodec(history.source()).decode(json.loads(text))
    done.restart()
    outcome = outcome_of(lambda: later(done))
    is_lost = isinstance(outcome, Exception) and (history.expired or history.is_cleaned)
    assert outcome == history.times[read:] or is_lost, outcome


def check_audit(history: History, read: int) -> None:
    left = len(history.appends) - read
    micro_batches = [[(str(number), [time])] for number, time in enumerate(history.times[read:])]
    ends = [history.offset_after(read + number + 1) for number in range(left)]
    checkpoint = history.folder / "checkpoint"
    write_checkpoint(checkpoint, naive.run(QUERY, micro_batches), ends)
    # Iceberg's source writes down where it starts; of Delta's the user says it.
    (checkpoint / "sources/0/offsets").mkdir(parents=True)
    (checkpoint / "sources/0/offsets/0").write_text(history.offset_after(read))
    table, options = history.options()
    if isinstance(history, DeltaHistory):
        options = {"startingVersion": str((history.appends[read - 1] if read else 0) + 1)}
    found = streaming_source.audit(str(checkpoint), window="1 hour", mode="append", source=table, options=options)
    assert found.read <= left
    assert found.read == left or "Not all can be seen any more" in str(found)
    assert history.expired or history.is_cleaned or found.read == left

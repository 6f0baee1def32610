"""Any prefix of a table's snapshots expires, by either engine, at any moment: all rows are read, or an error says why.

Of a stream, an audit and a checkpoint that is taken over. The model is a list of appends.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyiceberg.table import Table

from streaming_source import cut_from
from streaming_source.connectors.iceberg import IcebergSource
from streaming_source.exceptions import DataLossError, OptionError
from streaming_source.spark.offsets import OffsetCodec
from tests.auditing import naive
from tests.auditing.test_delta import QUERY, write_checkpoint
from tests.auditing.test_iceberg import audit, offset
from tests.examples import examples
from tests.iceberg.commits import compact, expire_as_java
from tests.iceberg.tables import SECOND, append, create, harness, later, properties_in, rows, times
from tests.iceberg.test_take_over import checkpoint, taken_over
from tests.tables.reading import outcome_of

APPEND, COMPACT, LOOK, RESTART = "append", "compact", "look", "restart"

STEPS = st.one_of(
    st.sampled_from([APPEND, APPEND, APPEND, COMPACT, LOOK, RESTART]),
    # How many of the oldest snapshots expire, by pyiceberg or as by Spark's procedure.
    st.tuples(st.integers(1, 3), st.booleans()),
)


@dataclass
class History:
    """A table, the appends that it had, and its main branch, of which some snapshots have expired."""

    table: Table
    appends: list[int] = field(default_factory=list)
    snapshots: list[int] = field(default_factory=list)
    expired: set[int] = field(default_factory=set)

    @property
    def times(self) -> list[int]:
        return [number * SECOND for number in range(len(self.appends))]

    def append(self) -> None:
        number = len(self.appends)
        rows_of_it = {"topic": "orders", "partition": 0, "offset": number}
        self.appends.append(append(self.table, [number * SECOND], **rows_of_it))
        self.snapshots.append(self.appends[-1])

    def compact(self) -> None:
        if self.snapshots:
            self.snapshots.append(compact(self.table))

    def expire(self, count: int, *, by_pyiceberg: bool) -> None:
        oldest = [one for one in self.snapshots[:-1] if one not in self.expired][:count]
        if not oldest:
            return
        self.expired |= {*oldest}
        if by_pyiceberg:
            self.table.refresh().maintenance.expire_snapshots().by_ids(oldest).commit()
        else:
            expire_as_java(self.table.refresh(), oldest)

    def is_known_after(self, read: int) -> bool:
        """Whether no snapshot is lost behind the first `read` ones; the last one read may be needed as a parent."""
        return self.expired.isdisjoint(self.snapshots[max(read - 1, 0) :])


def made(folder: Path) -> History:
    schema = rows([0], topic="a", partition=0, offset=0).schema
    return History(create(folder, schema))


@settings(max_examples=examples(12), deadline=None)
@example(before=0, steps=[LOOK, APPEND, APPEND, (1, True)])
@example(before=0, steps=[LOOK, APPEND, APPEND, (1, False)])
@given(before=st.integers(0, 2), steps=st.lists(STEPS, min_size=2, max_size=9))
def test_a_stream_reads_all_rows_or_ends_with_an_error(
    tmp_path_factory: pytest.TempPathFactory, before: int, steps: list[str | tuple[int, bool]]
) -> None:
    folder = tmp_path_factory.mktemp("t")
    history = made(folder)
    for _ in range(before):
        history.append()
    done = harness(folder)
    done.run()
    read = len(history.snapshots)
    outcome: object = None
    for step in [*steps, LOOK]:
        if step == APPEND:
            history.append()
        elif step == COMPACT:
            history.compact()
        elif isinstance(step, tuple):
            history.expire(step[0], by_pyiceberg=step[1])
        elif step == RESTART and done.state.checkpoint is not None:
            done.restart()
        else:
            # A look, or a restart of which nothing was written down: it begins with the table as it is now.
            outcome = outcome_of(lambda: times(later(done)))
            if isinstance(outcome, Exception):
                break
            read = len(history.snapshots)
    done.close()
    if isinstance(outcome, Exception):
        assert not history.is_known_after(read), outcome
        assert "Start with a new checkpointLocation" in str(outcome)
    else:
        assert outcome == history.times
    # Whatever became of that, the rows of a fresh one are those of the table, and so are they in a cut.
    assert times(later(harness(folder))) == history.times
    if history.appends:
        cut = cut_from(history.table.refresh())
        assert (cut.next_offsets, cut.gaps) == ({"orders": {0: len(history.appends)}}, ())
    since_1970 = outcome_of(lambda: times(later(harness(folder, {"stream_from_timestamp": "1970-01-01"}))))
    assert since_1970 == history.times or (isinstance(since_1970, OptionError) and history.expired)


@settings(max_examples=examples(8), deadline=None)
@given(
    compacts=st.integers(0, 3),
    read=st.integers(0, 4),
    expired=st.integers(0, 5),
    by_pyiceberg=st.booleans(),
)
def test_an_audit_and_a_take_over_have_all_rows_or_say_what_is_gone(
    tmp_path_factory: pytest.TempPathFactory, compacts: int, read: int, expired: int, by_pyiceberg: bool
) -> None:
    """Of a query that began when the table was empty, and has read the first `read` of four appends."""
    folder = tmp_path_factory.mktemp("t")
    history = made(folder)
    for number in range(4):
        history.append()
        if number == compacts:
            history.compact()
    last = history.appends[read - 1] if read else -1
    history.expire(expired, by_pyiceberg=by_pyiceberg)

    checkpoint(folder, last, 1 if read else -1)
    printed = taken_over(folder).splitlines()[-1]
    if printed.startswith("{"):
        done = harness(folder)
        text = (folder / "new/offsets/0").read_text().splitlines()[2]
        done.state = OffsetCodec(IcebergSource("db.t", catalog=properties_in(folder))).decode(json.loads(text))
        done.restart()
        outcome = outcome_of(lambda: times(later(done)))
        assert outcome == history.times[read:] or (isinstance(outcome, DataLossError) and history.expired)
    else:
        assert history.expired, printed

    micro_batches = [[(str(number), [time])] for number, time in enumerate(history.times)]
    offsets = [offset(snapshot, 1) for snapshot in history.appends]
    write_checkpoint(folder / "checkpoint", naive.run(QUERY, micro_batches[read:]), offsets[read:])
    (folder / "checkpoint/sources/0/offsets").mkdir(parents=True)
    (folder / "checkpoint/sources/0/offsets/0").write_text(offset(last, 1 if read else -1))
    if read == len(offsets):
        return
    found = audit(folder)
    assert found.read == 4 - read or "Not all can be seen any more" in str(found)
    assert found.read <= 4 - read
    assert history.expired or found.read == 4 - read

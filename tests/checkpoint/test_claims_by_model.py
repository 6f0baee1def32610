"""Random histories of writers: no claim is ever false, and none comes later than one trigger after it could.

Writers are run row by row as Spark runs them, and leave checkpoints as Spark does. The naive model knows the future:
a claim behind a commit is false if a later commit of a writer has a row on time at or before it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from alignment.claims import SinkCommit
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK
from streaming_source.checkpoint.writer import TableWriters, declared_writers
from tests.checkpoint.written import SECOND, WrittenCheckpoint, ours
from tests.examples import examples

MS = 1_000


@dataclass
class Committed:
    """One version of the table: whose it is, and the times of its rows that are on time, in the column of the claim."""

    writer: str
    batch: int
    times: list[int]
    implied: int
    """The watermark that follows from what its writer has read so far: what may be claimed one trigger later."""


@dataclass
class Query:
    """A query that writes: windows over Spark's own source, or rows of a source of ours."""

    draw: random.Random
    written: WrittenCheckpoint
    table: list[Committed]
    batch: int = -1
    read_us: int = 0
    delay: int = 0
    watermark: int = 0
    """Spark's, in the micro-batch at hand; of a source of ours the source's."""
    late: int = 0
    """Spark's, in the micro-batch before: rows of windows up to there are dropped."""
    windows: set[tuple[int, int]] = field(default_factory=set)
    claims_start: bool = False
    """Whether the claim is on the start of the windows, whose length then becomes shorter from run to run."""
    size: int = 0
    ended: bool = False
    planned: Committed | None = None

    def plan(self) -> None:
        """Write the offsets of the next micro-batch, and decide what it will write."""
        draw = self.draw
        self.batch += 1
        spread = draw.choice([1, 5, 60]) * SECOND
        now = self.batch * draw.choice([1, 7, 20]) * SECOND
        times = [max(0, now + draw.randrange(-spread, spread)) for _ in range(draw.randrange(5))]
        # And some just where a claim that is a little too far is false.
        exact = draw.random() < 0.3
        self.planned = self._windows(times, exact) if self.size else self._rows(times, exact)

    def _windows(self, times: list[int], exact: bool) -> Committed:
        if self.claims_start and self.draw.random() < 0.2:
            self.size = max(SECOND, self.size // self.draw.choice([2, 5]) // SECOND * SECOND)
        if exact:
            end = (max([self.read_us - self.delay, *times]) // self.size + 1) * self.size
            times = [*times, end + self.delay - self.draw.choice([0, 1, MS])]
        self.written.plan(self.batch, self.watermark)
        starts = {t // self.size * self.size for t in times}
        self.windows |= {(start, start + self.size) for start in starts if start + self.size > self.late}
        emitted = sorted(window for window in self.windows if window[1] <= self.watermark)
        # What comes and goes in one micro-batch is in no file of the state.
        self.windows -= {*emitted}
        if self.claims_start:
            seconds = [(start // SECOND, end // SECOND) for start, end in sorted(self.windows)]
            self.written.keep(self.batch, *seconds, kind="snapshot")
        self.read_us = max([self.read_us, *times])
        implied = max(self.watermark, (self.read_us - self.delay) // MS * MS)
        times = [start if self.claims_start else end for start, end in emitted]
        return Committed(self.written.id, self.batch, times, implied)

    def _rows(self, times: list[int], exact: bool) -> Committed:
        """Rows of a source whose watermark is right for those on time; the others are late, and kept."""
        times = [*times, self.watermark + 1] if exact else times
        on_time = [t for t in times if t > self.watermark]
        if self.ended:
            on_time = []
        self.watermark = max(self.watermark, self.watermark + self.draw.randrange(-3, 10) * SECOND)
        self.ended |= self.batch > 8 and self.draw.random() < 0.1
        if self.ended:
            self.watermark = MAX_WATERMARK
        self.written.plan(self.batch, 0, ours(self.watermark or None))
        return Committed(self.written.id, self.batch, on_time, self.watermark)

    def write(self) -> None:
        """Commit the data: as sinks do, not a second time for one micro-batch."""
        assert self.planned is not None
        if not any((one.writer, one.batch) == (self.planned.writer, self.planned.batch) for one in self.table):
            self.table.append(self.planned)

    def commit(self) -> None:
        assert self.planned is not None
        self.written.commit(self.batch, self.planned.implied if self.size else 0)
        if self.size:
            self.late, self.watermark = self.watermark, self.planned.implied
        self.planned = None

    def step(self) -> None:
        """One micro-batch; it may be killed before its data, or before its end, and is then done again."""
        self.plan()
        for _ in range(self.draw.randrange(3)):
            if self.draw.random() < 0.5:
                self.write()
        self.write()
        self.commit()


def history(root: Path, seed: int) -> tuple[int, int]:
    """Run one history; return how many claims were made, and how many of them are false."""
    draw = random.Random(seed)
    table: list[Committed] = []
    column, names = (
        draw.choice([("window.end", "ab"), ("window.start", "ab"), ("ts", "ab")]),
        "ab"[: draw.choice([1, 1, 2])],
    )
    queries = []
    for name in names:
        starts = column[0] == "window.start"
        window_s = None if column[0] == "ts" else draw.choice([60, 600] if starts else [1, 10, 60])
        logs = {"offset_log": draw.choice(["v1", "v2"]), "commit_log": draw.choice(["v1", "v2", "v3"])}
        written = WrittenCheckpoint(root / name, id=name, window_s=window_s, keeps=draw.choice([1, 2, 100]), **logs)
        delay = draw.choice([0, 5, 60]) * SECOND + draw.randrange(999)
        size = (window_s or 0) * SECOND
        queries.append(Query(draw, written, table, delay=delay, claims_start=starts, size=size))
        queries[-1].step()
    claims = TableWriters(declared_writers([str(query.written) for query in queries], column[0]))
    made: list[tuple[int, int]] = []
    seen = 0
    for _ in range(draw.randrange(5, 25)):
        draw.choice(queries).step()
        if draw.random() < 0.2:
            table.append(Committed("foreign", 0, [draw.randrange(100 * SECOND)], MIN_WATERMARK))
        if draw.random() < 0.2:
            # The reader starts anew: it has what is in its offset, and the checkpoints as they are now.
            claims = TableWriters(
                declared_writers([str(query.written) for query in queries], column[0]), claims.claims.known
            )
        if draw.random() < 0.7:
            claims.take(
                SinkCommit(version, [(one.writer, one.batch)]) for version, one in enumerate(table) if version >= seen
            )
            seen = len(table)
            made.append((seen, claims.claims.until_us))
            if not starts and not any(query.planned for query in queries):
                _check_not_late(claims, table, queries, seed)
    false = 0
    for version, until_us in made:
        later = [t for one in table[version:] if one.writer != "foreign" for t in one.times]
        false += any(t <= until_us for t in later)
    assert [until for _, until in made] == sorted(until for _, until in made), f"seed {seed}: a claim went back"
    return len(made), false


def _check_not_late(claims: TableWriters, table: list[Committed], queries: list[Query], seed: int) -> None:
    """What followed from the micro-batch before the last one of each writer is claimed by now."""
    possible = []
    for query in queries:
        own = [one for one in table if one.writer == query.written.id]
        at = own[-1] if not query.size else (own[-2] if len(own) > 1 else None)
        # Before its first window may have ended a query claims nothing: its watermark is that of 1970.
        possible.append(at.implied if at is not None and at.implied > 0 else MIN_WATERMARK)
    assert claims.claims.until_us >= min(possible), (
        f"seed {seed}: {claims.claims.until_us} is claimed, and {min(possible)} could be"
    )


@pytest.mark.parametrize("first", [0])
def test_no_claim_of_a_random_history_is_false(tmp_path: Path, first: int) -> None:
    made = false = 0
    for seed in range(first, first + examples(100)):
        claimed, wrong = history(tmp_path / str(seed), seed)
        assert not wrong, f"seed {seed}: {wrong} of {claimed} claims are false"
        made, false = made + claimed, false + wrong
    assert made > 5 * examples(100), "a history has several claims"
    print(f"{examples(100)} histories, {made} claims, {false} false")

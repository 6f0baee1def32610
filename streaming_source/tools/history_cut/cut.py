"""The exact cut by offset: where a topic goes on after the history that was written from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from alignment.watermarks import Int64Array
from streaming_source.exceptions import OptionError
from streaming_source.tools.history_cut.pieces import Columns, History, Piece, pieces_of

_EARLIEST: Final = -2
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True, order=True)
class Gap:
    """Offsets `[first, until)` of a partition that are not in the history, though later ones are."""

    topic: str
    partition: int
    first: int
    until: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}: {self.first} to {self.until - 1}"


@dataclass(frozen=True, slots=True)
class HistoryCut:
    """The place at which each partition goes on where a history ends; `print` shows it as text.

    Attributes
    ----------
    next_offsets
        By topic and partition the first offset that is not in the history: its largest one and one.
    missing
        By topic the partitions of which the history has no record; they start at the earliest.
    gaps
        Offsets between the first and the last one of a partition that the history does not have. Compaction leaves
        such, and so do the marks of transactions; else they are records that are lost.
    repeated
        By topic and partition how many records of it the history has more than once.
    rows
        How many records with an offset the history has.
    pieces, pieces_read
        How many files or row groups it has, and of how many the columns were read because their statistics do not show
        each offset.
    nulls
        How many records lack their topic, partition or offset. They count for nothing above.
    """

    next_offsets: Mapping[str, Mapping[int, int]]
    missing: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()
    repeated: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    rows: int = 0
    pieces: int = 0
    pieces_read: int = 0
    nulls: int = 0

    @property
    def starting_offsets(self) -> str:
        """The value of option `startingOffsets`: JSON, as Spark's own Kafka source takes it."""
        by_topic = {
            topic: {**dict.fromkeys(self.missing.get(topic, ()), _EARLIEST), **offsets}
            for topic, offsets in sorted({**{topic: {} for topic in self.missing}, **self.next_offsets}.items())
        }
        return json.dumps(
            {topic: {str(number): offsets[number] for number in sorted(offsets)} for topic, offsets in by_topic.items()}
        )

    def __str__(self) -> str:
        partitions = sum(map(len, self.next_offsets.values()))
        lines = [
            f"{self.rows:,} records of {partitions} partitions, in {self.pieces:,} pieces, {self.pieces_read:,} of "
            "them read.",
            f"startingOffsets = {self.starting_offsets}",
        ]
        for topic, numbers in sorted(self.missing.items()):
            named = ", ".join(map(str, numbers))
            lines.append(f"Not in the history, and read from the earliest record on: {topic}, partitions {named}.")
        if self.gaps:
            missing = sum(gap.until - gap.first for gap in self.gaps)
            shown = "; ".join(map(str, self.gaps[:_SHOWN])) + ("; ..." if len(self.gaps) > _SHOWN else "")
            lines.append(
                f"{missing:,} offsets are missing in {len(self.gaps)} gaps: {shown}. Compaction and transactions leave "
                "gaps; if the topic has neither, these records were lost."
            )
        for topic, counts in sorted(self.repeated.items()):
            named = ", ".join(f"{number}: {count:,}" for number, count in sorted(counts.items()))
            lines.append(f"More than once in the history: {topic}, by partition {named}.")
        if self.nulls:
            lines.append(
                f"{self.nulls:,} records have no topic, partition or offset, and count for nothing here. Their offsets "
                "may be among those that are missing."
            )
        return "\n".join(lines)


def cut_from(
    history: History,
    *,
    partitions: Mapping[str, int] | None = None,
    topic_column: str = "topic",
    partition_column: str = "partition",
    offset_column: str = "offset",
) -> HistoryCut:
    """Find where each partition of a topic goes on after a history that was written from it.

    For a history that kept the columns `topic`, `partition` and `offset` of Spark's Kafka frame. So the cut is exact,
    whatever the event times are: no record is lost between the two, and none is read twice. Where the statistics of
    Parquet files, of a Delta table's log or of an Iceberg table's manifests show all offsets, nothing else is read;
    elsewhere these three columns are.

    Parameters
    ----------
    history
        A directory of Parquet files (values in the names of directories are columns), a Delta table, or an Iceberg
        table: a path or URI, a path of a `.metadata.json`, or a table that `pyiceberg` has loaded.
    partitions
        By topic how many partitions it has, if the history may lack some: without, those up to the largest number in
        the history are known. Those that are missing start at the earliest record.
    topic_column, partition_column, offset_column
        What the columns are called.

    Returns
    -------
    HistoryCut
        `starting_offsets` is the value of the option for the live side. O(files), and O(rows) of those that are read.

    Raises
    ------
    SchemaError
        If the history has no such columns.
    OptionError
        If there is nothing at the path, or no record, or more partitions than `partitions` has.

    Examples
    --------
    >>> import tempfile, pyarrow as pa, pyarrow.parquet as pq
    >>> with tempfile.TemporaryDirectory() as root:
    ...     rows = {"topic": ["orders"] * 3, "partition": [0] * 3, "offset": [7, 8, 10]}
    ...     pq.write_table(pa.table(rows), f"{root}/part-0.parquet")
    ...     cut = cut_from(root, partitions={"orders": 2})
    >>> cut.starting_offsets
    '{"orders": {"0": 11, "1": -2}}'
    >>> cut.gaps
    (Gap(topic='orders', partition=0, first=9, until=10),)
    """
    columns = (topic_column, partition_column, offset_column)
    found = _Offsets()
    for piece in pieces_of(history, columns):
        found.add(piece, columns)
    if not found.by_partition:
        raise OptionError(
            f"cut_from({str(history)!r}): it has no record with an offset; start the topic with startingOffsets = "
            "earliest"
        )
    return found.cut(partitions or {})


class _Offsets:
    """Runs of offsets by partition, `[first, last]` each, and how many records are in them."""

    def __init__(self) -> None:
        self.by_partition: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
        self.pieces = self.pieces_read = self.nulls = 0

    def add(self, piece: Piece, columns: Columns) -> None:
        self.pieces += 1
        if piece.is_exact:
            assert piece.low is not None
            self._add(piece.topic, piece.partition, piece.low, piece.high, piece.rows)
            return
        self.pieces_read += 1
        table, nulls = piece.offsets(columns)
        self.nulls += nulls
        for group in table.group_by(["topic", "partition"]).aggregate([("offset", "list")]).to_pylist():
            for low, high, rows in _runs(np.sort(np.array(group["offset_list"], np.int64))):
                self._add(str(group["topic"]), int(group["partition"]), low, high, rows)

    def _add(self, topic: str, partition: int, low: int, high: int, rows: int) -> None:
        self.by_partition.setdefault((topic, partition), []).append((low, high, rows))

    def cut(self, partitions: Mapping[str, int]) -> HistoryCut:
        next_offsets: dict[str, dict[int, int]] = {}
        repeated: dict[str, dict[int, int]] = {}
        gaps: list[Gap] = []
        rows = 0
        for (topic, partition), runs in sorted(self.by_partition.items()):
            runs.sort()
            covered, reached = 0, runs[0][0]
            for low, high, count in runs:
                if low > reached:
                    gaps.append(Gap(topic, partition, reached, low))
                covered += max(high + 1 - max(low, reached), 0)
                reached = max(reached, high + 1)
                rows += count
            next_offsets.setdefault(topic, {})[partition] = reached
            if more := sum(count for *_, count in runs) - covered:
                repeated.setdefault(topic, {})[partition] = more
        return HistoryCut(
            next_offsets=next_offsets,
            missing=_missing(next_offsets, partitions),
            gaps=tuple(gaps),
            repeated=repeated,
            rows=rows,
            pieces=self.pieces,
            pieces_read=self.pieces_read,
            nulls=self.nulls,
        )


def _runs(offsets: Int64Array) -> list[tuple[int, int, int]]:
    """Runs of sorted offsets without a gap: first, last, and how many records. O(n)."""
    starts = np.flatnonzero(np.diff(offsets, prepend=offsets[0] - 2) > 1)
    ends = np.append(starts[1:], offsets.size)
    return [(int(offsets[i]), int(offsets[j - 1]), j - i) for i, j in zip(starts.tolist(), ends.tolist(), strict=True)]


def _missing(
    next_offsets: Mapping[str, Mapping[int, int]], partitions: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    missing = {}
    for topic in sorted({*next_offsets, *partitions}):
        there = next_offsets.get(topic, {})
        known = max(there, default=-1) + 1
        total = partitions.get(topic, known)
        if total < known:
            raise OptionError(
                f"cut_from(..., partitions={dict(partitions)}): the history has partition {known - 1} of {topic!r}; "
                "give the number of partitions that the topic has"
            )
        if lacking := tuple([number for number in range(total) if number not in there]):
            missing[topic] = lacking
    return missing

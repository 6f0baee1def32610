"""The result of an audit: counts as Arrow tables, by micro-batch and split."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from alignment.arrow_times import format_timestamp, micros_of
from alignment.codec import Form, Wire
from alignment.timestamps import NO_TIMESTAMP
from streaming_source.checkpoint.offset_log import Checkpoint
from streaming_source.tools.auditing.counting import Tally
from streaming_source.tools.auditing.sources.base import SplitRead

_TIME: Final = pa.timestamp("us", "UTC")
COUNTS: Final = ("read", "dropped", "emitted", "open", "unknown", "without_time")
PAIRS: Final = ("windows_read", "windows_dropped", "windows_emitted", "windows_open")
_READS: Final = pa.schema(
    {
        "batch": pa.int64(),
        "source": pa.int32(),
        "split": pa.string(),
        "directory": pa.string(),
        **dict.fromkeys((*COUNTS, *PAIRS, "scanned"), pa.int64()),
        "earliest": _TIME,
        "latest": _TIME,
        "gone": pa.string(),
    }
)
_BATCHES: Final = pa.schema(
    {
        "batch": pa.int64(),
        "late_watermark": _TIME,
        "watermark": _TIME,
        "next_watermark": _TIME,
        **dict.fromkeys((*COUNTS, *PAIRS), pa.int64()),
        "latest": _TIME,
        "dropped_under": pa.string(),
        "carried_by": pa.string(),
    }
)


@dataclass(frozen=True, slots=True)
class SourceSummary:
    """One source: its kind (`files`, `delta`, `iceberg` or `kafka`), its path or topics, and its event time column."""

    kind: str
    name: str
    time: str
    format: str | None = None


@dataclass(frozen=True, slots=True)
class AuditedQuery:
    """The query that was audited.

    `operator` is the stateful operator that drops rows, in words; None if the query has none. `window` describes its
    windows. `mode` is the output mode; None if it is append or update, or has no effect. `undecided` is why all rows
    are unknown. `downstream` are the operators after it, whose drops are not counted. If `is_window_shown`, the state
    has such windows; else they are as the user gave them. So it is with `is_mode_shown` and complete mode, and with
    `is_operator_shown`.
    """

    checkpoint: str
    query_id: Annotated[str | None, Wire("queryId")]
    sources: tuple[SourceSummary, ...]
    operator: str | None
    window: str | None
    mode: Annotated[str | None, Wire("outputMode")]
    undecided: str | None
    downstream: tuple[str, ...]
    is_window_shown: Annotated[bool, Wire("-")] = False
    is_mode_shown: Annotated[bool, Wire("-")] = False
    is_operator_shown: Annotated[bool, Wire("-")] = True


@dataclass(frozen=True, slots=True)
class Carrier:
    """A split whose latest row moved the watermark, and how many rows were dropped by that watermark."""

    source: int
    split: str
    directory: Annotated[str, Wire("-")]
    dropped: int
    batch: int
    watermark_us: Annotated[int, Wire("watermark", Form(format_timestamp, micros_of))]


@dataclass(frozen=True, slots=True)
class Counts:
    """The rows that the watermark of a query dropped, each of them counted.

    `dropped + emitted + open + unknown + without_time == read`, here and in each row of the tables. Each row of a
    source is counted once. If windows overlap, `windows_*` of the tables count a row once for each of its windows.

    Attributes
    ----------
    query : AuditedQuery
    exact_from : int
        The first micro-batch whose rows are not all unknown.
    reads : pyarrow.Table
        One row for each micro-batch and split. `batch` is null for rows that were read before `exact_from`; `gone` is
        why rows can no longer be read.
    carriers : sequence of Carrier
        The splits that pushed the watermark past rows of others, those with the most dropped rows first.
    notes : sequence of str
        What must be known to judge the figures.
    """

    query: AuditedQuery
    exact_from: int
    reads: pa.Table = field(repr=False)
    batches: pa.Table = field(repr=False)
    carriers: Sequence[Carrier]
    notes: Sequence[str]

    @classmethod
    def of(
        cls,
        query: AuditedQuery,
        checkpoint: Checkpoint,
        counted: Iterable[tuple[int, SplitRead, Tally]],
        notes: Sequence[str],
    ) -> Self:
        """Make the tables of `(index of the source, what was read, its counts)`, in any order."""
        rows = [_row(number, read, tally) for number, read, tally in counted]
        reads = pa.Table.from_pylist(rows, _READS).sort_by([("batch", "ascending"), ("source", "ascending")])
        batches, carriers = _batches(checkpoint, reads)
        first = checkpoint.batches[0].number if checkpoint.batches else 0
        return cls(query, first, reads, batches, carriers, tuple(notes))

    @property
    def has_overlaps(self) -> bool:
        """True if a row can be in several windows."""
        return bool(self.reads["windows_read"].null_count < len(self.reads))

    def count(self, name: str) -> int:
        """Return the sum of one of the counts."""
        return int(pc.sum(self.reads[name]).as_py() or 0)

    @property
    def read(self) -> int:
        """Rows that the sources delivered in committed micro-batches and that can still be counted."""
        return self.count("read")

    @property
    def dropped(self) -> int:
        """Rows that the watermark dropped, from one of their windows at least."""
        return self.count("dropped")

    @property
    def emitted(self) -> int:
        """Rows in emitted results; of a join or a deduplication, rows that were not dropped."""
        return self.count("emitted")

    @property
    def open(self) -> int:
        """Rows in windows that are not emitted yet, and that were dropped from none."""
        return self.count("open")

    @property
    def unknown(self) -> int:
        """Rows of which the log, or the checkpoint, no longer shows what happened to them."""
        return self.count("unknown")

    @property
    def without_time(self) -> int:
        """Rows without an event time: they are in no window, and no watermark dropped them."""
        return self.count("without_time")

    def splits(self) -> pa.Table:
        """Return a row for each split: counts, the first and last micro-batch that read it, and its event times."""
        return _grouped(self.reads, ["source", "split", "directory"])

    def directories(self) -> pa.Table:
        """Return a row for each directory, or topic."""
        return _grouped(self.reads, ["source", "directory"])


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a table, times in microseconds since the epoch: a wrong unit leads beyond the year 9999."""
    for index, column in enumerate(table.schema):
        if pa.types.is_timestamp(column.type):
            table = table.set_column(index, column.name, table[index].cast(pa.int64()))
    return list(table.to_pylist())


def _row(number: int, read: SplitRead, tally: Tally) -> dict[str, Any]:
    has_times = tally.latest_us > NO_TIMESTAMP
    return {
        "batch": None if read.batch is None else read.batch.number,
        "source": number,
        "split": read.split,
        "directory": read.directory,
        **{name: getattr(tally, name) for name in (*COUNTS, "scanned", "gone")},
        **dict(zip(PAIRS, tally.pairs or (None,) * 4, strict=True)),
        "earliest": tally.earliest_us if has_times else None,
        "latest": tally.latest_us if has_times else None,
    }


def _batches(checkpoint: Checkpoint, reads: pa.Table) -> tuple[pa.Table, list[Carrier]]:
    """Return a table by micro-batch, and the splits that moved the watermark, with the rows dropped by it."""
    counts = {row["batch"]: row for row in rows_of(_grouped(reads, ["batch"]))}
    foremost = _foremost(reads)
    rows: list[dict[str, Any]] = []
    # By watermark, the split that moved it there.
    carriers: dict[int, Carrier] = {}
    dropped: dict[tuple[int, str], Carrier] = {}
    for batch in checkpoint.batches:
        known = counts.get(batch.number, {})
        under = carriers.get(batch.late_us)
        if under is not None and (lost := known.get("dropped")):
            # A split may have moved it several times: the first time is named.
            before = dropped.get((under.source, under.split), under)
            dropped[under.source, under.split] = replace(before, dropped=before.dropped + lost)
        first = foremost.get(batch.number)
        carrier = None
        if first is not None and batch.next_us is not None and batch.next_us > batch.watermark_us:
            carrier = carriers[batch.next_us] = Carrier(*first, 0, batch.number, batch.next_us)
        rows.append(
            {
                "batch": batch.number,
                "late_watermark": batch.late_us,
                "watermark": batch.watermark_us,
                "next_watermark": batch.next_us,
                **{name: known.get(name) or 0 for name in COUNTS},
                **{name: known.get(name) for name in (*PAIRS, "latest")},
                "dropped_under": under and under.split,
                "carried_by": carrier and carrier.split,
            }
        )
    return pa.Table.from_pylist(rows, _BATCHES), sorted(dropped.values(), key=lambda c: (-c.dropped, c.batch))


def _foremost(reads: pa.Table) -> dict[int, tuple[int, str, str]]:
    """Return the source, split and directory of the latest row of each micro-batch."""
    found: dict[int, tuple[int, tuple[int, str, str]]] = {}
    batches, *splits = (reads[name].to_pylist() for name in ("batch", "source", "split", "directory"))
    latest = reads["latest"].cast(pa.int64()).to_pylist()
    for batch, us, *split in zip(batches, latest, *splits, strict=True):
        if batch is not None and us is not None and (batch not in found or us > found[batch][0]):
            found[batch] = us, (split[0], split[1], split[2])
    return {batch: split for batch, (_, split) in found.items()}


def _grouped(reads: pa.Table, keys: list[str]) -> pa.Table:
    sums = [(name, "sum") for name in (*COUNTS, *PAIRS)]
    more = [("earliest", "min"), ("latest", "max")]
    if "batch" not in keys:
        more += [("batch", "min"), ("batch", "max")]
    found = reads.group_by(keys, use_threads=False).aggregate([*sums, *more])
    new = [name.removesuffix("_sum") for name in found.column_names]
    names = {"earliest_min": "earliest", "latest_max": "latest", "batch_min": "first_batch", "batch_max": "last_batch"}
    return found.rename_columns([names.get(name, name) for name in new])

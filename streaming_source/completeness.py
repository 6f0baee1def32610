"""Up to which event time a table is complete, by the checkpoints of the queries that write it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import numpy as np
from pyarrow import fs

from alignment.claims import Lane
from alignment.durations import parse_duration_us
from alignment.exceptions import AlignmentError
from alignment.sentence import moment
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK
from streaming_source.checkpoint.table_claims import TableClaims, declared_writers
from streaming_source.checkpoint.writer import Writer
from streaming_source.data_files.stores import StorageOptions
from streaming_source.exceptions import OptionError
from streaming_source.monitoring.explained import explain_checkpoint
from streaming_source.monitoring.report import WatermarkReport

__all__ = ["Completeness", "WriterCompleteness", "complete_until"]

_END: Final = "9999-12-31T23:59:59.999999Z"
"""What stands for the end of time in JSON: all rows have come."""

Commits = Mapping[str, tuple[int, int]]
"""The newest commit of each writer: its micro-batch, and the version of the table."""


@dataclass(frozen=True, slots=True)
class WriterCompleteness:
    """One writer of a table: the query `id`, and what its last commit claims.

    `batch` and `version` are those of its last commit, and `until_us` is what that claims; None before there is one.
    The claim stands there since `since_us`, in processing time. `why` says why it is not further, and `held_by` has the
    splits that hold it, of a query over sources of this library.
    """

    id: str
    checkpoint: str
    batch: int | None = None
    version: int | None = None
    until_us: int | None = None
    since_us: int | None = None
    why: str | None = None
    held_by: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it with times as ISO-8601 in UTC."""
        return {
            "id": self.id,
            "checkpoint": self.checkpoint,
            "batch": self.batch,
            "version": self.version,
            "complete_until": _text(self.until_us),
            "since": _text(self.since_us),
            "why": self.why,
            "held_by": list(self.held_by),
        }


@dataclass(frozen=True, slots=True)
class Completeness:
    """Up to when a table is complete: no later commit has a row whose `column` is at or before `until_us`.

    But late ones, which are behind the watermark of their writer. `until_us` is None as long as a writer has claimed
    nothing; `version` is that of the newest commit of its writers. Its `str` is for people.
    """

    table: str
    column: str
    version: int | None
    until_us: int | None
    writers: tuple[WriterCompleteness, ...]

    def covers(self, until_us: int) -> bool:
        """Return whether all rows before an event time are there, in microseconds."""
        return self.until_us is not None and self.until_us >= until_us - 1

    @property
    def holder(self) -> WriterCompleteness:
        """The writer whose claim is the smallest."""
        return min(self.writers, key=lambda one: MIN_WATERMARK if one.until_us is None else one.until_us)

    def to_json(self) -> dict[str, Any]:
        """Return it with times as ISO-8601 in UTC, to the microsecond."""
        return {
            "complete_until": _text(self.until_us),
            "column": self.column,
            "version": self.version,
            "writers": [one.to_json() for one in self.writers],
        }

    def __str__(self) -> str:
        holder = self.holder
        if self.until_us is None:
            first = f"{self.table} has no claim yet"
        elif self.until_us == MAX_WATERMARK:
            first = f"{self.table} is complete: all rows of its writers have come"
        else:
            first = f"{self.table} is complete until {moment(self.until_us)} by {self.column}"
        since = "" if holder.since_us is None else f", since {moment(holder.since_us)}"
        by = "" if holder.version is None else f", by version {holder.version}"
        lines = [f"{first}{since}{by}."]
        if holder.why is not None and self.until_us != MAX_WATERMARK:
            of = f" of {len(self.writers)}" if self.writers[1:] else ""
            lines.append(f"Not further, because of the writer {holder.id}{of} ({holder.checkpoint}): {holder.why}")
        return "\n".join(lines)


def complete_until(
    table: str,
    checkpoints: str | Sequence[str],
    *,
    column: str | None = None,
    delay: timedelta | str | None = None,
    options: Mapping[str, str] | None = None,
) -> Completeness:
    """Return up to which event time a table is complete, by what its writers have committed.

    The table's newest commits are read, and a few small files of each checkpoint; no data file is listed or opened, and
    Spark is not started.

    Parameters
    ----------
    table
        The folder of a Delta table, the name of an Iceberg table, or a directory that Spark's file sink writes.
    checkpoints
        The `checkpointLocation` of each query that writes the table, running or stopped. `"old -> new"` is one that
        another has replaced.
    column
        The column of the table; None for the one that the claim is on by itself, as `window.end`.
    delay
        How far a row's column may be behind its writer's watermark, where that does not follow from what the query
        does; you vouch for it. None for what follows alone.
    options
        As those of the format that reads it: `storage.*`, and `catalog.*` of an Iceberg table.

    Raises
    ------
    ClaimError
        If no claim can be had of a writer; names it, the reason and the fix.
    CheckpointError, OptionError
        If a checkpoint is damaged, or there is no such table.

    Examples
    --------
    >>> found = complete_until("silver", "checkpoints/silver")  # doctest: +SKIP
    >>> print(found)  # doctest: +SKIP
    silver is complete until 2026-01-01 12:40:00 UTC by window.end, since 2026-01-01 12:41:07 UTC, by version 17.
    """
    given = dict(options or {})
    storage = StorageOptions.pop_from(others := dict(given))
    delay_us = None if delay is None else parse_duration_us(delay, name="delay")
    claims = TableClaims(declared_writers(checkpoints, column, delay_us, storage.opened))
    newest = _newest_commits(table, given, storage, others, claims.ids)
    claims.take((writer, *commit) for writer, commit in reversed([*newest.items()]))
    writers = tuple(_writer(claims, lane, newest) for lane in claims.lanes)
    until_us = None if claims.until_us == MIN_WATERMARK else claims.until_us
    version = next((version for _, version in newest.values()), None)
    return Completeness(table, claims.column, version, until_us, writers)


def _newest_commits(
    table: str,
    options: Mapping[str, str],
    storage: StorageOptions,
    others: Collection[str],
    writers: Collection[str],
) -> Commits:
    """Return the newest commits of some writers, the last one first; `others` are the options but those of a store."""
    # Imported here: each kind of table needs a package of its own.
    if any(name.lower().startswith("catalog.") for name in options):
        from streaming_source.connectors import IcebergSource

        values = IcebergSource.options().parse({"path": table, **options})
        return IcebergSource.from_options(values).newest_micro_batches(writers)
    filesystem, root = storage.at(table).open()
    if filesystem.get_file_info(f"{root}/_delta_log").type is fs.FileType.Directory:
        from streaming_source.connectors import DeltaSource

        values = DeltaSource.options().parse({"path": table, **options})
        return DeltaSource.from_options(values).newest_micro_batches(writers)
    if others:
        raise OptionError(f"options {', '.join(others)}: of a directory only storage.* is known; leave them out")
    from streaming_source.connectors.files.sink_log import last_micro_batch

    batch = last_micro_batch(filesystem, root)
    if batch is None:
        raise OptionError(
            f"{table} is no Delta table, and has no log of Spark's file sink (_spark_metadata), which has what was "
            "committed; give a directory that writeStream writes, or the name of an Iceberg table with its catalog"
        )
    if len(writers) > 1:
        raise OptionError(
            f"{table} is written by Spark's file sink, whose log is of one query, and {len(writers)} checkpoints are "
            "given; give that of the query"
        )
    return dict.fromkeys(writers, (batch, batch))


def _writer(claims: TableClaims, lane: Lane, newest: Commits) -> WriterCompleteness:
    writer, claim = claims.writer(lane), lane.claim
    commit = newest.get(writer.id)
    if commit is None or claim is None:
        why = "it has committed nothing to this table" if commit is None else "its last claim is not known any more"
        batch, version = commit or (None, None)
        return WriterCompleteness(writer.id, writer.checkpoint, batch, version, why=why)
    until_us = None if claim.until_us == MIN_WATERMARK else claim.until_us
    why, held_by = _why(writer, claim.batch)
    since_us = writer.since_us(claim.batch)
    return WriterCompleteness(
        id=writer.id,
        checkpoint=writer.checkpoint,
        batch=claim.batch,
        version=claim.version,
        until_us=until_us,
        since_us=since_us,
        why=why,
        held_by=held_by,
    )


def _why(writer: Writer, batch: int) -> tuple[str, tuple[str, ...]]:
    """Return why a claim is not further, and the splits that hold it."""
    next_us = writer.next_us(batch)
    if next_us is not None:
        return (
            f"its next micro-batch claims {moment(next_us)}. If it has no data, it comes with the next trigger, unless "
            "spark.sql.streaming.noDataMicroBatches.enabled is false: then it waits for data",
            (),
        )
    if not writer.is_ours:
        return (
            "it reads Spark's own sources, and its watermark is the latest event time that it has read, less its delay",
            (),
        )
    report = _slowest(writer.checkpoint)
    return ("its sources are not known yet", ()) if report is None else (report.sentence, report.explanation.held_by)


def _slowest(checkpoint: str) -> WatermarkReport | None:
    """Return the report of the source that holds a query's watermark; None if it cannot be read."""
    try:
        reports = [source.report for source in explain_checkpoint(checkpoint).sources]
    except (AlignmentError, OSError):
        return None
    return min(reports, key=lambda report: report.explanation.watermark, default=None)


def _text(us: int | None) -> str | None:
    return None if us is None else _END if us == MAX_WATERMARK else f"{np.datetime64(us, 'us')}Z"
